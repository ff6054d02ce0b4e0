"""The loop that sends webhooks: each try is counted on disk before it is sent.

The deadline loop passes deliveries that are due. There is no queue: when too many are in progress,
the record is due again a second later. A try whose end was not stored, because this process died,
ends by the deadline of its record.
"""

import asyncio
import logging

from perdure.clock import Clock
from perdure.core import limits
from perdure.core.intake.keyring import CannotOpen, Keyring
from perdure.core.intake.signature import HEADERS, sign
from perdure.dispatch.egress import Blocked, EgressGuard, Unresolved, next_hop
from perdure.dispatch.outgoing_http import Answer, NoAnswer, Outgoing
from perdure.engine.beat import Engine
from perdure.engine.operation import Operation
from perdure.features.webhooks.delivery_operations import BeginDelivery, ConcludeDelivery
from perdure.features.webhooks.operations import ENDPOINTS, secret_owner
from perdure.features.webhooks.rules import Attempt, Delivery, Outcome, headers_of
from perdure.store.interface import RecordKey, Unavailable

_REDIRECTS = frozenset({301, 302, 307, 308})
"""Statuses that redirect the same request. A 303 redirects to a different one."""

log = logging.getLogger(__name__)


class Skipped(Exception):
    """The delivery cannot succeed, so it is not tried."""


class WebhookSender:
    """The tries of this process that are in progress."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        guard: EgressGuard,
        outgoing: Outgoing,
        keyring: Keyring | None,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._guard = guard
        self._outgoing = outgoing
        self._keyring = keyring
        self._reserved: set[Operation] = set()
        self._begun: asyncio.Queue[tuple[str, Delivery]] = asyncio.Queue()
        self._under_way = 0

    def due(self, record: RecordKey) -> Operation:
        """The operation that counts a try of a delivery that is due."""
        busy = self._under_way + self._begun.qsize() + len(self._reserved)
        operation = BeginDelivery(record, has_room=busy < limits.DELIVERIES_AT_ONCE_MAX)
        self._reserved.add(operation)
        return operation

    def decided(self, record: RecordKey, operation: Operation, committed: bool) -> None:
        """Send the try if its operation was committed."""
        self._reserved.discard(operation)
        assert isinstance(operation, BeginDelivery)
        if committed and operation.begun is not None:
            self._begun.put_nowait((record.namespace, operation.begun))

    async def run(self) -> None:
        """Send deliveries for as long as the server lives."""
        async with asyncio.TaskGroup() as group:
            while True:
                namespace, delivery = await self._begun.get()
                self._under_way += 1
                group.create_task(self._try(namespace, delivery), name=f"deliver {delivery.id}")

    async def _try(self, namespace: str, delivery: Delivery) -> None:
        try:
            attempt = await self._attempt(namespace, delivery)
            await self._engine.submit(ConcludeDelivery(namespace, delivery.id, attempt))
        except Unavailable as error:
            # The record is due again when the timeout of this try has passed.
            log.warning(
                "storing the result of webhook delivery %s failed; its deadline retries it: %s",
                delivery.id,
                error.message,
            )
        except Exception:
            log.exception(
                "webhook delivery %s failed unexpectedly; its deadline retries it", delivery.id
            )
        finally:
            self._under_way -= 1

    async def _attempt(self, namespace: str, delivery: Delivery) -> Attempt:
        started_at = self._clock.now()
        headers = headers_of(delivery)
        answer: Answer | None = None
        error: str | None = None
        outcome: Outcome
        hops: list[str] = []
        try:
            headers |= await self._signature(namespace, delivery, started_at)
            async with asyncio.timeout(limits.DELIVERY_TIMEOUT / limits.SECOND):
                answer = await self._send(delivery, headers, hops)
            outcome = "succeeded" if 200 <= answer.status < 300 else "http_error"
        except (Skipped, Blocked) as refused:
            outcome, error = "skipped", str(refused)
        except TimeoutError:
            outcome, error = "timeout", "there was no answer in time"
        except (NoAnswer, Unresolved, CannotOpen) as failed:
            outcome, error = "connection_error", str(failed)
        return Attempt(
            attempt=delivery.attempt_count,
            outcome=outcome,
            created_at=started_at,
            duration_ms=max(0, self._clock.now() - started_at) // 1_000,
            status_code=None if answer is None else answer.status,
            response_snippet=None if answer is None else answer.body.decode("utf-8", "replace"),
            response_headers={} if answer is None else answer.headers,
            request_headers=headers,
            redirects=tuple(hops),
            error=error,
        )

    async def _send(self, delivery: Delivery, headers: dict[str, str], hops: list[str]) -> Answer:
        """The response, after redirects. The guard checks every URL, not only the first."""
        url = delivery.url
        while True:
            answer = await self._outgoing.post(await self._guard.vet(url), headers, delivery.body)
            if answer.status not in _REDIRECTS or not answer.location:
                return answer
            if len(hops) == limits.DELIVERY_REDIRECTS_MAX:
                raise Skipped(f"it was redirected more than {limits.DELIVERY_REDIRECTS_MAX} times")
            url = next_hop(url, answer.location)
            hops.append(url)

    async def _signature(self, namespace: str, delivery: Delivery, now: int) -> dict[str, str]:
        """The headers that sign a delivery. One without an endpoint is unsigned."""
        if delivery.endpoint_id is None:
            return {}
        endpoints = await ENDPOINTS.read(self._engine.store, namespace, "")
        endpoint = None if endpoints is None else endpoints.items.get(delivery.endpoint_id)
        if endpoint is None or not endpoint.enabled:
            raise Skipped("the endpoint was removed or disabled")
        if self._keyring is None:
            raise CannotOpen("this server has no key for webhook secrets; set PERDURE_WEBHOOK_KEYS")
        secret = self._keyring.open(endpoint.sealed, owner=secret_owner(namespace, endpoint.id))
        value = sign(secret, delivery.body, now // limits.SECOND)
        return dict.fromkeys(HEADERS, value)
