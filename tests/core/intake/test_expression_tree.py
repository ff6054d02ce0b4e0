"""Syntax trees of conditions: read from the library's bytes, written back, and read the same."""

from contextlib import suppress

import cel_expr_python.cel as cel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.intake.expression_arithmetic import mix_numbers
from perdure.core.intake.expression_tree import (
    Call,
    Constant,
    ListOf,
    Loop,
    MapOf,
    Name,
    Node,
    Select,
    read_tree,
    write_tree,
)

ENVIRONMENT = cel.NewEnv(variables={"event": cel.Type.DYN})
DATA = {"event": {"name": "x", "data": {"t": 120, "l": [1, 2], "s": "é"}}}


@pytest.mark.parametrize(
    "source",
    [
        "-9223372036854775808 < 0 && -5 < 3 && 18446744073709551615u > 1u",
        "1.5e300 > 1.0 && 0.0 == 0.0 && 0 == 0 && '' == '' && [] == [] && {} == {}",
        "has(event.data.t) && !has(event.data.u)",
        "event.data.l.map(x, x + 1) == [2, 3] && event.data.l.exists_one(x, x == 1)",
        "{'a': 1, 'b': [2]}.a == 1 && b'\\xff' == b'\\xff' && null == null",
        "event.data.s == 'é' && (false || !false ? true : false)",
        "event.data.l.filter(x, x > 1)[0] == 2 && type(event.data.t) == int",
    ],
)
@pytest.mark.parametrize("unchecked", [False, True])
def test_a_tree_that_is_written_means_the_same(source: str, unchecked: bool) -> None:
    expression = ENVIRONMENT.compile(source, disable_check=unchecked)
    tree = read_tree(expression.serialize())
    for one in (tree, mix_numbers(tree)):
        written = write_tree(one)
        assert read_tree(written) == one
        assert ENVIRONMENT.deserialize(written).eval(data=DATA).value() is True


@given(st.binary(max_size=60))
def test_bytes_that_are_no_tree_raise_nothing_else(data: bytes) -> None:
    for head in (b"", b"\n'type.googleapis.com/cel.expr.ParsedExpr\x12" + bytes([len(data)])):
        with suppress(ValueError):
            read_tree(head + data)


def test_a_tree_that_is_too_deep_is_refused() -> None:
    node: Node = Name("event")
    for _ in range(200):
        node = Call("!_", (node,), is_method=False)
    with pytest.raises(ValueError, match="must not be nested more than 128 deep"):
        read_tree(write_tree(node))


def test_what_a_condition_is_read_as() -> None:
    tree = read_tree(ENVIRONMENT.compile("{'a': event.data.x}.a in [-1]").serialize())
    picked = Select(Select(Name("event"), "data", tested=False), "x", tested=False)
    entries = MapOf(((Constant(6, b"a"), picked),))
    minus_one = Constant(3, 2**64 - 1)
    assert tree == Call(
        "@in", (Select(entries, "a", tested=False), ListOf((minus_one,))), is_method=False
    )


@pytest.mark.parametrize(
    ("source", "loops"),
    [
        ("event.data.t * 1.2 > 1.0", 1),
        ("event.data.t * event.data.t > 1", 2),
        ("'a' + event.data.s == 'b'", 0),
        ("[1] + event.data.l == [1]", 0),
        ("event.data.t > 1.5", 0),
        ("event.data.l.exists_one(x, x == 1)", 1),
        ("event.data.l.map(x, x).size() == 1", 1),
    ],
)
def test_only_operators_that_may_mix_numbers_are_changed(source: str, loops: int) -> None:
    expression = ENVIRONMENT.compile(source)
    assert _loops(mix_numbers(read_tree(expression.serialize()))) == loops


def _loops(node: object) -> int:
    if isinstance(node, tuple):
        return sum(map(_loops, node))
    if not isinstance(node, Constant | Name | Select | Call | ListOf | MapOf | Loop):
        return 0
    members = (getattr(node, name) for name in node.__slots__)
    return isinstance(node, Loop) + sum(map(_loops, members))
