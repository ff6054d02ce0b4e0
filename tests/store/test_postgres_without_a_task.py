"""Handlers that no task runs read from PostgreSQL too, also when the connection must be made."""

import asyncio
from typing import Any

from perdure.clock import SystemClock
from perdure.store.postgres.store import PostgresStore
from tests.store.building import a_run
from tests.store.keeping import Keep


def test_a_read_needs_no_task(postgres_url: str) -> None:
    keep = Keep.postgres(postgres_url)
    run = a_run()
    with keep.opened() as store:
        keep.commit(store, run)
        fresh = PostgresStore(postgres_url, node_id="reader", clock=SystemClock())

        async def play() -> list[bytes]:
            await fresh.open()
            for line in fresh._reader_lines:
                line.drop()
            events: list[bytes] = await driven(fresh.read_history(run.run_id, 0, 10))
            await fresh.close()
            return events

        assert keep.run(play()) == run.events


async def driven(coroutine: Any) -> Any:
    """What a coroutine returns that is sent on from callbacks, outside of any task."""
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def step(_: object = None) -> None:
        try:
            awaited = coroutine.send(None)
        except StopIteration as end:
            done.set_result(end.value)
        except Exception as error:
            done.set_exception(error)
        else:
            awaited._asyncio_future_blocking = False
            awaited.add_done_callback(step)

    asyncio.get_running_loop().call_soon(step)
    return await done
