"""Passes on their way: sent when their lease is on disk, renewed while they last, taken in once."""

import asyncio
import logging

from perdure.clock import Clock
from perdure.core.external import Reference, result_reference
from perdure.core.limits import PASS_LEASE_TIMEOUT, RUNNER_REST, RUNNER_REST_MAX, SECOND
from perdure.core.push.apply_pass import error_of
from perdure.core.push.command import (
    Broke,
    Lost,
    PassReply,
    Progressed,
    Refused,
    ReportStep,
    Unreached,
)
from perdure.core.push.step import push_of
from perdure.core.rejection import (
    ExternalPayloadExpired,
    ExternalPayloadIntegrityMismatch,
    ExternalPayloadNotFound,
    Rejection,
)
from perdure.core.run.state import Run
from perdure.dispatch.connected_runners import Call, ConnectedRunners, Runner
from perdure.engine.beat import Engine
from perdure.engine.operation import Operation
from perdure.engine.payloads import NamePayloads
from perdure.engine.push_runs import ApplyPass, ReleasePasses
from perdure.engine.workflow_tasks import RenewWorkflowTask
from perdure.store.interface import Unavailable

log = logging.getLogger(__name__)

OWNER_PREFIX = "pass:"
"""What the owners of leases are called that are no workers."""

RESULT_MISSING = "step_result_missing"
"""Why a run fails whose runner reports a result that it did not upload, or long ago."""
_RESULT_MISSING = (
    ExternalPayloadNotFound,
    ExternalPayloadExpired,
    ExternalPayloadIntegrityMismatch,
)

_LOOK = SECOND
"""How often to look whether a pass needs a longer lease, or has taken too long."""
_RENEW_AFTER = PASS_LEASE_TIMEOUT // 3


class RunnerInvoker:
    """Every pass that this node has under way."""

    def __init__(
        self, engine: Engine, clock: Clock, parked_polls: ConnectedRunners, *, timeout: int
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._parked_polls = parked_polls
        self._timeout = timeout
        self._calls: dict[str, Call] = {}
        self._idle = asyncio.Event()
        self._rests: set[asyncio.Task[None]] = set()

    @property
    def count(self) -> int:
        """How many passes are under way."""
        return len(self._calls)

    async def open(self) -> None:
        """Passes that the last owner of the store had under way come again at once.

        On a shared store they may be another node's; there they come when their leases end.
        """
        if self._engine.store.is_shared:
            return
        for namespace, owner in await self._engine.store.load_lease_owners():
            if owner.startswith(OWNER_PREFIX):
                self._engine.send(ReleasePasses(namespace, owner))

    def send(self, runner: Runner, run: Run) -> None:
        """The lease of a pass is on disk: bring it to its runner."""
        call = Call(runner, run, self._clock.now(), timeout=self._timeout_of(run))
        self._calls[call.call_id] = call
        if runner.is_gone:
            # It left between the beat that chose it and the end of its commit.
            self.finish(call, Unreached(error=error_of("the runner has gone")))
        else:
            runner.link.carry(call, run)

    def _timeout_of(self, run: Run) -> int:
        push = push_of(run)
        return max(push.pass_timeout or self._timeout, push.pass_extension or 0)

    def heard_of(self, call: Call) -> None:
        """The runner says that it works on a pass: it may go on."""
        call.heard_at = self._clock.now()

    def finish(self, call: Call, reply: PassReply) -> None:
        """A pass is over: have its answer decided."""
        if call.is_over:
            if call.is_given_up:
                # Late, and taken if nobody began the next attempt meanwhile.
                call.is_given_up = False
                self._decide(call, reply, tries=0)
            return
        call.is_over = True
        del self._calls[call.call_id]
        if isinstance(reply, Unreached | Lost):
            self._rest(call.runner, reply.error.message)
        else:
            call.runner.failures = 0
        self._parked_polls.freed(call.runner)
        self._decide(call, reply, tries=0)
        if not self._calls:
            self._idle.set()

    def lost(self, runner: Runner, why: str) -> None:
        """A link is gone, and with it the answers that were to come over it."""
        for call in [c for c in self._calls.values() if c.runner is runner]:
            self.finish(call, Lost(error=error_of(why)))

    def _rest(self, runner: Runner, why: str) -> None:
        """A runner could not be reached: others are chosen until it may be back."""
        if runner.is_gone or runner.is_resting:
            return
        delay = min(RUNNER_REST << min(runner.failures, 16), RUNNER_REST_MAX)
        runner.failures += 1
        runner.is_resting = True
        log.warning(
            "runner %s of app %s gets no passes for %.2f s: %s",
            runner.runner_id,
            runner.key.queue,
            delay / SECOND,
            why,
        )
        task = asyncio.get_running_loop().create_task(self._wake_later(runner, delay))
        self._rests.add(task)
        task.add_done_callback(self._rests.discard)

    async def _wake_later(self, runner: Runner, delay: int) -> None:
        until = self._clock.now() + delay
        while (left := until - self._clock.now()) > 0:
            await self._clock.sleep(left)
        self._parked_polls.wake(runner)

    def _decide(self, call: Call, reply: PassReply, *, tries: int) -> None:
        operation: Operation = ApplyPass(
            call.namespace,
            call.run_id,
            call.report,
            reply,
            executed_by=call.runner.runner_id,
            waits_out_backoffs=call.runner.is_impatient,
        )
        uploaded = _uploaded(call, reply)
        if uploaded:
            operation = NamePayloads(operation, call.namespace, uploaded)
        try:
            decided = self._engine.submit(operation)
        except Unavailable as error:
            self._try_again(call, reply, error, tries)
            return

        def taken_in(future: "asyncio.Future[None]") -> None:
            if future.cancelled():
                return
            error = future.exception()
            if isinstance(error, Unavailable):
                self._try_again(call, reply, error, tries)
            elif isinstance(error, _RESULT_MISSING):
                # Asking again would only repeat what the steps did.
                told = error_of(f"a reported result is not there: {error.message}", RESULT_MISSING)
                self._decide(call, Refused(error=told, logs=[]), tries=0)
            elif isinstance(error, Rejection):
                # The run was closed meanwhile, or its lease ended and somebody else has it.
                log.info(
                    "dropped the answer of a runner for run %s: %s", call.run_id, error.message
                )
            elif error is not None:
                log.error(
                    "storing the answer of a runner for run %s failed", call.run_id, exc_info=error
                )

        decided.add_done_callback(taken_in)

    def _try_again(self, call: Call, reply: PassReply, error: Unavailable, tries: int) -> None:
        """The disk refused. The answer is kept as long as its lease may last, then made anew."""
        if self._clock.now() > call.lease_until:
            log.warning(
                "storing the answer of a runner for run %s failed: %s", call.run_id, error.message
            )
            return
        delay = min(0.05 * 2**tries, 1.0)
        loop = asyncio.get_running_loop()
        loop.call_later(delay, lambda: self._decide(call, reply, tries=tries + 1))

    async def run(self) -> None:
        """Watch over the passes under way, for as long as the server lives."""
        while True:
            await self._clock.sleep(_LOOK)
            self.look()

    def look(self) -> None:
        """Give up what has taken too long, and renew the leases of the rest in time."""
        now = self._clock.now()
        for call in list(self._calls.values()):
            if now - call.heard_at > call.timeout:
                self._give_up(call)
            elif call.lease_until - now < PASS_LEASE_TIMEOUT - _RENEW_AFTER:
                self._renew(call, now)

    def _give_up(self, call: Call) -> None:
        seconds = call.timeout / SECOND
        error = error_of(f"the runner did not answer within {seconds:g} s")
        self.finish(call, Broke(error=error, logs=[], is_charged=not call.has_pending))
        call.is_given_up = True

    def _renew(self, call: Call, now: int) -> None:
        call.lease_until = now + PASS_LEASE_TIMEOUT
        self._engine.send(
            RenewWorkflowTask(call.namespace, call.run_id, call.report, timeout=PASS_LEASE_TIMEOUT)
        )

    async def finish_all(self, seconds: float) -> None:
        """Let what is under way end, within a time."""
        self._idle.clear()
        if self._calls:
            try:
                await asyncio.wait_for(self._idle.wait(), seconds)
            except TimeoutError:
                log.info(
                    "drain ended with %d passes unfinished; other nodes repeat them",
                    len(self._calls),
                )

    def close(self) -> None:
        """Leave alone who rests."""
        for task in self._rests:
            task.cancel()


def _uploaded(call: Call, reply: PassReply) -> list[Reference]:
    """The uploaded results that an answer names. Whose they are is known from the call alone."""
    if not isinstance(reply, Progressed):
        return []
    found = [
        result_reference(
            call.namespace, call.vault, command.stored.size_bytes, command.stored.sha256
        )
        for command in reply.commands
        if isinstance(command, ReportStep) and command.stored is not None
    ]
    return list(dict.fromkeys(found))
