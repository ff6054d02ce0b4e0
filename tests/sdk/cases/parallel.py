"""Lists, children and chains."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

import asyncio

from durable_workflow import WorkflowCancelled

from tests.sdk.cases.registry import case
from tests.sdk.sdk_harness import Run, Stage


@case("parallel-out-of-order", "race")
async def parallel_out_of_order(stage: Stage) -> None:
    run = await stage.start("race")

    assert await run.result() == ["first", "second", "third"]


@case("parallel-mixed", "mixed", "greeter")
async def parallel_mixed(stage: Stage) -> None:
    run = await stage.start("mixed")

    assert await run.result() == ["activity", None, "hello, child", "after"]


@case("parallel-one-fails", "unlucky")
async def parallel_one_fails(stage: Stage) -> None:
    run = await stage.start("unlucky")

    assert await run.result() == {"caught": "the card is stolen"}
    told = await run.kinds()
    assert (told.count("ActivityCompleted"), told.count("ActivityFailed")) == (3, 1)


@case("parallel-twice", "two-rounds")
async def parallel_twice(stage: Stage) -> None:
    run = await stage.start("two-rounds", 4)

    assert await run.result() == [1, 2, 3, 4]


@case("parallel-nested", "nested")
async def parallel_nested(stage: Stage) -> None:
    run = await stage.start("nested")

    assert await run.result() == [["a", "b"], "c", [None, ["d"]]]


@case("parallel-after-gate", "gated-list")
async def parallel_after_gate(stage: Stage) -> None:
    run = await stage.start("gated-list")
    await asyncio.gather(*(run.signal("knock") for _ in range(3)))

    assert await run.result() == ["slow", "quick"]


@case("child-result", "parent", "greeter", "counting")
async def child_result(stage: Stage) -> None:
    run = await stage.start("parent", "child")

    assert await run.result() == {"greeting": "hello, child", "numbers": [1, 2, 3]}


@case("child-failure-caught", "caring-parent", "shop")
async def child_failure_caught(stage: Stage) -> None:
    run = await stage.start("caring-parent", "shop", ["pears"], {})

    told = await run.result()
    assert (told["caught"], told["message"]) == ("ChildWorkflowFailed", "no pears left")
    assert told["class"].endswith("plain.OutOfStock")
    assert told["child"] == "shop"


@case("child-retried", "patient-parent", "moody")
async def child_retried(stage: Stage) -> None:
    run = await stage.start("patient-parent", stage.new_id())

    assert await run.result() == 3
    told = await run.kinds()
    assert told.count("ChildRunCompleted") == 1
    assert "ChildRunFailed" not in told


@case("child-run-timeout", "caring-parent", "sleeper")
async def child_run_timeout(stage: Stage) -> None:
    run = await stage.start("caring-parent", "sleeper", [[3600]], {"run_timeout_seconds": 1})

    assert (await run.result())["caught"] == "ChildWorkflowFailed"
    child = await run.child()
    assert await child.status() == "failed"
    assert (await child.kinds())[-1] == "WorkflowTimedOut"


@case("child-continues-as-new", "caring-parent", "countdown")
async def child_continues_as_new(stage: Stage) -> None:
    run = await stage.start("caring-parent", "countdown", [2, []], {})

    assert await run.result() == {"value": [3, 2]}
    assert (await run.kinds()).count("ChildRunCompleted") == 1


@case("child-cancelled", "caring-parent", "approval")
async def child_cancelled(stage: Stage) -> None:
    run = await stage.start("caring-parent", "approval", [], {})
    await (await run.child()).handle.cancel(reason="not needed")

    assert (await run.result())["caught"] == "ChildWorkflowCancelled"


@case("child-terminated", "caring-parent", "approval")
async def child_terminated(stage: Stage) -> None:
    run = await stage.start("caring-parent", "approval", [], {})
    await (await run.child()).handle.terminate(reason="not needed")

    assert (await run.result())["caught"] == "ChildWorkflowTerminated"


@case("parent-close-abandon", "guardian", "approval")
async def parent_close_abandon(stage: Stage) -> None:
    child = await orphan(stage, "abandon")

    assert await child.status() in ("pending", "running", "waiting")
    await child.signal("approve", "nobody's parent")
    assert await child.result() == {"approved_by": "nobody's parent"}


@case("parent-close-terminate", "guardian", "approval")
async def parent_close_terminate(stage: Stage) -> None:
    child = await orphan(stage, "terminate")

    assert await child.closed() == "terminated"


@case("parent-close-request-cancel", "guardian", "approval")
async def parent_close_request_cancel(stage: Stage) -> None:
    child = await orphan(stage, "request_cancel")

    assert await child.closed() == "cancelled"


@case("continue-as-new", "countdown")
async def continue_as_new(stage: Stage) -> None:
    run = await stage.start("countdown", 3, [])

    assert await run.result() == [4, 3, 2]
    chain = await run.handle.list_runs()
    assert chain.run_count == 4
    assert [known.run_number for known in chain.runs] == [1, 2, 3, 4]
    assert [known.is_current_run for known in chain.runs] == [False, False, False, True]
    assert chain.runs[0].run_id == run.run_id


@case("continue-as-another-type", "caterpillar", "greeter")
async def continue_as_another_type(stage: Stage) -> None:
    run = await stage.start("caterpillar", "butterfly")

    assert await run.result() == "hello, butterfly"
    chain = await run.handle.list_runs()
    assert [known.workflow_type for known in chain.runs] == ["caterpillar", "greeter"]


@case("continue-as-new-keeps-signals", "postbox")
async def continue_as_new_keeps_signals(stage: Stage) -> None:
    run = await stage.start("postbox", 3, [])
    for letter in ("one", "two", "three"):
        await run.signal("post", letter)

    assert await run.result() == ["one", "two", "three"]
    assert (await run.handle.list_runs()).run_count == 3


async def orphan(stage: Stage, policy: str) -> Run:
    """The open child of a parent that was cancelled."""
    parent = await stage.start("guardian", policy)
    child = await parent.child()
    await child.event("ConditionWaitOpened")
    await parent.handle.cancel(reason="the parent goes first")
    await parent.failure(WorkflowCancelled)
    return child
