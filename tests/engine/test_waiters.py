"""Events find those who wait for them: by an index, in pages, all of them and each once."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as tuned
from hypothesis import strategies as st

from perdure.core.limits import (
    WAITER_BYTES_PER_PAGE_MAX,
    WAITER_FILTERS_PER_PAGE_MAX,
    WAITER_LOOKUPS_PER_PAGE_MAX,
    WAITERS_PER_PAGE_MAX,
)
from perdure.core.run.operation import PushStep, StepState
from perdure.engine.events import REMAINDER, Ingested, WakeRemaining
from perdure.engine.run_control import CancelPushRun
from perdure.engine.waiters import WAITER
from perdure.server.features import make_expiry
from perdure.server.settings import Settings
from tests.engine.engine_harness import NAMESPACE, Stage, play
from tests.engine.faulty import disk_full
from tests.engine.waiting import (
    APP,
    Answer,
    Begin,
    Begun,
    ForgetIndex,
    a_wait,
    an_emit,
    an_event,
    logged,
    send,
)
from tests.support.clock import SECOND

PAGE = WAITERS_PER_PAGE_MAX


async def begin(stage: Stage, *begun: Begun) -> list[str]:
    run_ids: list[str] = await stage.play(Begin(*begun))
    return run_ids


def waiting(*waits: Any, **members: Any) -> Begun:
    return Begun(waits or [a_wait()], **members)


def by_id(value: object) -> Begun:
    return waiting(a_wait(match={"data.id": value}))


async def wake_rest(stage: Stage, ingested: Ingested) -> int:
    """Wake whoever is left, page by page, and count the beats."""
    beats = 0
    while (await logged(stage, ingested.event_id)).continues:
        assert await stage.play(WakeRemaining(remainder_key(ingested)))
        beats += 1
        assert beats < 999
    return beats


def remainder_key(ingested: Ingested) -> Any:
    assert ingested.event_id is not None
    return REMAINDER.key(NAMESPACE, ingested.event_id)


async def states(stage: Stage, run_id: str) -> list[StepState]:
    run = await stage.load(run_id)
    return [step.state for step in run.operations.values() if isinstance(step, PushStep)]


def test_an_event_for_one_of_many_loads_that_one_only(tmp_path: Path) -> None:
    count = 2 * PAGE + 100

    async def build(stage: Stage) -> None:
        await begin(stage, *(by_id(f"order {number}") for number in range(count)))

    async def find(stage: Stage) -> None:
        ingested = await send(stage, {"id": f"order {count - 1}"})
        assert (ingested.woke, ingested.continues) == (1, False)
        assert len(stage.store.runs_loaded) == 1
        assert len(stage.store.records_paged) < 5
        assert (await send(stage, {"id": f"order {count - 1}"})).woke == 0
        assert (await send(stage, {"id": "order 0", "more": 1})).woke == 1
        assert len(stage.store.runs_loaded) == 2

    play(tmp_path / "p.db", build)
    play(tmp_path / "p.db", find)


@pytest.mark.parametrize(
    "where", ["event.data.id == trigger.data.id", "trigger.data.id == event.data.id && true"]
)
def test_an_equality_in_a_filter_is_looked_up_as_well(tmp_path: Path, where: str) -> None:
    async def build(stage: Stage) -> None:
        wait = a_wait(where=where)
        await begin(stage, *(waiting(wait, data={"id": number}) for number in range(100)))

    async def find(stage: Stage) -> None:
        assert (await send(stage, {"id": 7.0})).woke == 1
        assert len(stage.store.runs_loaded) == 1

    play(tmp_path / "p.db", build)
    play(tmp_path / "p.db", find)


def test_filters_are_tried_without_their_runs(tmp_path: Path) -> None:
    async def build(stage: Stage) -> None:
        waits = (a_wait(where=f"event.data.total > {number}") for number in range(50))
        await begin(stage, *map(waiting, waits))

    async def find(stage: Stage) -> None:
        assert (await send(stage, {"total": 3})).woke == 3
        assert len(stage.store.runs_loaded) == 3

    play(tmp_path / "p.db", build)
    play(tmp_path / "p.db", find)


@pytest.mark.parametrize(
    ("wait", "is_old"),
    [
        (a_wait(), False),
        (a_wait(match={"data.id": 1}), False),
        (a_wait(where="event.data.id > 0"), False),
        (a_wait(where="event.data.id == trigger.data.id || false"), False),
        (a_wait(match={"data.id": 1}, where="event.data.id == trigger.data.id"), False),
        (a_wait(), True),
        (a_wait(where="event.data.id > 0"), True),
        (a_wait(where="event.data.id == 1"), True),
    ],
)
def test_more_than_one_beat_wakes_are_woken_in_several(
    tmp_path: Path, wait: Any, is_old: bool
) -> None:
    async def story(stage: Stage) -> None:
        count = 2 * PAGE + 7
        run_ids = await begin(stage, *[waiting(wait, data={"id": 1})] * count)
        if is_old:
            await stage.play(ForgetIndex(run_ids))
        ingested = await send(stage, {"id": 1})
        assert (ingested.woke, ingested.continues) == (PAGE, True)
        assert (await logged(stage, ingested.event_id)).continues

        assert await wake_rest(stage, ingested) == 2

        event = await logged(stage, ingested.event_id)
        assert (event.woke, event.continues) == (count, False)
        assert await stage.play(WakeRemaining(remainder_key(ingested)))
        assert await REMAINDER.read_page(stage.store, NAMESPACE, limit=9) == []
        assert await WAITER.read_page(stage.store, NAMESPACE, limit=9) == []
        assert (await send(stage, {"id": 1})).woke == 0

    play(tmp_path / "p.db", story)


def test_a_crash_between_two_pages_loses_nobody(tmp_path: Path) -> None:
    count = 3 * PAGE + 1
    told: list[Ingested] = []

    async def crash(stage: Stage) -> None:
        run_ids = await begin(stage, *[waiting()] * count)
        assert len(run_ids) == count
        told.append(await send(stage, {"by": "card"}))
        stage.store.fail_commits(disk_full())
        with pytest.raises(Exception, match="no space"):
            await stage.play(WakeRemaining(remainder_key(told[0])))
        await stage.play(WakeRemaining(remainder_key(told[0])))

    async def go_on(stage: Stage) -> None:
        async with asyncio.timeout(60):
            while (await logged(stage, told[0].event_id)).continues:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert (await logged(stage, told[0].event_id)).woke == count
        waits = stage.store.rows("select count(*) from record where kind = 'waiter'")
        assert waits == [(0,)]

    play(tmp_path / "p.db", crash)
    play(tmp_path / "p.db", go_on, deadlines=True)


def test_a_page_whose_answer_was_lost_counts_once(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await begin(stage, *[waiting()] * (2 * PAGE))
        stage.store.fail_after_commits(disk_full())
        with pytest.raises(Exception, match="no space"):
            await send(stage, dedupe_id="once")
        repeated = await send(stage, dedupe_id="once")
        assert (repeated.event_id, repeated.woke, repeated.continues) == (None, 0, False)
        ((event_id, _),) = await REMAINDER.read_page(stage.store, NAMESPACE, limit=9)
        stage.store.fail_after_commits(disk_full())
        ingested = Ingested(event_id=event_id)
        with pytest.raises(Exception, match="no space"):
            await stage.play(WakeRemaining(remainder_key(ingested)))
        await wake_rest(stage, ingested)
        assert (await logged(stage, event_id)).woke == 2 * PAGE

    play(tmp_path / "p.db", story)


def test_who_comes_after_an_event_is_not_woken_by_its_later_pages(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        early = sorted(await begin(stage, *[waiting()] * (PAGE + 5)))
        ingested = await send(stage)
        stage.clock.jump(seconds=1)  # so that they stand behind the others
        late = await begin(stage, *[waiting()] * 3)
        await stage.play(Answer(early[0], a_wait(name="again")))
        assert await states(stage, early[-1]) == [StepState.WAITING]

        await wake_rest(stage, ingested)

        assert (await logged(stage, ingested.event_id)).woke == PAGE + 5
        assert await states(stage, early[-1]) == [StepState.FINISHED]
        assert await states(stage, early[0]) == [StepState.FINISHED, StepState.WAITING]
        assert [await states(stage, run_id) for run_id in late] == [[StepState.WAITING]] * 3
        assert (await send(stage)).woke == 4

    play(tmp_path / "p.db", story)


@pytest.mark.parametrize("begins_first", [True, False])
def test_who_comes_in_the_same_beat_as_an_event_comes_after_it(
    tmp_path: Path, begins_first: bool
) -> None:
    async def story(stage: Stage) -> None:
        await begin(stage, *[waiting()] * (PAGE + 5))
        stage.clock.jump(seconds=1)
        both = [Begin(waiting()), an_event()]
        replies = await stage.together(*(both if begins_first else reversed(both)))
        ((late,), ingested) = replies if begins_first else reversed(replies)

        await wake_rest(stage, ingested)

        assert (await logged(stage, ingested.event_id)).woke == PAGE + 5
        assert await states(stage, late) == [StepState.WAITING]
        assert (await send(stage)).woke == 1

    play(tmp_path / "p.db", story)


def test_a_step_that_begins_to_wait_in_the_beat_of_an_event_comes_after_it(
    tmp_path: Path,
) -> None:
    async def story(stage: Stage) -> None:
        (run_id,) = await begin(stage, waiting(a_wait(), a_wait("go", name="go")))
        assert (await send(stage, name="go")).woke == 1
        _, ingested = await stage.together(Answer(run_id, a_wait(name="again")), an_event())
        assert ingested.woke == 1
        done, waits = StepState.FINISHED, StepState.WAITING
        assert await states(stage, run_id) == [done, done, waits]

    play(tmp_path / "p.db", story)


@pytest.mark.parametrize("others", [0, PAGE + 5])
@pytest.mark.parametrize("waits_first", [True, False])
def test_a_run_that_emits_what_it_waits_for_does_not_wake_itself(
    tmp_path: Path, others: int, waits_first: bool
) -> None:
    async def story(stage: Stage) -> None:
        await begin(stage, *[waiting()] * others)
        stage.clock.jump(seconds=1)
        pair = (a_wait(), an_emit())
        (run_id,) = await begin(stage, Begun(pair if waits_first else pair[::-1]))
        for key, _ in await REMAINDER.read_page(stage.store, NAMESPACE, limit=9):
            await wake_rest(stage, Ingested(event_id=key))
        assert StepState.WAITING in await states(stage, run_id)
        assert (await send(stage)).woke == 1

    play(tmp_path / "p.db", story)


def test_woke_counts_runs_and_all_waits_of_a_run_end_together(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        waits = [
            a_wait(name="all"),
            a_wait(name="mine", match={"data.id": 1}),
            a_wait(name="large", where="event.data.id > 0"),
            a_wait(name="other", match={"data.id": 2}),
            a_wait("refunded", name="refunded"),
        ]
        (run_id,) = await begin(stage, waiting(*waits))
        await begin(stage, *[waiting()] * (2 * PAGE))

        ingested = await send(stage, {"id": 1})
        assert await states(stage, run_id) == [StepState.FINISHED] * 3 + [StepState.WAITING] * 2
        await wake_rest(stage, ingested)

        assert (await logged(stage, ingested.event_id)).woke == 2 * PAGE + 1

    play(tmp_path / "p.db", story)


def test_many_ways_to_match_are_looked_up_in_several_beats(tmp_path: Path) -> None:
    ways = 2 * WAITER_LOOKUPS_PER_PAGE_MAX + 3

    async def story(stage: Stage) -> None:
        waits = (a_wait(match={f"data.m{number}": 1}) for number in range(ways))
        await begin(stage, *map(waiting, waits), waiting())
        ingested = await send(stage, {f"m{number}": 1 for number in range(0, ways, 2)})
        assert ingested.continues
        assert await wake_rest(stage, ingested) == 2
        assert (await logged(stage, ingested.event_id)).woke == ways // 2 + 2

    play(tmp_path / "p.db", story)


def test_many_filters_are_tried_in_several_beats(tmp_path: Path) -> None:
    count = 2 * WAITER_FILTERS_PER_PAGE_MAX + 3

    async def story(stage: Stage) -> None:
        waits = (a_wait(where=f"event.data.total > {number}") for number in range(count))
        await begin(stage, *map(waiting, waits))
        ingested = await send(stage, {"total": count - 10})
        assert await wake_rest(stage, ingested) == 2
        assert (await logged(stage, ingested.event_id)).woke == count - 10
        waits = (a_wait(where="event.data.total > 1") for number in range(count))
        await begin(stage, *map(waiting, waits))
        assert (await send(stage, {"total": 2})).woke == count, "this filter is one"

    play(tmp_path / "p.db", story)


def test_large_events_are_handed_out_in_smaller_pages(tmp_path: Path) -> None:
    data = "x" * (WAITER_BYTES_PER_PAGE_MAX // 40)

    async def story(stage: Stage) -> None:
        waits = (a_wait(), a_wait(where="event.data != ''"), a_wait(where="trigger.data != ''"))
        begun = [waiting(wait, data=number) for wait in waits for number in range(50)]
        await begin(stage, *begun)
        ingested = await send(stage, data)
        assert ingested.continues
        assert ingested.woke < 50
        await wake_rest(stage, ingested)
        assert (await logged(stage, ingested.event_id)).woke == 150

    play(tmp_path / "p.db", story)


def test_other_apps_namespaces_and_names_are_left_alone(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        wait = a_wait(match={"data.id": 1})
        await begin(
            stage,
            waiting(wait),
            waiting(),
            waiting(wait, app="bank"),
            waiting(app="bank"),
            waiting(wait, namespace="test"),
            waiting(namespace="test"),
            waiting(a_wait("paid\x1efully")),
            waiting(a_wait("paid\x1e!" + "0" * 32 + ":" + "0" * 32, match={"data.id": 1})),
            waiting(a_wait("pai")),
        )
        assert (await send(stage, {"id": 1}, target=APP)).woke == 2
        assert (await send(stage, {"id": 1}, namespace="test")).woke == 2
        assert (await send(stage, {"id": 1})).woke == 2
        assert (await send(stage, {"id": 1}, name="paid\x1efully")).woke == 1

    play(tmp_path / "p.db", story)


def test_an_event_does_not_revive_a_run_that_is_cancelled_in_the_same_beat(
    tmp_path: Path,
) -> None:
    async def story(stage: Stage) -> None:
        (run_id,) = await begin(stage, waiting())
        cancel = CancelPushRun(NAMESPACE, run_id, "somebody")
        _, ingested = await stage.together(cancel, an_event())
        assert ingested.woke == 0
        run = await stage.load(run_id)
        assert (run.status.value, run.task) == ("cancelled", None)

    play(tmp_path / "p.db", story)


def test_a_wait_that_is_over_is_not_in_the_index(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        timed = a_wait(match={"data.id": 1}, timeout=SECOND)
        (waited, cancelled) = await begin(stage, waiting(timed), waiting(timed))
        await stage.play(CancelPushRun(NAMESPACE, cancelled, "somebody"))
        await stage.clock.advance(seconds=2)
        await stage.until(lambda: not stage.store.rows("select 1 from record where kind='waiter'"))
        assert await states(stage, waited) == [StepState.FINISHED]

    play(tmp_path / "p.db", story, deadlines=True)


@pytest.mark.parametrize("root", ["event", "trigger"])
def test_filters_that_cost_much_do_not_crowd_each_other_out(tmp_path: Path, root: str) -> None:
    count = 20
    data = {"list": list(range(50))}

    async def story(stage: Stage) -> None:
        where = f"{root}.data.list.exists(x, event.data.list.exists(y, y == x + %d))"
        runs = [waiting(a_wait(where=where % number), data=data) for number in range(count)]
        await begin(stage, *runs)
        ingested = await send(stage, data)
        assert ingested.continues
        await wake_rest(stage, ingested)
        assert (await logged(stage, ingested.event_id)).woke == count

    play(tmp_path / "p.db", story)


def test_filters_that_fail_are_counted_once_over_all_pages(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        plain = a_wait(name="plain", where="event.data.missing > 0")
        trigger = a_wait(name="trigger", where="event.data.missing > trigger.data")
        good = a_wait(name="good")
        # The last wait of some run stands in another page than its first.
        both = [good, trigger, plain]
        count = PAGE // 2
        await begin(stage, *[waiting(*both, data=1)] * count)
        ingested = await send(stage, {})
        assert await wake_rest(stage, ingested) == 1
        event = await logged(stage, ingested.event_id)
        assert (event.woke, event.failed_count) == (count, 2 * count)
        told = {(one.workflow, one.app, one.step, one.condition) for one in event.failed}
        assert told <= {("order", APP, one.name, one.filter) for one in (plain, trigger)}
        assert event.failed

    play(tmp_path / "p.db", story)


def test_an_event_that_continues_is_not_forgotten(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await begin(stage, *[waiting()] * (PAGE + 1))
        ingested = await send(stage)
        stage.clock.jump(seconds=20)
        settings = Settings(event_retention=10 * SECOND)
        record_expiry = make_expiry(settings, stage.engine, stage.clock, [])
        assert record_expiry is not None
        assert await record_expiry.forget() == 0
        await wake_rest(stage, ingested)
        assert (await logged(stage, ingested.event_id)).woke == PAGE + 1
        assert await record_expiry.forget() == 1

    play(tmp_path / "p.db", story)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([2**53 - 1, 2**53, 2**53 + 1, 2**64, 2**64 + 1, -(2**63)]),
    st.sampled_from([0.0, -0.0, 1.0, 0.5, float(2**53), float(2**64)]),
    st.sampled_from(["", "1", "a", "A", "true", "null", "ä", "a\u0308", "O'Hara", "\U0001f600"]),
    st.lists(st.integers(0, 1), max_size=1),
    st.fixed_dictionaries({"id": st.integers(0, 1)}),
)
FILTERS = st.sampled_from(
    [
        "event.data.id == trigger.data.id",
        "trigger.data.id == event.data.id && event.data.id == event.data.id",
        "event.data.id == trigger.data.id || event.data.id == 1",
        "event.data.id == 1 && true",
        "event.data.id == -1",
        "event.data.id == 9007199254740993",
        "event.data.id == 1.0 && trigger.data.id != 5",
        "event.data.id == 'a' && event.name == 'paid'",
        '"O\'Hara" == event.data.id',
        "event.data.id == null",
        "event.data.id == true",
        "event.data.id == true == true",
        "!(event.data.id == 1) && true",
        "event.data.id == 1 ? true : false",
        "event.data.id.id == 1",
        "(event.data.id == 'a' && true)",
        "event.data.id == ''",
        "event.data.id == 'a' + ''",
    ]
)


@tuned(max_examples=25, deadline=None)
@given(
    begun=st.lists(st.tuples(VALUES, FILTERS), min_size=1, max_size=30),
    events=st.lists(VALUES, min_size=1, max_size=4),
)
def test_the_index_finds_whatever_the_filters_let_through(
    tmp_path_factory: pytest.TempPathFactory, begun: Any, events: list[object]
) -> None:
    """The same waits, with the index and as they were before it."""

    async def story(stage: Stage) -> None:
        runs = [waiting(a_wait(where=where), data={"id": value}) for value, where in begun]
        indexed, plain = await begin(stage, *runs), await begin(stage, *runs)
        await stage.play(ForgetIndex(plain))
        for value in events:
            await send(stage, {"id": value})
            found = [await states(stage, run_id) for run_id in indexed]
            assert found == [await states(stage, run_id) for run_id in plain]

    play(tmp_path_factory.mktemp("waiters") / "p.db", story)
