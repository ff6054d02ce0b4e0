"""Arithmetic between ints and doubles in conditions, which CEL does not define.

JSON does not distinguish `2` and `2.0`, but CEL refuses to multiply the int by `1.2`. Where the
operands of an operator may be an int and a double, the tree is rewritten to convert the int first.
The meaning of everything else stays the same.
"""

from collections.abc import Iterator
from itertools import count

from perdure.core.intake.expression_tree import (
    BOOL,
    DOUBLE,
    INT,
    Call,
    Constant,
    ListOf,
    Loop,
    MapOf,
    Name,
    Node,
    Select,
)

_OPERATORS = frozenset({"_+_", "_-_", "_*_", "_/_"})
_TYPES = {INT: Name("int"), DOUBLE: Name("double")}
_FALSE = Constant(BOOL, 0)


def mix_numbers(tree: Node) -> Node:
    """The tree, rewritten so that operators accept an int beside a double."""
    return _mixed(tree, count(1))


def _mixed(node: Node, numbers: Iterator[int]) -> Node:
    match node:
        case Constant() | Name():
            return node
        case Select(operand, member, tested):
            return Select(_mixed(operand, numbers), member, tested)
        case Call(function, arguments, is_method):
            mixed = tuple(_mixed(one, numbers) for one in arguments)
            if function in _OPERATORS and len(mixed) == 2:
                return _operator(function, mixed[0], mixed[1], numbers)
            return Call(function, mixed, is_method)
        case ListOf(items):
            return ListOf(tuple(_mixed(one, numbers) for one in items))
        case MapOf(entries):
            return MapOf(
                tuple((_mixed(key, numbers), _mixed(value, numbers)) for key, value in entries)
            )
        case Loop():
            return Loop(
                item=node.item,
                range=_mixed(node.range, numbers),
                total=node.total,
                initial=node.initial,
                condition=_mixed(node.condition, numbers),
                step=_mixed(node.step, numbers),
                result=_mixed(node.result, numbers),
            )


def _operator(function: str, left: Node, right: Node, numbers: Iterator[int]) -> Node:
    """The operator on operands of one type. Each operand gets a name, to be evaluated once."""
    if _is_no_number(left) or _is_no_number(right):
        return Call(function, (left, right), is_method=False)
    sides: list[Node] = []
    names: list[tuple[str, Node]] = []
    for side in (left, right):
        if isinstance(side, Constant):
            sides.append(side)
        else:
            names.append((f"@number{next(numbers)}", side))
            sides.append(Name(names[-1][0]))
    one, other = sides
    both = (_lifted(one, beside=other), _lifted(other, beside=one))
    whole: Node = Call(function, both, is_method=False)
    for name, side in names:
        whole = _let(name, side, whole)
    return whole


def _is_no_number(node: Node) -> bool:
    if isinstance(node, Constant):
        return node.kind not in _TYPES
    # The accumulator of a loop is only counted up or appended to.
    return isinstance(node, ListOf | MapOf) or (isinstance(node, Name) and node.name[0] == "@")


def _lifted(side: Node, *, beside: Node) -> Node:
    """An operand, converted to a double if it is an int and the other one is a double."""
    tests = [
        _is_a(one, kind)
        for one, kind in ((side, INT), (beside, DOUBLE))
        if not (isinstance(one, Constant) and one.kind == kind)
    ]
    constants = {INT: side, DOUBLE: beside}
    if any(isinstance(one, Constant) and one.kind != kind for kind, one in constants.items()):
        return side
    lifted: Node = Call("double", (side,), is_method=False)
    for test in tests:
        lifted = Call("_?_:_", (test, lifted, side), is_method=False)
    return lifted


def _is_a(node: Node, kind: int) -> Node:
    return Call("_==_", (Call("type", (node,), is_method=False), _TYPES[kind]), is_method=False)


def _let(name: str, value: Node, result: Node) -> Node:
    """Bind a name to a value: a loop without iterations, whose accumulator is the value."""
    return Loop(
        item="#unused",
        range=ListOf(()),
        total=name,
        initial=value,
        condition=_FALSE,
        step=Name(name),
        result=result,
    )
