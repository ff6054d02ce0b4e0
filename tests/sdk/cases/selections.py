"""Selections: the first of several operations."""

from tests.sdk.cases.registry import case
from tests.sdk.cases.updates import ask
from tests.sdk.programs.beacons import beacon
from tests.sdk.sdk_harness import Stage


@case("select-activity-wins", "hurry")
async def select_activity_wins(stage: Stage) -> None:
    light = stage.new_id()
    beacon(light).set()
    run = await stage.start("hurry", light, 10)

    assert await run.result() == {"winner": "work", "value": "done", "late": None, "after": "after"}


@case("select-timer-wins", "hurry")
async def select_timer_wins(stage: Stage) -> None:
    light = stage.new_id()
    run = await stage.start("hurry", light, 1)
    await run.event("TimerFired")
    beacon(light).set()

    assert await run.result() == {
        "winner": "alarm",
        "value": None,
        "late": "done",
        "after": "after",
    }


@case("select-loser-left", "leave")
async def select_loser_left(stage: Stage) -> None:
    run = await stage.start("leave")

    assert await run.result() == {"winner": 1, "value": "quick", "after": "after"}


@case("select-cancel-timer", "call-off")
async def select_cancel_timer(stage: Stage) -> None:
    run = await stage.start("call-off", "timer")

    assert await run.result() == {"value": "won", "cancelled": ["loser", "timer"], "after": "after"}
    assert (await run.kinds()).count("SelectionOperationCancelled") == 1


@case("select-cancel-activity", "call-off")
async def select_cancel_activity(stage: Stage) -> None:
    run = await stage.start("call-off", "activity")

    assert await run.result() == {
        "value": "won",
        "cancelled": ["loser", "activity"],
        "after": "after",
    }
    assert (await run.kinds()).count("SelectionOperationCancelled") == 1


@case("select-cancel-finished", "too-late")
async def select_cancel_finished(stage: Stage) -> None:
    light = stage.new_id()
    run = await stage.start("too-late", light)
    await run.event("SelectionResolved")
    beacon(light).set()

    assert await run.result() == ["quick", "late", "late", "after"]
    assert "SelectionOperationCancelled" not in await run.kinds()


@case("select-failure-wins", "accident")
async def select_failure_wins(stage: Stage) -> None:
    run = await stage.start("accident")

    assert await run.result() == {
        "winner": "pay",
        "succeeded": False,
        "failure": "the card is stolen",
    }


@case("select-condition-times-out", "expiring")
async def select_condition_times_out(stage: Stage) -> None:
    run = await stage.start("expiring")

    assert await run.result() == {"winner": "answer", "value": False, "after": "after"}


@case("select-condition-beside-timer", "equally-patient")
async def select_condition_beside_timer(stage: Stage) -> None:
    run = await stage.start("equally-patient")

    assert await run.result() == {"winner": "answer", "after": "after"}


@case("select-group", "teams", "approval")
async def select_group(stage: Stage) -> None:
    run = await stage.start("teams")
    await run.event("ActivityCompleted", times=2)
    await (await run.child()).signal("approve", "ada")

    told = {"winner": "team", "value": ["a", "b"], "child": {"approved_by": "ada"}}
    assert await run.result() == told


@case("select-cancel-failed-list", "broken-team")
async def select_cancel_failed_list(stage: Stage) -> None:
    light = stage.new_id()
    run = await stage.start("broken-team", light)
    await run.event("SelectionResolved")
    beacon(light).set()
    await run.event("ActivityFailed")
    await run.signal("call")

    told = {"winner": "alarm", "team": "ActivityFailed", "after": "after"}
    assert await run.result() == told
    assert "SelectionOperationCancelled" not in await run.kinds()


@case("select-losers-beside-gates", "busy-gates")
async def select_losers_beside_gates(stage: Stage) -> None:
    """Every knock comes behind something of a loser; two signals, then two updates."""
    lights = [stage.new_id() for _ in range(4)]
    run = await stage.start("busy-gates", lights)
    await run.event("ConditionWaitOpened")
    for ended, light in enumerate(lights, 1):
        beacon(light).set()
        await run.event("ActivityCompleted", times=ended)
        if ended <= 2:
            await run.signal("knock")
            await run.event("SignalReceived", times=ended)
        else:
            assert (await ask(run, "knock-loudly"))["result"] == ended

    assert await run.result() == ["now", [True, 2], [True, 4], "after"]


@case("select-heard-meanwhile", "heard-meanwhile", "approval")
async def select_heard_meanwhile(stage: Stage) -> None:
    """A signal beside a condition that cannot win is seen by whatever comes next."""
    for work in ("timer", "child"):
        run = await stage.start("heard-meanwhile", work)
        await run.event("ConditionWaitOpened")
        await run.signal("knock")
        await run.event("SignalReceived")
        if work == "child":
            await (await run.child()).signal("approve", "ada")

        assert await run.result() == ["work", 1, True, "after"], work


@case("select-then-parallel", "select-then-list")
async def select_then_parallel(stage: Stage) -> None:
    run = await stage.start("select-then-list")

    assert await run.result() == ["quick", "x", "y"]
