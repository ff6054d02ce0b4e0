"""Page cursors of lists: opaque to clients, and valid only for one sort order."""

import base64
import binascii
from typing import Literal

import msgspec
from msgspec import Struct

from perdure.core import limits

Sort = Literal["started", "workflow", "status", "app", "duration"]
Direction = Literal["asc", "desc"]
SORTS: tuple[Sort, ...] = ("started", "workflow", "status", "app", "duration")


class Cursor(Struct, frozen=True, array_like=True):
    """The last row of a page: its sort value, and its id as the tie-breaker."""

    sort: Sort
    direction: Direction
    value: int | str | None
    """None for a run that has no duration yet."""
    row_id: str


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Cursor] = msgspec.json.Decoder(Cursor)


def write_cursor(cursor: Cursor) -> str:
    """The text for `X-Next-Cursor`."""
    return base64.urlsafe_b64encode(_encoder.encode(cursor)).decode().rstrip("=")


def read_cursor(text: str, *, sort: Sort, direction: Direction) -> Cursor:
    """The cursor of a text. Raises ValueError if it is not valid, or for another sort order."""
    if len(text) > limits.CURSOR_LENGTH_MAX:
        raise ValueError("cursor was not issued by this server")
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        cursor = _decoder.decode(raw)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise ValueError("cursor was not issued by this server") from None
    if (cursor.sort, cursor.direction) != (sort, direction):
        raise ValueError("cursor belongs to a list with another sort order")
    if cursor.value is not None and isinstance(cursor.value, int) != _is_number(sort):
        raise ValueError("cursor was not issued by this server")
    return cursor


def _is_number(sort: Sort) -> bool:
    return sort in ("started", "duration")
