"""Reading requests: bodies, numbers, instants. What makes no sense is a 400 that says why."""

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
    """The body of a request; none is an empty one."""
    body = whole_body(request.body)
    obstacle = find_obstacle(body)
    if obstacle is not None:
        raise bad_request(obstacle)
    try:
        # Payloads are carried unread, so whether they are text is found out here or never.
        body.decode()
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise bad_request(expectation(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise HttpError(400, "malformed_json", "the body is not JSON") from None


def read_instant(query: Mapping[str, str], name: str) -> int | None:
    """An instant from a query; one without a zone is UTC."""
    told = query.get(name)
    if not told:
        return None
    # In a query a plus that nobody escaped is a space.
    text = told.strip().replace(" ", "+")
    try:
        if datetime.fromisoformat(text).tzinfo is None:
            text += "+00:00"
        return instant.parse(text)
    except (ValueError, OverflowError):
        raise bad_request(f"{name} is an instant such as 2026-01-31T12:00:00Z") from None


def choice(query: Mapping[str, str], name: str, known: Collection[str]) -> str | None:
    """One of some words from a query, or none."""
    told = query.get(name)
    if not told:
        return None
    if told not in known:
        raise bad_request(f"{name} is one of {', '.join(sorted(known))}")
    return told


def integer(query: Mapping[str, str], name: str, least: int, most: int, default: int) -> int:
    """A number from a query; one beyond the bounds is refused."""
    told = query.get(name)
    if told is None or told == "":
        return default
    if not told.isdecimal() or not told.isascii() or len(told) > 12:
        raise bad_request(f"{name} is a number from {least} to {most}")
    value = int(told)
    if not least <= value <= most:
        raise bad_request(f"{name} is a number from {least} to {most}")
    return value
