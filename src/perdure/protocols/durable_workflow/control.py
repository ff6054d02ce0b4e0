"""The control plane: start, read and command workflows."""

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any

from msgspec import UNSET, Raw

from perdure.clock import Clock
from perdure.core import limits
from perdure.core.bounds import Bounds
from perdure.core.fleet.worker import Worker
from perdure.core.maps import members_of
from perdure.core.payload import Frame
from perdure.core.rejection import (
    InstanceNotFound,
    InvalidRequest,
    RunNotFound,
    TaskQueueDraining,
)
from perdure.core.run.history_budget import HistoryBudget
from perdure.core.run.reframe import plain_envelope
from perdure.core.run.start import StartRequest
from perdure.core.run.state import Run, workflow_task_id
from perdure.dispatch.run_watchers import RunWatchers
from perdure.engine.beat import Engine
from perdure.engine.run_commands import (
    CancelRun,
    Commanded,
    CommandTarget,
    RunCommand,
    SignalRun,
    Started,
    StartWorkflow,
    TerminateRun,
)
from perdure.engine.worker_availability import staffing_for
from perdure.identity import IdSource
from perdure.protocols.durable_workflow import bodies, tokens, views
from perdure.protocols.durable_workflow.commands import (
    check_memo,
    check_search_attributes,
    require_workflow_type,
)
from perdure.protocols.durable_workflow.inputs import read_input, require_signal_name
from perdure.protocols.durable_workflow.payloads import (
    count_arguments,
    frame_of_envelope,
)
from perdure.protocols.durable_workflow.references import with_payloads
from perdure.protocols.durable_workflow.refusals import Refusals, Refused
from perdure.protocols.durable_workflow.run_lists import page_size, read_workflows
from perdure.protocols.durable_workflow.sizes import require_input_size
from perdure.protocols.durable_workflow.surfaces import ControlSurface
from perdure.protocols.durable_workflow.trace_context import read_carrier
from perdure.store.interface import Instance, Store
from perdure.web.message import Request, Response

_EVENTS_SHOWN = 100
"""Page size of a history request that names none."""
_FOLLOWED_RUNS = 100
"""How many continued runs one description follows while the chain grows."""


class ControlPlane:
    """Handlers of `/api/workflows…`."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        ids: IdSource,
        watchers: RunWatchers,
        surface: ControlSurface,
        *,
        poll_timeout: int,
        can_query: Callable[[Run], bool],
        bounds: Bounds,
        refusals: Refusals,
    ) -> None:
        self._engine = engine
        self._refusals = refusals
        self._can_query = can_query
        self._clock = clock
        self._ids = ids
        self._watchers = watchers
        self._poll_timeout = poll_timeout
        self._bounds = bounds
        self._budget = HistoryBudget(bounds)
        self.surfaces = {
            name: surface.of(name)
            for name in (
                "start",
                "list",
                "describe",
                "list_runs",
                "describe_run",
                "history",
                "signal",
                "cancel",
                "terminate",
            )
        }

    # Start --------------------------------------------------------------------------------------

    async def start(self, request: Request) -> Response:
        body = bodies.decode(request.body, bodies.StartBody)
        start_request = self._start_request(request, body)
        policy = body.duplicate_policy or "fail"
        if policy not in ("fail", "use-existing"):
            raise InvalidRequest("duplicate_policy", "must be fail or use-existing")
        operation = with_payloads(
            request, StartWorkflow(start_request, use_existing=policy == "use-existing")
        )
        started: Started
        try:
            started = await self._engine.submit(operation)
        except TaskQueueDraining:
            # Another node may have registered a worker, or resumed a build.
            started = await self._engine.submit_knowing_workers(operation)
        answer = {
            "workflow_id": start_request.workflow_id,
            "run_id": started.run_id,
            "workflow_type": started.workflow_type,
            "namespace": request.namespace,
            "task_queue": started.queue,
            "status": started.status,
            "business_key": started.business_key,
            "payload_codec": "avro",
            "outcome": "started_new" if started.is_new else "returned_existing_active",
            "command_status": "accepted",
            "command_source": "control_plane",
        }
        status = 201 if started.is_new else 200
        return self.surfaces["start"].answer(request, status, answer)

    def _start_request(self, request: Request, body: bodies.StartBody) -> StartRequest:
        for name in bodies.REFUSED_START_FIELDS:
            if getattr(body, name) is not UNSET:
                raise InvalidRequest(name, "is not supported on a start")
        require_workflow_type(body.workflow_type, "workflow_type")
        memo, attributes = members_of(body.memo), members_of(body.search_attributes)
        check_memo(memo, "memo", self._bounds)
        check_search_attributes(attributes, "search_attributes", self._bounds)
        execution, run_timeout = body.execution_timeout_seconds, body.run_timeout_seconds
        if execution is not None and run_timeout is not None and run_timeout > execution:
            # The SDKs send both with defaults; the shorter one applies.
            run_timeout = execution
        namespace, queue = request.namespace, body.task_queue or "default"
        arguments, plain = read_input(body.input, "input")
        require_input_size(request, self._bounds, arguments, plain)
        frame = Frame.VALUE
        if arguments is not None:
            frame = frame_of_envelope(arguments) or Frame.VALUE
        else:
            frame = self._newest_worker_frame(namespace, queue, body.workflow_type)
        return StartRequest(
            namespace=namespace,
            workflow_id=body.workflow_id or self._ids.ulid(),
            workflow_type=body.workflow_type,
            queue=queue,
            arguments=arguments,
            plain=plain,
            frame=frame,
            business_key=body.business_key,
            memo=memo,
            search_attributes=attributes,
            execution_timeout_seconds=execution,
            run_timeout_seconds=run_timeout,
            start_delay_seconds=body.start_delay_seconds or 0,
            priority=5 if body.priority is None else body.priority,
            fairness_key=body.fairness_key and body.fairness_key.strip().lower(),
            fairness_weight=body.fairness_weight or 1,
            build_id=body.build_id or body.compatibility or None,
            trace=read_carrier(body.observability_context),
            late_signal_tasks_max=body.late_signal_tasks,
            signals_per_task_max=body.signals_per_task,
        )

    def _newest_worker_frame(self, namespace: str, queue: str, workflow_type: str) -> Frame:
        """The frame of the newest live worker that could take the run: a guess until one does."""
        now = self._clock.now()
        able: list[Worker] = [
            worker
            for worker in self._engine.workers.values()
            if (worker.namespace, worker.queue) == (namespace, queue)
            and workflow_type in worker.workflow_types
            and worker.is_active(now)
        ]
        newest = max(able, key=lambda worker: worker.registered_at, default=None)
        return Frame.VALUE if newest is None else newest.frame

    # Read ---------------------------------------------------------------------------------------

    async def list_workflows(self, request: Request) -> Response:
        page = await read_workflows(self._engine.store, request.namespace, request.query)
        answer = {
            "workflows": [views.summary(run) for run in page.runs],
            "workflow_count": len(page.runs),
            "next_page_token": page.next_page_token,
        }
        return self.surfaces["list"].answer(request, 200, answer)

    async def describe(self, request: Request) -> Response:
        runs = await self._runs(request)
        run = await self._engine.store.read_run(runs[-1].run_id)
        for _ in range(_FOLLOWED_RUNS):
            if run is not None and run.continued_to_run_id is None:
                break
            # It continued as new between the two reads, or was pruned: find the newest run again.
            runs = await self._runs(request)
            run = await self._engine.store.read_run(runs[-1].run_id)
        if run is None:
            raise _pruned_run(runs[-1])
        return await self._described(request, "describe", run, runs)

    async def describe_run(self, request: Request) -> Response:
        runs = await self._runs(request)
        known = self._require_run(request, runs)
        run = await self._engine.store.read_run(known.run_id)
        if run is None:
            raise _pruned_run(known)
        return await self._described(request, "describe_run", run, runs)

    async def _described(
        self, request: Request, operation: str, run: Run, runs: list[Run]
    ) -> Response:
        availability = await staffing_for(self._engine, run, self._clock.now())
        view = await views.description(
            self._engine.store,
            run,
            runs,
            availability=availability,
            can_query=self._can_query,
            bounds=self._bounds,
            budget=self._budget,
            refused=self._refused(run),
        )
        return self.surfaces[operation].answer(request, 200, view)

    def _refused(self, run: Run) -> Refused | None:
        """The last refusal of a report on the open workflow task, if there was one."""
        if run.is_closed or run.task is None:
            return None
        return self._refusals.find(workflow_task_id(run, run.task))

    async def list_runs(self, request: Request) -> Response:
        runs = await self._runs(request)
        answer = {
            "workflow_id": request.params["workflow_id"],
            "run_count": len(runs),
            "runs": [{**views.summary(run), "is_current_run": run is runs[-1]} for run in runs],
        }
        return self.surfaces["list_runs"].answer(request, 200, answer)

    async def history(self, request: Request) -> Response:
        runs = await self._runs(request)
        run = self._require_run(request, runs)
        query = request.query
        after = 0
        if query.get("next_page_token"):
            after = tokens.parse_history_token(query["next_page_token"])
        # Without a page size the SDKs before 2.12 expect the whole history at once.
        size = limits.HISTORY_READ_MAX
        if "page_size" in query:
            most = self._bounds.history_page_size_max
            size = page_size(query, min(_EVENTS_SHOWN, most), most)
        waits = _flag(query, "wait_new_event")
        if waits and not run.is_closed:
            events = await self._await_events(request, run, after, size + 1)
        else:
            events = await self._engine.store.read_history(run.run_id, after, size + 1)
        if not events and run.history_count > after and await self._is_pruned(run):
            raise _pruned_run(run)
        page = events[:size]
        token = tokens.history_token(after + size) if len(events) > size else None
        if token is None and waits and not run.is_closed:
            # A reader that follows the run needs a token to continue from.
            token = tokens.history_token(after + len(page))
        answer = {
            "workflow_id": run.workflow_id,
            "run_id": run.run_id,
            "events": Raw(b"[" + b",".join(page) + b"]"),
            "next_page_token": token,
        }
        return self.surfaces["history"].answer(request, 200, answer)

    async def _is_pruned(self, run: Run) -> bool:
        return await self._engine.store.read_run(run.run_id) is None

    async def _await_events(
        self, request: Request, run: Run, after: int, limit: int
    ) -> list[bytes]:
        """Events after a sequence; waits for the next ones, and returns none when time is up."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._poll_timeout / limits.SECOND
        with self._watchers.watching(run.run_id) as watch:
            request.watch(watch.end)
            while True:
                watch.looks()
                events = await self._engine.store.read_history(run.run_id, after, limit)
                # Not every change is an event: leases, heartbeats, pending signals.
                if events or watch.is_over or not await watch.wait(ends_at - loop.time()):
                    return events

    async def _runs(self, request: Request) -> list[Run]:
        instance = Instance(request.namespace, request.params["workflow_id"])
        found = list(await self._engine.store.read_instance(instance))
        if not found:
            raise InstanceNotFound(f"workflow {instance.workflow_id[:128]} does not exist")
        return found

    def _require_run(self, request: Request, runs: list[Run]) -> Run:
        run_id = request.params["run_id"]
        for run in runs:
            if run.run_id == run_id:
                return run
        workflow_id = request.params["workflow_id"]
        raise RunNotFound(f"workflow {workflow_id[:128]} has no run {run_id[:64]}")

    # Commands ------------------------------------------------------------------------------------

    async def signal(self, request: Request) -> Response:
        name = require_signal_name(request.params["name"], self._bounds)
        body = bodies.decode(request.body, bodies.SignalBody)
        trace = read_carrier(body.observability_context)
        arguments, plain = read_input(body.input, "input")
        require_input_size(request, self._bounds, arguments, plain)
        target = command_target(request, body.request_id, f"{name}\0".encode(), arguments, plain)
        if arguments is None and plain is not None:
            arguments = await encode_for_run(self._engine.store, target, plain)
        operation = SignalRun(
            target,
            name=name,
            arguments=arguments,
            count=count_arguments(arguments),
            trace=trace,
        )
        return await self._command(request, "signal", operation, 202, {"signal_name": name})

    async def cancel(self, request: Request) -> Response:
        body = bodies.decode(request.body, bodies.StopBody)
        read_carrier(body.observability_context)
        target = command_target(request, body.request_id, b"cancel")
        operation = CancelRun(target, reason=body.reason or None)
        return await self._command(
            request, "cancel", operation, 200, {"reason": body.reason or None}
        )

    async def terminate(self, request: Request) -> Response:
        body = bodies.decode(request.body, bodies.StopBody)
        target = command_target(request, body.request_id, b"terminate")
        operation = TerminateRun(target, reason=body.reason or None)
        return await self._command(
            request, "terminate", operation, 200, {"reason": body.reason or None}
        )

    async def _command(
        self,
        request: Request,
        name: str,
        operation: RunCommand,
        status: int,
        members: dict[str, Any],
    ) -> Response:
        done: Commanded = await self._engine.submit_knowing_workers(
            with_payloads(request, operation)
        )
        pinned = "run_id" in request.params
        answer = {
            **members,
            "outcome": done.outcome,
            "workflow_id": request.params["workflow_id"],
            "run_id": done.run_id,
            "requested_run_id": request.params.get("run_id"),
            "resolved_run_id": done.run_id,
            "workflow_type": done.workflow_type,
            "command_id": done.command_id,
            "command_status": "accepted",
            "command_source": "control_plane",
            "target_scope": "run" if pinned else "instance",
            "request_id": operation.request_id,
            "retained": done.retained,
            "intent_verified": operation.request_id is not None,
        }
        return self.surfaces[name].answer(request, status, answer)


def command_target(
    request: Request, request_id: str | None, name: bytes, *arguments: bytes | None
) -> CommandTarget:
    """The target of a command, and a digest of its content."""
    intent = b"\0".join(part or b"" for part in (name, *arguments))
    whole, named = hashlib.sha256(intent).hexdigest(), hashlib.sha256(name).hexdigest()
    return CommandTarget(
        instance=Instance(request.namespace, request.params["workflow_id"]),
        run_id=request.params.get("run_id"),
        request_id=request_id or None,
        digest=f"{whole[:32]}-{named[:8]}",
    )


async def encode_for_run(store: Store, target: CommandTarget, plain: bytes) -> bytes:
    """Plain arguments in the frame of the run that will read them."""
    runs = await store.read_instance(target.instance)
    return plain_envelope(plain, Frame(runs[-1].frame) if runs else Frame.VALUE)


_FLAGS = {"": False, "0": False, "false": False, "1": True, "true": True}


def _flag(query: dict[str, str], name: str) -> bool:
    value = _FLAGS.get(query.get(name, "").lower())
    if value is None:
        raise InvalidRequest(name, "must be true or false")
    return value


def _pruned_run(run: Run) -> RunNotFound:
    """The error for a run that was pruned after it had been found."""
    return RunNotFound(f"run {run.run_id} of workflow {run.workflow_id[:128]} does not exist")
