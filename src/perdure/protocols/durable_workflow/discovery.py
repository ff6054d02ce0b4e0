"""Health, readiness and cluster info."""

from typing import Any

from perdure.clock import Clock, FollowingClock
from perdure.core import instant
from perdure.core.limits import SECOND
from perdure.dispatch.store_watch import StoreWatch
from perdure.protocols.durable_workflow.surfaces import DiscoverySurface, Namespaces
from perdure.store.interface import Unavailable
from perdure.web.message import Request, Response


class Discovery:
    """Handlers of `/api/health`, `/api/ready` and `/api/cluster/info`."""

    def __init__(
        self,
        store_watch: StoreWatch,
        clock: Clock,
        namespaces: Namespaces,
        surface: DiscoverySurface,
        info: dict[str, Any],
        storage_policy: dict[str, Any] | None,
        retention: dict[str, Any],
        auth_driver: str,
    ) -> None:
        self._store_watch = store_watch
        self._clock = clock
        self._namespaces = namespaces
        self._surface = surface
        self._info = info
        self._storage_policy = storage_policy
        self._retention = retention
        self._auth_driver = auth_driver
        self.is_draining = False

    async def health(self, request: Request) -> Response:
        error = await self._store_watch.trouble()
        body: dict[str, Any] = {
            "status": "serving" if error is None else "degraded",
            "timestamp": instant.text(self._clock.now()),
            "checks": {"database": "ok" if error is None else "unavailable"},
        }
        if error is not None:
            body["storage"] = _error_view(error)
        return self._surface.answer(200 if error is None else 503, body)

    async def ready(self, request: Request) -> Response:
        default = self._namespaces.default
        checks = {
            "database": _database_check(await self._store_watch.trouble()),
            "migrations": {"status": "ok"},
            "default_namespace": {
                "status": "ok" if default in self._namespaces.known else "missing",
                "namespace": default,
            },
            # A server without usable credentials does not start.
            "auth": {"status": "ok", "driver": self._auth_driver},
            "clock": {"status": "ok", **clock_view(self._clock)},
        }
        ok = all(check["status"] == "ok" for check in checks.values())
        ok = ok and not self.is_draining
        body: dict[str, Any] = {
            "status": "ready" if ok else "not_ready",
            "timestamp": instant.text(self._clock.now()),
            "checks": checks,
        }
        if self.is_draining:
            body["draining"] = True
        return self._surface.answer(200 if ok else 503, body)

    async def cluster_info(self, request: Request) -> Response:
        name = request.namespace
        namespace: dict[str, Any] = {"name": name, "exists": name in self._namespaces.known}
        if namespace["exists"]:
            namespace |= self._retention
        if self._storage_policy is not None and namespace["exists"]:
            namespace["external_payload_storage"] = self._storage_policy
        error = self._store_watch.known_trouble
        info = {
            **self._info,
            "storage": _database_check(error),
            "clock": clock_view(self._clock),
            "namespace": namespace,
        }
        return self._surface.answer(200, info)


def clock_view(clock: Clock) -> dict[str, Any]:
    """The source of this node's time, and how far it is ahead of a clock that was set back."""
    if not isinstance(clock, FollowingClock):
        return {"source": "process", "ahead_seconds": 0.0}
    return {"source": "database", "ahead_seconds": round(clock.ahead_us / SECOND, 3)}


def _database_check(error: Unavailable | None) -> dict[str, Any]:
    if error is None:
        return {"status": "ok"}
    return {"status": "unavailable", **_error_view(error)}


def _error_view(error: Unavailable) -> dict[str, Any]:
    """The reason with which changes are refused now. The message may name hosts: log only."""
    return {"reason": error.reason}
