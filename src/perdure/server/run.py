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
"""How long a stopping server waits for requests in progress."""

FILES_BESIDE_CONNECTIONS = 128
"""Files that a process opens for its store, for runners and for itself."""

log = logging.getLogger(__name__)


async def serve(
    settings: Settings, listeners: Sequence[socket.socket] = (), family: Family | None = None
) -> None:
    """Run until SIGTERM or SIGINT, on own sockets or on those of a supervisor."""
    supervised = bool(listeners)
    server = Server(settings, family=family)
    await server.open()
    try:
        listeners = listeners or open_listeners(settings)
        async with asyncio.TaskGroup() as group:
            beat = group.create_task(server.engine.run(), name="beat")
            _tune_collector()
            loops = [group.create_task(work, name=name) for name, work in server.loops()]
            await _listen_and_serve(server, settings, listeners, supervised=supervised)
            for loop in loops:
                loop.cancel()
            server.engine.stop()
            await beat
    finally:
        await server.close()


def _tune_collector() -> None:
    """Exempt loaded objects from collection, and collect rarely: few requests leave cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def open_listeners(settings: Settings) -> list[socket.socket]:
    """Open one listening socket for each port."""
    with contextlib.ExitStack() as opened:
        listeners = [
            opened.enter_context(_listen(settings.host, port, shares_port=False))
            for port in settings.ports
        ]
        opened.pop_all()
    return listeners


def open_shared_listeners(settings: Settings, count: int) -> list[list[socket.socket]]:
    """Open a socket of its own on every port for each of several processes."""
    with contextlib.ExitStack() as opened:
        by_port = []
        for port in settings.ports:
            with _listen(settings.host, port, shares_port=False) as probe:
                chosen_port: int = probe.getsockname()[1]
            by_port.append(
                [
                    opened.enter_context(_listen(settings.host, chosen_port, shares_port=True))
                    for _ in range(count)
                ]
            )
        opened.pop_all()
    return [list(listeners) for listeners in zip(*by_port, strict=True)]


def announce(listeners: Sequence[socket.socket]) -> None:
    """Print the URLs. The first port comes last: its line reports that all is ready."""
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
    files_needed = (
        settings.connections_max + settings.connections_max // 8 + FILES_BESIDE_CONNECTIONS
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        files_needed = min(files_needed, hard)
    if soft != resource.RLIM_INFINITY and soft < files_needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files_needed, hard))
        soft = files_needed
    connections_max = settings.connections_max
    if soft != resource.RLIM_INFINITY:
        connections_max = min(connections_max, max(1, (soft - FILES_BESIDE_CONNECTIONS) * 8 // 9))
    if connections_max < settings.connections_max:
        log.info(
            "accepting at most %d connections, because this process may open only %d files",
            connections_max,
            soft,
        )
    return ConnectionLimits(
        connections_max=connections_max,
        per_peer_max=min(connections_max, settings.connections_per_peer_max),
        memory_bytes_max=settings.request_memory_bytes_max,
    )


async def _listen_and_serve(
    server: Server, settings: Settings, listeners: Sequence[socket.socket], *, supervised: bool
) -> None:
    connections = Connections(server.app, connection_limits(settings))
    servers = [await listen(connections, listener) for listener in listeners]
    sweeping = asyncio.create_task(connections.sweep(), name="sweep")
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if supervised:
        # Standard input is a pipe from the supervisor: when it closes, this process stops.
        loop.add_reader(sys.stdin.fileno(), stop.set)
    announce(listeners)
    await stop.wait()
    if supervised:
        loop.remove_reader(sys.stdin.fileno())
    log.info("draining")
    # A readiness probe must get the answer "not ready", not a refused connection: connections are
    # accepted to the end, and all but the public routes are refused on them. The flag is set before
    # the first poll is answered, because answers are sent as soon as they are decided.
    connections.is_draining = True
    server.drain()
    await server.invoker.finish_all(DRAIN_SECONDS / 2)
    await connections.drain(DRAIN_SECONDS / 2)
    for accepting in servers:
        accepting.close()
    sweeping.cancel()


def configure_logging(level: str) -> None:
    logging.basicConfig(
        level=level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
