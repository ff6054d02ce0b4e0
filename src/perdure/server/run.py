"""The life of a server: open, listen, serve, drain, close."""

import asyncio
import gc
import logging
import signal
import socket
import sys

from perdure.server.assemble import Server
from perdure.server.settings import Settings, SettingsError
from perdure.server.siblings import Family
from perdure.web.server import Connections, listen

DRAIN_SECONDS = 10
"""How long a stopping server lets requests finish."""

log = logging.getLogger(__name__)


async def serve(
    settings: Settings, listener: socket.socket | None = None, family: Family | None = None
) -> None:
    """Run until SIGTERM or SIGINT, on a socket of our own or one that a supervisor gave us."""
    supervised = listener is not None
    server = Server(settings, family=family)
    await server.open()
    try:
        if listener is None:
            listener = open_listener(settings.host, settings.port)
        async with asyncio.TaskGroup() as group:
            beat = group.create_task(server.engine.run(), name="beat")
            _spare_the_collector()
            loops = [group.create_task(work, name=name) for name, work in server.loops()]
            await _listen_and_serve(server, listener, supervised=supervised)
            for loop in loops:
                loop.cancel()
            server.engine.stop()
            await beat
    finally:
        await server.close()


def _spare_the_collector() -> None:
    """What is loaded by now stays; and most requests leave no cycles behind."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def open_listener(host: str, port: int) -> socket.socket:
    """A socket of our own."""
    return _listen(host, port, shares_port=False)


def open_listeners(host: str, port: int, count: int) -> list[socket.socket]:
    """Several sockets on one port that nobody else has."""
    with open_listener(host, port) as probe:
        port = probe.getsockname()[1]
    return [_listen(host, port, shares_port=True) for _ in range(count)]


def _listen(host: str, port: int, *, shares_port: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
        listener.listen(4096)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise SettingsError(f"cannot listen on {host}:{port}: {error}") from error
    return listener


async def _listen_and_serve(server: Server, listener: socket.socket, *, supervised: bool) -> None:
    connections = Connections(server.app)
    accepting = await listen(connections, listener)
    sweeping = asyncio.create_task(connections.sweep(), name="sweep")
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if supervised:
        # The other end of our standard input is the supervisor: when it ends, so do we.
        loop.add_reader(sys.stdin.fileno(), stop.set)
    host, port = listener.getsockname()[:2]
    print(f"perdure listening on http://{host}:{port}", flush=True)
    await stop.wait()
    if supervised:
        loop.remove_reader(sys.stdin.fileno())
    log.info("draining")
    accepting.close()
    sweeping.cancel()
    # Known before the first answer: some are on their way as soon as they are decided.
    connections.is_draining = True
    server.drain()
    await server.invoker.finish_all(DRAIN_SECONDS / 2)
    await connections.drain(DRAIN_SECONDS / 2)


def configure_logging(level: str) -> None:
    logging.basicConfig(
        level=level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
