"""Page tokens: opaque to clients, a position to the server."""

import base64
import binascii

from perdure.core.rejection import InvalidPageToken, InvalidRequest
from perdure.store.interface import ListCursor


def history_token(sequence: int) -> str:
    """The token of the events after a sequence. `MA==` is the beginning."""
    return base64.b64encode(str(sequence).encode()).decode()


def parse_history_token(token: str) -> int:
    text = _decode(token)
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise InvalidPageToken("the page token was not issued by this server")
    return int(text)


def list_token(cursor: ListCursor) -> str:
    return base64.urlsafe_b64encode(f"{cursor.started_at}:{cursor.run_id}".encode()).decode()


def parse_list_token(token: str) -> ListCursor:
    try:
        text = base64.urlsafe_b64decode(token).decode("ascii")
    except (binascii.Error, ValueError):
        text = ""
    started_at, colon, run_id = text.partition(":")
    if not colon or not started_at.isdigit() or len(started_at) > 18:
        raise InvalidRequest("next_page_token", "was not issued for this list")
    return ListCursor(int(started_at), run_id)


def _decode(token: str) -> str:
    try:
        return base64.b64decode(token, validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        raise InvalidPageToken("the page token was not issued by this server") from None
