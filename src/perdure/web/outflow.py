"""What a connection that writes on and on has not got rid of yet."""

import asyncio

from perdure.web.limits import Bound, Progress


class Outflow:
    """Writes to one transport, and notices a peer that does not take what was written."""

    __slots__ = ("_bound", "_stalled", "_sweep", "_transport", "_written")

    def __init__(self, transport: asyncio.Transport, bound: Bound) -> None:
        self._transport = transport
        self._bound = bound
        self._written = 0
        self._sweep = 0
        self._stalled: Progress | None = None

    @property
    def is_writable(self) -> bool:
        return self._stalled is None

    def write(self, data: bytes) -> None:
        """Send soon. A peer with too much to take already is cut off."""
        if self._stalled is not None:
            waiting = self._transport.get_write_buffer_size() + len(data)
            if waiting > self._bound.bytes_max:
                self._transport.abort()
                return
        self._written += len(data)
        self._transport.write(data)

    def pause(self) -> None:
        self._stalled = Progress(self._bound, self._sweep, self._taken)

    def resume(self) -> None:
        self._stalled = None

    def check(self, sweep: int) -> None:
        """Cut off a peer that takes nothing, or too little."""
        self._sweep = sweep
        if self._stalled is not None and self._stalled.is_late(sweep, self._taken):
            self._transport.abort()

    @property
    def _taken(self) -> int:
        return self._written - self._transport.get_write_buffer_size()
