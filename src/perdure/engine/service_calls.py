"""Calls of service operations: made from outside or by runs, handled by runs, ended with them."""

import hashlib

import msgspec
from msgspec import Raw, Struct

from perdure.core import limits
from perdure.core.payload import Frame
from perdure.core.rejection import ServiceCallNotFound, ServiceCallRejected
from perdure.core.run.close import cancel_run
from perdure.core.run.command import StartServiceOperation
from perdure.core.run.effect import CallersNotice, LeaveServiceCall, StartServiceCall
from perdure.core.run.service import CallEnding, CallRefusal, ServicePlan, service_call_ended
from perdure.core.run.service_binding import Binding
from perdure.core.run.state import Run
from perdure.core.service import (
    COMPLETED,
    FAILED,
    Call,
    Caller,
    CallRequest,
    Entry,
    KeptCall,
    ServiceName,
    call_path,
    close_call,
    ending_of,
    open_call,
    start_handler,
)
from perdure.engine.operation import Operation
from perdure.engine.payloads import share_payloads
from perdure.engine.records import RecordKind
from perdure.engine.rollout_changes import selected_build
from perdure.engine.world import World
from perdure.store.interface import Instance, RecordKey, Store

ENTRY = RecordKind("service_entry", Entry)
CALL = RecordKind("service_call", Call)
KEY = RecordKind("service_key", KeptCall)

NOT_FOUND = "rejected_not_found"
CONFLICT = "rejected_conflict"


def key_of(name: ServiceName, idempotency_key: str) -> str:
    return f"{name.path}/{idempotency_key}"


def digest_of(arguments: bytes | None) -> str:
    return hashlib.sha256(arguments or b"").hexdigest()


# Whether a call can be made -----------------------------------------------------------------------


def plan_records(
    namespace: str, name: ServiceName, idempotency_key: str | None
) -> tuple[RecordKey, ...]:
    """What must be known to say whether a call can be made."""
    entry = ENTRY.key(namespace, name.path)
    if idempotency_key is None:
        return (entry,)
    return (entry, KEY.key(namespace, key_of(name, idempotency_key)))


def plan_call(
    world: World, namespace: str, name: ServiceName, idempotency_key: str | None, digest: str
) -> ServicePlan:
    """What the catalogue says to a call, and whether it was made before."""
    entry = ENTRY.find(world, namespace, name.path)
    if entry is None or entry.binding is None:
        message = f"namespace {namespace} offers no service operation {name.text}"
        return ServicePlan(refusal=CallRefusal(NOT_FOUND, "service_operation_not_found", message))
    kept = None
    if idempotency_key is not None:
        kept = KEY.find(world, namespace, key_of(name, idempotency_key))
    if kept is not None and kept.digest != digest:
        message = f"idempotency key {idempotency_key} was used for another call of {name.text}"
        return ServicePlan(refusal=CallRefusal(CONFLICT, "idempotency_key_conflict", message))
    call_id = None if kept is None else kept.call_id
    return ServicePlan(mode=entry.mode, binding=entry.binding, call_id=call_id)


def keep_key(
    world: World,
    namespace: str,
    name: ServiceName,
    idempotency_key: str,
    kept: KeptCall,
) -> None:
    """Remember to which call a key led."""
    due_at = world.ctx.now + limits.SERVICE_KEY_KEPT
    KEY.put(world, namespace, key_of(name, idempotency_key), kept, due_at=due_at)


class PlannedCall:
    """The call of a service operation among the commands of a completion, if there is one."""

    __slots__ = ("_command", "_digest", "_name", "_namespace")

    def __init__(self, namespace: str, command: StartServiceOperation) -> None:
        self._namespace = command.namespace or namespace
        self._command = command
        self._name = ServiceName(command.endpoint, command.service, command.operation)
        self._digest = digest_of(command.arguments)

    def records(self) -> tuple[RecordKey, ...]:
        return plan_records(self._namespace, self._name, self._command.idempotency_key)

    def plan(self, world: World) -> ServicePlan:
        key = self._command.idempotency_key
        return plan_call(world, self._namespace, self._name, key, self._digest)

    def note(self, world: World, run: Run) -> None:
        """Remember the key at once: another call of this beat may carry the same."""
        key = self._command.idempotency_key
        for effect in run.unsaved.effects:
            if isinstance(effect, StartServiceCall) and not effect.attached and key is not None:
                kept = KeptCall(effect.call.call_id, self._digest)
                keep_key(world, self._namespace, self._name, key, kept)


# Calls from outside -------------------------------------------------------------------------------


class Executed(Struct, frozen=True):
    """A call that was taken up, now or, when `retained`, before."""

    call_id: str
    mode: str
    retained: bool = False


class ExecuteService(Operation):
    """Call an operation from outside. A repeated idempotency key finds the first call."""

    __slots__ = ("_request",)
    name = "execute_service"

    def __init__(self, request: CallRequest) -> None:
        self._request = request

    def records(self) -> tuple[RecordKey, ...]:
        request = self._request
        known = plan_records(request.namespace, request.name, request.idempotency_key)
        return (*known, CALL.key(request.namespace, request.path))

    def instances(self) -> tuple[Instance, ...]:
        return (Instance(self._request.namespace, self._request.handler_id),)

    def decide(self, world: World) -> Executed:
        request = self._request
        plan = plan_call(
            world, request.namespace, request.name, request.idempotency_key, request.digest
        )
        if plan.refusal is not None:
            raise _rejected(plan.refusal)
        mode = request.mode or plan.mode
        if plan.call_id is not None:
            return Executed(plan.call_id, mode, retained=True)
        assert plan.binding is not None
        if world.find_current(self.instances()[0]) is not None:
            raise _rejected(_duplicate(request))
        _take_up(world, msgspec.structs.replace(request, mode=mode), plan.binding)
        if request.idempotency_key is not None:
            kept = KeptCall(request.call_id, request.digest)
            keep_key(world, request.namespace, request.name, request.idempotency_key, kept)
        return Executed(request.call_id, mode)


def _rejected(refusal: CallRefusal) -> ServiceCallRejected:
    return ServiceCallRejected(
        refusal.message,
        accepted=False,
        status=FAILED,
        outcome=refusal.outcome,
        rejection_reason=refusal.reason,
    )


def _duplicate(request: CallRequest) -> CallRefusal:
    message = f"workflow {request.handler_id} was started already"
    return CallRefusal("dispatch_failed", "duplicate_not_allowed", message)


def _take_up(world: World, request: CallRequest, binding: Binding) -> None:
    queue = request.queue or binding.queue
    build_id = selected_build(world, request.namespace, queue) if world.rollouts else None
    handler = start_handler(request, binding, world.ctx, build_id=build_id)
    CALL.put(
        world,
        request.namespace,
        request.path,
        open_call(request, binding, handler, world.ctx),
    )
    world.opened(handler)


class CancelCall(Operation):
    """Stop the handler of a call. A call that is over stays as it is."""

    __slots__ = ("_handler", "_path", "_reason")
    name = "cancel_service_call"

    def __init__(self, handler: Instance, path: str, reason: str | None) -> None:
        self._handler = handler
        self._path = path
        self._reason = reason

    def records(self) -> tuple[RecordKey, ...]:
        return (CALL.key(self._handler.namespace, self._path),)

    def instances(self) -> tuple[Instance, ...]:
        return (self._handler,)

    def decide(self, world: World) -> bool:
        """Whether there was anything to stop."""
        call = CALL.find(world, self._handler.namespace, self._path)
        if call is None:
            raise ServiceCallNotFound("the service call does not exist")
        return not call.is_closed and _stop(world, self._handler, self._reason)


def _stop(world: World, handler: Instance, reason: str | None) -> bool:
    run = world.find_current(handler)
    if run is None or run.is_closed or run.served is None:
        return False
    cancel_run(run, world.ctx, command_id=world.ctx.ids.ulid(), reason=reason)
    world.changed(run)
    return True


# What follows -------------------------------------------------------------------------------------


class DispatchCall(Operation):
    """A run has made a call: start what handles it."""

    __slots__ = ("_effect",)
    name = "dispatch_service_call"

    def __init__(self, effect: StartServiceCall) -> None:
        self._effect = effect

    def _request(self) -> CallRequest:
        run, command, call = self._effect.run, self._effect.command, self._effect.call
        return CallRequest(
            namespace=call.namespace,
            name=ServiceName(call.endpoint, call.service, call.operation),
            call_id=call.call_id,
            mode=call.mode,
            wait_for=call.wait_for,
            digest="",
            arguments=command.arguments,
            frame=Frame(run.frame),
            idempotency_key=command.idempotency_key,
            queue=command.queue,
            business_key=command.business_key,
            memo=command.memo or {},
            search_attributes=command.search_attributes or {},
            target_workflow_id=command.target_workflow_id,
            caller_namespace=run.namespace,
            caller_workflow_id=run.workflow_id,
            caller_run_id=run.run_id,
            sequence=call.sequence if self._effect.waits else None,
        )

    def records(self) -> tuple[RecordKey, ...]:
        request = self._request()
        return (CALL.key(request.namespace, request.path),)

    def instances(self) -> tuple[Instance, ...]:
        request = self._request()
        return (Instance(request.namespace, request.handler_id),)

    def decide(self, world: World) -> None:
        request, binding = self._request(), self._effect.binding
        assert binding is not None
        if world.find_current(self.instances()[0]) is None:
            _take_up(world, request, binding)
            share_payloads(world, self._effect.run.namespace, request.namespace, request.arguments)
            return
        refusal = _duplicate(request)
        ending = CallEnding(
            status=FAILED,
            outcome=refusal.outcome,
            message=refusal.message,
            error_type="DuplicateNotAllowed",
        )
        _tell(world, self._effect, ending)


class AttachCall(Operation):
    """A run has made a call that was made before: it waits for the same end."""

    __slots__ = ("_effect", "_output")
    name = "attach_service_call"
    reads_before_load = True

    def __init__(self, effect: StartServiceCall) -> None:
        self._effect = effect
        self._output: bytes | None = None

    def _path(self) -> str:
        call = self._effect.call
        return call_path(ServiceName(call.endpoint, call.service, call.operation), call.call_id)

    def records(self) -> tuple[RecordKey, ...]:
        return (CALL.key(self._effect.call.namespace, self._path()),)

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        call = await CALL.read(store, self._effect.call.namespace, self._path())
        if call is not None and call.status == COMPLETED:
            self._output = output_of(await store.read_last_events(call.handler_run_id))
        return ()

    def decide(self, world: World) -> None:
        if not self._effect.waits:
            return
        namespace, path = self._effect.call.namespace, self._path()
        call = CALL.find(world, namespace, path)
        if call is None:
            _tell(world, self._effect, _forgotten())
            return
        if call.is_closed:
            handler = world.runs.get(call.handler_run_id)
            output = self._output
            if output is None and handler is not None:
                # It ended in this very beat.
                output = output_of(handler.events)
            share_payloads(world, namespace, self._effect.run.namespace, output)
            _tell(world, self._effect, _ending(call, output))
            return
        if len(call.callers) >= limits.SERVICE_CALLERS_MAX:
            _tell(world, self._effect, _crowded())
            return
        call.callers.append(Caller(self._effect.run.run_id, self._effect.call.sequence))
        CALL.put(world, namespace, path, call)


def _ending(call: Call, output: bytes | None) -> CallEnding:
    return CallEnding(
        status=call.status,
        outcome=call.outcome,
        output=output,
        message=call.message,
        error_type=call.error_type,
    )


def _forgotten() -> CallEnding:
    return CallEnding(
        status=FAILED,
        outcome="dispatch_failed",
        message="the call that the idempotency key led to is forgotten",
        error_type="ServiceCallNotFound",
    )


def _crowded() -> CallEnding:
    return CallEnding(
        status=FAILED,
        outcome="rejected_concurrency_limited",
        message=f"{limits.SERVICE_CALLERS_MAX} runs wait for the call already",
        error_type="ServiceCallRejected",
    )


def _tell(world: World, effect: StartServiceCall, ending: CallEnding) -> None:
    if not effect.waits:
        return
    run, call = effect.run, effect.call
    if service_call_ended(
        run, world.ctx, sequence=call.sequence, call_id=call.call_id, ending=ending
    ):
        world.changed(run)


class EndServiceCall(Operation):
    """The handler of a call has closed."""

    __slots__ = ("_effect",)
    name = "service_call_ends"

    def __init__(self, effect: CallersNotice) -> None:
        self._effect = effect

    def records(self) -> tuple[RecordKey, ...]:
        handler = self._effect.handler
        assert handler.served is not None
        return (CALL.key(handler.namespace, handler.served.path),)

    def decide(self, world: World) -> None:
        handler = self._effect.handler
        assert handler.served is not None
        call = CALL.find(world, handler.namespace, handler.served.path)
        if call is None or call.is_closed:
            return
        ending = ending_of(handler, self._effect.output)
        callers = call.callers
        close_call(call, handler, ending, world.ctx)
        due_at = world.ctx.now + limits.SERVICE_CALL_KEPT
        CALL.put(world, handler.namespace, handler.served.path, call, due_at=due_at)
        for caller in callers:
            world.follow_ups.append(NotifyCaller(caller, call.call_id, handler.namespace, ending))


class NotifyCaller(Operation):
    """One of those who wait for a call hears how it ended."""

    __slots__ = ("_call_id", "_caller", "_ending", "_namespace")
    name = "caller_learns"

    def __init__(self, caller: Caller, call_id: str, namespace: str, ending: CallEnding) -> None:
        self._caller = caller
        self._call_id = call_id
        self._namespace = namespace
        self._ending = ending

    def run_ids(self) -> tuple[str, ...]:
        return (self._caller.run_id,)

    def decide(self, world: World) -> None:
        run = world.runs.get(self._caller.run_id)
        if run is not None and service_call_ended(
            run,
            world.ctx,
            sequence=self._caller.sequence,
            call_id=self._call_id,
            ending=self._ending,
        ):
            share_payloads(world, self._namespace, run.namespace, self._ending.output)
            world.changed(run)


class DetachCaller(Operation):
    """A run that waited for a call has closed. A call that nobody waits for any more is stopped."""

    __slots__ = ("_effect",)
    name = "caller_leaves"

    def __init__(self, effect: LeaveServiceCall) -> None:
        self._effect = effect

    def _path(self) -> str:
        call = self._effect.call
        return call_path(ServiceName(call.endpoint, call.service, call.operation), call.call_id)

    def records(self) -> tuple[RecordKey, ...]:
        return (CALL.key(self._effect.call.namespace, self._path()),)

    def decide(self, world: World) -> None:
        namespace = self._effect.call.namespace
        call = CALL.find(world, namespace, self._path())
        if call is None or call.is_closed or call.caller_run_id is None:
            return
        call.callers = [it for it in call.callers if it.run_id != self._effect.run_id]
        CALL.put(world, namespace, self._path(), call)
        if not call.callers:
            handler = Instance(namespace, call.handler_workflow_id)
            world.follow_ups.append(StopHandler(handler, self._effect.reason))


class StopHandler(Operation):
    """Nobody waits for a call: its handler is cancelled."""

    __slots__ = ("_handler", "_reason")
    name = "handler_stops"

    def __init__(self, handler: Instance, reason: str) -> None:
        self._handler = handler
        self._reason = reason

    def instances(self) -> tuple[Instance, ...]:
        return (self._handler,)

    def decide(self, world: World) -> None:
        _stop(world, self._handler, self._reason)


class ExpireServiceCall(Operation):
    """A call that ended long ago, or the key that led to one, is forgotten."""

    __slots__ = ("_key",)
    name = "forget_service_call"

    def __init__(self, key: RecordKey) -> None:
        self._key = key

    def records(self) -> tuple[RecordKey, ...]:
        return (self._key,)

    def decide(self, world: World) -> bool:
        record = world.find_record(self._key)
        if record is not None and record.due_at is not None and record.due_at <= world.ctx.now:
            world.put_record(self._key, None)
        return True


class _Output(Struct):
    output: Raw = Raw(b"null")


class _Event(Struct):
    event_type: str
    payload: _Output


_decoder = msgspec.json.Decoder(_Event)


def output_of(events: list[bytes]) -> bytes | None:
    """What a completed run returned, by its last events."""
    for encoded in reversed(events):
        event = _decoder.decode(encoded)
        if event.event_type == "WorkflowCompleted":
            output = bytes(event.payload.output)
            return None if output == b"null" else output
    return None
