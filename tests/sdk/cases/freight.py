"""Payloads above the threshold: uploaded by the SDK, named in histories, found again."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return,attr-defined"

import asyncio
from typing import Any

import durable_workflow
from durable_workflow import Client, UpdateRejected

from tests.sdk.cases.registry import case
from tests.sdk.cases.updates import refused
from tests.sdk.programs.freight import LARGE
from tests.sdk.sdk_harness import Run, Stage, replay_family


def cargo(letter: str) -> str:
    return letter * LARGE + "!"


@case("payload-uploaded", "freight", "wagon")
async def payload_uploaded(stage: Stage) -> None:
    run = await stage.start("freight", cargo("a"), 2)

    assert await run.result() == {"cargo": cargo("a"), "rolled": LARGE}

    told = await raw_histories(run)
    # The start of both runs, an activity there and back, a side effect, a child there and back.
    assert told.count('"external_payload"') >= 10
    assert cargo("a")[:200] not in told
    seen = await stage.client.describe_workflow(run.workflow_id)
    assert len(told) < 10 * LARGE
    assert seen.status == "completed"


@case("payload-spoken", "depot")
async def payload_spoken(stage: Stage) -> None:
    run = await stage.start("depot", cargo("a"))
    await run.event("ConditionWaitOpened")

    await run.signal("deliver", cargo("b"))
    answer = await stage.client.query_workflow(run.workflow_id, "inventory", args=[cargo("q")])
    assert answer["result"] == {"mark": cargo("q"), "stored": [cargo("a"), cargo("b")]}
    updated = await swap(run, cargo("c"))
    assert updated["result"] == cargo("b")
    refusal = await refused(UpdateRejected, swap(run, cargo("a")))
    assert "it is here already" in str(refusal)
    await run.signal("close")

    assert await run.result() == [cargo("a"), cargo("c")]
    told = await raw_histories(run)
    assert told.count('"external_payload"') >= 4
    assert cargo("b")[:200] not in told


@case("payload-cold", "depot", worker=False)
async def payload_cold(stage: Stage) -> None:
    """Whoever comes later, with nothing in memory, finds every payload again."""
    async with stage.worker():
        run = await stage.start("depot", cargo("a"))
        await run.signal("deliver", cargo("b"))
        await run.event("SignalReceived")
    async with Client(str(stage.client.base_url), token="perdure") as other:
        later = Stage(stage.name, other, ["depot"])
        later.queue = stage.queue
        async with later.worker():
            await Run(other, other.get_workflow_handle(run.workflow_id)).signal("close")
            assert await run.result() == [cargo("a"), cargo("b")]
        cold = Run(other, other.get_workflow_handle(run.workflow_id))
        assert await cold.result() == [cargo("a"), cargo("b")]
        await replay_family(cold)


@case("payload-refused", "depot")
async def payload_refused(stage: Stage) -> None:
    """Each refusal is the SDK's own error for it."""
    run = await stage.start("depot", "small")
    forged = {
        "schema": "durable-workflow.v2.runtime-external-payload-reference.v1",
        "reference_id": "ep_" + "0" * 26,
        "codec": "avro",
        "size_bytes": 5,
        "sha256": "0" * 64,
    }
    body = {"input": {"codec": "avro", "external_payload": forged}}
    path = f"/workflows/{run.workflow_id}/signal/deliver"
    sending = stage.client._request("POST", path, json=body)
    refusal = await refused(durable_workflow.ExternalPayloadNotFound, sending)
    assert refusal.reference_id == forged["reference_id"]
    assert refusal.retryable is False
    await refused(durable_workflow.ExternalPayloadOversized, run.signal("deliver", "x" * 9_000_000))
    many = [run.signal("deliver", cargo(letter)) for letter in "bcdef"]
    await asyncio.gather(*many)
    await run.signal("close")

    stored = await run.result()
    assert stored[0] == "small"
    assert sorted(stored[1:]) == [cargo(letter) for letter in "bcdef"]


async def swap(run: Run, cargo: str) -> Any:
    return await run.client.update_workflow(
        run.workflow_id, "swap", args=[cargo], wait_for="completed", wait_timeout_seconds=50
    )


async def raw_histories(run: Run) -> str:
    """What the server itself says of every run of the chain, before the SDK resolves it."""
    told = ""
    for known in (await run.client.list_workflow_runs(run.workflow_id)).runs:
        response = await run.client._http.get(
            f"/api/workflows/{run.workflow_id}/runs/{known.run_id}/history",
            headers=run.client._headers(),
        )
        response.raise_for_status()
        told += response.text
    return told
