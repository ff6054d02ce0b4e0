"""Message streams, as clients fill them and programs read them."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

import asyncio
from collections.abc import Awaitable
from typing import Any

from durable_workflow import DurableWorkflowError, WorkflowNotFound

from tests.sdk.cases.registry import case
from tests.sdk.replaying import decoded, kind
from tests.sdk.sdk_harness import Run, Stage, until

RESERVED = "__durable_workflow_message_stream"
RECEIVED = "SignalReceived"


async def send(run: Run, stream: str, message_id: str, *arguments: Any) -> dict[str, Any]:
    """Append one message to a stream of the run's workflow."""
    return await run.client.append_message_stream(
        run.workflow_id, stream, message_id, args=list(arguments)
    )


@case("messages-in-order", "teller")
async def messages_in_order(stage: Stage) -> None:
    run = await stage.start("teller", 3)
    await run.event("ConditionWaitOpened")
    for number in (1, 2, 3):
        taken = await send(run, "orders", f"m-{number}", {"number": number})
        assert (taken["accepted"], taken["position"]) == (True, number), taken

    assert await run.result() == [[f"m-{n}", n, {"number": n}] for n in (1, 2, 3)]
    names = [e["payload"]["signal_name"] for e in await run.history() if kind(e) == RECEIVED]
    assert names == [RESERVED] * 3, names


@case("messages-before-the-worker", "teller", worker=False)
async def messages_before_the_worker(stage: Stage) -> None:
    run = await stage.start("teller", 3)
    for number in (1, 2, 3):
        await send(run, "orders", f"m-{number}", number)

    async with stage.worker():
        assert await run.result() == [[f"m-{n}", n, n] for n in (1, 2, 3)]


@case("messages-repeated", "teller")
async def messages_repeated(stage: Stage) -> None:
    run = await stage.start("teller", 2)
    first = await send(run, "orders", "same", "once")
    again = await send(run, "orders", "same", "once")
    other = await send(run, "orders", "other", "twice")

    assert (first["position"], again["position"], other["position"]) == (1, 1, 2)
    assert (first["duplicate"], again["duplicate"]) == (False, True)
    assert await run.result() == [["same", 1, "once"], ["other", 2, "twice"]]
    late = await send(run, "orders", "same", "once")
    assert late["position"] == 1, "a repeated message is answered after the end as well"


@case("messages-in-batches", "baker")
async def messages_in_batches(stage: Stage) -> None:
    run = await stage.start("baker", 40)
    sent = await asyncio.gather(*(send(run, "orders", f"m-{n}", n) for n in range(40)))

    numbers = await run.result()
    assert sorted(numbers) == list(range(40))
    by_position = sorted(zip([it["position"] for it in sent], range(40), strict=True))
    assert numbers == [number for _, number in by_position], "read in the order of positions"
    assert [position for position, _ in by_position] == list(range(1, 41))


@case("messages-two-streams", "two-desks", worker=False)
async def messages_two_streams(stage: Stage) -> None:
    run = await stage.start("two-desks")
    await send(run, "desk.right", "r-1", "right")
    await run.signal("ring")
    await send(run, "desk:left", "l-1", "left")
    await send(run, "desk:left", "l-2")
    await run.signal("ring")

    async with stage.worker():
        await run.event("ConditionWaitOpened")
        heard = await run.client.query_workflow(run.workflow_id, "heard")
        assert heard["result"] == 2
        assert await run.result() == [["left"], ["right"], []]


@case("messages-told-by-describe", "teller")
async def messages_told_by_describe(stage: Stage) -> None:
    run = await stage.start("teller", 2)
    await send(run, "orders", "m-1", "one")

    async def cause() -> dict[str, Any]:
        answer = await stage.client._request("GET", f"/workflows/{run.workflow_id}")
        return dict(answer["next_cause"] or {})

    seen = await until(cause, lambda it: "behind position 1" in str(it.get("text")))
    assert (seen["kind"], seen["name"]) == ("message_stream", "orders"), seen
    await send(run, "orders", "m-2", "two")
    assert await run.result() == [["m-1", 1, "one"], ["m-2", 2, "two"]]


@case("messages-over-a-chain", "courier")
async def messages_over_a_chain(stage: Stage) -> None:
    run = await stage.start("courier", 3, 2, [])
    for number in range(1, 7):
        await send(run, "orders", f"m-{number}", f"order {number}")

    assert await run.result() == [[n, f"order {n}"] for n in range(1, 7)]
    runs = (await run.handle.list_runs()).runs
    assert len(runs) == 3
    for number, known in enumerate(runs):
        history = await run.history(known.run_id)
        received = [e for e in history if kind(e) == RECEIVED]
        told = [decoded(e["payload"]["arguments"])[0] for e in received]
        cursors = [it["through_position"] for it in told if it["schema"].endswith(".cursor")]
        assert cursors == ([] if number == 0 else [2 * number]), told
        if number:
            assert history.index(received[0]) == 1, "right behind the start"


@case("messages-left-unread", "busy-courier", worker=False)
async def messages_left_unread(stage: Stage) -> None:
    run = await stage.start("busy-courier", 3, [])
    await send(run, "notes", "n-1", "note")
    for number in range(1, 7):
        await send(run, "orders", f"m-{number}", number)

    async with stage.worker():
        await until(lambda: runs_of(run), lambda count: count >= 3)
        await asyncio.gather(run.signal("nod"), run.signal("nod"))
        assert await run.result() == [1, 2, 3, 4, 5, 6, "note"]


async def runs_of(run: Run) -> int:
    return int((await run.handle.list_runs()).run_count)


@case("messages-refused", "teller", worker=False)
async def messages_refused(stage: Stage) -> None:
    run = await stage.start("teller", 1)
    for stream, message_id in (("no spaces", "m"), ("n" * 129, "m"), ("orders", "")):
        await refusal(send(run, stream, message_id, 1))
    await refusal(run.signal(RESERVED, {"schema": "mine"}))
    nobody = run.client.append_message_stream("nobody", "orders", "m", args=[])
    assert isinstance(await refusal(nobody), WorkflowNotFound)

    await run.handle.cancel(reason="enough")
    late = await refusal(send(run, "orders", "late", 1))
    assert late.status == 409, late.__dict__


async def refusal(asking: Awaitable[Any]) -> Any:
    """What the server refuses with, as the SDK tells it."""
    try:
        told = await asking
    except DurableWorkflowError as error:
        return error
    raise AssertionError(f"it was taken: {told}")
