"""Conditions on events: CEL, with numbers that compare, and with a bound on what they cost."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core import limits
from perdure.core.intake.expression import Event, compile_filter

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
        ("(" * 100 + "true" + ")" * 100, "recursion limit"),
        ("true" + " " * limits.EXPRESSION_LENGTH_MAX, "must have at most 1024 characters"),
    ],
)
def test_what_is_refused(source: str, why: str) -> None:
    with pytest.raises(ValueError, match=r"must|cannot") as refused:
        compile_filter(source)
    assert why in str(refused.value)


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
        "+".join(["event.data.text"] * 20) + " == ''",
    ],
)
def test_what_would_take_seconds_is_not_evaluated(source: str) -> None:
    begun = time.process_time()
    assert compile_filter(source).holds(Event("x", COSTLY)) is None
    assert time.process_time() - begun < 0.5


@pytest.mark.parametrize(
    "source",
    [
        "event.data.list.all(x, x >= 0)",
        "event.data.list.exists(x, x == 8999 && string(x) + 'a' == '8999a')",
        "event.data.text + 'b' == event.data.text || true",
        "event.data.text.size() == 50000",
    ],
)
def test_looking_at_each_item_once_is_always_evaluated(source: str) -> None:
    assert compile_filter(source).holds(Event("x", COSTLY)) is True


def test_brackets_in_texts_and_comments_are_no_brackets() -> None:
    source = (
        """event.data.items.all(i, i.p != "all(x, event.data" && i.p > 0) // event.data.map(e"""
    )
    assert compile_filter(source)._shape == (0, 1, False, False)
    assert compile_filter(source).holds(EVENT) is True


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
    begun = time.process_time()
    assert compile_filter(source, of_wait=True).holds(small, costly) is None
    assert time.process_time() - begun < 0.5


@given(st.text(alphabet="event.data()[]{}'\"+-*/!&|<>=? 01xallmap,\\\n", max_size=40))
def test_any_text_is_a_condition_or_refused(source: str) -> None:
    try:
        condition = compile_filter(source)
    except ValueError:
        return
    assert condition.holds(EVENT) in (True, False, None)
