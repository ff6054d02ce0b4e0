"""What each phase of a connection may hold, and how long it may take: one table.

A deadline is checked by the sweep over all connections, so it is exact to `SWEEP_SECONDS`. Where a
phase has a `progress_bytes`, its deadline starts anew with every so many bytes: a slow transfer
goes on for as long as it is a transfer.
"""

from typing import NamedTuple

SWEEP_SECONDS = 5
"""How often all connections are checked against their deadlines."""


class Bound(NamedTuple):
    """The bounds of one phase."""

    bytes_max: int
    """The most that the connection holds in this phase; 0 where a setting decides."""
    seconds: float
    progress_bytes: int = 0

    @property
    def sweeps(self) -> int:
        """The deadline as a number of sweeps."""
        return max(1, round(self.seconds / SWEEP_SECONDS))


IDLE = Bound(0, 75)
HEAD = Bound(32_768, 15)
BODY = Bound(0, 20, 20_480)
TRAILER = Bound(8_192, 20)
ANSWER = Bound(0, 30, 30_720)
REFUSED = Bound(8_388_608, 2)
UPGRADE = Bound(65_536, 15)
WEBSOCKET_IN = Bound(0, 30, 30_720)
WEBSOCKET_OUT = Bound(33_554_432, 30, 30_720)
EVENTS_OUT = Bound(1_048_576, 30, 30_720)

PHASES = {
    "idle": IDLE,
    "head": HEAD,
    "body": BODY,
    "trailer": TRAILER,
    "answer": ANSWER,
    "refused": REFUSED,
    "upgrade": UPGRADE,
    "websocket_in": WEBSOCKET_IN,
    "websocket_out": WEBSOCKET_OUT,
    "events_out": EVENTS_OUT,
}
"""Every phase of a connection. A test drives a connection over the edge of each.

`body` and `websocket_in` are bounded by the limit of the route, `answer` by the answer itself. What
comes in behind a refusal is dropped; its bound is on what is read. `trailer` is whatever of a
chunked body is not the body: sizes, extensions and trailers.
"""

FRAMING_PER_BODY_BYTE = 16
"""How much chunk framing each byte of a body may bring along: chunks of one byte bring five."""
PIPELINED_MAX = 8
"""How many requests may wait behind the one that is being answered."""
SKIPPED_BYTES_MAX = 65_536
"""A body of a refused request up to this size is skipped, and the connection goes on behind it."""
FRAGMENTS_MAX = 16_384
"""How many frames one WebSocket message may come in."""
RETRY_AFTER_SECONDS = 5
"""When a client shall come back that was refused for want of room."""


class ConnectionLimits(NamedTuple):
    """What all connections of a process may take together: settings of an operator."""

    connections_max: int = 32_768
    per_peer_max: int = 25_000
    memory_bytes_max: int = 268_435_456


class Progress:
    """Measures one phase against its deadline."""

    __slots__ = ("_bound", "_mark", "_since")

    def __init__(self, bound: Bound, sweep: int, done: int = 0) -> None:
        self._bound = bound
        self._since = sweep
        self._mark = done

    def is_late(self, sweep: int, done: int) -> bool:
        """Whether the deadline is over. `done` counts the bytes that made it so far."""
        bound = self._bound
        if bound.progress_bytes and done - self._mark >= bound.progress_bytes:
            self._mark, self._since = done, sweep
        return sweep - self._since > bound.sweeps
