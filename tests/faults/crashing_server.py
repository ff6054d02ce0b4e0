"""Servers that die at a chosen moment of a beat, and healthy ones.

    python -m tests.faults.crashing_server

Reads one JSON line per server, `{"store": path, "at": moment or null, "nth": number}`, and says for
each: `pid N`, what the server says when it listens, and `exit N`. Servers are forked, so that a
hundred of them cost less than a few that start from nothing.
"""

import json
import os
import sys
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

import uvloop

from perdure.core.run.state import Run
from perdure.server import run
from perdure.server.assemble import Server
from perdure.server.settings import Settings, load_settings
from perdure.store.interface import (
    Changes,
    Instance,
    LeasedTask,
    QueueKey,
    ReadyTask,
    Receipt,
    ReceiptKey,
)
from perdure.store.sqlite.committer import Committer, Transaction
from perdure.store.sqlite.store import SqliteStore

DEATH = 9


class At(StrEnum):
    """Where in a beat a server can die."""

    BEFORE_LOAD = "before load"
    BEFORE_COMMIT = "before commit"
    INSIDE_COMMIT = "inside commit"
    AFTER_COMMIT = "after commit"


class CrashingCommitter(Committer):
    """Everything is written and nothing is committed when it is too late."""

    def __init__(self, reached: Callable[[At], None]) -> None:
        super().__init__()
        self._reached = reached

    async def commit(self, transaction: Transaction, *, runs: int) -> None:
        self._reached(At.INSIDE_COMMIT)
        await super().commit(transaction, runs=runs)


class CrashingStore(SqliteStore):
    """Ends its process when it comes to a moment for the nth time."""

    def __init__(self, path: Path, at: At, nth: int) -> None:
        super().__init__(path)
        self._at = at
        self._left = nth
        self._committer.stop()
        self._committer = CrashingCommitter(self._reached)

    def _reached(self, moment: At) -> None:
        if moment is self._at:
            self._left -= 1
            if self._left == 0:
                os._exit(DEATH)

    async def commit(self, changes: Changes) -> None:
        self._reached(At.BEFORE_COMMIT)
        await super().commit(changes)
        self._reached(At.AFTER_COMMIT)

    async def load_runs(
        self, run_ids: Collection[str], held: Mapping[str, Run] = MappingProxyType({})
    ) -> list[Run]:
        self._reached(At.BEFORE_LOAD)
        return await super().load_runs(run_ids, held)

    async def find_current(self, instances: Collection[Instance]) -> Mapping[Instance, str]:
        self._reached(At.BEFORE_LOAD)
        return await super().find_current(instances)

    async def find_receipts(self, keys: Collection[ReceiptKey]) -> Mapping[ReceiptKey, Receipt]:
        self._reached(At.BEFORE_LOAD)
        return await super().find_receipts(keys)

    async def load_ready(
        self, key: QueueKey, names: Collection[str], limit: int
    ) -> list[ReadyTask]:
        self._reached(At.BEFORE_LOAD)
        return await super().load_ready(key, names, limit)

    async def find_leases(self, namespace: str, owner: str) -> list[LeasedTask]:
        self._reached(At.BEFORE_LOAD)
        return await super().find_leases(namespace, owner)


def serve(order: Mapping[str, object]) -> None:
    """Be one server until somebody or something ends it."""
    path = Path(str(order["store"]))
    settings = load_settings(os.environ, store=f"sqlite:///{path}", port=0, auth_driver="none")
    if order["at"] is not None:
        at, nth = At(str(order["at"])), int(str(order["nth"]))

        def crashing(settings: Settings) -> Server:
            return Server(settings, store=CrashingStore(path, at, nth))

        # Its life is the real one; only the store is not.
        setattr(run, "Server", crashing)  # noqa: B010
    run.configure_logging("error")
    uvloop.run(run.serve(settings))


def main() -> None:
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


if __name__ == "__main__":
    main()
