"""The log of one pass: lines with the step they belong to, and a number within it."""

import threading
from collections.abc import Callable
from contextvars import ContextVar

import msgspec

from perdure.sdk.limits import LOG_BYTES_MAX, LOG_LINES_MAX

ROOT = "@root"
"""The scope of what a handler logs outside of its steps."""

scope: ContextVar[str] = ContextVar("perdure_sdk_scope", default=ROOT)
"""The step whose body is running. It follows the body through its awaits and its tasks."""

# What JSON does not know is shown as text: a log line never fails a step.
_fields = msgspec.json.Encoder(enc_hook=str)


class Lines:
    """The lines of a pass, in number and size as many as it may ship."""

    __slots__ = ("_adding", "_bytes", "_dropped", "_lines", "_next", "_now_ms")

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._lines: list[dict[str, object]] = []
        self._next: dict[str, int] = {}
        self._bytes = self._dropped = 0
        self._adding = threading.Lock()

    def add(self, level: str, message: str, fields: dict[str, object]) -> None:
        """Add a line, from any thread."""
        text = _sendable(str(message))
        told = _encoded(fields) if fields else None
        with self._adding:
            self._add(level, text, told)

    def _add(self, level: str, text: str, told: bytes | None) -> None:
        where = scope.get()
        index = self._next.get(where, 0)
        self._next[where] = index + 1
        self._bytes += len(text) + (len(told) if told is not None else 0)
        if len(self._lines) >= LOG_LINES_MAX or self._bytes > LOG_BYTES_MAX:
            self._dropped += 1
            return
        line: dict[str, object] = {"level": level, "message": text}
        if told is not None:
            line["fields"] = msgspec.Raw(told)
        line |= {"scope": where, "index": index, "tsMs": self._now_ms()}
        self._lines.append(line)

    def shipped(self) -> list[dict[str, object]]:
        """The lines as they are sent; if there were too many, the last one says so."""
        if not self._dropped:
            return list(self._lines)
        told = f"{self._dropped} more lines were dropped: a pass ships {LOG_LINES_MAX} and 256 KiB"
        marker = {"level": "error", "message": told, "scope": ROOT, "index": LOG_LINES_MAX}
        return [*self._lines, {**marker, "tsMs": self._now_ms()}]


class Log:
    """`ctx.log`: call it for an ordinary line, or one of its levels."""

    __slots__ = ("_lines",)

    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def __call__(
        self, message: str, fields: dict[str, object] | None = None, /, **more: object
    ) -> None:
        self._lines.add("info", message, {**(fields or {}), **more})

    def debug(
        self, message: str, fields: dict[str, object] | None = None, /, **more: object
    ) -> None:
        """Detail that is seldom read."""
        self._lines.add("debug", message, {**(fields or {}), **more})

    def info(
        self, message: str, fields: dict[str, object] | None = None, /, **more: object
    ) -> None:
        """What happened."""
        self._lines.add("info", message, {**(fields or {}), **more})

    def warn(
        self, message: str, fields: dict[str, object] | None = None, /, **more: object
    ) -> None:
        """What somebody should look at."""
        self._lines.add("warn", message, {**(fields or {}), **more})

    def error(
        self, message: str, fields: dict[str, object] | None = None, /, **more: object
    ) -> None:
        """What went wrong."""
        self._lines.add("error", message, {**(fields or {}), **more})


def _sendable(text: str) -> str:
    """Text without halves of surrogate pairs, which no UTF-8 can carry."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _encoded(fields: dict[str, object]) -> bytes:
    try:
        return _fields.encode(fields)
    except (TypeError, ValueError, OverflowError, RecursionError):
        shown = {_sendable(str(name)): _sendable(repr(value)) for name, value in fields.items()}
        return _fields.encode(shown)
