"""The syntax tree of a compiled condition, read from (and written to) the library's own bytes.

The library serialises a parsed expression as protocol buffers of the public `cel.expr` package
(`syntax.proto`), with macros expanded to loops. This module reads only the messages that a
condition can consist of and raises ValueError for all others. It never evaluates.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DEPTH_MAX = 128
_CHECKED, _PARSED = b"/cel.expr.CheckedExpr", b"/cel.expr.ParsedExpr"


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal. Numbers stay in their encoded bytes: only texts are decoded."""

    kind: int
    raw: int | bytes

    @property
    def text(self) -> str | None:
        """The literal text, or None for a literal of another type."""
        return self.raw.decode() if self.kind == TEXT and isinstance(self.raw, bytes) else None

    @property
    def size(self) -> int:
        return len(self.raw) if isinstance(self.raw, bytes) else 8


@dataclass(frozen=True, slots=True)
class Name:
    name: str


@dataclass(frozen=True, slots=True)
class Select:
    """A member of an operand: its value, or (`tested`) whether it exists."""

    operand: "Node"
    member: str
    tested: bool


@dataclass(frozen=True, slots=True)
class Call:
    """A function or an operator on its arguments; the target of a method is the first one."""

    function: str
    arguments: tuple["Node", ...]
    is_method: bool


@dataclass(frozen=True, slots=True)
class ListOf:
    items: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class MapOf:
    entries: tuple[tuple["Node", "Node"], ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """An expanded macro: `step` folds each item of `range` into `total`, under a condition."""

    item: str
    range: "Node"
    total: str
    initial: "Node"
    condition: "Node"
    step: "Node"
    result: "Node"


Path = tuple[str, ...]
Node = Constant | Name | Select | Call | ListOf | MapOf | Loop

# The members of the message Constant.
NULL, BOOL, INT, UINT, DOUBLE, TEXT, BYTES = 1, 2, 3, 4, 5, 6, 7


def read_tree(serialized: bytes) -> Node:
    """The tree of an `Expression.serialize()`. Raises ValueError for unknown messages."""
    envelope = dict(_fields(serialized))
    name, body = _bytes(envelope.get(1, b"")), _bytes(envelope.get(2, b""))
    place = {_CHECKED: 4, _PARSED: 2}.get(name[name.find(b"/") :])
    if place is None:
        raise ValueError("cannot be read: there is no syntax tree")
    return _node(_bytes(dict(_fields(body)).get(place, b"")), 0)


def write_tree(node: Node) -> bytes:
    """The bytes of a tree for `Env.deserialize`: an expression without checked types."""
    numbered = _Numbered()
    body = _field(2, numbered.encode(node))
    return _field(1, b"type.googleapis.com" + _PARSED) + _field(2, body)


def paths_of(tree: Node, roots: frozenset[str]) -> frozenset[Path]:
    """The paths of the parts of the roots that a tree reads."""
    path = path_of(tree, roots)
    if path is not None:
        return frozenset({path})
    inner = roots
    if isinstance(tree, Loop):
        inner = roots - {tree.item, tree.total}
    outside, inside = _children(tree)
    return frozenset().union(
        *(paths_of(child, roots) for child in outside),
        *(paths_of(child, inner) for child in inside),
    )


def path_of(node: Node, roots: frozenset[str]) -> Path | None:
    """The path of a part of a root, if literals alone name it."""
    match node:
        case Name(name) if name in roots:
            return (name,)
        case Select(operand, member, _):
            path = path_of(operand, roots)
            return None if path is None else (*path, member)
        case Call("_[_]", (operand, Constant() as index), _) if index.text is not None:
            path = path_of(operand, roots)
            return None if path is None else (*path, index.text)
    return None


def _children(node: Node) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """The children of a node, and those children in which a loop's own names are bound."""
    match node:
        case Constant() | Name():
            return (), ()
        case Select(operand, _, _):
            return (operand,), ()
        case Call(_, arguments, _):
            return arguments, ()
        case ListOf(items):
            return items, ()
        case MapOf(entries):
            return tuple(one for entry in entries for one in entry), ()
        case Loop():
            return (node.range, node.initial), (node.condition, node.step, node.result)


# Reading ------------------------------------------------------------------------------------------


def _node(value: int | bytes, depth: int) -> Node:
    """Read one node. The library bounds nesting to 32, but not the length of a chain of `+`."""
    if depth > _DEPTH_MAX:
        raise ValueError(f"must not be nested more than {_DEPTH_MAX} deep")
    fields = [one for one in _fields(_bytes(value)) if one[0] != 2]
    if len(fields) != 1:
        raise ValueError("must not have an expression of an unknown form")
    number, body = fields[0]
    read = _READERS.get(number)
    if read is None:
        raise ValueError("must not have an expression of an unknown form")
    return read(_bytes(body), depth + 1)


def _constant(data: bytes, _: int) -> Node:
    fields = list(_fields(data))
    if len(fields) != 1 or not NULL <= fields[0][0] <= BYTES:
        raise ValueError("must not have a literal of an unknown form")
    return Constant(*fields[0])


def _name(data: bytes, _: int) -> Node:
    return Name(_text(dict(_fields(data)).get(1, b"")))


def _select(data: bytes, depth: int) -> Node:
    fields = dict(_fields(data))
    return Select(_node(fields[1], depth), _text(fields.get(2, b"")), bool(fields.get(3, 0)))


def _call(data: bytes, depth: int) -> Node:
    target, function, arguments = None, "", []
    for number, value in _fields(data):
        if number == 1:
            target = _node(value, depth)
        elif number == 2:
            function = _text(value)
        else:
            arguments.append(_node(value, depth))
    if target is None:
        return Call(function, tuple(arguments), is_method=False)
    return Call(function, (target, *arguments), is_method=True)


def _list(data: bytes, depth: int) -> Node:
    fields = list(_fields(data))
    if any(number != 1 for number, _ in fields):
        raise ValueError("must not have optional items")
    return ListOf(tuple(_node(value, depth) for _, value in fields))


def _map(data: bytes, depth: int) -> Node:
    entries = []
    for number, value in _fields(data):
        if number != 2:
            raise ValueError("must not make a message")
        entry = dict(_fields(_bytes(value)))
        if 3 not in entry:
            raise ValueError("must not make a message")
        entries.append((_node(entry[3], depth), _node(entry[4], depth)))
    return MapOf(tuple(entries))


def _loop(data: bytes, depth: int) -> Node:
    fields = {number: _bytes(value) for number, value in _fields(data)}
    if fields.keys() != {1, 2, 3, 4, 5, 6, 7}:
        raise ValueError("must not have a loop of an unknown form")
    return Loop(
        item=_text(fields[1]),
        range=_node(fields[2], depth),
        total=_text(fields[3]),
        initial=_node(fields[4], depth),
        condition=_node(fields[5], depth),
        step=_node(fields[6], depth),
        result=_node(fields[7], depth),
    )


_READERS = {3: _constant, 4: _name, 5: _select, 6: _call, 7: _list, 8: _map, 9: _loop}


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The members of a message, in order."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            length, at = _varint(data, at)
        elif kind == _FIXED64:
            length = 8
        elif kind == _FIXED32:
            length = 4
        else:
            raise ValueError("cannot be read: the syntax tree has an unknown form")
        if at + length > len(data):
            raise ValueError("cannot be read: the syntax tree ends early")
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("cannot be read: the syntax tree ends early")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 0x80:
            return value, at


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("cannot be read: the syntax tree has an unknown form")
    return value


def _text(value: int | bytes) -> str:
    return _bytes(value).decode()


# Writing ------------------------------------------------------------------------------------------


class _Numbered:
    """A writer of nodes that gives each a number."""

    def __init__(self) -> None:
        self._last = 0

    def encode(self, node: Node) -> bytes:
        self._last += 1
        number = _field(2, self._last)
        match node:
            case Constant(kind, raw):
                body = _field(3, _double(raw) if kind == DOUBLE else _field(kind, raw))
            case Name(name):
                body = _field(4, _field(1, name.encode()))
            case Select(operand, member, tested):
                picked = _field(1, self.encode(operand)) + _field(2, member.encode())
                body = _field(5, picked + (_field(3, 1) if tested else b""))
            case Call(function, arguments, is_method):
                target = _field(1, self.encode(arguments[0])) if is_method else b""
                rest = self._all(2 + 1, arguments[is_method:])
                body = _field(6, target + _field(2, function.encode()) + rest)
            case ListOf(items):
                body = _field(7, self._all(1, items))
            case MapOf(entries):
                body = _field(8, b"".join(self._entry(*entry) for entry in entries))
            case Loop():
                body = _field(9, self._loop(node))
        return number + body

    def _all(self, place: int, nodes: Sequence[Node]) -> bytes:
        return b"".join(_field(place, self.encode(node)) for node in nodes)

    def _entry(self, key: Node, value: Node) -> bytes:
        self._last += 1
        number = _field(1, self._last)
        return _field(2, number + _field(3, self.encode(key)) + _field(4, self.encode(value)))

    def _loop(self, loop: Loop) -> bytes:
        return b"".join(
            (
                _field(1, loop.item.encode()),
                _field(2, self.encode(loop.range)),
                _field(3, loop.total.encode()),
                _field(4, self.encode(loop.initial)),
                _field(5, self.encode(loop.condition)),
                _field(6, self.encode(loop.step)),
                _field(7, self.encode(loop.result)),
            )
        )


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _written(number << 3 | _VARINT) + _written(value)
    return _written(number << 3 | _BYTES) + _written(len(value)) + value


def _double(raw: int | bytes) -> bytes:
    return _written(DOUBLE << 3 | _FIXED64) + _bytes(raw)


def _written(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
