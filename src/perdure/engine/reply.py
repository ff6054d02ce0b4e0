"""A reply that somebody waits for."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

_set_result = asyncio.Future.set_result


class Reply(asyncio.Future[Any]):
    """A future that can tell one listener at once instead of in the next turn of the loop.

    Most replies are to handlers that need only be stepped on to write their answer; a turn of the
    loop for each would cost more than that. Whoever awaits it otherwise notices no difference.
    """

    __slots__ = ("_listener",)

    def tell(self, listener: "Callable[[Reply], None]") -> None:
        """Call this as soon as there is a reply. There is one listener at most."""
        self._listener = listener

    def set_result(self, result: Any) -> None:
        _set_result(self, result)
        self._speak()

    def set_exception(self, error: type | BaseException) -> None:
        super().set_exception(error)
        self._speak()

    def cancel(self, msg: Any | None = None) -> bool:
        cancelled = super().cancel(msg)
        if cancelled:
            # Seldom, and by anybody: the listener shall not find itself inside of them.
            self.get_loop().call_soon(self._speak)
        return cancelled

    def _speak(self) -> None:
        listener = getattr(self, "_listener", None)
        if listener is not None:
            try:
                listener(self)
            except Exception:
                # Who replies has others to reply to.
                log.exception("delivering a reply failed")
