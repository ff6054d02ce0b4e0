"""The command line: `perdure dev` for one machine, `perdure serve` for production."""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence

import uvloop

from perdure import __version__
from perdure.clock import SystemClock
from perdure.cluster.local_sockets import family_of
from perdure.server.run import configure_logging, serve
from perdure.server.settings import (
    DURABLEX_PORT,
    PROCESSES_MAX,
    Settings,
    SettingsError,
    is_postgres,
    load_settings,
    require_credentials,
    require_store,
    sqlite_path,
)
from perdure.server.startup_warnings import startup_warnings
from perdure.server.stores import make_end, make_store
from perdure.server.supervise import Supervisor, inherited_listener
from perdure.store.copies import copy
from perdure.store.interface import Unavailable
from perdure.store.postgres.store import PostgresStore

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    parsed = _parser().parse_args(arguments)
    configure_logging(parsed.log_level)
    run: Callable[[argparse.Namespace], int] = parsed.run
    try:
        return run(parsed)
    except (SettingsError, Unavailable, OSError) as error:
        print(f"perdure: {error}", file=sys.stderr)
        return 2


# dev and serve ------------------------------------------------------------------------------------


def _serve(parsed: argparse.Namespace) -> int:
    settings = _settings(parsed)
    if parsed.listen_fd:
        listeners = [inherited_listener(descriptor) for descriptor in parsed.listen_fd]
        uvloop.run(serve(settings, listeners, parsed.family))
        return 0
    for warning in (*settings.without_effect, *startup_warnings(settings)):
        log.warning("%s", warning)
    processes = settings.processes or _processes_of(parsed.command, settings)
    if processes == 1:
        uvloop.run(serve(settings))
        return 0
    command = [sys.executable, "-m", "perdure", parsed.command, "--log-level", parsed.log_level]
    os.environ["PERDURE_STORE"] = settings.store
    return Supervisor(settings, command, processes).run()


def _processes_of(command: str, settings: Settings) -> int:
    """One for SQLite and for `dev`, else one per core."""
    if command == "dev" or not is_postgres(settings.store):
        return 1
    return min(len(os.sched_getaffinity(0)), PROCESSES_MAX)


def _settings(parsed: argparse.Namespace) -> Settings:
    names = ("host", "port", "durablex_port", "store", "processes")
    given = {name: getattr(parsed, name) for name in names if getattr(parsed, name) is not None}
    if parsed.command == "dev":
        settings = load_settings(os.environ, auth_driver="none", **given)
    else:
        settings = load_settings(os.environ, **given)
        require_credentials(settings)
    require_store(settings)
    return settings


# migrate ------------------------------------------------------------------------------------------


def _migrate(parsed: argparse.Namespace) -> int:
    given = {} if parsed.store is None else {"store": parsed.store}
    settings = load_settings(os.environ, **given)
    require_store(settings)
    applied = asyncio.run(_apply_migrations(settings))
    print("perdure: " + (f"applied {', '.join(map(str, applied))}" if applied else "up to date"))
    return 0


async def _apply_migrations(settings: Settings) -> list[int]:
    store = make_store(settings, node_id="migrate", clock=SystemClock())
    if isinstance(store, PostgresStore):
        try:
            return await store.migrate()
        finally:
            await store.close()
    # Opening a SQLite file applies its migrations.
    await store.open()
    await store.close()
    return []


# copy ---------------------------------------------------------------------------------------------


def _copy(parsed: argparse.Namespace) -> int:
    if _place_of(parsed.source) == _place_of(parsed.target):
        raise SettingsError("--from and --to are the same store")
    clock = SystemClock()
    source, target = (make_end(store, clock=clock) for store in (parsed.source, parsed.target))
    compared = asyncio.run(copy(source, target))
    print(f"{'table':<10} {'rows':>12}  sum of the rows' SHA-256")
    for table in compared:
        print(f"{table.table:<10} {table.source_rows:>12,}  {table.source_digest}")
        if not table.is_same:
            print(f"{'  in --to':<10} {table.target_rows:>12,}  {table.target_digest}")
        if table.damaged:
            print(
                f"perdure: {table.damaged} rows of {table.table} are damaged in --from; they were "
                "copied as they are, and their runs stay out of service",
                file=sys.stderr,
            )
    if all(table.is_same for table in compared):
        print("perdure: copied; both stores hold the same")
        return 0
    print("perdure: the copy differs from its source and cannot be served", file=sys.stderr)
    return 1


def _place_of(store: str) -> str:
    return store if is_postgres(store) else str(sqlite_path(store).resolve())


# Arguments ----------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="perdure", description="A durable-execution server: steps run once, whatever crashes."
    )
    parser.add_argument("--version", action="version", version=f"perdure {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, text in (
        ("dev", "serve this machine only, without credentials"),
        ("serve", "serve other machines; refuses to start without credentials"),
    ):
        command = _command(commands, name, text, _serve)
        command.add_argument("--host", help="address to listen on (127.0.0.1)")
        command.add_argument("--port", type=_port, help="port to listen on, 0 for any (8080)")
        command.add_argument(
            "--durablex-port",
            type=_port,
            nargs="?",
            const=DURABLEX_PORT,
            help=f"one more port for the same ({DURABLEX_PORT} without a value)",
        )
        _add_store(command)
        command.add_argument(
            "--processes",
            type=_processes,
            help="server processes behind the port (1; serve on PostgreSQL: one per core)",
        )
        command.add_argument("--listen-fd", type=int, action="append", help=argparse.SUPPRESS)
        command.add_argument("--family", type=family_of, help=argparse.SUPPRESS)
    command = _command(commands, "migrate", "bring the store's schema up to date", _migrate)
    _add_store(command)
    command = _command(commands, "copy", "copy a stopped store into an empty one", _copy)
    for option, name, text in (
        ("--from", "source", "the store to read; it is left as it is"),
        ("--to", "target", "the store to fill; sqlite:///… or postgresql://…, like --from"),
    ):
        command.add_argument(option, dest=name, required=True, metavar="STORE", help=text)
    return parser


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    text: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text)
    command.set_defaults(run=run)
    command.add_argument(
        "--log-level", default="warning", choices=("debug", "info", "warning", "error")
    )
    return command


def _add_store(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--store",
        help="sqlite:///path/to/file.db or postgresql://user@host/database (./perdure.db)",
    )


def _processes(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= PROCESSES_MAX:
        raise argparse.ArgumentTypeError(f"processes must be a number from 1 to {PROCESSES_MAX}")
    return int(text)


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65_535:
        raise argparse.ArgumentTypeError("a port must be a number from 0 to 65535")
    return int(text)
