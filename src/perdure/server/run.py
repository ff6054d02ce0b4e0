"""The life of a server: open, listen, serve, drain, close."""

import asyncio
import contextlib
import logging
import signal
import socket
import sys

import uvicorn

from perdure.server.assemble import Server
from perdure.server.settings import Settings

DRAIN_SECONDS = 10
"""How long a stopping server lets requests finish."""

log = logging.getLogger(__name__)


async def serve(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT."""
    server = Server(settings)
    await server.open()
    try:
        listener = _listen(settings.host, settings.port)
        async with asyncio.TaskGroup() as group:
            beat = group.create_task(server.engine.run(), name="beat")
            deadlines = group.create_task(server.deadlines.run(server.engine), name="deadlines")
            await _listen_and_serve(server, listener)
            deadlines.cancel()
            server.engine.stop()
            await beat
    finally:
        await server.store.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(4096)
    listener.setblocking(False)
    return listener


class _Uvicorn(uvicorn.Server):
    """Uvicorn without its own signal handling: stopping is ours, because polls must drain."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        yield


async def _listen_and_serve(server: Server, listener: socket.socket) -> None:
    config = uvicorn.Config(
        server.app,
        loop="none",
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        backlog=4096,
    )
    uvicorn_server = _Uvicorn(config)
    serving = asyncio.create_task(uvicorn_server.serve([listener]), name="http")
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    while not uvicorn_server.started and not serving.done():
        await asyncio.sleep(0.005)
    host, port = listener.getsockname()[:2]
    print(f"perdure listening on http://{host}:{port}", flush=True)
    stopping = asyncio.create_task(stop.wait(), name="stop")
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    log.info("draining")
    uvicorn_server.should_exit = True
    server.drain()
    await serving


def configure_logging(level: str) -> None:
    logging.basicConfig(
        level=level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
