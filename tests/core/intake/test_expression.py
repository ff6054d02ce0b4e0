"""Conditions on events: CEL, with numbers that compare, and with a bound on what they cost."""

import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core import limits
from perdure.core.intake.expression import Event, compile_filter, judge, judge_wait

DATA = {
    "total": 120,
    "whole": 100.0,
    "half": 0.5,
    "name": "abc",
    "items": [{"p": 1}, {"p": 2.5}],
    "tags": ["a", "b"],
    "nothing": None,
    "yes": True,
    "huge": 2**70,
    "wide": 2**63 + 5,
}
EVENT = Event("order.created", json.dumps(DATA).encode())


@pytest.mark.parametrize(
    "source",
    [
        "event.name == 'order.created'",
        "event.data.total > 100",
        "event.data.total > 100.5",
        "event.data.total == 120.0",
        "event.data.whole == 100",
        "event.data.half < 1",
        "event.data.total in [120.0]",
        "1 < 2.5 && 1 == 1.0 && 1u < 2",
        "[1, 2, 3].exists(x, x > 2.5)",
        "event.data.huge > 1 && event.data.wide > 1.0",
        "has(event.data.total) && !has(event.data.missing)",
        "event.data.nothing == null",
        "event.data.items.exists(i, i.p > 2)",
        "event.data.items.all(i, i.p > 0 && size(i) == 1)",
        "event.data.items.exists_one(i, i.p == 1)",
        "event.data.items.map(i, i.p)[1] == 2.5",
        "size(event.data.items.filter(i, i.p > 2)) == 1",
        "event.data.name.startsWith('a') && event.data.name.endsWith('c')",
        "event.data.name.contains('b') && event.data.name.matches('^a.c$')",
        "'a' in event.data.tags && 'total' in event.data",
        "event.data.yes ? true : false",
        "event.data.total + 1 == 121 && event.data.total % 7 == 1",
        "event.data.missing > 1 || event.data.total > 1",
        "event.data['total'] > 1",
        "event.data.total * 1.2 == 144.0 && event.data.whole * 1.2 == 120.0",
        "event.data.total + 0.5 == 120.5 && 0.5 + event.data.total == 120.5",
        "event.data.total - event.data.half == 119.5 && event.data.half - event.data.total < 0.0",
        "event.data.total / 0.5 == 240.0 && 2 * 1.5 == 3.0 && -event.data.total * 0.5 == -60",
        "event.data.huge + 1 > 1 && event.data.huge * event.data.total > 1",
        "event.data.items.exists(i, i.p * 2 + 0.5 == 5.5)",
        "event.data.items.map(i, i.p * 2.0) == [2.0, 5.0]",
        "event.data.items.map(i, i.p > 2, i.p + 1)[0] == 3.5",
        "event.data.total / 7 == 17 && event.data.tags + ['c'] == ['a', 'b', 'c']",
        "event.data.name + 'd' == 'abcd' && event.data.name + event.data.name == 'abcabc'",
        "timestamp('2020-01-01T00:00:00Z') + duration('1h') > timestamp('2020-01-01T00:30:00Z')",
        "timestamp('2020-06-01T00:00:00Z').getHours('Europe/Berlin') == 2",
        "timestamp('2020-06-01T00:00:00Z').getHours('+02:00') == 2",
        "timestamp('2020-06-01T00:00:00Z').getFullYear('UTC') == 2020",
        "type(event.data.total) == int && dyn(event.data.half) * 2 == 1",
        "string(event.data.total) == '120' && int('5') == 5 && bytes('a') == b'a'",
        "matches(event.data.name, '^[a-z]{3}$')",
        "{'a': event.data.total}.a == 120 && size({1: 2}) == 1",
    ],
)
def test_what_holds(source: str) -> None:
    assert compile_filter(source).holds(EVENT) is True


@pytest.mark.parametrize("source", ["event.data.total < 100", "event.name == 'x'", "false"])
def test_what_does_not_hold(source: str) -> None:
    assert compile_filter(source).holds(EVENT) is False


@pytest.mark.parametrize(
    "source",
    [
        "event.data.missing > 1",
        "event.data.total",
        "event.data.name > 1",
        "1 / 0 == 1",
        "event.data.items[5].p == 1",
        "event.data.name.matches('[')",
    ],
)
def test_what_cannot_be_said(source: str) -> None:
    assert compile_filter(source).holds(EVENT) is None


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("", "at 1:1"),
        ("event.", "at 1:7"),
        ("foo > 1", "undeclared reference to 'foo'"),
        ("nosuch(1) && 1 < 2.0", "undeclared reference to 'nosuch'"),
        ("event.data.nofn()", "undeclared reference to 'nofn'"),
        ("1 + 1", "must be true or false, not int"),
        ("'yes'", "must be true or false, not string"),
        ("1 > 'a'", "no matching overload"),
        ("1 + 'a' == 2", "no matching overload"),
        ("event.data.a.matches(event.data.b)", "must have a literal text as the pattern"),
        ("matches(event.data.a, event.name)", "must have a literal text as the pattern"),
        ("event.data.a.matches('a' + 'b')", "must have a literal text as the pattern"),
        ("event.data.a.exists(x, 'a'.matches(x))", "must have a literal text as the pattern"),
        ("event.data.a.matches('(a{1000}){1000}')", "must have a smaller pattern"),
        (r"event.data.a.matches('\\pL{20}')", "must have a smaller pattern"),
        ("timestamp(event.data.a).getHours(event.data.zone) == 1", "literal time zone"),
        ("timestamp(event.data.a).getHours('file:/dev/stdin') == 1", "literal time zone"),
        ("timestamp(event.data.a).getHours('/etc/passwd') == 1", "literal time zone"),
        ("timestamp(event.data.a).getHours('../../etc/passwd') == 1", "literal time zone"),
        ("google.protobuf.Timestamp{seconds: 1} == timestamp(1)", "must not make a message"),
        ("(" * 100 + "true" + ")" * 100, "recursion limit"),
        ("true" + " " * limits.EXPRESSION_LENGTH_MAX, "must have at most 1024 characters"),
    ],
)
def test_what_is_refused(source: str, why: str) -> None:
    with pytest.raises(ValueError, match=r"must|cannot") as refused:
        compile_filter(source)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("event.data.missing > 1", "missing"),
        ("event.data.total", "returned int, not bool"),
        ("event.data.name * 1.5 > 1.0", "No matching overloads"),
        ("event.data.name.matches('[')", "invalid regular expression"),
        ("1 / 0 == 1", "divide by zero"),
        ("event.data.gone.matches(event.name)", "must have a literal text as the pattern"),
    ],
)
def test_a_condition_that_fails_says_why(source: str, why: str) -> None:
    verdict = judge(source, EVENT)
    assert not verdict.holds
    assert why in verdict.failure
    assert len(verdict.failure) <= limits.EXPRESSION_FAILURE_LENGTH_MAX


def test_data_that_is_no_json_says_so() -> None:
    assert "not valid JSON" in judge("event.data == 1", Event("x", b"{")).failure


numbers = st.integers(-(2**40), 2**40) | st.integers(-4_000, 4_000).map(lambda one: one / 4)


@given(numbers, numbers, st.sampled_from("+-*"), st.booleans())
def test_numbers_of_both_kinds_mix_in_arithmetic(
    left: float, right: float, operator: str, literal: bool
) -> None:
    """Quarters are exact as doubles, so what Python makes of fractions is what CEL must make."""
    exact = {
        "+": Fraction(left) + Fraction(right),
        "-": Fraction(left) - Fraction(right),
        "*": Fraction(left) * Fraction(right),
    }[operator]
    event = Event("x", json.dumps({"left": left, "right": right, "exact": float(exact)}).encode())
    other = f"({right!r})" if literal else "event.data.right"
    condition = f"event.data.left {operator} {other}"
    if isinstance(left, int) and isinstance(right, int):
        fits = -(2**63) <= exact < 2**63
        assert judge(f"{condition} == {int(exact)}" if fits else condition, event).holds is fits
    else:
        assert judge(f"{condition} == event.data.exact", event).holds


def test_a_condition_is_evaluated_once_per_event() -> None:
    event = Event("x", COSTLY)
    first = judge("event.data.list.all(x, x >= 0)", event)
    assert judge("event.data.list.all(x, x >= 0)", event) is first


def test_conditions_on_one_event_share_a_bound() -> None:
    event = Event("x", COSTLY)
    verdicts = [judge(f"event.data.text.matches('^a{{1,{n + 1}}}$')", event) for n in range(40)]
    failures = [one.failure for one in verdicts]
    assert failures[0] == ""
    assert failures[-1] == "costs too much beside the other conditions on this event"
    spent = next(place for place, failure in enumerate(failures) if failure)
    assert spent > 1
    assert all(failures[spent:])
    # What is a trifle is always evaluated.
    assert judge("event.data.text != 'b'", event).holds


def test_what_the_library_keeps_of_evaluations_is_let_go() -> None:
    event = Event("x", json.dumps({"text": "a" * 200_000}).encode())
    activation = event.activation
    for turn in range(100):
        judge(f"size(event.data.text + '{turn}') > 1", event)
    assert event.activation is not activation


def test_an_event_without_data_has_null() -> None:
    assert compile_filter("event.data == null").holds(Event("x", b"")) is True


@pytest.mark.parametrize("data", [b"{", b"[" * 5_000 + b"]" * 5_000, b"1e400"])
def test_data_that_nobody_can_read_matches_nothing(data: bytes) -> None:
    assert compile_filter("event.data != 1").holds(Event("x", data)) is None


COSTLY = json.dumps({"list": list(range(9_000)), "text": "a" * 50_000}).encode()


@pytest.mark.parametrize(
    "source",
    [
        "event.data.list.all(x, (event.data.text + event.data.text).size() > 0)",
        "[event.data].all(d, d.list.all(x, (d.text + d.text).size() > 0))",
        "event.data.list.all(x, event.data.list == event.data.list)",
        "event.data.list.map(x, x).size() > 0",
        "event.data.list.all(x, event.data.list.all(y, x + y >= 0))",
        "event.data.list.all(x, x in event.data.list)",
        "event.data.text.contains(event.data.text + 'b')",
        "event.data.text.matches('(a|b)*a(a|b){99}c')",
        "event.data.list.all(x, event.data.text.matches('b'))",
        "event.data.list.all(x, '5'.matches('[0-9]'))",
        "event.data.list.all(x, event.data == event.data)",
    ],
)
def test_what_would_take_seconds_is_not_evaluated(source: str) -> None:
    verdict = judge(source, Event("x", COSTLY))
    assert verdict == (False, "costs too much on data of this size")


@pytest.mark.parametrize(
    "source",
    [
        "event.data.list.all(x, x >= 0)",
        "event.data.list.exists(x, x == 8999 && string(x) + 'a' == '8999a')",
        "event.data.text + 'b' == event.data.text || true",
        "event.data.text.size() == 50000",
        "event.data.text.matches('^a+$')",
        "event.data.text.contains('aaaaab') || true",
        "event.data == event.data",
        "8999 in event.data.list",
        "[event.data].all(d, d.list.all(x, x >= 0))",
        "'text' in event.data && event.data['text'] != ''",
    ],
)
def test_looking_at_each_item_once_is_always_evaluated(source: str) -> None:
    assert compile_filter(source).holds(Event("x", COSTLY)) is True


TRIGGER = Event("order", json.dumps({"id": "O'Hara", "total": 120.0, "none": None}).encode())


@pytest.mark.parametrize(
    ("source", "holds"),
    [
        ("event.data.name == trigger.data.id", True),
        ("event.data.total == trigger.data.total && trigger.name == 'order'", True),
        ("event.data.none == trigger.data.none", True),
        ("event.data.name == trigger.data.total", False),
        ("event.data.name == trigger.data.missing", None),
        ("event.data.missing == trigger.data.missing", None),
    ],
)
def test_the_filter_of_a_wait_reads_the_event_that_started_its_run(
    source: str, holds: bool | None
) -> None:
    data = {"name": "O'Hara", "total": 120, "none": None}
    event = Event("paid", json.dumps(data).encode())
    wanted = compile_filter(source, of_wait=True)
    assert wanted.holds(event, TRIGGER) is holds
    assert wanted.holds(event) is None


def test_the_condition_of_a_trigger_knows_no_other_event() -> None:
    with pytest.raises(ValueError, match="trigger"):
        compile_filter("event.data.id == trigger.data.id")


def test_a_member_named_trigger_needs_no_other_event() -> None:
    event = Event("paid", b'{"trigger":[1]}')
    source = "event.data.trigger.exists(trigger, trigger == 1)"
    assert compile_filter(source).holds(event) is True
    assert compile_filter(source, of_wait=True).holds(event, TRIGGER) is True


@pytest.mark.parametrize(
    "source",
    [
        "trigger.data.list.all(x, trigger.data.list == trigger.data.list)",
        "trigger.data.list.all(x, (trigger.data.text + event.data.text).size() > 0)",
        "trigger.data.list.map(x, x).size() > 0",
    ],
)
def test_the_work_on_the_event_of_the_run_counts(source: str) -> None:
    small, costly = Event("x", b'{"text":""}'), Event("x", COSTLY)
    verdict = judge_wait(source, small, lambda: costly)
    assert verdict.failure == "costs too much on data of this size"


def test_only_what_a_filter_reads_is_made_for_it() -> None:
    """The event of each run is another one, so what is made of it is not shared."""
    large = b'{"id":1,"list":[%b],"deep":{"a":{"b":2}}}' % b",".join([b"[]"] * 30_000)
    trigger, event = Event("x", large), Event("y", large)
    for source in (
        "event.data.id == trigger.data.id",
        "has(trigger.data.id) && !has(trigger.data.missing) && event.data.deep.a['b'] == 2",
        "event.name == 'y' && trigger.name == 'x'",
        "trigger.data.deep.exists(k, k == 'a')",
    ):
        wanted = compile_filter(source, of_wait=True)
        assert judge_wait(source, event, lambda: trigger) == (True, "")
        assert wanted.work(event, trigger) < limits.EXPRESSION_TRIFLE
    whole = compile_filter("event.data == trigger.data", of_wait=True)
    assert whole.work(event, trigger) > 1_000 * limits.EXPRESSION_TRIFLE / 2


def test_a_wait_of_a_run_without_an_event_says_so() -> None:
    wanted = compile_filter("event.data == trigger.data", of_wait=True)
    assert EVENT.judge(wanted).failure == "no event has started the run"


def test_a_filter_that_is_refused_today_fails_when_it_was_stored_before() -> None:
    source = "event.name.matches(event.name)"
    for verdict in (judge(source, EVENT), judge_wait(source, EVENT, lambda: EVENT)):
        assert verdict.failure == "must have a literal text as the pattern of matches()"


@given(st.text(alphabet="event.data()[]{}'\"+-*/!&|<>=? 01xallmap,\\\n", max_size=40))
def test_any_text_is_a_condition_or_refused(source: str) -> None:
    try:
        condition = compile_filter(source)
    except ValueError:
        return
    assert condition.holds(EVENT) in (True, False, None)
