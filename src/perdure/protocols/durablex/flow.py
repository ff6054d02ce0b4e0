"""HTTP routes of starts by name, and of the state of flow control."""

from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from perdure.clock import Clock
from perdure.core import instant
from perdure.core.intake.flow_state import Buffer, record_prefix
from perdure.core.intake.usage_log import used
from perdure.core.limits import (
    EVENT_DATA_BYTES_MAX,
    FLOW_STATES_SHOWN_MAX,
    NAME_LENGTH_MAX,
    WORKFLOWS_MAX,
)
from perdure.core.maps import Map, members_of
from perdure.core.push.usage import amount
from perdure.engine.admission import KEPT, Admitted, Kept
from perdure.engine.beat import Engine
from perdure.engine.manual_start import ManualStart, StartManually
from perdure.engine.registration import DEFINITION
from perdure.engine.slots import SLOTS
from perdure.engine.usage_limits import METER
from perdure.protocols.durablex.events import require_tags
from perdure.protocols.durablex.requests import bad_request, read_body
from perdure.protocols.durablex.surface import DurablexSurface
from perdure.protocols.durablex.views import GATES
from perdure.web.message import HttpError, Request, Response


class TriggerBody(Struct, rename="camel"):
    """The body of a start; all members are optional."""

    input: Raw | UnsetType = UNSET
    event_name: str | None = None
    dedupe_id: str | None = None
    runner: str | None = None
    tags: Map[str] | None = None


_body_decoder = msgspec.json.Decoder(TriggerBody)


class FlowControl:
    """The routes around admission."""

    def __init__(self, engine: Engine, surface: DurablexSurface, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._surface = surface

    async def trigger(self, request: Request) -> Response:
        """POST /workflows/{app}/{name}/trigger: starts this workflow, whatever its triggers are."""
        app, name = request.params["app"], request.params["name"]
        body = read_body(request, _body_decoder)
        for field in ("event_name", "dedupe_id", "runner"):
            value = getattr(body, field)
            if value is not None and len(value) > NAME_LENGTH_MAX:
                raise bad_request(f"{field} has more than {NAME_LENGTH_MAX} characters")
        tags = members_of(body.tags)
        require_tags(tags)
        data = b"{}" if body.input is UNSET else bytes(body.input)
        if len(data) > EVENT_DATA_BYTES_MAX:
            much = f"input has more than {EVENT_DATA_BYTES_MAX} bytes"
            raise HttpError(413, "event_too_large", much)
        event_name = body.event_name or name
        wanted = ManualStart(
            namespace=request.namespace,
            app=app,
            workflow=name,
            data=data,
            value=msgspec.json.decode(data),
            event_name=event_name,
            dedupe_id=body.dedupe_id or None,
            pin=body.runner or "",
            tags=tags,
        )
        admitted: Admitted | None = await self._engine.submit(StartManually(wanted))
        if admitted is None:
            raise HttpError(
                404, "workflow_not_found", f"app {app[:64]} has no workflow {name[:64]}"
            )
        view: dict[str, Any] = {"workflow": name, "app": app, "eventName": event_name}
        if admitted.run_id is not None:
            view["runId"] = admitted.run_id
        view |= {gate: admitted.outcome == gate for gate in GATES}
        return self._surface.answer(202, view)

    async def flow_state(self, request: Request) -> Response:
        """GET /flow-state: events in buffers, and passes in progress under limits."""
        app, workflow = request.query.get("app") or None, request.query.get("workflow") or None
        page = await KEPT.read_page(
            self._engine.store, request.namespace, limit=FLOW_STATES_SHOWN_MAX
        )
        shown = [
            kept
            for _, kept in page
            if app in (None, kept.app) and workflow in (None, kept.workflow)
        ]
        body = {
            "debounce": [_debounce(kept, kept.state) for kept in shown if _holds(kept, "debounce")],
            "batch": [_batch(kept, kept.state) for kept in shown if _holds(kept, "batch")],
            "concurrency": await self._concurrency(request, app, workflow),
            **await self._meters(request, app, workflow),
        }
        return self._surface.answer(200, body)

    async def _concurrency(
        self, request: Request, app: str | None, workflow: str | None
    ) -> dict[str, int]:
        """The limit of passes of each scope in use, and how many are in progress."""
        store, namespace = self._engine.store, request.namespace
        known = await DEFINITION.read_page(store, namespace, limit=WORKFLOWS_MAX)
        limits = {
            record_prefix(one.app, one.workflow.name): one.workflow.flow.concurrency.limit
            for _, one in known
            if one.workflow.flow.concurrency is not None
            and app in (None, one.app)
            and workflow in (None, one.workflow.name)
        }
        counted = await SLOTS.read_page(store, namespace, limit=FLOW_STATES_SHOWN_MAX)
        used = [slots.in_use for key, slots in counted if _home_of(key) in limits]
        return {"limit": sum(limits.values()), "inUse": sum(used)}

    async def _meters(
        self, request: Request, app: str | None, workflow: str | None
    ) -> dict[str, list[dict[str, Any]]]:
        """The usage of budgets and token throttles, and how many runs wait for them."""
        meters: dict[str, list[dict[str, Any]]] = {"budget": [], "tokenThrottle": []}
        logs = await METER.read_page(
            self._engine.store, request.namespace, limit=FLOW_STATES_SHOWN_MAX
        )
        for _, log in logs:
            if app in (None, log.app) and workflow in (None, log.workflow):
                tokens, cost = used(log, log.window, self._clock.now())
                meters[log.policy].append(
                    {
                        "workflow": log.workflow,
                        "app": log.app,
                        "tokens": tokens,
                        "cost": amount(cost),
                        "waiting": log.waiting,
                    }
                )
        return meters


def _home_of(key: str) -> str:
    """The app and workflow that the key of a flow state begins with."""
    app, name, _ = key.split("/", 2)
    return f"{app}/{name}/"


def _holds(kept: Kept, policy: str) -> bool:
    return kept.policy == policy and isinstance(kept.state, Buffer)


def _debounce(kept: Kept, buffer: object) -> dict[str, Any]:
    assert isinstance(buffer, Buffer)
    return {
        "workflow": kept.workflow,
        "app": kept.app,
        "pending": buffer.count,
        "nextFireAt": instant.text(buffer.fire_at),
    }


def _batch(kept: Kept, buffer: object) -> dict[str, Any]:
    assert isinstance(buffer, Buffer)
    return {
        "workflow": kept.workflow,
        "app": kept.app,
        "buffered": len(buffer.arrivals),
        "oldestAt": instant.text(buffer.opened_at),
    }
