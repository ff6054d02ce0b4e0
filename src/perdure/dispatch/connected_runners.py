"""Runners that this node can invoke, as pollers that never leave: each takes many passes at once.

A pass meets a runner in the beat that makes it ready, like any task a parked poll. Which runner is
chosen is chance among those that know the workflow; a pinned run has no choice.
"""

from collections.abc import Callable
from typing import Protocol

from perdure.core.fleet.routing import split_pass_name
from perdure.core.fleet.worker import Worker
from perdure.core.limits import PASSES_PER_RUNNER_MAX, RUNNERS_MAX
from perdure.core.push.result import vault_of
from perdure.core.run.completion import TaskReport
from perdure.core.run.state import Run
from perdure.dispatch.ready_names import ReadyNames
from perdure.engine.matching import Poller
from perdure.identity import jitter
from perdure.store.interface import QueueKey, Unavailable


class Call:
    """One pass that is under way: which lease its answer is for."""

    __slots__ = (
        "attempt",
        "has_pending",
        "heard_at",
        "is_given_up",
        "is_over",
        "lease_until",
        "namespace",
        "number",
        "run_id",
        "runner",
        "timeout",
        "vault",
    )

    def __init__(self, runner: "Runner", run: Run, now: int, *, timeout: int) -> None:
        task = run.task
        assert task is not None
        assert task.lease is not None
        self.runner = runner
        self.namespace = run.namespace
        self.run_id = run.run_id
        self.vault = vault_of(run)
        self.number, self.attempt = task.number, task.attempt
        # How long the runner may be silent, and since when it is.
        self.timeout = timeout
        self.heard_at = now
        self.lease_until = task.lease.expires_at
        # Whether the runner was told of steps that it can only wait for.
        self.has_pending = False
        self.is_over = False
        # Whether it was given up for its silence. An answer may still come.
        self.is_given_up = False

    @property
    def call_id(self) -> str:
        return f"{self.run_id}-{self.number}-{self.attempt}"

    @property
    def report(self) -> TaskReport:
        owner = self.runner.worker.worker_id
        return TaskReport(number=self.number, owner=owner, attempt=self.attempt)


class Link(Protocol):
    """How passes get to a runner."""

    @property
    def is_writable(self) -> bool:
        """Whether it can take one now."""
        ...

    def carry(self, call: Call, run: Run) -> None:
        """Send a pass; the run is as the lease found it, and only now. The invoker hears how it
        ends."""
        ...


class Runner:
    """One way to one runner."""

    poll_id = None
    is_elsewhere = False

    def __init__(
        self,
        key: QueueKey,
        *,
        owner: str,
        runner_id: str,
        workflows: frozenset[str],
        link: Link,
        send: "Callable[[Runner, Run], None]",
        is_impatient: bool = False,
        fetches_results: bool = False,
    ) -> None:
        self.key = key
        self.runner_id = runner_id
        self.workflows = workflows
        self.link = link
        self.in_flight = 0
        self.is_gone = False
        # How often in a row it could not be reached, and whether it is left alone for that now.
        self.failures = 0
        self.is_resting = False
        # Whether it answers nothing as long as its code finds no new step.
        self.is_impatient = is_impatient
        # Whether it fetches results of steps that are stored apart.
        self.fetches_results = fetches_results
        self._send = send
        self.worker = Worker(
            namespace=key.namespace,
            worker_id=owner,
            queue=key.queue,
            runtime="runner",
            registered_at=0,
            heartbeat_at=0,
            registration_token="",
        )

    @property
    def is_free(self) -> bool:
        return (
            not self.is_gone
            and not self.is_resting
            and self.in_flight < PASSES_PER_RUNNER_MAX
            and self.link.is_writable
        )

    def granted(self, run: Run, place: int) -> None:
        self._send(self, run)


class ConnectedRunners:
    """Every runner of this process, by app."""

    def __init__(self) -> None:
        self._runners: dict[QueueKey, list[Runner]] = {}
        self._count = 0
        self._ready = ReadyNames()
        self._claim: Callable[[QueueKey], None] = lambda key: None
        self._is_closed = False

    def connect(self, claim: Callable[[QueueKey], None]) -> None:
        """Say how to make the engine look for ready passes of an app."""
        self._claim = claim

    def add(self, runner: Runner) -> None:
        """A runner is there, and may have what waits for it at once."""
        if self._count >= RUNNERS_MAX:
            raise Unavailable("server_overloaded", f"{RUNNERS_MAX} runners are connected")
        self._runners.setdefault(runner.key, []).append(runner)
        self._count += 1
        self.look_for(runner.key)

    def remove(self, runner: Runner) -> None:
        runner.is_gone = True
        runners = self._runners.get(runner.key, [])
        if runner in runners:
            runners.remove(runner)
            self._count -= 1
            if not runners:
                del self._runners[runner.key]

    def freed(self, runner: Runner) -> None:
        """A pass of a runner is over."""
        runner.in_flight -= 1
        if runner.key in self._ready:
            self.look_for(runner.key)

    def wake(self, runner: Runner) -> None:
        """A runner that was left alone is tried again."""
        if runner.is_resting:
            runner.is_resting = False
            self.look_for(runner.key)

    def look_for(self, key: QueueKey) -> None:
        """Look for ready passes of an app, if somebody here can have one."""
        if self._wanted(key) and self._ready.begin_look(key):
            self._claim(key)

    def release_all(self) -> None:
        """The server is to stop: no more passes are begun."""
        self._is_closed = True

    # For the engine ------------------------------------------------------------------------------

    def reserve(self, key: QueueKey, name: str, wanted: str | None = None) -> Runner | None:
        able = self._able(key, name)
        if not able:
            return None
        runner = able[0] if len(able) == 1 else able[jitter(len(able) - 1)]
        runner.in_flight += 1
        return runner

    def reserve_elsewhere(self, key: QueueKey, name: str) -> None:
        """Sockets cannot be lent; the node that has one claims what is ready."""

    def restore(self, poller: Poller) -> None:
        assert isinstance(poller, Runner)
        poller.in_flight -= 1

    def registration_ended(self, worker: Worker) -> None:
        """Runners come and go with their links."""

    def offered(self, key: QueueKey, name: str) -> None:
        self._ready.offer(key, name)
        if self._able(key, name) and self._ready.begin_look(key):
            self._claim(key)

    def wanted(self, key: QueueKey) -> tuple[set[str], int]:
        self._ready.reads(key)
        if key not in self._runners:
            return set(), 0
        names = self._wanted(key)
        free = sum(PASSES_PER_RUNNER_MAX - r.in_flight for r in self._runners[key] if r.is_free)
        return names, free

    def exhausted(self, key: QueueKey, names: set[str]) -> None:
        self._ready.exhausted(key, names)

    def claimed(self, key: QueueKey) -> None:
        self._ready.end_look(key)
        self.look_for(key)

    def _wanted(self, key: QueueKey) -> set[str]:
        if key not in self._runners:
            return set()
        return {name for name in self._ready.of(key) if self._able(key, name)}

    def _able(self, key: QueueKey, name: str) -> list[Runner]:
        if self._is_closed:
            return []
        workflow, pin = split_pass_name(name)
        runners = self._runners.get(key, ())
        if pin:
            return [r for r in runners if r.runner_id == pin and r.is_free]
        return [r for r in runners if workflow in r.workflows and r.is_free]
