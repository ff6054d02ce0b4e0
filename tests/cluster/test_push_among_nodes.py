"""Push runs on several nodes: what becomes of them is told everywhere, with hints or without."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from perdure.cluster.hints import PUSHED
from perdure.core.intake.definition import Manifest, read_manifest
from perdure.core.limits import SECOND
from perdure.core.push.command import Returned
from perdure.core.run.state import TASK_KINDS, Dialect, Run
from perdure.dispatch.connected_runners import Call, Runner
from perdure.engine.events import Incoming, IngestEvent
from perdure.engine.registration import DEFINITION, RegisterRunner, RenewRunner, link_key
from perdure.engine.run_control import CancelPushRun, PauseRun
from perdure.protocols.durablex import serve
from perdure.store.interface import QueueKey
from perdure.web.message import Request
from tests.cluster.among import Node, several
from tests.engine.ending import must_end

NAMESPACE = "default"
Story = Callable[[Node, Node], Coroutine[Any, Any, None]]


def play(url: str, story: Story, **options: Any) -> None:
    async def whole() -> None:
        async with several(url, **options) as (one, two):
            await story(one, two)

    with must_end(seconds=180):
        asyncio.run(whole())


def a_manifest(*workflows: str) -> Manifest:
    told = {"app": "shop", "workflows": [{"name": name} for name in workflows]}
    return read_manifest(told, with_url=False)


async def register(node: Node, runner_id: str, *workflows: str) -> None:
    operation = RegisterRunner(
        NAMESPACE, a_manifest(*workflows), runner_id=runner_id, link_id="l", url="conn://x"
    )
    await node.engine.submit(operation)


async def begin(node: Node, name: str) -> str:
    incoming = Incoming(namespace=NAMESPACE, name=name, data=None, app="", target=None)
    ingested = await node.engine.submit(IngestEvent(incoming))
    run_id = ingested.triggered[0].run_id
    assert isinstance(run_id, str)
    return run_id


async def frame(queue: "asyncio.Queue[bytes]") -> tuple[str, str]:
    told = json.loads(await asyncio.wait_for(queue.get(), 90))
    return told["runId"], told["status"]


def listening(node: Node) -> Any:
    return node.server.streaming.statuses.listening(NAMESPACE, node.engine._clock.now())


@pytest.mark.parametrize("hints", ["live", "off"])
def test_what_becomes_of_runs_elsewhere_is_told_here(migrated_url: str, hints: str) -> None:
    async def story(one: Node, two: Node) -> None:
        await register(one, "r1", "order")
        before, left = await begin(one, "order"), await begin(one, "order")
        async with listening(two) as queue:
            assert queue.empty(), "only what happens from now on"
            if hints == "live":
                telling = one.server.cluster
                assert telling is not None
                await one.until(lambda: telling.hints.is_watched(PUSHED))
            run_id = await begin(one, "order")
            if hints == "off":
                await two.look()
            assert await frame(queue) == (run_id, "queued")

            await one.engine.submit(CancelPushRun(NAMESPACE, before, "somebody"))
            if hints == "off":
                await two.look()
            assert await frame(queue) == (before, "cancelled")

            await two.engine.submit(PauseRun(NAMESPACE, run_id, "somebody"))
            assert await frame(queue) == (run_id, "paused")
            await two.look()
            await two.look()
            assert queue.empty(), "each status is told once"
        assert two.server.streaming.statuses.count == 0
        assert left

    play(migrated_url, story, hints=hints)


def test_a_workflow_is_not_dropped_while_another_node_registers_it(migrated_url: str) -> None:
    """One node drops it for want of runners just when the other gets one."""

    async def story(one: Node, two: Node) -> None:
        for turn in range(10):
            await register(one, "r1", "order", "mail")
            await one.engine.submit(
                RenewRunner(NAMESPACE, link_key("shop", "r1", "l"), is_live=False)
            )
            # Without r2 the newest manifests would have no mail.
            await asyncio.gather(
                register(one, "r1", "order"),
                register(two, f"r{turn + 2}", "order", "mail"),
            )
            known = await DEFINITION.read_page(two.server.store, NAMESPACE, limit=10)
            assert [one.workflow.name for _, one in known] == ["mail", "order"]
            await two.engine.submit(
                RenewRunner(NAMESPACE, link_key("shop", f"r{turn + 2}", "l"), is_live=False)
            )
            await register(two, f"r{turn + 2}", "order")

    play(migrated_url, story)


class Answering:
    """A runner that ends every run at its first pass."""

    is_writable = True

    def __init__(self, node: Node) -> None:
        self._invoker = node.server.invoker
        self.count = 0

    def carry(self, call: Call, run: Run) -> None:
        self.count += 1
        reply = Returned(result=b"null", logs=[])
        asyncio.get_running_loop().call_soon(self._invoker.finish, call, reply)


def attach(node: Node, runner_id: str, *workflows: str) -> Answering:
    link = Answering(node)
    runner = Runner(
        QueueKey(NAMESPACE, "shop", TASK_KINDS[Dialect.PUSH]),
        owner=f"pass:{runner_id}",
        runner_id=runner_id,
        workflows=frozenset(workflows),
        link=link,
        send=node.server.invoker.send,
    )
    node.server.runners.add(runner)
    return link


def test_no_pass_is_forgotten_that_is_ready_while_its_queue_is_looked_at(migrated_url: str) -> None:
    """Nobody looks around here: what a hint does not bring stays where it is."""

    async def story(one: Node, two: Node) -> None:
        await register(two, "r2", "order")
        link = attach(two, "r2", "order")

        def is_done() -> bool:
            return link.count == begun

        begun = 0
        for turn in range(120):
            # The last one becomes ready at every moment of a look for those before.
            begun += 17
            beginning = [asyncio.ensure_future(begin(one, "order"))]
            for number in range(16):
                for _ in range((turn + number * 5) % 29):
                    await asyncio.sleep(0)
                beginning.append(asyncio.ensure_future(begin(one, "order")))
            await asyncio.gather(*beginning)
            await two.until(is_done)

    play(migrated_url, story)


def test_who_comes_and_leaves_over_http_is_known_everywhere_by_a_hint(
    migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "_REFRESH", 86_400 * SECOND)

    def request(**members: object) -> Request:
        body = json.dumps({"app": "shop", "url": "http://127.0.0.1:1/", **members}).encode()
        return Request("POST", b"/", {}, body=body, namespace=NAMESPACE)

    async def story(one: Node, two: Node) -> None:
        await one.server.serve.register(request(workflows=[{"name": "order"}]))
        await two.until(lambda: two.server.runners._count == 1)

        await two.server.serve.register(request(workflows=[{"name": "order"}, {"name": "mail"}]))
        await one.until(lambda: workflows_of(one) == {"order", "mail"})

        await one.server.serve.deregister(request())
        await two.until(lambda: two.server.runners._count == 0)

    def workflows_of(node: Node) -> frozenset[str]:
        [[runner]] = node.server.runners._runners.values()
        return runner.workflows

    play(migrated_url, story)
