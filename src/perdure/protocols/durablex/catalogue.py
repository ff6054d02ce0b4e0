"""HTTP routes of what is registered (workflows, apps, runners), and health checks."""

from hashlib import sha256
from typing import Any

import msgspec

from perdure.clock import Clock
from perdure.core import instant
from perdure.core.intake import cron
from perdure.core.limits import LIST_PAGE_SIZE_MAX, RUNNERS_MAX, WORKFLOWS_MAX
from perdure.dispatch.store_watch import StoreWatch
from perdure.engine.beat import Engine
from perdure.engine.catalogue import Definition
from perdure.engine.registration import APP, DEFINITION, RUNNER, RunnerLink
from perdure.protocols.durablex.surface import DurablexSurface
from perdure.web.message import Request, Response


class CatalogueReader:
    """The routes of the catalogue and of the health checks."""

    def __init__(
        self,
        engine: Engine,
        surface: DurablexSurface,
        clock: Clock,
        store_watch: StoreWatch,
        signing_key: str | None = None,
    ) -> None:
        self._fingerprint = None if signing_key is None else fingerprint(signing_key)
        self._engine = engine
        self._clock = clock
        self._store = engine.store
        self._store_watch = store_watch
        self._surface = surface
        self.is_draining = False

    async def workflows(self, request: Request) -> Response:
        """GET /workflows."""
        found = await DEFINITION.read_page(self._store, request.namespace, limit=WORKFLOWS_MAX)
        app = request.query.get("app")
        now = self._clock.now()
        rows = [workflow_view(one, now) for _, one in found if app in (None, "", one.app)]
        return self._surface.answer(200, sorted(rows, key=lambda row: (row["name"], row["app"])))

    async def apps(self, request: Request) -> Response:
        """GET /apps, by name."""
        found = await APP.read_page(self._store, request.namespace, limit=LIST_PAGE_SIZE_MAX * 50)
        rows = [{"name": name, "createdAt": instant.text(app.created_at)} for name, app in found]
        return self._surface.answer(200, rows)

    async def runners(self, request: Request) -> Response:
        """GET /runners: every runner once, even with several connections or URLs."""
        found = await RUNNER.read_page(self._store, request.namespace, limit=RUNNERS_MAX)
        app = request.query.get("app")
        chosen: dict[tuple[str, str], RunnerLink] = {}
        for _, link in found:
            identity = (link.app, link.runner_id)
            known = chosen.get(identity)
            newer = known is None or (link.is_live, link.seen_at) > (known.is_live, known.seen_at)
            if app in (None, "", link.app) and newer:
                chosen[identity] = link
        return self._surface.answer(200, [self._view(link) for link in chosen.values()])

    def _view(self, link: RunnerLink) -> dict[str, Any]:
        view = runner_view(link)
        key_fingerprint = link.told.key_fingerprint
        if key_fingerprint is not None and self._fingerprint is not None:
            view["keyMatches"] = key_fingerprint == self._fingerprint
        return view

    async def health(self, request: Request) -> Response:
        """GET /healthz: the process answers requests; nothing else is checked."""
        return self._surface.answer(200, {"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """GET /readyz."""
        if (trouble := await self._store_watch.trouble()) is not None:
            answer: dict[str, Any] = {
                "status": "not_ready",
                "checks": {"store": "unavailable"},
                "reason": trouble.reason,
            }
            return self._surface.answer(503, answer)
        checks = {"store": "ok"}
        if self.is_draining:
            answer = {"status": "not_ready", "checks": checks, "draining": True}
            return self._surface.answer(503, answer)
        return self._surface.answer(200, {"status": "ready", "checks": checks})


def fingerprint(key: str) -> str:
    """A hash by which an engine and a runner check that they have the same key."""
    return sha256(key.encode()).hexdigest()[:16]


def workflow_view(one: Definition, now: int) -> dict[str, Any]:
    """The JSON of a definition at an instant."""
    workflow = one.workflow
    view: dict[str, Any] = {
        "name": workflow.name,
        "app": one.app,
        "maxAttempts": workflow.retry.max_attempts,
        "backoff": workflow.retry.backoff,
        "scheduled": bool(workflow.crons),
        "onFailure": workflow.on_failure,
        "registeredAt": instant.text(one.registered_at),
        "updatedAt": instant.text(one.updated_at),
        "triggers": workflow.triggers,
        "schedules": [
            {"cron": text, "nextFireAt": instant.text(next_at)}
            for text in workflow.crons
            if (next_at := cron.parse(text).next_after(now)) is not None
        ],
    }
    flow = msgspec.to_builtins(workflow.flow)
    if flow:
        view["flowControl"] = flow
    return view


def runner_view(link: RunnerLink) -> dict[str, Any]:
    return {
        "runnerId": link.runner_id,
        "app": link.app,
        "url": link.url,
        "live": link.is_live,
        **msgspec.to_builtins(link.told),
        "lastSeenAt": instant.text(link.seen_at),
    }
