"""A runner as a program: one call that serves until the process is told to stop."""

import asyncio
import signal

import uvloop

from perdure.sdk.connect import Connection
from perdure.sdk.http_server import DEFAULT_PORT, serving
from perdure.sdk.limits import GRACE_SECONDS
from perdure.sdk.workflows import App


def run_connected(
    app: App,
    *,
    engine_url: str | None = None,
    runner: str | None = None,
    api_key: str | None = None,
    region: str | None = None,
    grace_seconds: float = GRACE_SECONDS,
) -> None:
    """Connect to the engine and serve it until SIGINT or SIGTERM; what runs may finish."""

    async def main() -> None:
        connection = Connection(
            app, engine_url=engine_url, runner=runner, api_key=api_key, region=region
        )
        loop = asyncio.get_running_loop()
        running = loop.create_task(connection.run())
        leaving = loop.create_task(_told_to_stop().wait())
        await asyncio.wait([running, leaving], return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        await connection.close(grace_seconds)
        await running

    uvloop.run(main())


def run_server(
    app: App,
    *,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    url: str | None = None,
    engine_url: str | None = None,
    runner: str | None = None,
    api_key: str | None = None,
    signing_key: str | None = None,
    region: str | None = None,
    grace_seconds: float = GRACE_SECONDS,
) -> None:
    """Listen for the engine until SIGINT or SIGTERM. `url` is where the engine finds us."""

    async def main() -> None:
        async with serving(
            app,
            host=host,
            port=port,
            url=url,
            engine_url=engine_url,
            runner=runner,
            api_key=api_key,
            signing_key=signing_key,
            region=region,
            grace_seconds=grace_seconds,
        ):
            await _told_to_stop().wait()

    uvloop.run(main())


def _told_to_stop() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop
