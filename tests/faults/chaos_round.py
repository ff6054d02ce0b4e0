"""Several nodes, real workers, and everything breaks: one round of it, and what it came to.

Nodes are killed without a word, PostgreSQL is shut down and crashed, also while a node starts. In
the end every workflow whose start was acknowledged has ended as it should, its histories replay,
and the database keeps every promise.
"""

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Thread
from typing import Any

from tests.engine.invariants import check_database
from tests.support.balancer import Balancer
from tests.support.postgres import Cluster
from tests.support.sdk import SdkProcess
from tests.support.server import ServerProcess
from tests.support.tables import migrated_database

QUEUE = "stormy"
WORKERS = 2
PATIENCE = 600.0
"""How long a round may take; what is stuck is stuck for longer."""
SHORT_LEASES = {"DW_WORKFLOW_TASK_TIMEOUT": "3", "DW_ACTIVITY_TASK_TIMEOUT": "3"}


@dataclass
class Score:
    """What was done, and what came of it."""

    rounds: int = 0
    kills: int = 0
    restarts: int = 0
    acknowledged: int = 0
    finished: int = 0
    lost: int = 0
    duplicated: int = 0
    longest_stall: float = 0.0
    troubles: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not self.troubles and self.lost == self.duplicated == 0

    def add(self, other: "Score") -> None:
        for name in ("rounds", "kills", "restarts", "acknowledged", "finished", "lost"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.duplicated += other.duplicated
        self.longest_stall = max(self.longest_stall, other.longest_stall)
        self.troubles += other.troubles

    def __str__(self) -> str:
        told = [
            ("rounds", self.rounds),
            ("nodes killed", self.kills),
            ("PostgreSQL restarted", self.restarts),
            ("workflows acknowledged", self.acknowledged),
            ("workflows finished", self.finished),
            ("workflows lost", self.lost),
            ("duplicated effects", self.duplicated),
            ("longest stall", f"{self.longest_stall:.1f} s"),
        ]
        lines = [f"| {name} | {value} |" for name, value in told]
        return "\n".join(["| measure | value |", "| --- | --- |", *lines, *self.troubles])


class Progress:
    """Milestones of all workers, and the longest time without one."""

    def __init__(self) -> None:
        self._condition = Condition()
        self._count = 0
        self._last = time.monotonic()
        self.longest_stall = 0.0

    def note(self) -> None:
        with self._condition:
            now = time.monotonic()
            self.longest_stall = max(self.longest_stall, now - self._last)
            self._last = now
            self._count += 1
            self._condition.notify_all()

    def follow(self, worker: SdkProcess) -> Thread:
        def read() -> None:
            with contextlib.suppress(TimeoutError):
                for _ in worker.lines():
                    self.note()

        thread = Thread(target=read, name="milestones")
        thread.start()
        return thread

    def wait(self, milestones: int, seconds: float) -> None:
        """Until so much was done, or for so long if nothing moves."""
        with self._condition:
            wanted = self._count + milestones
            self._condition.wait_for(lambda: self._count >= wanted, seconds)


KILL_EVERY = (2.0, 5.0)
RESTART_EVERY = (5.0, 20.0)
"""The rhythm of a long round, in seconds: when the next node dies, and when the database does."""


class Faults:
    """Breaks one thing after the other, by the throw of a die.

    A brief round is over before a rhythm shows: there a fault comes whenever some work was done,
    and the first is both kinds at once, for there may be no second.
    """

    def __init__(
        self,
        nodes: list[ServerProcess],
        cluster: Cluster,
        progress: Progress,
        die: random.Random,
        *,
        is_brief: bool,
    ) -> None:
        self._nodes = nodes
        self._cluster = cluster
        self._progress = progress
        self._die = die
        self._is_brief = is_brief
        self._pool = ThreadPoolExecutor(len(nodes))
        self._starting: dict[ServerProcess, Future[Any]] = {}
        self.score = Score()
        now = time.monotonic()
        self._kill_at = now + die.uniform(*KILL_EVERY)
        self._restart_at = now + die.uniform(*RESTART_EVERY)

    def strike(self) -> None:
        """The next fault, in its time."""
        if self._is_brief:
            self._progress.wait(self._die.randint(5, 40), 3)
            faults = [self.kill_and_restart]
            if self.score.kills:
                faults += [self.kill, self.kill_process, self.restart]
            self._die.choice(faults)()
            return
        pause = min(self._kill_at, self._restart_at) - time.monotonic()
        self._progress.wait(1_000_000, max(pause, 0))
        if self._kill_at < self._restart_at:
            self._die.choice([self.kill, self.kill_process])()
            self._kill_at = time.monotonic() + self._die.uniform(*KILL_EVERY)
            return
        self._die.choice([self.restart, self.kill_and_restart])()
        self._restart_at = time.monotonic() + self._die.uniform(*RESTART_EVERY)

    def kill(self) -> None:
        node = self._die.choice(self._nodes)
        self._settle(node)
        node.kill()
        self._starting[node] = self._pool.submit(node.start)
        self.score.kills += 1

    def kill_process(self) -> None:
        """One process of the first node, which has several; they talk to each other directly."""
        node = self._nodes[0]
        self._settle(node)
        node.kill_one(self._die.randrange(8))
        self.score.kills += 1

    def restart(self) -> None:
        """Down, for up to two seconds, and up again."""
        if self._die.random() < 0.5:
            self._cluster.kill()
        else:
            self._cluster.stop()
        self._progress.wait(1_000_000, self._die.uniform(0, 0.5 if self._is_brief else 2))
        self._cluster.start()
        self.score.restarts += 1

    def kill_and_restart(self) -> None:
        """The database goes while a node begins."""
        self.kill()
        self._progress.wait(1_000_000, self._die.uniform(0, 0.4))
        self.restart()

    def end(self) -> None:
        """Everybody lives."""
        for node in self._nodes:
            self._settle(node)
        self._pool.shutdown()

    def _settle(self, node: ServerProcess) -> None:
        starting = self._starting.pop(node, None)
        if starting is not None:
            starting.result()


def play_round(
    cluster: Cluster,
    folder: Path,
    *,
    seed: int,
    nodes: int,
    runs: int,
    faults: int,
    release: str,
) -> Score:
    """Start some runs, break things until they are over, and judge."""
    url = migrated_database(cluster)
    folder.mkdir(parents=True, exist_ok=True)
    servers = [
        ServerProcess(
            url,
            log_path=folder / f"node-{number}.log",
            processes=2 if number == 0 else 1,
            env=SHORT_LEASES,
        )
        for number in range(nodes)
    ]
    progress = Progress()
    is_brief = faults <= 10
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.enter_context(server)
        ports = [int(server.url.rpartition(":")[2]) for server in servers]
        address = stack.enter_context(Balancer(ports)).url
        struck = Faults(servers, cluster, progress, random.Random(seed), is_brief=is_brief)
        with _workers(release, address, progress):
            options = [*("--server", address), *("--queue", QUEUE)]
            options += [*("--runs", str(runs)), *("--patience", str(PATIENCE))]
            with SdkProcess(release, "tests.sdk.storm", *options) as storm:
                storm.expect("under way")
                score = struck.score
                score.rounds, score.acknowledged = 1, runs
                while score.kills + score.restarts < faults and not storm.ended:
                    struck.strike()
                struck.end()
                verdict = _told(lambda: storm.expect("{", patience=PATIENCE))
    score.longest_stall = progress.longest_stall
    _judge(score, url, verdict)
    cluster.drop_database(url)
    return score


@contextlib.contextmanager
def _workers(release: str, address: str, progress: Progress) -> Iterator[None]:
    options = ("--server", address, "--queue", QUEUE)
    workers = [SdkProcess(release, "tests.sdk.work", *options) for _ in range(WORKERS)]
    followers = [progress.follow(worker) for worker in workers]
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()
        for follower in followers:
            follower.join()


def _told(listen: Callable[[], str]) -> dict[str, Any]:
    try:
        verdict: dict[str, Any] = json.loads(listen())
    except (AssertionError, TimeoutError) as silence:
        return {"ok": False, "error": str(silence), "runs": {}}
    return verdict


def _judge(score: Score, url: str, verdict: dict[str, Any]) -> None:
    """Compare what was acknowledged with what is on disk."""
    score.finished = len(verdict["runs"])
    if not verdict["ok"]:
        score.troubles.append(verdict["error"])
    try:
        runs = asyncio.run(check_database(url))
    except AssertionError as broken:
        score.duplicated += 1
        score.troubles.append(f"the database breaks a promise: {broken}")
        return
    closed = {run.workflow_id for run in runs if run.is_closed}
    score.lost = sum(workflow_id not in closed for workflow_id in verdict["runs"])
    if verdict["ok"]:
        score.lost += score.acknowledged - score.finished
        left = [run.workflow_id for run in runs if not run.is_closed]
        if left:
            score.troubles.append(f"still open: {left}")
