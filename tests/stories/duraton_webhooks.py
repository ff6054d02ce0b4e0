"""Webhooks with the published push SDK, its runner and its client, unchanged.

Run by the interpreter that has it: python -m tests.stories.duraton_webhooks SERVER_URL
It prints one line for each thing that held.
"""

import asyncio
import contextlib
import hashlib
import hmac
import json
import sys
import time
from typing import Any

import duraton  # type: ignore[import-not-found]  # lives in an environment of its own
import httpx
from duraton.client import AsyncDuratonClient  # type: ignore[import-not-found]
from duraton.client.options import SendEventInput  # type: ignore[import-not-found]
from duraton.client.webhooks import (  # type: ignore[import-not-found]
    EndpointInput,
    EndpointPatch,
    ListSourceDeliveriesOptions,
    ListWebhookDeliveriesOptions,
    SourceInput,
    SourcePatch,
)

PATIENCE_SECONDS = 90


class Receiver:
    """Notes what it gets; fails while it is told to."""

    def __init__(self) -> None:
        self.status = 200
        self.got: list[tuple[str, bytes]] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().split("content-length:")[1].split("\r\n")[0])
        self.got.append((head, await reader.readexactly(length)))
        writer.write(f"HTTP/1.1 {self.status} X\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()


def signature(secret: str, body: bytes) -> str:
    now = int(time.time())
    digest = hmac.new(secret.encode(), f"{now}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={now},v1={digest}"


async def order(ctx: Any) -> Any:
    await ctx.webhook.send("tell", url=ctx.event.data["url"], data={"from": "step"})
    return {"done": True}


async def outgoing(client: Any, receiver: Receiver) -> None:
    webhooks = client.webhooks
    made = await webhooks.endpoints.create(EndpointInput(receiver.url, ["run.succeeded"], "books"))
    assert made.secret, made
    assert (await webhooks.endpoints.get(made.id)).secret is None
    print("an endpoint is made, and its secret shown once")
    receiver.status = 500
    await registered(client)
    await client.events.send(SendEventInput("order", "shop", {"url": receiver.url}))
    failing = await settled(client, "failed", 2)
    assert {one.event_kind for one in failing} == {"custom", "run.succeeded"}
    assert all(one.next_attempt_at and one.last_status_code == 500 for one in failing)
    print("what fails waits for another try")
    receiver.status = 200
    for one in failing:
        await webhooks.deliveries.redeliver(one.id)
    done = await settled(client, "succeeded", 2)
    detail = await webhooks.deliveries.get(done[0].id)
    assert [attempt.outcome for attempt in detail.attempts] == ["http_error", "succeeded"]
    print("what is sent again arrives")
    for head, body in receiver.got[-2:]:
        lines = dict(line.split(": ", 1) for line in head.strip().split("\r\n")[1:])
        signed = lines.get("X-Duraton-Signature")
        if json.loads(body) == {"from": "step"}:
            assert signed is None
            continue
        when = signed.partition(",")[0].removeprefix("t=") if signed else ""
        expected = hmac.new(made.secret.encode(), f"{when}.".encode() + body, hashlib.sha256)
        assert signed == f"t={when},v1={expected.hexdigest()}"
        assert json.loads(body)["data"]["result"] == {"done": True}
    print("what an endpoint gets is signed, what a step sends is not")
    [stats] = await webhooks.endpoints.stats()
    assert (stats.endpoint_id, stats.delivered, stats.succeeded) == (made.id, 1, 1)
    options = ListWebhookDeliveriesOptions(limit=1)
    pages = [one async for one in webhooks.deliveries.list_all(options)]
    assert len(pages) == 2
    patch = EndpointPatch(enabled=False, rotate_secret=True)
    changed = await webhooks.endpoints.update(made.id, patch)
    assert not changed.enabled
    assert changed.secret not in (None, made.secret)
    await webhooks.endpoints.delete(made.id)
    assert list(await webhooks.endpoints.list()) == []
    print("endpoints are listed, counted, changed and removed")


async def registered(client: Any) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await client.workflows.list():  # noqa: ASYNC110 (nobody would tell us)
            await asyncio.sleep(0.02)


async def settled(client: Any, status: str, count: int) -> list[Any]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            page = await client.webhooks.deliveries.list(
                ListWebhookDeliveriesOptions(status=status)
            )
            if len(page.deliveries) == count:
                return list(page.deliveries)
            await asyncio.sleep(0.02)


async def incoming(client: Any) -> None:
    webhooks = client.webhooks
    made = await webhooks.sources.create(SourceInput("pay.done", "bank", target_app="shop"))
    body = json.dumps({"id": "p1"}).encode()
    async with httpx.AsyncClient(trust_env=False) as http:

        async def post(secret: str) -> httpx.Response:
            headers = {"X-Duraton-Signature": signature(secret, body)}
            return await http.post(made.receive_url, content=body, headers=headers)

        assert (await post("forged")).status_code == 401
        taken = await post(made.secret)
        assert taken.status_code == 202, taken.text
        event = await client.events.get(taken.json()["eventId"])
        assert (event.name, event.data) == ("pay.done", {"id": "p1"})
        print("a signed webhook is taken in as an event, a forged one is not")
        options = ListSourceDeliveriesOptions(source=made.id)
        found = [one async for one in webhooks.source_deliveries.list_all(options)]
        assert [one.status for one in found] == ["ingested", "unauthorized"]
        assert found[1].failure_reason == "signature_mismatch"
        again = await webhooks.source_deliveries.replay(found[0].id)
        assert (again.status, again.delivery_id) == ("ingested", found[0].id)
        detail = await webhooks.source_deliveries.get(found[0].id)
        assert [one.trigger for one in detail.attempts] == ["initial", "replay"]
        assert detail.payload == {"id": "p1"}
        print("what came is listed, shown and replayed")
        changed = await webhooks.sources.update(made.id, SourcePatch(rotate_secret=True))
        assert (await post(made.secret)).status_code == 401
        assert (await post(changed.secret)).status_code == 202
        await webhooks.sources.delete(made.id)
        assert (await post(changed.secret)).status_code == 404
        assert list(await webhooks.sources.list()) == []
        print("a source is rotated and removed")


async def main(url: str) -> None:
    receiver = Receiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    receiver.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    runner = duraton.Runner([duraton.define_workflow("order", order)], url=url, app="shop")
    running = asyncio.create_task(runner.run())
    async with AsyncDuratonClient(url=url) as client:
        await incoming(client)
        await outgoing(client, receiver)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    server.close()
    print("done")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
