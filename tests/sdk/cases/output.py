"""Streams that runs put out, as programs write them and clients follow them."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

import asyncio
from collections.abc import Awaitable
from typing import Any

from durable_workflow import DurableWorkflowError
from durable_workflow import client as sdk

from tests.sdk.cases.registry import case
from tests.sdk.replaying import kind
from tests.sdk.sdk_harness import Run, Stage, until


def item(payload: Any, **members: Any) -> Any:
    return sdk.WorkflowStreamAppendItem(payload=payload, **members)


def place(run: Run, name: str) -> tuple[str, str, str]:
    """How the SDK names a stream."""
    assert run.run_id is not None
    return run.workflow_id, run.run_id, name


@case("stream-followed", "narrator")
async def stream_followed(stage: Stage) -> None:
    run = await stage.start("narrator", 4)
    # The reader may be there before the first item, which opens the stream.
    follow = stage.client.iter_workflow_stream(*place(run, "tale"), wait_seconds=20)
    items = [each async for each in follow]

    assert [each.offset for each in items] == [0, 1, 2, 3]
    expected = [{"number": n, "text": f"chapter {n}"} for n in range(4)]
    assert [each.payload for each in items] == expected
    assert {each.origin for each in items} == {"workflow"}
    assert await run.result() == 4
    told = await stage.client.describe_workflow_stream(*place(run, "tale"))
    assert (told.status, told.total_items, told.last_offset) == ("closed", 4, 3)
    assert (told.terminal, told.retention_seconds) == (True, 600)


@case("streams-of-a-run", "gossip")
async def streams_of_a_run(stage: Stage) -> None:
    run = await stage.start("gossip")
    await run.event("ConditionWaitOpened")
    await run.signal("nod")
    assert await run.result() == "told"

    assert run.run_id is not None
    listed = await stage.client.list_workflow_streams(run.workflow_id, run.run_id)
    told = {each.stream_name: each for each in listed}
    assert {name: each.status for name, each in told.items()} == {
        "never-opened": "closed",
        "news": "open",
        "rumours": "errored",
    }
    assert told["rumours"].error_reason == "not true"
    assert {each.run_id for each in listed} == {run.run_id}
    news = await stage.client.subscribe_workflow_stream(*place(run, "news"))
    assert [each.payload for each in news.items] == [0, 1, 2, "after"]
    assert [each.item_type for each in news.items] == ["count"] * 3 + [None]
    assert (news.next_offset, news.terminal) == (4, False)
    rumours = await stage.client.subscribe_workflow_stream(*place(run, "rumours"))
    assert rumours.items[0].payload_reference == "s3://bucket/large"
    assert rumours.items[0].content_type == "text/plain"
    assert rumours.terminal
    effects = [e["payload"] for e in await run.history() if kind(e) == "SideEffectRecorded"]
    assert [e["workflow_stream"]["operation"] for e in effects] == [
        "append",
        "append",
        "append",
        "error",
        "close",
    ]


@case("stream-of-a-client", "notebook", worker=False)
async def stream_of_a_client(stage: Stage) -> None:
    run = await stage.start("notebook")
    where = place(run, "log")
    first = await stage.client.append_workflow_stream(
        *where, [item("a", idempotency_key="k-a"), item("b")]
    )
    again = await stage.client.append_workflow_stream(
        *where, [item("a", idempotency_key="k-a"), item("c")]
    )

    assert (first.accepted_offsets, first.accepted_count) == ([0, 1], 2)
    assert (again.accepted_offsets, again.accepted_count) == ([0, 2], 1)
    assert again.deduplicated_count == 1
    page = await stage.client.subscribe_workflow_stream(*where, from_offset=1, max_items=1)
    assert ([each.payload for each in page.items], page.next_offset) == (["b"], 2)
    tail = asyncio.create_task(
        stage.client.subscribe_workflow_stream(*where, from_offset=3, wait_seconds=30)
    )
    await stage.client.append_workflow_stream(*where, [item("d")])
    late = await tail
    assert ([each.payload for each in late.items], late.next_offset) == (["d"], 4)

    ending = asyncio.create_task(
        stage.client.subscribe_workflow_stream(*where, from_offset=4, wait_seconds=30)
    )
    closed = await stage.client.close_workflow_stream(*where)
    assert (closed.status, closed.retention_seconds) == ("closed", 3600)
    end = await ending
    assert (end.items, end.terminal) == ([], True)
    assert (
        await stage.client.close_workflow_stream(*where, error_reason="late")
    ).status == "closed"
    await run.handle.cancel(reason="enough")


@case("streams-refused", "notebook", worker=False)
async def streams_refused(stage: Stage) -> None:
    run = await stage.start("notebook")
    client, log = stage.client, place(run, "log")
    assert (await refusal(client.describe_workflow_stream(*log))).status == 404
    assert (await refusal(client.close_workflow_stream(*log))).status == 404
    bad = client.append_workflow_stream(*place(run, "no spaces"), [item(1)])
    assert (await refusal(bad)).status == 400
    await client.append_workflow_stream(*log, [item(1)], max_pending_items=1)
    full = await refusal(client.append_workflow_stream(*log, [item(2)], max_pending_items=1))
    assert full.status == 429
    await client.close_workflow_stream(*log, error_reason="broken")
    assert (await refusal(client.append_workflow_stream(*log, [item(3)]))).status == 409
    elsewhere = client.append_workflow_stream(run.workflow_id, "0" * 26, "log", [item(1)])
    assert (await refusal(elsewhere)).__class__.__name__ == "WorkflowNotFound"
    await run.handle.cancel(reason="enough")


@case("stream-too-small", "chatterbox")
async def stream_too_small(stage: Stage) -> None:
    run = await stage.start("chatterbox")

    async def cause() -> dict[str, Any]:
        answer = await stage.client._request("GET", f"/workflows/{run.workflow_id}")
        return dict(answer["next_cause"] or {})

    seen = await until(cause, lambda it: it.get("kind") == "backoff")
    assert "stream talk has no room" in seen["last_failure"], seen
    assert await run.kinds() == ["StartAccepted", "WorkflowStarted"], "nothing is half done"
    assert await stage.client.list_workflow_streams(run.workflow_id, str(run.run_id)) == []
    await run.handle.cancel(reason="enough")


async def refusal(asking: Awaitable[Any]) -> Any:
    """What the server refuses with, as the SDK tells it."""
    try:
        told = await asking
    except DurableWorkflowError as error:
        return error
    raise AssertionError(f"it was taken: {told}")
