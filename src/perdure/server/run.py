"""The life of a server: open, listen, serve, drain, close."""

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import socket
import sys
from collections.abc import Sequence

from perdure.cluster.local_sockets import Family
from perdure.server.assemble import Server
from perdure.server.settings import Settings, SettingsError
from perdure.web.limits import ConnectionLimits
from perdure.web.server import Connections, listen

LISTENING = "perdure listening on "
DRAIN_SECONDS = 10
"""How long a stopping server lets requests finish."""

FILES_BESIDE_CONNECTIONS = 128
"""What a process opens for its store, for runners and for itself."""

log = logging.getLogger(__name__)


async def serve(
    settings: Settings, listeners: Sequence[socket.socket] = (), family: Family | None = None
) -> None:
    """Run until SIGTERM or SIGINT, on sockets of our own or those that a supervisor gave us."""
    supervised = bool(listeners)
    server = Server(settings, family=family)
    await server.open()
    try:
        listeners = listeners or open_listeners(settings)
        async with asyncio.TaskGroup() as group:
            beat = group.create_task(server.engine.run(), name="beat")
            _spare_the_collector()
            loops = [group.create_task(work, name=name) for name, work in server.loops()]
            await _listen_and_serve(server, settings, listeners, supervised=supervised)
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


def open_listeners(settings: Settings) -> list[socket.socket]:
    """A socket of our own for each port."""
    with contextlib.ExitStack() as opened:
        listeners = [
            opened.enter_context(_listen(settings.host, port, shares_port=False))
            for port in settings.ports
        ]
        opened.pop_all()
    return listeners


def open_shared_listeners(settings: Settings, count: int) -> list[list[socket.socket]]:
    """For each of several processes a socket on every port, which nobody else has."""
    with contextlib.ExitStack() as opened:
        by_port = []
        for port in settings.ports:
            with _listen(settings.host, port, shares_port=False) as probe:
                taken: int = probe.getsockname()[1]
            by_port.append(
                [
                    opened.enter_context(_listen(settings.host, taken, shares_port=True))
                    for _ in range(count)
                ]
            )
        opened.pop_all()
    return [list(listeners) for listeners in zip(*by_port, strict=True)]


def announce(listeners: Sequence[socket.socket]) -> None:
    """Say where we listen. The line of the first port comes last, for it says that all is ready."""
    urls = ["http://{}:{}".format(*listener.getsockname()[:2]) for listener in listeners]
    for url in urls[1:]:
        print(f"perdure listening, also for Durablex, on {url}")
    print(f"{LISTENING}{urls[0]}", flush=True)


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


def connection_limits(settings: Settings) -> ConnectionLimits:
    """The limits of the settings, as far as this process may open files for them."""
    wanted = settings.connections_max + settings.connections_max // 8 + FILES_BESIDE_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    most = settings.connections_max
    if soft != resource.RLIM_INFINITY:
        most = min(most, max(1, (soft - FILES_BESIDE_CONNECTIONS) * 8 // 9))
    if most < settings.connections_max:
        log.info(
            "at most %d connections are accepted, since this process may open %d files",
            most,
            soft,
        )
    return ConnectionLimits(
        connections_max=most,
        per_peer_max=min(most, settings.connections_per_peer_max),
        memory_bytes_max=settings.request_memory_bytes_max,
    )


async def _listen_and_serve(
    server: Server, settings: Settings, listeners: Sequence[socket.socket], *, supervised: bool
) -> None:
    connections = Connections(server.app, connection_limits(settings))
    accepting = [await listen(connections, listener) for listener in listeners]
    sweeping = asyncio.create_task(connections.sweep(), name="sweep")
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if supervised:
        # The other end of our standard input is the supervisor: when it ends, so do we.
        loop.add_reader(sys.stdin.fileno(), stop.set)
    announce(listeners)
    await stop.wait()
    if supervised:
        loop.remove_reader(sys.stdin.fileno())
    log.info("draining")
    # Whoever asks whether we are ready shall hear that we are not, and not that nobody is here:
    # new connections are accepted to the end, and all but the public routes are refused on them.
    # Known before the first answer: some are on their way as soon as they are decided.
    connections.is_draining = True
    server.drain()
    await server.invoker.finish_all(DRAIN_SECONDS / 2)
    await connections.drain(DRAIN_SECONDS / 2)
    for accepted in accepting:
        accepted.close()
    sweeping.cancel()


def configure_logging(level: str) -> None:
    logging.basicConfig(
        level=level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
