"""Whatever arrives whenever: limits hold, nothing starves, everything is reported."""

import json
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core import limits
from perdure.core.intake.concurrency import admissible, enter, leave, turn_key, wait
from perdure.core.intake.definition import (
    Batch,
    Debounce,
    Flow,
    Idempotency,
    Priority,
    RateLimit,
    Singleton,
    Throttle,
)
from perdure.core.intake.flow import BOOLEANS
from perdure.core.intake.flow_state import Gate, Slots, State
from tests.core.intake.flow_harness import Desk

KEYS = st.sampled_from([None, "k"])
SMALL = st.integers(1, 4)
PERIODS = st.integers(1, 60)
BUFFERS = st.one_of(
    st.none(),
    st.builds(Debounce, period_ms=PERIODS, key=KEYS),
    st.builds(Batch, max_size=SMALL, timeout_ms=PERIODS, key=KEYS),
)


@st.composite
def flows(draw: st.DrawFn) -> Flow:
    buffer = draw(BUFFERS)
    return Flow(
        idempotency=draw(st.none() | st.builds(Idempotency, key=KEYS, period_ms=PERIODS)),
        rate_limit=draw(st.none() | st.builds(RateLimit, limit=SMALL, per_ms=PERIODS, key=KEYS)),
        singleton=draw(
            st.none() | st.builds(Singleton, key=KEYS, mode=st.sampled_from(["skip", "cancel"]))
        ),
        debounce=buffer if isinstance(buffer, Debounce) else None,
        batch=buffer if isinstance(buffer, Batch) else None,
        throttle=draw(st.none() | st.builds(Throttle, limit=SMALL, per_ms=PERIODS, key=KEYS)),
        priority=draw(st.none() | st.builds(Priority, shift_ms=st.integers(-50, 50))),
    )


# What happens: so many milliseconds pass, then a trigger of a key comes, or a run ends.
HAPPENINGS = st.lists(
    st.tuples(st.integers(0, 40), st.sampled_from(["a", "b", None, "end"])), max_size=60
)


class Log:
    """What was sent, and what was said of it."""

    def __init__(self, flow: Flow, happenings: list[tuple[int, str | None]], *, flushes: bool):
        self.query_broker = Desk(flow, flushes=flushes)
        self.said: list[tuple[int, str | None, str, bool]] = []
        for milliseconds, what in happenings:
            self.query_broker.pass_ms(milliseconds)
            if what == "end":
                for run_id in list(self.query_broker.live)[:1]:
                    self.query_broker.end(run_id)
                continue
            admission = self.query_broker.send({"k": what, "n": len(self.said)})
            named = admission.run_id is not None
            self.said.append((self.query_broker.now, what, admission.outcome, named))
        # In the end all is quiet: live runs end, and whatever waits has its time.
        for run_id in list(self.query_broker.live):
            self.query_broker.end(run_id)

    @property
    def carried(self) -> list[int]:
        return [json.loads(a.data)["n"] for run in self.query_broker.started for a in run.arrivals]


def scope(key: str | None, value: str | None) -> str:
    return "" if key is None or value is None else value


def most_within(moments: list[int], window: int) -> int:
    return max(
        (sum(start <= other < start + window for other in moments) for start in moments), default=0
    )


@given(flows(), HAPPENINGS, st.booleans())
def test_everything_is_reported_and_carried_at_most_once(
    flow: Flow, happenings: list[tuple[int, str | None]], flushes: bool
) -> None:
    log = Log(flow, happenings, flushes=flushes)
    log.query_broker._flushes = True
    log.query_broker.pass_ms(1_000)
    outcomes = Counter(outcome for _, _, outcome, _ in log.said)
    assert set(outcomes) <= {"started", *BOOLEANS}
    assert len(log.carried) == len(set(log.carried)), "an event is in two runs"
    for place, (_, _, outcome, named) in enumerate(log.said):
        if outcome in ("started", "batched") and named:
            assert place in log.carried
        if outcome in ("skipped", "dropped", "deduped"):
            assert place not in log.carried
            assert not named
        assert named or outcome != "started"
    # Buffers are empty, and what a debounce let go was followed by another of its scope.
    assert not any(gate.policy in ("debounce", "batch") for gate in log.query_broker.states)
    if flow.batch is not None:
        admitted = outcomes["batched"] + outcomes["skipped"]
        assert len(log.carried) + log.query_broker.shed >= outcomes["batched"]
        assert len(log.carried) <= admitted


@given(flows(), HAPPENINGS)
def test_limits_hold(flow: Flow, happenings: list[tuple[int, str | None]]) -> None:
    log = Log(flow, happenings, flushes=True)
    admitted = [
        (ctx, value)
        for ctx, value, outcome, _ in log.said
        if outcome in ("started", "debounced", "batched")
    ]
    if flow.rate_limit is not None:
        told = flow.rate_limit
        for wanted in {scope(told.key, value) for _, value in admitted}:
            moments = [m for m, value in admitted if scope(told.key, value) == wanted]
            assert most_within(moments, told.per_ms * 1_000) <= told.limit
    if flow.idempotency is not None:
        seen = flow.idempotency
        for wanted in {scope(seen.key, value) for _, value in admitted}:
            moments = [m for m, value in admitted if scope(seen.key, value) == wanted]
            gaps = [later - earlier for earlier, later in pairwise(moments)]
            assert all(gap >= seen.period_ms * 1_000 for gap in gaps)
    if flow.throttle is not None:
        pace = flow.throttle
        slots: dict[str, list[int]] = {}
        for run in log.query_broker.started:
            value = json.loads(run.arrivals[0].data)["k"]
            slots.setdefault(scope(pace.key, value), []).append(run.not_before)
        for moments in slots.values():
            assert moments == sorted(moments)
            assert most_within(moments, pace.per_ms * 1_000) <= pace.limit
    if flow.batch is not None:
        assert all(len(run.arrivals) <= flow.batch.max_size for run in log.query_broker.started)


@given(flows(), HAPPENINGS)
def test_a_singleton_has_one_live_run(flow: Flow, happenings: list[tuple[int, str | None]]) -> None:
    if flow.singleton is None:
        return
    query_broker = Desk(flow)
    for milliseconds, what in happenings:
        query_broker.pass_ms(milliseconds)
        if what == "end" and query_broker.live:
            query_broker.end(next(iter(query_broker.live)))
        else:
            query_broker.send({"k": what})
        live = Counter(run.singleton for run in query_broker.live.values())
        assert set(live.values()) <= {1}
        held = {gate for gate in query_broker.states if gate.policy == "singleton"}
        assert held == set(live)


@given(
    st.lists(st.integers(0, 30), max_size=120),
    st.integers(1, 9),
    st.integers(1, 100),
)
def test_a_coarse_log_never_lets_too_many_in_and_lets_in_nearly_all(
    gaps: list[int], limit: int, per_ms: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "RATE_LOG_ENTRIES_MAX", 4)
        query_broker = Desk(Flow(rate_limit=RateLimit(limit=limit, per_ms=per_ms)))
        admitted = []
        for gap in gaps:
            query_broker.pass_ms(gap)
            if query_broker.send().outcome == "started":
                admitted.append(query_broker.now)
            elif admitted:
                # Refused only if the window, made longer by one grain, is full.
                window = per_ms * 1_000 + per_ms * 1_000 // 4 + 1
                assert sum(ctx > query_broker.now - window for ctx in admitted) >= limit
            for state in query_broker.states.values():
                assert len(getattr(state, "entries", ())) <= max(6, limit if limit <= 4 else 6)
        assert most_within(admitted, per_ms * 1_000) <= limit


@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from(["arrive", "finish"]), st.integers(0, 50)), max_size=80),
)
def test_concurrency_holds_its_limit_in_order_and_lets_everybody_in(
    limit: int, happenings: list[tuple[str, int]]
) -> None:
    state: State | None = None
    inside: list[str] = []
    waiting: dict[str, str] = {}
    entered: list[str] = []
    arrived = 0

    def let_in() -> None:
        nonlocal state
        for name in sorted(waiting)[: admissible(state, limit)]:
            state = enter(state, limit, waited=True)
            assert state is not None
            run = waiting.pop(name)
            assert all(name < other for other in waiting), "somebody was passed over"
            inside.append(run)
            entered.append(run)

    def finish() -> None:
        nonlocal state
        inside.pop(0)
        state = leave(state)
        let_in()

    for what, shift in happenings:
        if what == "arrive":
            arrived += 1
            run = f"run-{arrived:03d}"
            taken = enter(state, limit, waited=False)
            if taken is None:
                state = wait(state)
                waiting[turn_key("slot", arrived * 10 + shift, run)] = run
            else:
                state = taken
                inside.append(run)
                entered.append(run)
        elif inside:
            finish()
        assert len(inside) <= limit
        assert not waiting or len(inside) == limit
        expected = Slots(len(inside), len(waiting))
        assert (state or Slots()) == expected
    while inside:
        finish()
    assert len(entered) == arrived
    assert state is None


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60), st.integers(1, 60))
def test_a_debounce_fires_once_per_quiet_time_with_the_last(gaps: list[int], period: int) -> None:
    query_broker = Desk(Flow(debounce=Debounce(period_ms=period)))
    sent = []
    for number, gap in enumerate(gaps):
        query_broker.pass_ms(gap)
        query_broker.send({"n": number})
        sent.append(query_broker.now)
    query_broker.pass_ms(period)
    last = [
        number
        for number, ctx in enumerate(sent)
        if number + 1 == len(sent) or sent[number + 1] - ctx >= period * 1_000
    ]
    assert [json.loads(run.arrivals[0].data)["n"] for run in query_broker.started] == last
    assert [run.not_before for run in query_broker.started] == [
        sent[n] + period * 1_000 for n in last
    ]
    assert Gate("debounce", "") not in query_broker.states


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60), SMALL, st.integers(1, 60))
def test_no_event_waits_longer_than_its_batch_may(gaps: list[int], size: int, timeout: int) -> None:
    query_broker = Desk(Flow(batch=Batch(max_size=size, timeout_ms=timeout)))
    sent = []
    for number, gap in enumerate(gaps):
        query_broker.pass_ms(gap)
        query_broker.send({"n": number})
        sent.append(query_broker.now)
    query_broker.pass_ms(timeout)
    carried = [json.loads(a.data)["n"] for run in query_broker.started for a in run.arrivals]
    assert carried == list(range(len(sent)))
    for run in query_broker.started:
        first = sent[json.loads(run.arrivals[0].data)["n"]]
        assert run.not_before <= first + timeout * 1_000
