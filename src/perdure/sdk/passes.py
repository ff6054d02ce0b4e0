"""One pass of a run: the handler from the top, to its end or until it waits for steps.

The handler runs in a task of its own and the bodies of its steps in others. A pass is over when
the handler has returned or raised, or when it waits for nothing but steps and no body runs still.
The answer is given at that moment; what the code still does to clean up comes after it.
"""

import asyncio
import inspect
import traceback
import types
from collections.abc import Callable, Coroutine, Generator, Mapping
from functools import partial
from typing import Any

import msgspec

from perdure.sdk.ai import Ai
from perdure.sdk.clock import now_ms
from perdure.sdk.context import Context
from perdure.sdk.errors import (
    NonRetriableError,
    RetryAfterError,
    StepFailedError,
    StepNameError,
)
from perdure.sdk.limits import (
    MESSAGE_BYTES_MAX,
    MESSAGE_CHARACTERS_MAX,
    STACK_CHARACTERS_MAX,
)
from perdure.sdk.log import ROOT, Lines, scope
from perdure.sdk.names import Names, hashed
from perdure.sdk.offload import ResultError, ResultStore, Uploads, is_complete, uploads_of
from perdure.sdk.pass_end import FREE, StepFuture, stuck_levels, stuck_task_levels
from perdure.sdk.policies import Retry
from perdure.sdk.step_threads import StepThreads, ThreadCall, is_async
from perdure.sdk.steps import ABSENT, Report, Step
from perdure.sdk.wire import (
    Invoke,
    Json,
    Memo,
    Opcode,
    Reply,
    discovery,
    encoded,
    refusal,
    result,
    too_large,
)
from perdure.sdk.workflows import App, Handler

TURNS_PER_LEVEL = 3
"""Turns of the loop in which news climb one level of a composed wait; so long it must be stuck."""
LOOK_AGAIN_SECONDS = 0.005
LOOK_AGAIN_SECONDS_MAX = 1.0
TIMEOUT_MARGIN_MS = 5_000
"""How much longer a pass may take than its longest step."""
PASS_TIMEOUT_MS_MAX = 604_800_000

_NOTHING = msgspec.Raw(b"null")
_OURS = {__name__, Step.__module__, Ai.__module__, StepThreads.__module__}


StandIns = Mapping[str, Callable[[], object]]
"""Functions that tests put in the place of the bodies of steps, by the names of those."""


async def execute(
    app: App,
    invoke: Invoke,
    *,
    clock: Callable[[], int] = now_ms,
    stand_ins: StandIns | None = None,
    store: ResultStore | None = None,
    threads: StepThreads | None = None,
) -> Reply:
    """Play one pass and return its answer. Plain functions run in the app's threads or these."""
    if store is not None and not is_complete(invoke):
        try:
            await store.complete(invoke)
        except ResultError as error:
            return refusal(500, _message(error))
    answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    playing = begin(
        app,
        invoke,
        answered.set_result,
        clock=clock,
        stand_ins=stand_ins,
        store=store,
        threads=threads,
    )
    try:
        return await answered
    except asyncio.CancelledError:
        if playing is not None:
            playing.abandon()
        raise


def begin(
    app: App,
    invoke: Invoke,
    answer: Callable[[Reply], None],
    *,
    clock: Callable[[], int] = now_ms,
    stand_ins: StandIns | None = None,
    store: ResultStore | None = None,
    is_endless: bool = False,
    threads: StepThreads | None = None,
) -> "Pass | None":
    """Begin a pass whose reply goes to `answer`; None if that was called already.

    It is endless if the engine hears of it meanwhile, and waits for as long as it does.
    """
    name = invoke.ctx.workflow or invoke.event.name
    workflow = app.find(name)
    if workflow is None:
        answer(refusal(400, f"unknown workflow: {name}"))
        return None
    handler: Handler | None = workflow.handler
    if invoke.ctx.on_failure:
        handler = workflow.failure_handler
    if handler is None:
        answer(result(_NOTHING, []))
        return None
    uploads = uploads_of(store, invoke)
    threads = threads or app.threads
    return Pass(invoke, name, handler, answer, clock, stand_ins, app, uploads, is_endless, threads)


class Pass:
    """A pass in progress."""

    __slots__ = (
        "__weakref__",
        "_again",
        "_answer",
        "_awaited",
        "_blocked",
        "_bodies",
        "_branches",
        "_calls",
        "_handler",
        "_is_concluded",
        "_is_looking",
        "_is_over",
        "_limit_ms",
        "_lines",
        "_loop",
        "_memos",
        "_names",
        "_opcodes",
        "_patience",
        "_stand_ins",
        "_task",
        "_threads",
        "_uploads",
        "called",
        "run_id",
        "workflow",
    )

    def __init__(
        self,
        invoke: Invoke,
        workflow: str,
        handler: Handler,
        answer: Callable[[Reply], None],
        clock: Callable[[], int],
        stand_ins: StandIns | None,
        app: App,
        uploads: Uploads | None,
        is_endless: bool,
        threads: StepThreads,
    ) -> None:
        self.workflow = workflow
        self.run_id = invoke.ctx.run_id
        self._threads = threads
        self._calls: set[ThreadCall] = set()
        self._uploads = uploads
        self._answer = answer
        told = invoke.ctx.pass_timeout_ms
        self._limit_ms = None if is_endless else told
        self._stand_ins = stand_ins
        self._memos = invoke.steps
        self._names = Names()
        self.called: list[str] = []
        self._lines = Lines(clock)
        self._opcodes: list[Opcode] = []
        self._blocked: list[StepFuture] = []
        self._bodies: set[asyncio.Task[None]] = set()
        self._branches: set[asyncio.Task[Any]] = set()
        self._awaited: object = None
        self._handler: object = None
        self._is_over = False
        self._is_concluded = False
        self._is_looking = False
        self._again: asyncio.TimerHandle | None = None
        self._patience = LOOK_AGAIN_SECONDS
        self._loop = asyncio.get_running_loop()
        context = Context(invoke, self, self._lines, workflow, app.price)
        self._task = self._loop.create_task(self._play(handler, context))

    def abandon(self) -> None:
        """End it without an answer: nobody waits for it any more."""
        if not self._is_over:
            self._leave()
            for body in self._bodies:
                body.cancel()
            for call in self._calls:
                self._threads.drop(call)
            self._task.cancel()

    # The steps ------------------------------------------------------------------------------------

    def perform(
        self,
        wanted: str,
        function: Callable[..., object],
        args: tuple[object, ...],
        returns: object,
        retry: Retry | None,
        input: object,
        report: Report | None = None,
        timeout_ms: int | None = None,
    ) -> "asyncio.Future[Json]":
        name, id, memo = self._called(wanted)
        if memo is not None and not memo.pending:
            # Nearly every call of a long run ends here, once per pass: no closure is made for it.
            read = None if returns is None else lambda data: msgspec.convert(data, returns)
            return self._remembered(name, memo, read)
        if memo is None and self._must_ask_for_time(timeout_ms):
            asked = min(timeout_ms + TIMEOUT_MARGIN_MS, PASS_TIMEOUT_MS_MAX) if timeout_ms else 0
            self._opcodes.append({"op": "ExtendPass", "id": id, "name": name, "timeoutMs": asked})
        elif memo is None:
            opcode: Opcode = {"op": "StepRun", "id": id, "name": name}
            if retry is not None:
                opcode["retry"] = retry.wire()
            if input is not ABSENT:
                opcode["input"] = encoded(input)
            self._run_body(opcode, name, function, args, report, timeout_ms)
        return self._unfinished()

    def _must_ask_for_time(self, timeout_ms: int | None) -> bool:
        """Whether a step may take longer than the engine waits for this pass."""
        if timeout_ms is None or self._limit_ms is None or self._limit_ms >= PASS_TIMEOUT_MS_MAX:
            return False
        return timeout_ms + TIMEOUT_MARGIN_MS > self._limit_ms

    def ask(
        self,
        wanted: str,
        opcode: Callable[[], Opcode],
        read: Callable[[Json], object] | None = None,
    ) -> "asyncio.Future[Json]":
        name, id, memo = self._called(wanted)
        if memo is not None and not memo.pending:
            return self._remembered(name, memo, read)
        if memo is None:
            try:
                asked = opcode()
            except ValueError as error:
                raise NonRetriableError(f"step {name!r}: {error}") from error
            self._opcodes.append({"op": asked.pop("op"), "id": id, "name": name, **asked})
        return self._unfinished()

    def _called(self, wanted: str) -> tuple[str, str, Memo | None]:
        if self._is_over:
            raise asyncio.CancelledError("the pass is over")
        if not isinstance(wanted, str):
            raise StepNameError(f"the id of a step is a text, not {wanted!r}")
        if (outer := scope.get()) != ROOT:
            raise StepNameError(f"step {wanted!r} was called inside step {outer!r}")
        name = self._names.give(wanted)
        self.called.append(wanted)
        caller = asyncio.current_task(self._loop)
        if caller is not self._task and caller is not None:
            self._branches.add(caller)
        id = hashed(name)
        return name, id, self._memos.get(id)

    def _remembered(
        self, name: str, memo: Memo, read: Callable[[Json], object] | None
    ) -> "asyncio.Future[Json]":
        future: asyncio.Future[Json] = self._loop.create_future()
        if memo.error is not None:
            future.set_exception(StepFailedError(name, memo.error.message, memo.error.stack))
            future._log_traceback = False  # nobody need look at it
        elif read is None:
            future.set_result(memo.data)
        else:
            try:
                future.set_result(read(memo.data))
            except msgspec.ValidationError as error:
                raise NonRetriableError(f"step {name!r} has another result: {error}") from error
        return future

    def _unfinished(self) -> StepFuture:
        future = StepFuture(loop=self._loop, on_awaited=self._look_soon)
        self._blocked.append(future)
        return future

    # The bodies -----------------------------------------------------------------------------------

    def _run_body(
        self,
        opcode: Opcode,
        name: str,
        function: Callable[..., object],
        args: tuple[object, ...],
        report: Report | None,
        timeout_ms: int | None,
    ) -> None:
        self._opcodes.append(opcode)
        if self._stand_ins is not None and name in self._stand_ins:
            function, args = self._stand_ins[name], ()
        outside = scope.set(name)
        try:
            if is_async(function):
                awaiting = self._await_body(opcode, function(*args), report, timeout_ms)
            else:
                call = self._threads.call(name, partial(function, *args))
                self._calls.add(call)
                awaiting = self._await_body(opcode, call, report, timeout_ms)
            self._bodies.add(self._loop.create_task(awaiting))
        except Exception as error:
            opcode |= _failure(error)
        finally:
            scope.reset(outside)

    async def _await_body(
        self,
        opcode: Opcode,
        body: object,
        report: Report | None,
        timeout_ms: int | None,
    ) -> None:
        seconds = 0.0 if timeout_ms is None else timeout_ms / 1000
        limit = asyncio.timeout(seconds or None)
        try:
            if isinstance(body, ThreadCall):
                await body.begun  # the time of a step begins with its body
            begun = self._loop.time()
            async with limit:
                returned = body
                if isinstance(body, ThreadCall):
                    await body.ended
                    returned = body.take()
                if inspect.isawaitable(returned):
                    returned = await returned
            data = self._encoded(returned)
            opcode["data"] = data
            if report is not None:
                opcode |= report(returned, round(1_000 * (self._loop.time() - begun)))
            if not self._takes_inline(data):
                await self._upload(opcode, data)
        except asyncio.CancelledError:
            if self._is_over:
                raise
            opcode |= _failure(RuntimeError("the step was cancelled"))
        except Exception as error:
            late = TimeoutError(f"the step took longer than its {seconds:g} s")
            opcode |= _failure(late if limit.expired() else error)
        finally:
            if isinstance(body, ThreadCall):
                self._calls.discard(body)
                self._threads.drop(body)
            running = asyncio.current_task(self._loop)
            assert running is not None
            self._bodies.discard(running)
            if not self._bodies and not self._is_over:
                self._look()

    def _encoded(self, value: object) -> msgspec.Raw:
        return (
            encoded(value)
            if self._uploads is None
            else encoded(value, self._uploads.result_bytes_max)
        )

    def _takes_inline(self, data: msgspec.Raw) -> bool:
        """Whether the reply carries a result; if so, it counts from now on."""
        return self._uploads is None or self._uploads.take_inline(len(data))

    async def _upload(self, opcode: Opcode, data: msgspec.Raw) -> None:
        """Store a result that the reply does not carry."""
        assert self._uploads is not None
        try:
            ref = await self._uploads.upload(bytes(data))
        except ResultError:
            del opcode["data"]
            raise
        if ref is not None:
            del opcode["data"]
            opcode["dataRef"] = ref

    # The handler ----------------------------------------------------------------------------------

    async def _play(self, handler: Handler, context: Context) -> None:
        scope.set(ROOT)
        try:
            self._handler = coroutine = handler(context)
            assert inspect.iscoroutine(coroutine), f"{handler!r} is not an async function"
            value = await self._watched(coroutine)
            ending = result(encoded(value), self._lines.shipped())
        except asyncio.CancelledError:
            if self._is_over:
                return
            ending = refusal(500, "the pass was cancelled", self._lines.shipped())
        except Exception as error:
            status = 400 if _is_final(error) else 500
            ending = refusal(status, _message(error), self._lines.shipped())
        self._conclude(ending)

    @types.coroutine
    def _watched(self, coroutine: Coroutine[Any, Any, object]) -> Generator[Any, Any, object]:
        """Run the handler, and see what it waits for each time it does."""
        thrown: BaseException | None = None
        while True:
            try:
                awaited = coroutine.send(None) if thrown is None else coroutine.throw(thrown)
            except StopIteration as returned:
                return returned.value
            finally:
                thrown = None  # its traceback holds this frame
            self._awaited = awaited
            if not self._is_over:
                if self._is_plainly_waiting():
                    self._report()
                    thrown = asyncio.CancelledError("the pass is over")
                    continue
                self._look_soon()
            try:
                yield awaited
            except BaseException as error:
                thrown = error

    def _conclude(self, ending: Reply) -> None:
        """The handler is done. What steps did in this pass is reported first, whatever it said."""
        if self._is_over:
            return
        self._is_concluded = True
        if not self._opcodes:
            self._finish(ending)
        elif not self._bodies:
            self._report()

    # The end --------------------------------------------------------------------------------------

    def _is_plainly_waiting(self) -> bool:
        """The ordinary case, seen without a second look: one branch, at one step."""
        return type(self._awaited) is StepFuture and not self._bodies and not self._branches

    def _look_soon(self) -> None:
        if not (self._is_looking or self._bodies or self._is_over):
            self._is_looking = True
            self._loop.call_soon(self._look)

    def _look(self, turns: int = 0) -> None:
        """See whether the pass is over."""
        self._is_looking = False
        if self._is_over or self._bodies:
            return  # the last body looks again
        if self._is_concluded:
            self._report()
        elif self._is_plainly_waiting():
            self._report()
            self._task.cancel()
        elif self._blocked:
            self._look_closely(turns)

    def _look_closely(self, turns: int) -> None:
        levels = stuck_levels(self._awaited, self._handler)
        for branch in self._branches:
            if levels and not branch.done():
                deep = stuck_task_levels(branch)
                levels = max(levels, deep) if deep else FREE
        if levels and turns >= levels * TURNS_PER_LEVEL:
            self._report()
            self._task.cancel()
        elif levels:
            self._is_looking = True
            self._loop.call_soon(self._look, turns + 1)
        elif self._again is None:
            self._again = self._loop.call_later(self._patience, self._look_again)
            self._patience = min(self._patience * 2, LOOK_AGAIN_SECONDS_MAX)

    def _look_again(self) -> None:
        # Most waits announce themselves. A branch that turns from work outside to a task that is
        # stuck already does not, so a pass with stuck steps is looked at now and then.
        self._again = None
        self._look_soon()

    def _report(self) -> None:
        shipped = self._lines.shipped()
        self._finish(discovery(self._opcodes, shipped, has_ended=self._is_concluded))

    def _finish(self, reply: Reply) -> None:
        self._leave()
        if len(reply.body) > MESSAGE_BYTES_MAX:
            reply = refusal(500, f"the reply of this pass: {too_large(len(reply.body))}")
        self._answer(reply)

    def _leave(self) -> None:
        self._is_over = True
        if self._again is not None:
            self._again.cancel()
        for future in self._blocked:
            future.cancel()
        # They hold us, and a pass must not need the collector to be gone.
        self._blocked.clear()
        self._awaited = self._handler = None


def _failure(error: Exception) -> Opcode:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__") in _OURS:
        trace = trace.tb_next  # people look for their own code
    stack = "".join(traceback.format_exception(type(error), error, trace))[-STACK_CHARACTERS_MAX:]
    told: Opcode = {
        "error": {"message": _message(error), "stack": stack.encode("utf-8", "replace").decode()}
    }
    if _is_final(error):
        told["retriable"] = False
    elif isinstance(error, RetryAfterError):
        told["retryAfterMs"] = error.retry_after_ms
    return told


def _is_final(error: BaseException) -> bool:
    """Whether trying again is no use: of a group, one such is enough."""
    if isinstance(error, BaseExceptionGroup):
        return any(_is_final(each) for each in error.exceptions)
    return isinstance(error, NonRetriableError)


def _message(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_message(each) for each in error.exceptions)
    text = (str(error) or type(error).__name__)[:MESSAGE_CHARACTERS_MAX]
    return text.encode("utf-8", "replace").decode()
