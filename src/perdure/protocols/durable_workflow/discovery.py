"""Health, readiness and cluster info."""

from typing import Any

from perdure.clock import Clock
from perdure.core import instant
from perdure.protocols.durable_workflow.surfaces import DiscoverySurface, Namespaces
from perdure.store.interface import Store, Unavailable
from perdure.web.message import Request, Response


class Discovery:
    """Handlers of `/api/health`, `/api/ready` and `/api/cluster/info`."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        namespaces: Namespaces,
        surface: DiscoverySurface,
        info: dict[str, Any],
        storage_policy: dict[str, Any] | None,
        retention: dict[str, Any],
        auth_driver: str,
    ) -> None:
        self._store = store
        self._clock = clock
        self._namespaces = namespaces
        self._surface = surface
        self._info = info
        self._storage_policy = storage_policy
        self._retention = retention
        self._auth_driver = auth_driver

    async def health(self, request: Request) -> Response:
        ok = await self._database() == "ok"
        body = {
            "status": "serving" if ok else "degraded",
            "timestamp": instant.text(self._clock.now()),
            "checks": {"database": "ok" if ok else "unavailable"},
        }
        return self._surface.answer(200 if ok else 503, body)

    async def ready(self, request: Request) -> Response:
        default = self._namespaces.default
        checks = {
            "database": {"status": await self._database()},
            "migrations": {"status": "ok"},
            "default_namespace": {
                "status": "ok" if default in self._namespaces.known else "missing",
                "namespace": default,
            },
            # A server without usable credentials does not start.
            "auth": {"status": "ok", "driver": self._auth_driver},
        }
        ok = all(check["status"] == "ok" for check in checks.values())
        body = {
            "status": "ready" if ok else "not_ready",
            "timestamp": instant.text(self._clock.now()),
            "checks": checks,
        }
        return self._surface.answer(200 if ok else 503, body)

    async def cluster_info(self, request: Request) -> Response:
        name = request.namespace
        namespace: dict[str, Any] = {"name": name, "exists": name in self._namespaces.known}
        if namespace["exists"]:
            namespace |= self._retention
        if self._storage_policy is not None and namespace["exists"]:
            namespace["external_payload_storage"] = self._storage_policy
        return self._surface.answer(200, {**self._info, "namespace": namespace})

    async def _database(self) -> str:
        try:
            await self._store.check()
        except Unavailable:
            return "unavailable"
        return "ok"
