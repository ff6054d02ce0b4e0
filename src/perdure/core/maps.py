"""JSON maps that may arrive as `[]`: PHP has one array type and encodes an empty map like that.

Every member of a request that is a map, or a structure without required members, is declared with
`Map` or `EmptyList`, and read with `members_of` or `structure_of`; bodies go through `whole_body`.
A list that holds something is refused by the decoder as before.
"""

from typing import Annotated, Any, TypeVar, overload

from msgspec import Meta, Struct

V = TypeVar("V")
S = TypeVar("S", bound=Struct)

EmptyList = Annotated[list[Any], Meta(max_length=0)]
"""An empty map that was written as an empty list."""
Map = dict[str, V] | EmptyList
"""A map that may come as `[]`."""

_SPACE = b" \t\r\n"


def members_of(sent: Map[V] | None) -> dict[str, V]:
    """The members of a map; one that is absent or null has none."""
    return sent if isinstance(sent, dict) else {}


def optional_members_of(sent: Map[V] | None) -> dict[str, V] | None:
    """The members of a map; None if it was not sent."""
    return None if sent is None else members_of(sent)


@overload
def structure_of(sent: S | EmptyList, kind: type[S]) -> S: ...


@overload
def structure_of(sent: S | EmptyList | None, kind: type[S]) -> S | None: ...


def structure_of(sent: S | EmptyList | None, kind: type[S]) -> S | None:
    """A structure whose members are all optional; `[]` has none of them."""
    return kind() if isinstance(sent, list) else sent


def whole_body(body: bytes) -> bytes:
    """A body that is a map: no body, `{}` and `[]` mean the same."""
    if body[:1] == b"{":
        return body
    text = body.strip(_SPACE)
    is_empty_list = text[:1] == b"[" and text[-1:] == b"]" and not text[1:-1].strip(_SPACE)
    return b"{}" if not text or is_empty_list else body


def expectation(text: str) -> str:
    """The decoder's message about a wrong map, without the empty list that is only tolerated."""
    text = text.replace("Expected `array` of length <= 0", "Expected `object`, got `array`")
    return text.replace("object | array", "object")
