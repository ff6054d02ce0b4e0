"""Which workflows an event starts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.intake.definition import Trigger, Workflow
from perdure.core.intake.expression import Event
from perdure.core.intake.trigger import (
    is_reserved,
    matches,
    recorded_app,
    require_pattern,
    target_app,
)
from perdure.core.intake.trigger_index import Registered, TriggerIndex
from perdure.core.limits import FAILED_CONDITIONS_MAX


def workflow(name: str, *triggers: str | Trigger, app: str = "shop") -> Registered:
    told = tuple(t if isinstance(t, Trigger) else Trigger(event=t) for t in triggers)
    return Registered(app, Workflow(name=name, triggers=told))


def started(
    *registered: Registered, name: str, data: bytes = b"", app: str | None = None
) -> list[str]:
    found = TriggerIndex(registered).find(Event(name, data), app)
    return [f"{one.workflow.name}@{one.app}" for one in found.workflows]


@pytest.mark.parametrize(
    ("pattern", "name", "hit"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.bc", False),
        ("a.*", "a.b", True),
        ("a.*", "a.", True),
        ("a.*", "b.a.", False),
        ("*", "anything", True),
        ("*", "duraton/run.finished", False),
        ("duraton/*", "duraton/run.finished", False),
        ("d*", "durablex/x", False),
        ("duraton/run.finished", "duraton/run.finished", True),
        ("durablex/run.finished", "duraton/run.finished", True),
    ],
)
def test_patterns(pattern: str, name: str, hit: bool) -> None:
    require_pattern(pattern)
    assert matches(pattern, name) is hit
    assert bool(started(workflow("w", pattern), name=name)) is hit


@pytest.mark.parametrize("pattern", ["*a", "a*b", "**", "a.**"])
def test_a_star_stands_at_the_end(pattern: str) -> None:
    with pytest.raises(ValueError, match="only at its end"):
        require_pattern(pattern)


def test_reserved_names() -> None:
    assert is_reserved("duraton/x")
    assert is_reserved("durablex/")
    assert not is_reserved("duraton")


def test_every_match_is_started_once_by_name_and_then_app() -> None:
    registered = [
        workflow("b", "x.*", "x.y", "*"),
        workflow("a", "x.y", app="z"),
        workflow("a", "x.y", app="k"),
        workflow("c", "other"),
        workflow("never"),
        workflow("clock", Trigger(cron="@daily")),
    ]
    assert started(*registered, name="x.y") == ["a@k", "a@z", "b@shop"]
    assert started(*registered, name="x.y", app="z") == ["a@z"]
    assert started(*registered, name="nobody", app="k") == []


def test_one_trigger_whose_condition_holds_is_enough_and_failures_are_told() -> None:
    conditional = workflow(
        "w",
        Trigger(event="e", condition="event.data.missing > 1"),
        Trigger(event="*", condition="event.data.n > 1"),
    )
    index = TriggerIndex([conditional])

    def found(name: str, data: bytes) -> tuple[list[Registered], int]:
        workflows, failed = index.find(Event(name, data), None)
        assert len(failed.first) == failed.count
        for one in failed.first:
            assert (one.workflow, one.app) == ("w", conditional.app)
            assert one.condition == "event.data.missing > 1"
            assert "missing" in one.reason
        return workflows, failed.count

    assert found("e", b'{"n": 2}') == ([conditional], 1)
    assert found("e", b'{"n": 1}') == ([], 1)
    assert found("f", b'{"n": 1}') == ([], 0)


def test_the_first_failures_are_kept_and_all_are_counted() -> None:
    many = [
        workflow(f"w{n}", Trigger(event="e", condition=f"event.data.missing{n} > 1"))
        for n in range(FAILED_CONDITIONS_MAX + 5)
    ]
    failed = TriggerIndex(many).find(Event("e", b"{}"), None).failed
    assert (len(failed.first), failed.count) == (FAILED_CONDITIONS_MAX, len(many))
    both = failed.joined(failed)
    assert (both.first, both.count) == (failed.first, 2 * len(many))


def test_targets() -> None:
    assert target_app(None, None) is None
    assert target_app("a", None) == "a"
    assert target_app("a", "b") == "b"
    assert recorded_app("a", "b") == "a"
    assert recorded_app(None, "b") == "b"
    assert recorded_app(None, None) == ""


NAMES = st.text(alphabet="ab./", max_size=4)
PATTERNS = NAMES | NAMES.map(lambda name: name + "*")


@given(st.lists(PATTERNS, max_size=8), NAMES)
def test_the_index_finds_what_the_patterns_say(patterns: list[str], name: str) -> None:
    registered = [workflow(f"w{place}", pattern) for place, pattern in enumerate(patterns)]
    expected = {f"w{p}@shop" for p, pattern in enumerate(patterns) if matches(pattern, name)}
    assert set(started(*registered, name=name)) == expected
