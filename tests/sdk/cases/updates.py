"""Updates: sent, judged, answered, repeated, refused."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return,attr-defined"

import asyncio
from typing import Any

import durable_workflow
from durable_workflow import InvalidArgument, ServerError, UpdateRejected, WorkflowNotFound

from tests.sdk.cases.registry import case
from tests.sdk.programs.beacons import beacon
from tests.sdk.release import since
from tests.sdk.replaying import kinds
from tests.sdk.sdk_harness import Run, Stage, until


async def ask(run: Run, name: str, *arguments: Any, **options: Any) -> Any:
    """Send an update and wait for its outcome; the whole answer."""
    options.setdefault("wait_for", "completed")
    options.setdefault("wait_timeout_seconds", 50)
    return await run.client.update_workflow(run.workflow_id, name, args=list(arguments), **options)


async def refused(expected: type[Exception], asking: Any) -> Any:
    """The update must end in `expected`; the exception."""
    try:
        answer = await asking
    except expected as refusal:
        # A subclass would be another refusal.
        if type(refusal) is expected:
            return refusal
        raise
    raise AssertionError(f"{answer!r} instead of {expected.__name__}")


def failed() -> type[Exception]:
    """What this release raises for an accepted update whose handler failed."""
    return durable_workflow.UpdateFailed if since("2.12.0") else InvalidArgument


@case("update-completed", "till")
async def update_completed(stage: Stage) -> None:
    run = await stage.start("till")
    await run.event("ConditionWaitOpened")

    first = await ask(run, "add", 3)
    assert (first["update_status"], first["result"]) == ("completed", 3)
    assert first["run_id"] == run.run_id
    assert (await ask(run, "add", 4))["result"] == 7
    assert (await ask(run, "close", "ada"))["result"] == 2

    assert await run.result() == {"entries": [3, 4], "closed_by": "ada"}
    told = [kind for kind in await run.kinds() if kind.startswith("Update")]
    assert told == ["UpdateAccepted", "UpdateApplied", "UpdateCompleted"] * 3


@case("update-accepted", "till")
async def update_accepted(stage: Stage) -> None:
    run = await stage.start("till")
    await run.event("ConditionWaitOpened")

    accepted = await ask(run, "add", 3, wait_for="accepted")
    assert accepted["update_status"] == "accepted"
    assert accepted["update_id"]
    assert not accepted["wait_timed_out"]
    await ask(run, "close", "ada", wait_for=None)

    assert await run.result() == {"entries": [3], "closed_by": "ada"}


@case("update-fails", "till")
async def update_fails(stage: Stage) -> None:
    run = await stage.start("till")
    await run.event("ConditionWaitOpened")

    failure = await refused(failed(), ask(run, "add", -1))
    assert "a till takes no negative entries" in str(failure)
    if since("2.12.0"):
        assert (failure.workflow_id, failure.run_id) == (run.workflow_id, run.run_id)
        assert failure.update_id
        assert failure.failure_id
    assert (await ask(run, "add", 1))["result"] == 1
    await ask(run, "close", "ada")

    assert await run.result() == {"entries": [1], "closed_by": "ada"}
    assert (await run.kinds()).count("UpdateApplied") == 2


@case("update-validated", "vault")
async def update_validated(stage: Stage) -> None:
    run = await stage.start("vault")
    await run.event("ConditionWaitOpened")
    rejected = UpdateRejected if since("2.0.0") else InvalidArgument

    stage_asked = "accepted" if since("2.0.0") else "completed"
    locked = await refused(rejected, ask(run, "deposit", 5, wait_for=stage_asked))
    assert "the vault is locked" in str(locked)
    await run.signal("unlock")
    assert (await ask(run, "deposit", 5))["result"] == [5]
    assert "positive" in str(await refused(rejected, ask(run, "deposit", 0)))
    assert (await ask(run, "deposit", 2))["result"] == [5, 2]
    await ask(run, "seal")

    assert await run.result() == [5, 2]
    told = await run.kinds()
    # The 0.4 workers judge only what is accepted already.
    assert told.count("UpdateAccepted") == (3 if since("2.0.0") else 5)
    assert told.count("UpdateApplied") == 3


@case("update-validated-early", "vault", worker=False)
async def update_validated_early(stage: Stage) -> None:
    """Nobody has told yet that there is a validator; it is asked all the same, in its turn."""
    run = await stage.start("vault")
    locked = await ask(run, "deposit", 4, wait_for="accepted", request_id="locked")
    await run.signal("unlock")
    asking = asyncio.create_task(ask(run, "deposit", 5, wait_timeout_seconds=20))

    async with stage.worker():
        assert (await asking)["result"] == [5]
        refusal = await refused(UpdateRejected, ask(run, "deposit", 4, request_id="locked"))
        assert refusal.body["update_id"] == locked["update_id"]
        await ask(run, "seal")
        assert await run.result() == [5]


@case("update-validator-away", "vault", worker=False)
async def update_validator_away(stage: Stage) -> None:
    run = await stage.start("vault")
    async with stage.worker():
        await run.event("ConditionWaitOpened")
    await run.signal("unlock")

    away = await refused(
        durable_workflow.UpdateValidationFailed, ask(run, "deposit", 5, wait_for="accepted")
    )
    assert (away.reason, away.retryable) == ("update_validator_worker_unavailable", True)

    async with stage.worker():
        await run.event("ConditionWaitOpened", times=2)
        assert (await ask(run, "deposit", 5))["result"] == [5]
        await ask(run, "seal")
        assert await run.result() == [5]


@case("update-unknown", "till")
async def update_unknown(stage: Stage) -> None:
    run = await stage.start("till")
    await run.event("ConditionWaitOpened")

    # The 0.4 workers do not tell what they know; their code answers instead.
    unknown = UpdateRejected if since("2.0.0") else InvalidArgument
    assert "subtract" in str(await refused(unknown, ask(run, "subtract", 1)))
    if since("2.0.0"):
        await refused(InvalidArgument, ask(run, "add"))
        await refused(InvalidArgument, ask(run, "add", 1, 2))
    nobody = stage.client.get_workflow_handle(stage.new_id())
    await refused(WorkflowNotFound, nobody.update("add", [1]))
    await ask(run, "close", "ada")

    assert await run.result() == {"entries": [], "closed_by": "ada"}


@case("update-closed-run", "greeter")
async def update_closed_run(stage: Stage) -> None:
    run = await stage.start("greeter", "closed")
    assert await run.result() == "hello, closed"

    await refused(UpdateRejected, ask(run, "add", 1))


@case("update-repeated", "till")
async def update_repeated(stage: Stage) -> None:
    run = await stage.start("till")
    await run.event("ConditionWaitOpened")

    first = await ask(run, "add", 3, request_id="once")
    again = await ask(run, "add", 3, request_id="once")
    assert (first["retained"], again["retained"]) == (False, True)
    assert first["update_id"] == again["update_id"]
    assert (first["result"], again["result"]) == (3, 3)
    conflict = durable_workflow.UpdateFailed if since("2.12.0") else ServerError
    refusal = await refused(conflict, ask(run, "add", 4, request_id="once"))
    if since("2.12.0"):
        assert refusal.reason == "request_id_conflict"
        assert refusal.details["conflict"] == ["arguments"]
    await ask(run, "close", "ada")

    assert await run.result() == {"entries": [3], "closed_by": "ada"}


@case("update-early", "till", worker=False)
async def update_early(stage: Stage) -> None:
    run = await stage.start("till")
    late = await ask(run, "add", 1, wait_timeout_seconds=1)
    assert (late["update_status"], late["wait_timed_out"]) == ("accepted", True)
    await run.signal("note", 2)
    await ask(run, "add", 3, wait_for="accepted")
    await ask(run, "close", "ada", wait_for="accepted")

    async with stage.worker():
        assert await run.result() == {"entries": [1, 2, 3], "closed_by": "ada"}
    told = await run.kinds()
    assert told[:3] == ["StartAccepted", "WorkflowStarted", "ConditionWaitOpened"]


@case("updates-many", "till")
async def updates_many(stage: Stage) -> None:
    run = await stage.start("till")

    answers = await asyncio.gather(*(ask(run, "add", 1) for _ in range(12)))
    assert sorted(answer["result"] for answer in answers) == list(range(1, 13))
    await ask(run, "close", "ada")

    assert await run.result() == {"entries": [1] * 12, "closed_by": "ada"}


@case("updates-among-signals", "till")
async def updates_among_signals(stage: Stage) -> None:
    run = await stage.start("till")
    for amount in range(0, 8, 2):
        await run.signal("note", amount)
        await ask(run, "add", amount + 1, wait_for="accepted")
    assert (await ask(run, "close", "ada"))["result"] == 8

    assert await run.result() == {"entries": list(range(8)), "closed_by": "ada"}


@case("update-during-work", "errand")
async def update_during_work(stage: Stage) -> None:
    key = stage.new_id()
    run = await stage.start("errand", key)
    await run.event("ActivityStarted")
    assert (await ask(run, "tell", "early"))["result"] == 1
    beacon(f"{key}:1").set()
    await run.event("ActivityStarted", times=2)
    assert (await ask(run, "tell", "late"))["result"] == 2
    beacon(f"{key}:2").set()

    assert await run.result() == {"first": ["early"], "all": ["early", "late"]}


@case("update-continues-as-new", "relay")
async def update_continues_as_new(stage: Stage) -> None:
    run = await stage.start("relay", 0)
    for lap in range(2):
        assert (await ask(run, "pass"))["result"] == lap
        await until(lambda: runs_of(run), (lap + 2).__eq__)
    assert (await ask(run, "finish"))["result"] == 2

    assert await run.result() == 2
    assert "UpdateCompleted" in kinds(await run.history(run.run_id))


async def runs_of(run: Run) -> int:
    return len((await run.handle.list_runs()).runs)
