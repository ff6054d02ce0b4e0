"""A test kit: workflows rehearsed in process, without an engine and without waiting.

A `Rehearsal` drives runs pass by pass as an engine would, on a clock that only moves when it is
told to. Steps can be replaced or made to fail. It knows no flow control and no schedules, and it
fails a run whose handler raises at once, where an engine would try the pass again first.
"""

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from perdure.sdk.ai import require_under
from perdure.sdk.duration import Duration, milliseconds
from perdure.sdk.errors import BudgetError, RunFailedError
from perdure.sdk.log import ROOT
from perdure.sdk.match import fits
from perdure.sdk.names import hashed
from perdure.sdk.passes import execute
from perdure.sdk.step_threads import StepThreads
from perdure.sdk.steps import ABSENT
from perdure.sdk.wire import (
    AppEvent,
    Fork,
    Invoke,
    Json,
    Memo,
    RunContext,
    SpendCap,
    Spent,
    StepError,
    encode,
)
from perdure.sdk.workflows import App

PASSES_MAX = 10_000
"""Passes of one run without time passing; more means that it does not end."""

START_MS = 1_893_456_000_000
"""Rehearsals begin on 1 January 2030."""

Status = Literal["running", "waiting", "succeeded", "failed"]
Filter = Callable[[str, AppEvent], bool] | Callable[[str, AppEvent, AppEvent], bool]


@dataclass(slots=True)
class RehearsedStep:
    """A step that a run has come to."""

    name: str
    op: str
    asked: dict[str, Json]
    """The opcode as it was sent."""
    attempt: int = 0
    is_escalated: bool = False
    """Nobody decided in time, and somebody else was asked."""
    memo: Memo | None = None
    """What is remembered of it; None while it waits."""
    due_ms: int | None = None

    @property
    def is_done(self) -> bool:
        return self.memo is not None

    @property
    def output(self) -> Json:
        return None if self.memo is None else self.memo.data


@dataclass(slots=True)
class RehearsedRun:
    """A run and everything that is known of it."""

    id: str
    workflow: str
    events: list[AppEvent]
    status: Status = "running"
    result: Json = None
    error: StepError | None = None
    steps: dict[str, RehearsedStep] = field(default_factory=dict)
    """By name, in the order in which they were first seen."""
    logs: list[tuple[str, str, str]] = field(default_factory=list)
    """Level, scope and message of each line, once."""
    passes: int = 0
    attempt: int = 1
    failure_of: "RehearsedRun | None" = None
    fork: Fork | None = None
    case: Json = None
    """What a handler sees as `ctx.eval`."""
    spent: Spent = field(default_factory=Spent)
    """What its model calls have told that they used."""
    parent: "tuple[RehearsedRun, str] | None" = None
    _heard: set[tuple[str, int, int]] = field(default_factory=set)

    @property
    def is_finished(self) -> bool:
        return self.status in ("succeeded", "failed")

    @property
    def waits_for(self) -> list[str]:
        """The names of the steps that are not done."""
        return [name for name, step in self.steps.items() if not step.is_done]

    def output(self) -> Json:
        """The result; `RunFailedError` if there is none."""
        if self.status != "succeeded":
            message = self.error.message if self.error else f"waits for {self.waits_for}"
            raise RunFailedError(self.id, self.status, message)
        return self.result


class Rehearsal:
    """An engine for tests."""

    def __init__(self, app: App, *, matches: Filter | None = None) -> None:
        """`matches` decides filters (`where`), which are written in a language of the engine.

        It is given the filter and the event; with a third argument also the event that started
        the waiting run, `trigger`. Where there is no run yet, that is the event itself.
        """
        self._app = app
        self._matches = matches
        self._reads_trigger = matches is not None and _takes_three(matches)
        # One thread: plain functions run in the order of their calls.
        self._threads = StepThreads(1, reports=False)
        self._stand_ins: dict[str, Callable[[], object]] = {}
        self._children: dict[str, Callable[[Json], object]] = {}
        self.now_ms = START_MS
        self.runs: list[RehearsedRun] = []
        """All runs, in the order of their start."""
        self.emitted: list[AppEvent] = []
        """What steps have emitted."""
        self.delivered: list[tuple[str, Json]] = []
        """URL and data of webhooks."""
        self._model: Callable[[list[Json]], str] | None = None
        self.scores: list[Json] = []
        """What was judged, as it was sent."""

    # What a test does before ----------------------------------------------------------------------

    def replace(self, step: str, function: Callable[[], object]) -> None:
        """Call this instead of the body of the step, from now on."""
        self._stand_ins[step] = function

    def fail(self, step: str, error: Exception, *, times: int = 1) -> None:
        """Let the next tries of a step fail; then its own body, or its replacement, runs again."""
        usual = self._stand_ins.get(step)
        left = times

        def body() -> object:
            nonlocal left
            left -= 1
            if left < 1:
                self._stand_ins.pop(step)
                if usual is not None:
                    self._stand_ins[step] = usual
            raise error

        self._stand_ins[step] = body

    def child(self, workflow: str, function: Callable[[Json], object]) -> None:
        """Let this answer for child runs of a workflow, of this app or another."""
        self._children[workflow] = function

    def model(self, function: Callable[[list[Json]], str]) -> None:
        """Let this answer where the engine would ask a model; it is given the messages."""
        self._model = function

    # What happens ---------------------------------------------------------------------------------

    async def start(
        self,
        workflow: str,
        data: Json = None,
        *,
        event: str | None = None,
        expected: object = ABSENT,
    ) -> RehearsedRun:
        """Start a workflow and play it until it ends or waits; with `expected`, as an eval."""
        run = self._admit(workflow, [AppEvent(event or workflow, _carried(data))])
        if expected is not ABSENT:
            run.case = {"setId": "set-1", "itemId": run.id, "expected": _carried(expected)}
        await self._drive(run)
        return run

    async def start_batch(self, workflow: str, events: list[tuple[str, Json]]) -> RehearsedRun:
        """Start a workflow with several events, as a batch does."""
        run = self._admit(workflow, [AppEvent(name, _carried(data)) for name, data in events])
        await self._drive(run)
        return run

    async def send(self, name: str, data: Json = None) -> list[RehearsedRun]:
        """Send an event: wake who waits for it, and start who is triggered by it; those return."""
        event = AppEvent(name, _carried(data))
        for run in [run for run in self.runs if not run.is_finished]:
            # One that is just playing, and emitted it, sees it in its next pass.
            if self._wake(run, event) and run.status == "waiting":
                await self._drive(run)
        started = [self._admit(name, [event]) for name in self._triggered(event)]
        for run in started:
            await self._drive(run)
        return started

    async def advance(self, duration: Duration) -> None:
        """Let time pass; what falls due on the way happens in its order."""
        until_ms = self.now_ms + milliseconds(duration)
        while (due_ms := self._next_due_ms()) is not None and due_ms <= until_ms:
            self.now_ms = max(self.now_ms, due_ms)
            for run in [run for run in self.runs if not run.is_finished]:
                if self._fall_due(run):
                    await self._drive(run)
        self.now_ms = until_ms

    async def decide(
        self, run: RehearsedRun, step: str, *, approve: bool, args: Json = None, by: str = "tester"
    ) -> None:
        """Say yes or no to an approval; `args` replaces what was asked for."""
        waiting = run.steps[step]
        assert waiting.op == "Approval"
        assert not waiting.is_done, f"{step} is decided already"
        told = waiting.asked.get("data") if args is None else _carried(args)
        status = "approved" if approve else "denied"
        waiting.memo = Memo({"status": status, "args": told, "decidedBy": by})
        await self._drive(run)

    async def fork(
        self,
        run: RehearsedRun,
        step: str,
        *,
        model: str | None = None,
        prompt: str | None = None,
        params: Json = None,
    ) -> RehearsedRun:
        """Begin a finished run again at a step, with what the code shall try otherwise."""
        assert run.is_finished, f"{run.workflow} is not over yet"
        names = list(run.steps)
        again = self._admit(run.workflow, run.events)
        again.fork = Fork(step, model, prompt, _carried(params))
        for name in names[: names.index(step)]:
            if (known := run.steps[name]).is_done:
                again.steps[name] = replace(known)
        await self._drive(again)
        return again

    # The engine -----------------------------------------------------------------------------------

    def _admit(self, workflow: str, events: list[AppEvent]) -> RehearsedRun:
        run = RehearsedRun(f"run-{len(self.runs) + 1}", workflow, events)
        self.runs.append(run)
        return run

    async def _drive(self, run: RehearsedRun) -> None:
        run.status = "running"
        for _ in range(PASSES_MAX):
            if not await self._play(run):
                break
        else:
            raise AssertionError(f"{run.workflow} does not end: {PASSES_MAX} passes at one moment")
        if run.is_finished:
            await self._close(run)
        else:
            run.status = "waiting"

    async def _play(self, run: RehearsedRun) -> bool:
        """One pass; whether another can follow at once."""
        run.passes += 1
        told = RunContext(
            run_id=run.id,
            workflow=run.workflow,
            attempt=run.attempt,
            app=self._app.name or "default",
            on_failure=run.failure_of is not None,
            error=run.failure_of.error if run.failure_of else None,
            fork=run.fork,
            eval=run.case,
            spent=run.spent,
            cap=self._cap(run),
        )
        invoke = Invoke(run.events[0], self._memos(run), told, events=run.events)
        reply = await execute(
            self._app,
            invoke,
            clock=lambda: self.now_ms,
            stand_ins=self._stand_ins,
            threads=self._threads,
        )
        body: dict[str, Json] = json.loads(reply.body)
        self._note(run, body.get("logs", []))
        if reply.status == 206:
            news = [await self._apply(run, opcode) for opcode in body["opcodes"]]
            goes_on = any(news) or ("ended" in body and bool(news) and not self._retries(run))
            return goes_on and not run.is_finished
        if reply.status == 200:
            run.status, run.result = "succeeded", body["data"]
        else:
            run.status, run.error = "failed", StepError(body["error"])
        return False

    def _retries(self, run: RehearsedRun) -> bool:
        return any(step.op == "StepRun" and step.memo is None for step in run.steps.values())

    def _memos(self, run: RehearsedRun) -> dict[str, Memo]:
        memos = {}
        for step in run.steps.values():
            if step.memo is not None:
                memos[hashed(step.name)] = step.memo
            elif step.op != "StepRun" or (step.due_ms or 0) > self.now_ms:
                memos[hashed(step.name)] = Memo(pending=True)
        return memos

    async def _apply(self, run: RehearsedRun, opcode: dict[str, Json]) -> bool:
        """What one opcode asks for; whether it is done at once."""
        step = run.steps.setdefault(
            opcode["name"], RehearsedStep(opcode["name"], opcode["op"], opcode)
        )
        step.asked = opcode
        data = opcode.get("data")
        match opcode["op"]:
            case "StepRun":
                return self._apply_result(run, step, opcode)
            case "Sleep":
                step.due_ms = self.now_ms + opcode["sleepMs"]
            case "SleepUntil":
                step.due_ms = opcode["sleepUntilMs"]
            case "WaitForEvent":
                step.due_ms = self.now_ms + opcode["timeoutMs"]
            case "Approval":
                timeout_ms = opcode.get("timeoutMs")
                step.due_ms = None if timeout_ms is None else self.now_ms + timeout_ms
            case "RunWorkflow":
                await self._start_child(run, step, opcode)
            case "Emit":
                self.emitted.append(AppEvent(opcode["eventName"], data))
                step.memo = Memo()
                await self.send(opcode["eventName"], data)
            case "Infer":
                self._infer(run, step, data)
            case other:
                if other == "Webhook":
                    self.delivered.append((opcode["webhookUrl"], data))
                elif other == "Score":
                    self.scores.append(data)
                step.memo = Memo()
        return step.is_done

    def _apply_result(
        self, run: RehearsedRun, step: RehearsedStep, opcode: dict[str, Json]
    ) -> bool:
        step.attempt += 1
        run.spent = _charged(run.spent, opcode.get("usage"))
        if "error" not in opcode:
            step.memo = Memo(opcode["data"])
            return True
        workflow = self._app.find(run.workflow)
        usual: Json = workflow.registration.get("retry") if workflow else None
        policy: dict[str, Json] = opcode.get("retry") or usual or {}
        if opcode.get("retriable") is False or step.attempt >= policy.get("maxAttempts", 1):
            run.status = "failed"
            run.error = StepError(**opcode["error"])
            return False
        delay_ms = opcode.get("retryAfterMs", backoff_ms(policy, step.attempt))
        step.due_ms = self.now_ms + delay_ms
        run.attempt += 1
        return False

    def _cap(self, run: RehearsedRun) -> SpendCap | None:
        workflow = self._app.find(run.workflow)
        told = workflow.registration.get("cap") if workflow else None
        return None if told is None else msgspec.convert(told, SpendCap)

    def _infer(self, run: RehearsedRun, step: RehearsedStep, asked: Json) -> None:
        try:
            require_under(self._cap(run), run.spent, step.name)
        except BudgetError as error:
            step.memo = Memo(error=StepError(str(error)))
            return
        if self._model is None:
            step.memo = Memo(error=StepError("no AI provider configured"))
        else:
            text = self._model(asked["messages"])
            step.memo = Memo({"text": text, "model": asked.get("model") or "rehearsed"})

    async def _start_child(
        self, run: RehearsedRun, step: RehearsedStep, opcode: dict[str, Json]
    ) -> None:
        name, data = opcode["childName"], opcode.get("childData")
        if name in self._children:
            try:
                step.memo = Memo(_carried(self._children[name](data)))
            except Exception as error:
                step.memo = Memo(error=StepError(str(error)))
        elif self._app.find(name) is None:
            step.memo = Memo(error=StepError(f"unknown workflow: {name}"))
        else:
            child = self._admit(name, [AppEvent(name, data)])
            child.parent = (run, step.name)
            await self._drive(child)

    async def _close(self, run: RehearsedRun) -> None:
        workflow = self._app.find(run.workflow)
        if run.parent is not None:
            parent, name = run.parent
            ok = run.status == "succeeded"
            parent.steps[name].memo = Memo(run.result) if ok else Memo(error=run.error)
            if parent.status == "waiting":
                await self._drive(parent)
        is_handled = workflow is not None and workflow.failure_handler is not None
        if run.status == "failed" and is_handled and run.failure_of is None:
            follower = self._admit(run.workflow, run.events)
            follower.failure_of = run
            await self._drive(follower)

    # Events and time ------------------------------------------------------------------------------

    def _wake(self, run: RehearsedRun, event: AppEvent) -> bool:
        woken = False
        for step in run.steps.values():
            if step.op != "WaitForEvent" or step.is_done or step.asked["eventName"] != event.name:
                continue
            match, where = step.asked.get("match"), step.asked.get("eventIf")
            if match is not None and not fits(match, event.data):
                continue
            if self._fits(where, event, run.events[0]):
                step.memo = Memo(event.data)
                woken = True
        return woken

    def _triggered(self, event: AppEvent) -> list[str]:
        names = []
        for workflow in self._app:
            triggers = workflow.registration.get("triggers", [{"event": workflow.name}])
            assert isinstance(triggers, list)
            if any(self._starts(trigger, event) for trigger in triggers):
                names.append(workflow.name)
        return sorted(names)

    def _starts(self, trigger: dict[str, str], event: AppEvent) -> bool:
        name = trigger.get("event")
        if name is None:
            return False
        if name.endswith("*"):
            if not event.name.startswith(name[:-1]):
                return False
        elif name != event.name:
            return False
        return self._fits(trigger.get("if"), event, event)

    def _fits(self, expression: str | None, event: AppEvent, trigger: AppEvent) -> bool:
        if expression is None:
            return True
        if self._matches is None:
            raise AssertionError(f"Rehearsal(matches=…) must decide {expression!r}")
        told = (event, trigger) if self._reads_trigger else (event,)
        return bool(self._matches(expression, *told))

    def _next_due_ms(self) -> int | None:
        waiting = (run for run in self.runs if not run.is_finished)
        steps = (step for run in waiting for step in run.steps.values() if not step.is_done)
        return min((step.due_ms for step in steps if step.due_ms is not None), default=None)

    def _fall_due(self, run: RehearsedRun) -> bool:
        is_due = False
        for step in run.steps.values():
            if step.is_done or step.due_ms is None or step.due_ms > self.now_ms:
                continue
            is_due = True
            if step.op == "Approval":
                self._time_out(step)
            elif step.op != "StepRun":
                step.memo = Memo()
            else:
                step.due_ms = None
        return is_due

    def _time_out(self, step: RehearsedStep) -> None:
        timeout_ms = step.asked["timeoutMs"]
        if "escalatesTo" in step.asked and not step.is_escalated and timeout_ms:
            step.is_escalated, step.due_ms = True, self.now_ms + timeout_ms
            return
        told = {"status": "denied", "args": step.asked.get("data"), "decidedBy": "system:timeout"}
        step.memo = Memo(told)

    def _note(self, run: RehearsedRun, lines: list[dict[str, Json]]) -> None:
        for line in lines:
            step = run.steps.get(line["scope"])
            tried = step.attempt if step is not None else 0
            attempt = run.attempt if line["scope"] == ROOT else tried + 1
            key = (line["scope"], line["index"], attempt)
            if key not in run._heard:
                run._heard.add(key)
                run.logs.append((line["level"], line["scope"], line["message"]))


def backoff_ms(policy: dict[str, Json], attempt: int) -> int:
    """The delay after a failed attempt by a policy as it is registered."""
    first: int = policy.get("initialDelayMs", 1000)
    factors = {"linear": attempt, "exponential": 2 ** (attempt - 1)}
    delay: int = first * factors.get(policy.get("backoff", "fixed"), 1)
    longest: int = policy.get("maxDelayMs", delay)
    return min(delay, longest)


def _takes_three(function: Callable[..., bool]) -> bool:
    """Whether a function can be called with three arguments."""
    try:
        inspect.signature(function).bind(None, None, None)
    except TypeError:
        return False
    return True


def _carried(data: Json) -> Json:
    """Data as it arrives after a journey in JSON."""
    return json.loads(encode(data))


def _charged(spent: Spent, usage: Json) -> Spent:
    """What was spent, with what a model call told that it used."""
    if usage is None:
        return spent
    tokens = (spent.tokens or 0) + usage.get("tokensIn", 0) + usage.get("tokensOut", 0)
    return Spent(cost=(spent.cost or 0) + usage.get("cost", 0), tokens=tokens)
