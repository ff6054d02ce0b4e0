"""Requests with a missing or wrong credential: counted, and logged a few lines at a time."""

import logging

from perdure.web.message import Request

log = logging.getLogger(__name__)

SWEEPS_BETWEEN_LINES = 2
"""How many sweeps of the connections pass between two log lines."""


class FailedLogins:
    """A count since the start, and a line now and then that says what came lately.

    The line names the peer, the method and the path of the latest request, and never what it
    offered as a credential.
    """

    def __init__(self) -> None:
        self.count = 0
        self._reported = 0
        self._latest = ("", "", b"")
        self._sweeps_left = 0

    def note(self, request: Request) -> None:
        self.count += 1
        self._latest = (request.peer, request.method, request.path)

    def sweep(self) -> None:
        """Log what came since the last line, unless that was a moment ago."""
        if self._sweeps_left:
            self._sweeps_left -= 1
            return
        fresh = self.count - self._reported
        if not fresh:
            return
        peer, method, path = self._latest
        log.warning(
            "refused %d requests without a valid credential, the latest from %s to %s %s; "
            "%d since the start",
            fresh,
            peer or "an unknown address",
            method,
            ascii(path[:200].decode("latin-1"))[1:-1],
            self.count,
        )
        self._reported = self.count
        self._sweeps_left = SWEEPS_BETWEEN_LINES
