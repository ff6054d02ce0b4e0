"""Answers that leave together.

A beat answers many requests at once. If each answer were sent as soon as it is written, the client
would be woken for it, find nothing else and go to sleep again, and waking costs the sender more
than sending. So answers wait for those that come right behind them, at most until the loop turns.
"""

import asyncio

TOGETHER_MAX = 32
"""So many answers wait for each other; those behind them are written while these are read."""
LARGE_BYTES_MIN = 65_536
"""An answer of this size is worth being woken for, and its client may be slow to take it."""


class WriteBatch:
    """What the connections of a server have to send, in order."""

    def __init__(self) -> None:
        self._waiting: list[tuple[asyncio.Transport, bytes]] = []

    def put(self, transport: asyncio.Transport, data: bytes) -> None:
        """Send soon. Whoever writes to the transport itself, or closes it, flushes first."""
        waiting = self._waiting
        waiting.append((transport, data))
        if len(waiting) == TOGETHER_MAX or len(data) >= LARGE_BYTES_MIN:
            self.flush()
        elif len(waiting) == 1:
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Send now. An answer whose client is gone goes nowhere."""
        waiting, self._waiting = self._waiting, []
        for transport, data in waiting:
            if not transport.is_closing():
                transport.write(data)
