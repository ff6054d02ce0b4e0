"""Redrive: continue a failed run in a new one."""

import asyncio

from perdure.core.limits import HISTORY_READ_MAX
from perdure.core.run.redrive import Prefix, read_prefix
from perdure.core.run.state import Dialect
from perdure.core.run.status import RunStatus
from perdure.engine.beat import Engine
from perdure.engine.redrive import RedriveRun
from perdure.engine.run_commands import Commanded
from perdure.protocols.durable_workflow.bodies import Body, OptionalName, decode
from perdure.protocols.durable_workflow.control import command_target
from perdure.protocols.durable_workflow.surfaces import ControlSurface
from perdure.store.interface import Unavailable
from perdure.web.message import Request, Response

_TRIES = 3
_INLINE_EVENTS_MAX = 500
"""Longer histories are decoded in a thread, to keep the event loop free."""


class RedriveBody(Body):
    request_id: OptionalName = None


class Redrive:
    """The handler of `/api/workflows/{workflow_id}/runs/{run_id}/redrive`."""

    def __init__(self, engine: Engine, surface: ControlSurface) -> None:
        self._engine = engine
        self.surface = surface

    async def redrive(self, request: Request) -> Response:
        body = decode(request.body, RedriveBody)
        target = command_target(request, body.request_id, b"redrive")
        failed_run_id = request.params["run_id"]
        for _ in range(_TRIES):
            prefix = await self._read_prefix(request.namespace, failed_run_id)
            done: Commanded | None = await self._engine.submit(RedriveRun(target, prefix))
            if done is not None:
                break
            # The run failed between the read and the decision; its history is complete now.
        else:
            raise Unavailable("storage_busy", f"run {failed_run_id} changes too fast to be read")
        answer = {
            "outcome": done.outcome,
            "workflow_id": request.params["workflow_id"],
            "run_id": done.run_id,
            "requested_run_id": failed_run_id,
            "resolved_run_id": done.run_id,
            "redriven_from_run_id": failed_run_id,
            "workflow_type": done.workflow_type,
            "command_id": done.command_id,
            "command_status": "accepted",
            "command_source": "control_plane",
            "target_scope": "run",
            "request_id": target.request_id,
            "retained": done.retained,
        }
        return self.surface.answer(request, 202, answer)

    async def _read_prefix(self, namespace: str, run_id: str) -> Prefix | None:
        """The history that a new run takes over from a failed one; None if it has not failed."""
        run = await self._engine.store.read_run(run_id)
        if run is None or run.namespace != namespace or run.status is not RunStatus.FAILED:
            return None
        if run.dialect is not Dialect.PULL:
            return None
        history = await self._engine.store.read_history(run_id, 0, HISTORY_READ_MAX)
        if len(history) <= _INLINE_EVENTS_MAX:
            return read_prefix(run_id, history)
        return await asyncio.to_thread(read_prefix, run_id, history)
