"""Parsing of requests: bodies, numbers, instants. What is not valid is a 400 with a message."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import TypeVar

import msgspec

from perdure.core import instant
from perdure.core.maps import expectation, whole_body
from perdure.protocols.durablex.json_depth import find_obstacle
from perdure.web.message import HttpError, Request

T = TypeVar("T")


def bad_request(message: str) -> HttpError:
    return HttpError(400, "validation_failed", message)


def read_body(request: Request, decoder: "msgspec.json.Decoder[T]") -> T:
    """The decoded body of a request; no body counts as an empty object."""
    body = whole_body(request.body)
    obstacle = find_obstacle(body)
    if obstacle is not None:
        raise bad_request(obstacle)
    try:
        # Payloads are stored without being decoded, so only this checks that they are UTF-8.
        body.decode()
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise bad_request(expectation(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise HttpError(400, "malformed_json", "the body is not JSON") from None


def read_instant(query: Mapping[str, str], name: str) -> int | None:
    """An instant from a query; one without a zone is UTC."""
    raw = query.get(name)
    if not raw:
        return None
    # An unescaped plus in a query is decoded as a space.
    text = raw.strip().replace(" ", "+")
    try:
        if datetime.fromisoformat(text).tzinfo is None:
            text += "+00:00"
        return instant.parse(text)
    except (ValueError, OverflowError):
        raise bad_request(f"{name} is an instant such as 2026-01-31T12:00:00Z") from None


def choice(query: Mapping[str, str], name: str, known: Collection[str]) -> str | None:
    """One of several choices from a query, or none."""
    value = query.get(name)
    if not value:
        return None
    if value not in known:
        raise bad_request(f"{name} is one of {', '.join(sorted(known))}")
    return value


def integer(query: Mapping[str, str], name: str, least: int, most: int, default: int) -> int:
    """A number from a query; one out of range is refused."""
    raw = query.get(name)
    if raw is None or raw == "":
        return default
    if not raw.isdecimal() or not raw.isascii() or len(raw) > 12:
        raise bad_request(f"{name} is a number from {least} to {most}")
    value = int(raw)
    if not least <= value <= most:
        raise bad_request(f"{name} is a number from {least} to {most}")
    return value
