"""The bound on what a condition costs: which unknown sizes it has, and that nothing escapes it."""

import json

import cel_expr_python.cel as cel
import pytest

from perdure.core.intake.expression_cost import Polynomial, cost_of
from perdure.core.intake.expression_tree import Call, Constant, ListOf, Loop, Name, read_tree

ENVIRONMENT = cel.NewEnv(variables={"event": cel.Type.DYN})
ROOTS = frozenset({"event"})


def cost(source: str) -> Polynomial:
    return cost_of(read_tree(ENVIRONMENT.compile(source).serialize()), ROOTS)


def growth(source: str) -> float:
    """By how much the cost grows when all sizes are ten times as large, as a power of ten."""
    bound = cost(source)
    return round(bound.evaluate(lambda _: 1e8) / bound.evaluate(lambda _: 1e7))


@pytest.mark.parametrize(
    ("source", "power"),
    [
        ("event.name == 'x'", 0),
        ("event.data.a.b == 1 && has(event.data.c)", 0),
        ("event.data.a > event.data.b", 1),
        ("event.data.a.startsWith('b')", 1),
        ("event.data.a.contains('b')", 1),
        ("event.data.a.contains(event.data.b)", 2),
        ("event.data.a.matches('b')", 1),
        ("event.data.a in event.data.b", 1),
        ("event.data.a.all(x, x > 1)", 1),
        ("event.data.a.all(x, x.b.contains('c'))", 1),
        ("event.data.a.all(x, x.b.all(y, y.c == x.b))", 2),
        ("event.data.a.all(x, x.all(y, y.all(z, z > 1)))", 1),
        ("event.data.a.all(x, event.data.a.all(y, x > y))", 2),
        ("event.data.a.all(x, event.data.a.all(y, event.data.a.all(z, x + y > z)))", 3),
        ("event.data.a.all(x, event.data.b == 'c')", 1),
        ("event.data.a.all(x, event.data.b == event.data.c)", 2),
        ("event.data.a.all(x, x in event.data.b)", 2),
        ("event.data.a.all(x, size(event.data.b) > 1)", 2),
        ("event.data.a.exists(x, x == 1) || event.data.a.exists_one(x, x == 1)", 1),
        ("event.data.a.map(x, x.b).size() > 0", 2),
        ("event.data.a.filter(x, x > 1).size() > 0", 2),
        ("event.data.a.map(x, event.data.a).all(y, y.all(z, z > 1))", 2),
        ("event.data.a.map(x, event.data.a + event.data.a).all(y, y in event.data.a)", 3),
        ("event.data.a.all(x, (event.data.b + event.data.b).size() > 1)", 2),
        ("event.data.a.all(x, [event.data.b].size() > 1)", 2),
        ("event.data.a.all(x, {'a': event.data.b}.size() > 1)", 2),
        ("event.data.a.all(x, event.data.b[event.data.c] == 1)", 2),
        ("event.data.a.all(x, string(event.data.b) == '')", 2),
        ("event.data.a.all(x, timestamp(event.data.b) > timestamp('x'))", 2),
    ],
)
def test_how_the_cost_grows_with_the_data(source: str, power: int) -> None:
    assert growth(source) == 10**power


def test_the_size_of_a_part_is_known_by_its_path() -> None:
    bound = cost("event.data.a['b'].size() > 1 && event.data.c[0].size() > 1")
    assert {path for _, path in bound.unknowns} == {
        ("event", "data", "a", "b"),
        ("event", "data", "c"),
    }


def test_the_item_of_a_loop_hides_the_event() -> None:
    assert cost("event.data.a.all(event, event.data == 1)").unknowns <= {
        ("items", ("event", "data", "a")),
        ("bytes", ("event", "data", "a")),
    }


def test_a_pattern_multiplies_the_text() -> None:
    small, large = (cost(f"event.data.a.matches('{'b' * n}')") for n in (1, 100))
    assert large.evaluate(lambda _: 1e9) > 90 * small.evaluate(lambda _: 1e9)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (Call("format", (Name("event"),), is_method=True), "must not call format"),
        (Call("cel.@block", (), is_method=False), "must not call cel.@block"),
        (
            Loop("x", Name("event"), "t", Name("event"), Name("t"), Name("t"), Name("t")),
            "known macros only",
        ),
        (
            Loop(
                "x",
                Name("event"),
                "t",
                ListOf(()),
                Constant(2, 1),
                Call("_+_", (Name("t"), Name("t")), is_method=False),
                Name("t"),
            ),
            "known macros only",
        ),
    ],
)
def test_what_has_no_bound_is_refused(node: Call | Loop, why: str) -> None:
    with pytest.raises(ValueError, match="must") as refused:
        cost_of(node, ROOTS)
    assert why in str(refused.value)


def test_what_has_too_many_unknowns_is_refused() -> None:
    both = " + ".join(f"event.data.v{n}" for n in range(25))
    with pytest.raises(ValueError, match="must be simpler"):
        cost(f"({both}).contains({both})")


def test_the_functions_of_the_language_have_a_bound() -> None:
    """Everything that the standard environment of the library knows, by its specification."""
    text, ctx, span = "event.data.t", "timestamp(event.data.m)", "duration(event.data.s)"
    whole = [
        *(f"{ctx}.{name}() == 1" for name in ("getDate", "getDayOfMonth", "getDayOfWeek")),
        *(f"{ctx}.{name}('UTC') == 1" for name in ("getDayOfYear", "getFullYear", "getMonth")),
        *(f"{span}.{name}() == 1" for name in ("getHours", "getMinutes", "getSeconds")),
        f"{ctx}.getMilliseconds() == 1",
        *(f"{name}({text}) == {name}('1')" for name in ("int", "uint", "double", "bool", "string")),
        f"bytes({text}) == b'1' && dyn({text}) == type({text})",
        f"size({text}) == {text}.size() && {text}.endsWith('a') && {text}.startsWith('a')",
        f"{text}.contains('a') || matches({text}, 'a')",
        "!(1 != 2 ? 1 % 2 <= 3 : -1 >= 2) || 1 - 2 < 3 * 4 / 5",
    ]
    for source in whole:
        assert cost(source).evaluate(lambda _: 1.0) > 0, json.dumps(source)
