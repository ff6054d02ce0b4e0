"""Flow control, gate by gate."""

import json

import msgspec
import pytest

from perdure.core import limits
from perdure.core.intake.concurrency import (
    admissible,
    concurrency_gate,
    enter,
    leave,
    stop_waiting,
    turn_key,
    turn_prefix,
    wait,
)
from perdure.core.intake.definition import (
    Batch,
    Concurrency,
    Debounce,
    Flow,
    Idempotency,
    Priority,
    RateLimit,
    Singleton,
    Throttle,
)
from perdure.core.intake.flow import Admission, admit
from perdure.core.intake.flow_state import (
    Arrival,
    Gate,
    SingletonHolder,
    Slots,
    decode_state,
    due_at,
    encode_state,
    gates_of,
    record_key,
    record_prefix,
    scope_of,
)
from tests.core.intake.flow_harness import Desk


@pytest.mark.parametrize(
    ("key", "data", "scope"),
    [
        (None, {"a": 1}, ""),
        ("a", {"a": 1}, "1"),
        ("a", {"a": "1"}, '"1"'),
        ("a", {"a": True}, "true"),
        ("a", {"a": 1.5}, "1.5"),
        ("a", {"a": ""}, '""'),
        ("a", {"a": None}, ""),
        ("a", {"a": [1]}, ""),
        ("a", {"a": {"b": 1}}, ""),
        ("a.b", {"a": {"b": "x"}}, '"x"'),
        ("a.b", {"a": "x"}, ""),
        ("a.b", {"a.b": "x"}, ""),
        ("a", [1], ""),
        ("a", None, ""),
    ],
)
def test_a_scope_is_the_scalar_at_the_end_of_a_path(
    key: str | None, data: object, scope: str
) -> None:
    assert scope_of(key, data) == scope


def test_names_of_states_never_meet() -> None:
    gates = [Gate("batch", scope) for scope in ("", '"a"', '"a/b"', '"%2F"', '"~"', "x" * 300)]
    homes = [("a", "b/c"), ("a/b", "c"), ("a", "b"), ("~", "b"), ("é" * 255, "b")]
    names = [record_key(*home, gate) for home in homes for gate in gates]
    assert len(set(names)) == len(names)
    assert all(len(name.encode()) < 1_000 for name in names)
    assert record_key("a", "b", gates[0]).startswith(record_prefix("a", "b"))


def test_without_policies_every_trigger_starts_at_once() -> None:
    query_broker = Desk(Flow())
    assert [query_broker.send().run_id for _ in range(3)] == ["run-1", "run-2", "run-3"]
    assert query_broker.states == {}
    assert gates_of(Flow(), {}) == []


def test_idempotency_counts_from_the_first() -> None:
    query_broker = Desk(Flow(idempotency=Idempotency(key="id", period_ms=1_000)))
    assert query_broker.send({"id": 1}).outcome == "started"
    query_broker.pass_ms(999)
    assert query_broker.send({"id": 1}).outcome == "deduped"
    assert query_broker.send({"id": "1"}).outcome == "started"
    query_broker.pass_ms(1)
    assert query_broker.send({"id": 1}).outcome == "started"


def test_rate_limits_shed_what_is_too_much() -> None:
    query_broker = Desk(Flow(rate_limit=RateLimit(limit=2, per_ms=1_000)))
    outcomes = []
    for _ in range(5):
        outcomes.append(query_broker.send().outcome)
        query_broker.pass_ms(400)
    assert outcomes == ["started", "started", "dropped", "started", "started"]


def test_what_is_dropped_or_skipped_spends_nothing() -> None:
    flow = Flow(
        idempotency=Idempotency(key="id"),
        rate_limit=RateLimit(limit=2, per_ms=1_000),
        singleton=Singleton(),
    )
    query_broker = Desk(flow)
    assert query_broker.send({"id": 1}).outcome == "started"
    assert [query_broker.send({"id": n}).outcome for n in (2, 3, 4)] == ["skipped"] * 3
    query_broker.end("run-1")
    assert query_broker.send({"id": 2}).outcome == "started"
    assert query_broker.send({"id": 3}).outcome == "dropped"
    query_broker.pass_ms(1_000)
    query_broker.end("run-2")
    assert query_broker.send({"id": 3}).outcome == "started"
    assert query_broker.send({"id": 3}).outcome == "deduped"


def test_a_singleton_skips_while_its_run_lives() -> None:
    query_broker = Desk(Flow(singleton=Singleton(key="who")))
    assert query_broker.send({"who": "a"}).run_id == "run-1"
    assert query_broker.send({"who": "a"}).outcome == "skipped"
    assert query_broker.send({"who": "b"}).run_id == "run-2"
    query_broker.end("run-1")
    assert query_broker.send({"who": "a"}).run_id == "run-3"


def test_a_singleton_that_cancels_makes_room_and_late_ends_change_nothing() -> None:
    query_broker = Desk(Flow(singleton=Singleton(mode="cancel")))
    first = query_broker.send()
    second = query_broker.send()
    assert first.start is not None
    assert second.start is not None
    assert (first.start.cancels, second.start.cancels) == (None, "run-1")
    gate = Gate("singleton", "")
    assert query_broker.states[gate] == SingletonHolder("run-2")
    query_broker.end("run-1")
    assert query_broker.states[gate] == SingletonHolder("run-2")
    query_broker.end("run-2")
    assert gate not in query_broker.states


def test_a_debounce_starts_the_last_when_it_is_quiet() -> None:
    query_broker = Desk(Flow(debounce=Debounce(period_ms=1_000)))
    for n in range(3):
        admission = query_broker.send({"n": n})
        assert (admission.outcome, admission.run_id) == ("debounced", None)
        query_broker.pass_ms(999)
    assert query_broker.started == []
    query_broker.pass_ms(1)
    [run] = query_broker.started
    assert [json.loads(arrival.data) for arrival in run.arrivals] == [{"n": 2}]
    assert not run.is_batch
    assert query_broker.states == {}


def test_a_debounce_that_is_overdue_does_not_wait_for_ever() -> None:
    """Nobody flushed in time, and the next trigger is here already."""
    query_broker = Desk(Flow(debounce=Debounce(period_ms=1_000)), flushes=False)
    for n in range(4):
        query_broker.send({"n": n})
        query_broker.pass_ms(1_000)
    assert [json.loads(run.arrivals[0].data)["n"] for run in query_broker.started] == [0, 1, 2]


def test_a_batch_starts_when_it_is_full_and_tells_who_filled_it() -> None:
    query_broker = Desk(Flow(batch=Batch(max_size=3, timeout_ms=1_000)))
    admissions = [query_broker.send({"n": n}) for n in range(4)]
    assert [a.outcome for a in admissions] == ["batched"] * 4
    assert [a.run_id for a in admissions] == [None, None, "run-1", None]
    query_broker.pass_ms(1_000)
    assert [[json.loads(a.data)["n"] for a in run.arrivals] for run in query_broker.started] == [
        [0, 1, 2],
        [3],
    ]
    assert all(run.is_batch for run in query_broker.started)


def test_a_batch_goes_before_it_is_too_much_for_a_pass() -> None:
    query_broker = Desk(Flow(batch=Batch(max_size=9, timeout_ms=1_000)))
    half = {"n": "x" * (limits.BATCH_BYTES_MAX // 2)}
    assert query_broker.send(half).start is None
    second = query_broker.send(half)
    assert (second.outcome, second.run_id) == ("batched", None)
    assert [len(run.arrivals) for run in query_broker.started] == [1]
    query_broker.pass_ms(1_000)
    assert [len(run.arrivals) for run in query_broker.started] == [1, 1]


def test_a_batch_of_one_starts_at_once() -> None:
    query_broker = Desk(Flow(batch=Batch(max_size=1, timeout_ms=1_000)))
    assert query_broker.send().run_id == "run-1"
    assert query_broker.states == {}


def test_a_buffer_meets_the_singleton_when_it_is_flushed() -> None:
    flow = Flow(batch=Batch(max_size=5, timeout_ms=1_000), singleton=Singleton(key="who"))
    query_broker = Desk(flow)
    query_broker.send({"who": "a"})
    query_broker.send({"who": "b"})
    query_broker.pass_ms(1_000)
    assert [run.singleton for run in query_broker.started] == [Gate("singleton", '"a"')]
    query_broker.send({"who": "b"})
    assert query_broker.send({"who": "a"}).outcome == "skipped"
    query_broker.pass_ms(1_000)
    query_broker.send({"who": "c"})
    assert (len(query_broker.started), query_broker.shed) == (2, 0)
    query_broker.states[Gate("singleton", '"c"')] = SingletonHolder("another")
    query_broker.pass_ms(1_000)
    assert (len(query_broker.started), query_broker.shed) == (2, 1)


def test_the_batch_that_a_singleton_skips_is_reported_so() -> None:
    flow = Flow(batch=Batch(max_size=2, timeout_ms=1_000), singleton=Singleton(key="who"))
    query_broker = Desk(flow)
    query_broker.send({"who": "a"})
    query_broker.states[Gate("singleton", '"a"')] = SingletonHolder("another")
    last = query_broker.send({"who": "b"})
    assert (last.outcome, last.run_id, last.shed) == ("skipped", None, 2)
    assert Gate("batch", "") not in query_broker.states


def test_a_throttle_spaces_starts_evenly() -> None:
    query_broker = Desk(Flow(throttle=Throttle(limit=3, per_ms=1_000)))
    begun = query_broker.now
    for _ in range(3):
        query_broker.send()
    spaces = [run.not_before - begun for run in query_broker.started]
    assert spaces == [0, 333_334, 666_668]
    query_broker.pass_ms(5_000)
    query_broker.send()
    assert query_broker.started[-1].not_before == query_broker.now


def test_a_priority_moves_the_place_in_the_queue() -> None:
    early, late = (Desk(Flow(priority=Priority(shift_ms=ms))) for ms in (500, -500))
    early.send()
    late.send()
    assert early.started[0].position == early.now - 500_000
    assert late.started[0].position == late.now + 500_000
    assert late.started[0].not_before == late.now


def test_a_definition_that_changed_flushes_old_buffers() -> None:
    query_broker = Desk(Flow(debounce=Debounce(period_ms=1_000)))
    query_broker.send()
    query_broker.flow = Flow(throttle=Throttle(limit=1, per_ms=50))
    query_broker.pass_ms(1_000)
    assert len(query_broker.started) == 1
    assert Gate("throttle", "") in query_broker.states


def test_states_are_stored_and_read_back() -> None:
    for flow in (
        Flow(idempotency=Idempotency(), rate_limit=RateLimit(limit=2, per_ms=9)),
        Flow(batch=Batch(max_size=3, timeout_ms=5), singleton=Singleton()),
        Flow(throttle=Throttle(limit=2, per_ms=9), singleton=Singleton()),
    ):
        query_broker = Desk(flow)
        query_broker.send({"a": "é"})
        for state in query_broker.states.values():
            assert decode_state(encode_state(state)) == state
            ctx = due_at(state)
            assert ctx is None or ctx > query_broker.now


def test_an_admission_without_a_run_names_none() -> None:
    assert Admission(outcome="dropped").run_id is None
    nothing = admit(Flow(), {}, Arrival("x", b""), None, run_id="r", now=0)
    assert nothing.run_id == "r"


# Concurrency --------------------------------------------------------------------------------------


def test_slots_are_taken_up_to_the_limit_and_given_back() -> None:
    one = enter(None, 2, waited=False)
    two = enter(one, 2, waited=False)
    assert two == Slots(2, 0)
    assert enter(two, 2, waited=False) is None
    queue = wait(two)
    assert admissible(queue, 2) == 0
    room = leave(queue)
    assert room == Slots(1, 1)
    assert admissible(room, 2) == 1
    assert enter(room, 2, waited=False) is None, "somebody is before it"
    assert enter(room, 2, waited=True) == Slots(2, 0)
    assert leave(leave(two)) is None
    assert stop_waiting(queue) == two


def test_a_limit_that_was_lowered_lets_nobody_in_until_enough_have_left() -> None:
    assert enter(Slots(5, 0), 3, waited=False) is None
    assert admissible(Slots(5, 2), 3) == 0
    assert admissible(None, 3) == 0


def test_waiting_runs_sort_by_their_turn() -> None:
    slot, whole = (record_key("app", "w", Gate("concurrency", scope)) for scope in ('"k"', ""))
    turns = [(9, "b"), (10, "a"), (1_700_000_000_000_000, "a"), (1_700_000_000_000_000, "b")]
    names = [turn_key(slot, *turn) for turn in turns]
    assert names == sorted(names)
    assert all(name.startswith(turn_prefix(slot)) for name in names)
    assert not names[0].startswith(turn_prefix(whole))


def test_the_scope_of_concurrency() -> None:
    assert concurrency_gate(Flow(), {"a": 1}) is None
    keyed = Flow(concurrency=Concurrency(limit=1, key="a"))
    assert concurrency_gate(keyed, {"a": 1}) == Gate("concurrency", "1")
    assert Gate("concurrency", "1") not in gates_of(keyed, {"a": 1})


def test_json_of_a_policy_is_the_wire() -> None:
    assert msgspec.json.encode(Debounce(period_ms=5)) == b'{"periodMs":5}'
