"""A real PostgreSQL of our own: in a temporary folder, on a free port, gone with the process.

Where there is room, the folder is in memory: what dies in a test is a process, not the machine.
Nobody else's server is ever touched. Connections are trusted, which is why it listens on loopback
only. A test gets a database of its own from it, owned by a role that is not a superuser.
"""

import contextlib
import itertools
import json
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

import asyncpg

from tests.support import postgres_guard
from tests.support.postgres_binaries import (
    WHEEL,
    NoPostgres,
    find_binaries,
    major_version,
    wheel_binaries,
)
from tests.support.query_harness import query_broker

HOST: Final = "127.0.0.1"
SUPERUSER: Final = "postgres"
ROLE: Final = "perdure"
ACCOUNTS: Final = ("postgres", "nobody")
"""PostgreSQL refuses to run as root; root therefore runs it as one of these."""

# Below the ports that systems give to outgoing connections: nobody takes the port by accident while
# the server is down, and a client that tries again and again never connects to itself.
PORTS: Final = range(10_240, 32_768)
PORT_TRIES: Final = 100
READY_TIMEOUT: Final = 120.0
STOP_TIMEOUT: Final = 90.0
POLL_INTERVAL: Final = 0.02
STATEMENT_TIMEOUT: Final = 60.0
SOCKET_PATH_MAX: Final = 107
PORT_TAKEN: Final = "could not create any TCP/IP sockets"

MEMORY: Final = Path("/dev/shm")
MEMORY_MIN: Final = 4 << 30
"""What must be free there: less is a container's token amount, which one cluster would fill."""

COMMON: Final[Mapping[str, str]] = MappingProxyType(
    {
        "listen_addresses": HOST,
        "lc_messages": "C",
        "log_line_prefix": "%m [%p] %a ",
        "huge_pages": "off",
    }
)
QUICK: Final[Mapping[str, str]] = MappingProxyType(
    {
        "fsync": "off",
        "full_page_writes": "off",
        "wal_level": "minimal",
        "max_wal_senders": "0",
        "shared_buffers": "16MB",
        "max_wal_size": "128MB",
        "max_connections": "100",
        "jit": "off",
        "max_parallel_workers_per_gather": "0",
    }
)
"""For tests: survives every death of a process, but not that of the machine."""
DURABLE: Final[Mapping[str, str]] = MappingProxyType(
    {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "shared_buffers": "128MB"}
)
"""For benches: what an operator would run."""


class ServerFailed(Exception):
    """PostgreSQL did not do what it was asked; says what it wrote."""


class Cluster:
    """One server with its data. It starts on entering and leaves nothing behind on leaving."""

    def __init__(
        self,
        *,
        durable: bool = False,
        synchronous_commit: str = "off",
        settings: Mapping[str, str] | None = None,
        binaries: Path | None = None,
    ) -> None:
        base = DURABLE if durable else {**QUICK, "synchronous_commit": synchronous_commit}
        self._is_in_memory = not durable and _has_memory(MEMORY)
        self.settings = {**COMMON, **base, **(settings or {})}
        self.binaries = binaries or find_binaries()
        # In memory a copy of files takes a third of what PostgreSQL does of itself since 15.
        is_plain = self._is_in_memory and major_version(self.binaries) >= 15
        self._strategy = "strategy file_copy" if is_plain else ""
        self.port = 0
        self.pid: int | None = None
        self._folder: Path | None = None
        self._guard: subprocess.Popen[str] | None = None
        self._numbers = itertools.count(1)
        self._templates: set[str] = set()

    # Life ----------------------------------------------------------------------------------------

    def open(self) -> Self:
        """Create the data, start the server and the role that tests use."""
        assert self._guard is None, "the cluster is open"
        account = _account()
        self._folder = _new_folder(account, MEMORY if self._is_in_memory else None)
        try:
            self._guard = _new_guard(self._folder, account)
            if account is not None:
                self.binaries = _reachable_binaries(self.binaries, self._folder)
            self._initialize()
            self.start()
            self.execute(f"create role {ROLE} login")
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Stop the server and remove its folder."""
        guard, self._guard, self.pid = self._guard, None, None
        if guard is not None:
            assert guard.stdin is not None
            assert guard.stdout is not None
            guard.stdin.close()
            guard.wait(STOP_TIMEOUT)
            guard.stdout.close()
        elif self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Start on the data that is there and wait until connections are accepted.

        The first start looks for a free port, later ones wait for theirs.
        """
        assert self.pid is None, "the server is running"
        deadline = time.monotonic() + READY_TIMEOUT
        for _ in range(PORT_TRIES):
            port = self.port or _free_port()
            written = len(self.log())
            if self._start_on(port, deadline):
                self.port = port
                return
            if PORT_TAKEN not in self.log()[written:] or time.monotonic() > deadline:
                break
        raise ServerFailed(f"PostgreSQL did not start:\n{self.log()[-3000:]}")

    def stop(self) -> None:
        """A fast shutdown: transactions are rolled back, sessions ended, everything is flushed."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """As in a crash: nothing is flushed, nobody is told, the next start recovers."""
        self._end(signal.SIGQUIT)

    def restart(self, *, hard: bool = False) -> None:
        """Down and up again, on the same port and data."""
        if hard:
            self.kill()
        else:
            self.stop()
        self.start()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # Databases -----------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        """Where data, log and socket are."""
        assert self._folder is not None, "the cluster is not open"
        return self._folder

    @property
    def admin_url(self) -> str:
        """The superuser, for tests that need to see or end the sessions of others."""
        return self.url_of("postgres", role=SUPERUSER)

    def url_of(self, database: str, *, role: str = ROLE) -> str:
        """A database as its URL."""
        return f"postgresql://{role}@{HOST}:{self.port}/{database}"

    def fresh_database(self, template: str = "template0") -> str:
        """A database that nobody has used, owned by the common role; returns its URL."""
        name = f"fresh_{next(self._numbers)}"
        self.execute(f"create database {name} owner {ROLE} template {template} {self._strategy}")
        return self.url_of(name)

    def template(self, name: str, prepare: Callable[[str], None]) -> str:
        """The name of a template, prepared once: for databases that start with a schema in them.

        `prepare` gets the URL and must leave no connection open.
        """
        if name not in self._templates:
            self.execute(f"create database {name} owner {ROLE} template template0")
            prepare(self.url_of(name))
            self._templates.add(name)
        return name

    def drop_database(self, url: str) -> None:
        """Remove a database, whoever is still connected to it."""
        self.execute(f"drop database if exists {urlsplit(url).path[1:]} with (force)")

    def execute(self, statement: str, *, database: str = "postgres") -> list[asyncpg.Record]:
        """Run one statement as the superuser, from anywhere."""
        url = self.url_of(database, role=SUPERUSER)
        asked = query_broker().ask(
            url, lambda known: known.fetch(statement, timeout=STATEMENT_TIMEOUT)
        )
        return asked.result()

    def log(self) -> str:
        """Everything that the server wrote, over all its lives."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    # Inside --------------------------------------------------------------------------------------

    def _initialize(self) -> None:
        command = [str(self.binaries / "initdb"), "-D", str(self.folder / "data"), "-U", SUPERUSER]
        command += ["-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        answer = self._ask(do="run", command=command)
        if answer["code"] != 0:
            raise ServerFailed(f"initdb failed:\n{answer['output'][-3000:]}")

    def _start_on(self, port: int, deadline: float) -> bool:
        command = [str(self.binaries / "postgres"), "-D", str(self.folder / "data")]
        sockets = self.folder if _fits_a_socket(self.folder, port) else ""
        for name, value in {
            **self.settings,
            "port": str(port),
            "unix_socket_directories": str(sockets),
        }.items():
            command += ["-c", f"{name}={value}"]
        pid = self._ask(do="start", command=command)["pid"]
        while time.monotonic() < deadline:
            if self._is_ready(pid):
                self.pid = pid
                return True
            if self._ask(do="wait", seconds=POLL_INTERVAL)["code"] is not None:
                return False
        self._ask(do="signal", signal=signal.SIGQUIT)
        self._ask(do="wait", seconds=STOP_TIMEOUT)
        return False

    def _is_ready(self, pid: int) -> bool:
        # The server itself writes there that it accepts connections, on the eighth line; pg_ctl
        # looks at the same place. A connection could be answered by another server on the port.
        try:
            lines = (self.folder / "data" / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0] == str(pid) and lines[7].strip() == "ready"

    def _end(self, number: int) -> None:
        assert self.pid is not None, "the server is not running"
        self._ask(do="signal", signal=number)
        code = self._ask(do="wait", seconds=STOP_TIMEOUT)["code"]
        if code is None:
            raise ServerFailed(f"PostgreSQL did not stop:\n{self.log()[-3000:]}")
        self.pid = None

    def _ask(self, **order: Any) -> dict[str, Any]:
        assert self._guard is not None, "the cluster is not open"
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        self._guard.stdin.write(json.dumps(order) + "\n")
        self._guard.stdin.flush()
        answer: dict[str, Any] = json.loads(self._guard.stdout.readline() or '{"error": "is gone"}')
        if "error" in answer:
            raise ServerFailed(f"the guard of PostgreSQL: {answer['error']}")
        return answer


def _account() -> tuple[int, int] | None:
    if os.geteuid() != 0:
        return None
    for name in ACCOUNTS:
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return entry.pw_uid, entry.pw_gid
    raise NoPostgres(f"root needs an account named {' or '.join(ACCOUNTS)} to run PostgreSQL as.")


def _has_memory(place: Path) -> bool:
    """Whether there is room for databases in memory, and programs may be run there as well."""
    try:
        found = os.statvfs(place)
    except OSError:
        return False
    is_large = found.f_bavail * found.f_frsize >= MEMORY_MIN
    return is_large and not found.f_flag & os.ST_NOEXEC and os.access(place, os.W_OK)


def _new_folder(account: tuple[int, int] | None, chosen: Path | None) -> Path:
    parent = (chosen or Path(tempfile.gettempdir())).resolve()
    if account is not None and not _is_open_to_all(parent):
        parent = Path("/tmp")
    folder = Path(tempfile.mkdtemp(prefix="perdure-pg-", dir=parent))
    if account is not None:
        os.chown(folder, *account)
    return folder


def _new_guard(folder: Path, account: tuple[int, int] | None) -> subprocess.Popen[str]:
    # A session of its own: Ctrl-C reaches the tests first.
    return subprocess.Popen(
        [
            *(sys.executable, "-I", "-S", postgres_guard.__file__, str(folder)),
            "" if account is None else f"{account[0]}:{account[1]}",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _reachable_binaries(binaries: Path, folder: Path) -> Path:
    """The programs where the account of the server may run them: linked into the folder if need be.

    A checkout under root's own home is closed to everybody else.
    """
    if binaries != wheel_binaries() or _is_open_to_all(binaries.resolve()):
        return binaries
    packages, target = binaries.parents[2], folder / "server"
    for part in (WHEEL, f"{WHEEL}.libs"):  # The programs find the libraries by a relative path.
        if (packages / part).is_dir():
            shutil.copytree(packages / part, target / part, copy_function=_link_or_copy)
    return target / binaries.relative_to(packages)


def _is_open_to_all(folder: Path) -> bool:
    return all(place.stat().st_mode & 0o001 for place in (folder, *folder.parents))


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _fits_a_socket(folder: Path, port: int) -> bool:
    return len(os.fsencode(folder / f".s.PGSQL.{port}")) <= SOCKET_PATH_MAX


def _free_port() -> int:
    """A port that is free now; whether it still is, the server finds out."""
    for _ in range(PORT_TRIES):
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise ServerFailed("no free port was found")
