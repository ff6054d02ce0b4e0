"""Waits, signals and markers."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

import asyncio
from collections.abc import Awaitable
from typing import Any

from durable_workflow import ServerError, SignalFailed, serializer

from tests.sdk.cases.registry import case
from tests.sdk.replaying import decoded, kind
from tests.sdk.sdk_harness import Run, Stage, until


@case("wait-for-signal", "approval")
async def wait_for_signal(stage: Stage) -> None:
    run = await stage.start("approval")
    await run.event("ConditionWaitOpened")
    await run.signal("approve", "ada")

    assert await run.result() == {"approved_by": "ada"}


@case("wait-times-out", "deadline")
async def wait_times_out(stage: Stage) -> None:
    run = await stage.start("deadline", 1)

    assert await run.result() == {"in_time": False, "told": "too late"}


@case("wait-timeout-zero", "deadline")
async def wait_timeout_zero(stage: Stage) -> None:
    run = await stage.start("deadline", 0)

    assert await run.result() == {"in_time": False, "told": "too late"}


@case("wait-gate-loop", "gate")
async def wait_gate_loop(stage: Stage) -> None:
    run = await stage.start("gate")
    await run.event("ConditionWaitOpened")
    await asyncio.gather(*(run.signal("open") for _ in range(3)))

    assert await run.result() == 3


@case("wait-gate-early-signals", "gate", worker=False)
async def wait_gate_early_signals(stage: Stage) -> None:
    run = await stage.start("gate")
    for _ in range(3):
        await run.signal("open")

    async with stage.worker():
        assert await run.result() == 3


@case("wait-watchdog", "watchdog", worker=False)
async def wait_watchdog(stage: Stage) -> None:
    run = await stage.start("watchdog", 2)
    await run.signal("beat")
    await run.signal("beat")

    async with stage.worker():
        assert await run.result() == {"beats": 2, "silences": 2}


@case("wait-exactly-one", "moments", worker=False)
async def wait_exactly_one(stage: Stage) -> None:
    run = await stage.start("moments", 3)
    for name in ("ada", "bob", "cyd"):
        await run.signal("arrive", name)

    async with stage.worker():
        assert await run.result() == {"first": ["ada"], "all": ["ada", "bob", "cyd"]}


@case("wait-two-in-order", "two-keys", worker=False)
async def wait_two_in_order(stage: Stage) -> None:
    run = await stage.start("two-keys")
    await run.signal("turn", "left")
    await run.signal("turn", "right")

    async with stage.worker():
        assert await run.result() == ["left", "right"]


@case("wait-two-reversed", "two-keys", worker=False)
async def wait_two_reversed(stage: Stage) -> None:
    run = await stage.start("two-keys")
    await run.signal("turn", "right")
    await run.signal("turn", "left")

    async with stage.worker():
        assert await run.result() == ["left", "right"]


@case("signals-many", "collector")
async def signals_many(stage: Stage) -> None:
    run = await stage.start("collector", 25)
    await asyncio.gather(*(run.signal("add", number) for number in range(25)))

    assert await run.result() == {"items": list(range(25)), "total": sum(range(25))}


@case("signal-during-timer", "notebook")
async def signal_during_timer(stage: Stage) -> None:
    run = await stage.start("notebook")
    await run.event("TimerScheduled")
    await run.signal("note", "during the timer")

    assert await run.result() == ["during the timer"]


@case("signal-during-work", "tokens")
async def signal_during_work(stage: Stage) -> None:
    run = await stage.start("tokens", 4)
    await asyncio.gather(*(run.signal("grant") for _ in range(4)))

    assert await run.result() == 4


@case("side-effects", "lottery")
async def side_effects(stage: Stage) -> None:
    run = await stage.start("lottery")

    told = await run.result()
    assert told["same"] is True
    recorded = [
        decoded(event["payload"]["result"])
        for event in await run.history()
        if kind(event) == "SideEffectRecorded"
    ]
    assert recorded == [told["ticket"], told["again"]]


@case("deterministic-helpers", "clockwork")
async def deterministic_helpers(stage: Stage) -> None:
    run = await stage.start("clockwork")

    assert (await run.result())["same"] is True


@case("version-markers", "versioned")
async def version_markers(stage: Stage) -> None:
    run = await stage.start("versioned")

    assert await run.result() == {"version": 2, "patched": True, "total": 200}
    markers = [
        (event["payload"]["change_id"], event["payload"]["version"])
        for event in await run.history()
        if kind(event) == "VersionMarkerRecorded"
    ]
    assert markers == [("pricing", 2), ("rounding", 1), ("greeting", 1)]


@case("search-attributes", "labelled")
async def search_attributes(stage: Stage) -> None:
    customer = stage.new_id()
    given = {"CustomerId": customer, "OrderStage": "new"}
    run = await stage.start("labelled", search_attributes=given)

    assert await run.result() == "labelled"
    described = (await run.handle.describe()).search_attributes
    assert described == {"CustomerId": customer, "OrderStage": "shipped", "Parcels": 2}
    for query, expected in (
        (f'CustomerId="{customer}" AND Parcels >= 2', [run.workflow_id]),
        (f'CustomerId="{customer}" AND NOT OrderStage = shipped', []),
    ):
        listed = await stage.client.list_workflows(query=query, status="completed")
        assert [each.workflow_id for each in listed.executions] == expected


@case("memo-at-start", "greeter")
async def memo_at_start(stage: Stage) -> None:
    memo = {"owner": "ada", "tags": ["a", "b"], "nested": {"deep": 1}}
    run = await stage.start("greeter", "memo", memo=memo)

    assert await run.result() == "hello, memo"
    assert (await run.handle.describe()).memo == memo


@case("memo-upsert", "annotated")
async def memo_upsert(stage: Stage) -> None:
    run = await stage.start("annotated", memo={"owner": "ada"})

    assert await run.result() == "annotated"
    assert (await run.handle.describe()).memo == {"owner": "ada", "step": {"number": 2}}
    upserts = [event["payload"] for event in await run.history() if kind(event) == "MemoUpserted"]
    assert [decoded(upsert["merged"]) for upsert in upserts] == [
        {"owner": "ada", "step": "one", "draft": "to be removed"},
        {"owner": "ada", "step": {"number": 2}},
    ]


@case("signal-repeated", "gate")
async def signal_repeated(stage: Stage) -> None:
    run = await stage.start("gate")
    await run.event("ConditionWaitOpened")
    client, gate = stage.client, run.workflow_id

    first = await client.signal_workflow(gate, "open", request_id="once")
    again = await client.signal_workflow(gate, "open", request_id="once")
    assert (first["retained"], again["retained"]) == (False, True)
    assert first["command_id"] == again["command_id"]
    conflict = await refused(client.signal_workflow(gate, "open", args=[1], request_id="once"))
    assert conflict.reason == "request_id_conflict"
    for _ in range(2):
        await run.signal("open")

    assert await run.result() == 3
    assert (await run.kinds()).count("SignalReceived") == 3


@case("signal-unknown", "approval")
async def signal_unknown(stage: Stage) -> None:
    run = await stage.start("approval")
    await run.event("ConditionWaitOpened")

    assert (await refused(run.signal("disapprove"))).reason == "unknown_signal"
    assert (await refused(run.signal("approve"))).reason == "invalid_signal_arguments"
    await run.signal("approve", "ada")

    assert await run.result() == {"approved_by": "ada"}


async def start_asking(stage: Stage, workflow_type: str, *arguments: Any, **members: Any) -> Run:
    """Start a workflow with members that no release knows of."""
    body = {
        "workflow_id": stage.new_id(),
        "workflow_type": workflow_type,
        "task_queue": stage.queue,
        "input": {"codec": "avro", "blob": serializer.encode(list(arguments), codec="avro")},
        **members,
    }
    await stage.client._request("POST", "/workflows", json=body)
    return stage.adopt(Run(stage.client, stage.client.get_workflow_handle(body["workflow_id"])))


@case("signals-late", "guests", worker=False)
async def signals_late(stage: Stage) -> None:
    patient = await start_asking(stage, "guests", 1, late_signal_tasks=5)
    hasty = await start_asking(stage, "guests", 1)
    for run in (patient, hasty):
        for name in ("ada", "bob", "cyd"):
            await run.signal("arrive", name)

    async with stage.worker():
        assert await patient.result() == [["ada", "bob", "cyd"]]
        assert await hasty.result() == [["ada"]]
    assert "SignalRejected" not in await patient.kinds()
    assert (await hasty.kinds()).count("SignalRejected") == 2


@case("signals-together", "guests", worker=False)
async def signals_together(stage: Stage) -> None:
    run = await start_asking(stage, "guests", 8, signals_per_task=3)
    for name in "abcdefgh":
        await run.signal("arrive", name)

    async with stage.worker():
        assert await run.result() == [["a", "b", "c"], ["d", "e", "f"], ["g", "h"]]


@case("signal-pinned", "postbox")
async def signal_pinned(stage: Stage) -> None:
    run = await stage.start("postbox", 2, [])
    await run.handle.signal("post", ["first"])

    async def runs() -> int:
        return len((await run.handle.list_runs()).runs)

    await until(runs, (2).__eq__)
    try:
        await run.handle.signal("post", ["to the past"])
    except ServerError as refusal:
        reason = refusal.reason()
    else:
        raise AssertionError("a closed run of the chain took a signal")
    assert reason == "historical_run_command_rejected"
    await run.signal("post", "second")

    assert await run.result() == ["first", "second"]


async def refused(sending: Awaitable[Any]) -> Any:
    """The signal must be refused; the exception."""
    try:
        answer = await sending
    except SignalFailed as refusal:
        return refusal
    raise AssertionError(f"the signal was taken: {answer!r}")
