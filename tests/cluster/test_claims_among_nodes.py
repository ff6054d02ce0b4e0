"""What another node looks at is passed over, not taken for gone."""

import asyncio
from collections.abc import Collection

from perdure.core.limits import SECOND
from perdure.dispatch.polls import Poll
from perdure.engine.fleet import RegisterWorker
from perdure.server.assemble import Server
from perdure.server.settings import Settings
from perdure.store.interface import QueueKey, ReadyTask
from tests.engine.engine_harness import NAMESPACE, PATIENCE, QUEUE, a_worker, start
from tests.store.nodes import session

POLL = Poll(
    namespace=NAMESPACE,
    worker_id="w1",
    queue=QUEUE,
    kind="workflow",
    timeout=10 * SECOND,
    page_size=100,
)


def test_a_poll_gets_the_task_that_another_node_held_when_it_was_looked_for(
    postgres_url: str,
) -> None:
    """Over two nodes a fan-out came to a stop: whoever came second thought that nothing was left,
    and its polls waited for the slow look around. No slow look is taken here."""

    async def story() -> None:
        server = Server(Settings(store=postgres_url, auth_driver="none"))
        await server.open()
        looked = asyncio.Event()
        load_ready = server.store.load_ready

        async def noticed(key: QueueKey, names: Collection[str], limit: int) -> list[ReadyTask]:
            found = await load_ready(key, names, limit)
            looked.set()
            return found

        setattr(server.store, "load_ready", noticed)  # noqa: B010 (mypy minds the plain way)
        beat = asyncio.ensure_future(server.engine.run())
        try:
            async with asyncio.timeout(PATIENCE):
                await server.engine.submit(RegisterWorker(a_worker(), "token"))
                await server.engine.submit(start("order"))
                async with session(postgres_url) as other, other.transaction():
                    await other.execute("select from perdure.open_run for update")
                    poll = asyncio.ensure_future(server.polling.poll(POLL, lambda leave: None))
                    await looked.wait()
                    assert not poll.done()
                answer = await poll
            assert answer.delivery is not None
        finally:
            server.drain()
            server.engine.stop()
            await beat
            await server.close()

    asyncio.run(story())
