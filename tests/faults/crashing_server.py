"""Servers that die at a chosen moment of a beat, and healthy ones.

    python -m tests.faults.crashing_server READ WRITE [READ WRITE ...]

Each pair of descriptors has one server at a time. From the first it reads one JSON line per server,
`{"store": path or URL, "at": moment or null, "nth": number, "prunes": whether closed runs go soon,
"settings": members}`, and to the second it says for each: `pid N`, what the server says when it
listens, and `exit N`. Servers are forked, so that a hundred of them cost less than a few that start
from nothing.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import uvloop

from perdure.clock import FollowingClock, SystemClock
from perdure.cluster import refresh as lookout
from perdure.core import limits
from perdure.core.limits import SECOND
from perdure.core.push import slot
from perdure.dispatch import runner_invoker as invoking
from perdure.engine import leasing as leasing
from perdure.features.model_calls import rules as inference
from perdure.features.retention import loops as pruning_loop
from perdure.features.retention import operations as pruning
from perdure.features.webhooks import rules as delivery
from perdure.server import run
from perdure.server.assemble import Server
from perdure.server.settings import Settings, is_postgres, load_settings
from perdure.store.interface import Changes, Store
from perdure.store.postgres.connection import BEAT_SESSION, PostgresConnection
from perdure.store.postgres.store import PostgresStore
from perdure.store.sqlite.committer import Committer, Transaction
from perdure.store.sqlite.store import SqliteStore

DEATH = -signal.SIGKILL


class At(StrEnum):
    """Where in a beat a server can die."""

    BEFORE_LOAD = "before load"
    BEFORE_COMMIT = "before commit"
    INSIDE_COMMIT = "inside commit"
    AFTER_COMMIT = "after commit"


COMMITS = (At.BEFORE_COMMIT, At.INSIDE_COMMIT, At.AFTER_COMMIT)
"""The moments that every beat comes to which changes anything."""


class CrashingCommitter(Committer):
    """Everything is written and nothing is committed when it is too late."""

    def __init__(self, reached: Callable[[At], None]) -> None:
        super().__init__()
        self._reached = reached

    async def commit(self, transaction: Transaction, *, runs: int) -> None:
        self._reached(At.INSIDE_COMMIT)
        await super().commit(transaction, runs=runs)


class Fuse:
    """Ends its process when it comes to a moment for the nth time."""

    def __init__(self, at: At, nth: int) -> None:
        self._at = at
        self._left = nth

    def reached(self, ctx: At) -> None:
        if ctx is self._at:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class CrashingLine(PostgresConnection):
    """The database has the statement when its node is gone, and nobody hears how it ended."""

    fuse: Fuse

    async def ask(self, sql: str, *values: Any) -> list[Any]:
        if "gate as (" not in sql:
            return await super().ask(sql, *values)
        asking = asyncio.ensure_future(super().ask(sql, *values))
        await asyncio.sleep(0)
        self.fuse.reached(At.INSIDE_COMMIT)
        return await asking


LOADS = ("load_runs", "find_current", "find_receipts", "load_ready", "find_leases")


def doomed_store(where: str, fuse: Fuse) -> Store:
    """A store that comes to every moment of a beat, and to its end at one of them."""
    store: SqliteStore | PostgresStore
    if is_postgres(where):
        clock = FollowingClock(SystemClock())
        store = PostgresStore(where, node_id=f"doomed {os.getpid()}", clock=clock)
        line = CrashingLine(where, pooled=False, session=BEAT_SESSION, greet=store._enrol)
        line.fuse = fuse
        store._lane = line
    else:
        store = SqliteStore(Path(where))
        store._committer.stop()
        store._committer = CrashingCommitter(fuse.reached)
    for name in LOADS:
        setattr(store, name, _after(fuse, getattr(store, name)))
    commit = store.commit

    async def committing(changes: Changes) -> None:
        fuse.reached(At.BEFORE_COMMIT)
        await commit(changes)
        fuse.reached(At.AFTER_COMMIT)

    setattr(store, "commit", committing)  # noqa: B010
    return store


def _after(fuse: Fuse, load: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def loading(*given: Any) -> Any:
        fuse.reached(At.BEFORE_LOAD)
        return await load(*given)

    return loading


def hurry() -> None:
    """What a dead engine had under way is given up soon, so that nobody has to wait long."""
    _set(
        (leasing, "PASS_LEASE_TIMEOUT", SECOND),
        (invoking, "PASS_LEASE_TIMEOUT", SECOND),
        (invoking, "_RENEW_AFTER", SECOND // 3),
        (invoking, "_LOOK", SECOND // 5),
        (limits, "DELIVERY_LEASE_TIMEOUT", SECOND),
        (delivery, "DELAYS", (SECOND // 10,) * len(delivery.DELAYS)),
        (inference, "INFERENCE_LEASE_TIMEOUT", SECOND),
        # Who waits for a slot or a budget is called, or waits too long for any test.
        (slot, "SLOT_RELOOK", 3600 * SECOND),
    )


def hurry_pruning() -> None:
    """Closed runs that are old enough go at once, few at a time and in small bites."""
    _set(
        (pruning_loop, "FORGET_EVERY", SECOND // 50),
        (pruning_loop, "FORGET_PAUSE", 0),
        (pruning_loop, "RUNS_PRUNED_AT_ONCE_MAX", 2),
        (pruning_loop, "REMAINS_RELOOK", SECOND // 5),
        (pruning, "REMAINS_RELOOK", SECOND // 5),
        (pruning, "REMAINS_ROWS_MAX", 3),
    )


def _set(*limits_: tuple[ModuleType, str, object]) -> None:
    for module, name, value in limits_:
        assert hasattr(module, name)
        setattr(module, name, value)


def serve(order: Mapping[str, object]) -> None:
    """Be one server until somebody or something ends it."""
    where = str(order["store"])
    url = where if is_postgres(where) else f"sqlite:///{where}"
    # A lease that nobody was told of is found when a node looks around; here that is soon.
    lookout.INTERVAL = 3 * SECOND // 2
    hurry()
    if order["prunes"]:
        hurry_pruning()
    settings = load_settings(
        os.environ,
        store=url,
        port=0,
        auth_driver="none",
        processes=1,
        egress_allow=("127.0.0.0/8",),
        **cast(dict[str, str], order["settings"]),
    )
    if order["at"] is not None:
        fuse = Fuse(At(str(order["at"])), int(str(order["nth"])))

        def crashing(settings: Settings, **others: Any) -> Server:
            return Server(settings, store=doomed_store(where, fuse), **others)

        # Its life is the real one; only the store is not.
        setattr(run, "Server", crashing)  # noqa: B010
    run.configure_logging("error")
    uvloop.run(run.serve(settings))


def tend(orders: int, words: int) -> None:
    """Bring up one server after another."""
    os.dup2(orders, sys.stdin.fileno())
    os.dup2(words, sys.stdout.fileno())
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
            try:
                serve(json.loads(line))
            except BaseException as error:
                print(f"the server broke: {error!r}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        print(f"pid {child}", flush=True)
        _, status = os.waitpid(child, 0)
        print(f"exit {os.waitstatus_to_exitcode(status)}", flush=True)


def main() -> None:
    ends = [int(end) for end in sys.argv[1:]]
    for pair in zip(ends[::2], ends[1::2], strict=True):
        if os.fork() == 0:
            tend(*pair)
            os._exit(0)
    for _ in ends[::2]:
        os.wait()


if __name__ == "__main__":
    main()
