"""Operations of incoming webhooks: store the event and the record of the webhook in one beat."""

import logging
from collections.abc import Sequence

from msgspec import structs

from perdure.core.limits import (
    REFUSED_WEBHOOK_KEPT,
    REFUSED_WEBHOOKS_KEPT_MAX,
    WEBHOOK_ATTEMPTS_KEPT,
)
from perdure.engine.events import Incoming, Ingested, IngestEvent
from perdure.engine.operation import Operation
from perdure.engine.world import World
from perdure.features.webhooks.operations import (
    RECEIVED,
    REFUSALS,
    Admittance,
    Admitted,
    Received,
    Refusals,
    Trigger,
)
from perdure.store.interface import RecordKey, Store

log = logging.getLogger(__name__)


class ReceiveWebhook(Operation):
    """Accepts a valid webhook, on arrival or as a replay. Returns its record and its event."""

    __slots__ = ("_ingest", "_namespace", "_received", "_trigger")
    name = "receive_webhook"
    reads_before_load = True
    reads_after_load = True

    def __init__(
        self, namespace: str, received: Received, incoming: Incoming, trigger: Trigger
    ) -> None:
        self._namespace = namespace
        self._received = received
        self._trigger = trigger
        self._ingest = IngestEvent(incoming)

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        return await self._ingest.prepare(store, world)

    def records(self) -> tuple[RecordKey, ...]:
        return (*self._ingest.records(), RECEIVED.key(self._namespace, self._received.id))

    def closer_records(self, world: World) -> tuple[RecordKey, ...]:
        return self._ingest.closer_records(world)

    def decide(self, world: World) -> tuple[Received, Ingested]:
        ingested = self._ingest.decide(world)
        started = (one.run_id for one in ingested.triggered if one.run_id is not None)
        received = _put_received(
            world,
            self._namespace,
            self._received,
            trigger=self._trigger,
            status="deduped" if ingested.event_id is None else "ingested",
            event_id=ingested.event_id,
            run_id=next(started, None),
        )
        return received, ingested


class RecordRefusedWebhook(Operation):
    """Stores a webhook that was refused.

    Every client that knows the URL of a source can cause such records, so only the latest ones of
    a source are stored, and not for long.
    """

    __slots__ = ("_namespace", "_reason", "_received", "_status")
    name = "note_refused"

    def __init__(
        self, namespace: str, received: Received, status: Admitted, reason: str | None
    ) -> None:
        self._namespace = namespace
        self._received = received
        self._status = status
        self._reason = reason

    def records(self) -> tuple[RecordKey, ...]:
        return (
            RECEIVED.key(self._namespace, self._received.id),
            REFUSALS.key(self._namespace, self._received.source_id),
        )

    def decide(self, world: World) -> Received:
        self._make_room(world)
        return _put_received(
            world,
            self._namespace,
            self._received,
            trigger="initial",
            status=self._status,
            failure_reason=self._reason,
            due_at=world.ctx.now + REFUSED_WEBHOOK_KEPT,
        )

    def _make_room(self, world: World) -> None:
        source_id = self._received.source_id
        known = REFUSALS.find(world, self._namespace, source_id) or Refusals()
        stored = (*known.stored, self._received.id)
        surplus = stored[:-REFUSED_WEBHOOKS_KEPT_MAX]
        refusals = Refusals(stored[-REFUSED_WEBHOOKS_KEPT_MAX:], known.count + 1)
        until = world.ctx.now + REFUSED_WEBHOOK_KEPT
        REFUSALS.put(world, self._namespace, source_id, refusals, due_at=until)
        if not surplus:
            return
        world.follow_ups.append(DropRefused(self._namespace, surplus))
        if refusals.count % REFUSED_WEBHOOKS_KEPT_MAX == 1:
            log.warning(
                "webhook source %s has refused %d webhooks; only the latest %d are stored",
                source_id,
                refusals.count,
                REFUSED_WEBHOOKS_KEPT_MAX,
            )


class DropRefused(Operation):
    """Removes refused webhooks beyond the bound of their source."""

    __slots__ = ("_ids", "_namespace")
    name = "drop_refused"

    def __init__(self, namespace: str, ids: Sequence[str]) -> None:
        self._namespace = namespace
        self._ids = ids

    def records(self) -> tuple[RecordKey, ...]:
        return tuple(RECEIVED.key(self._namespace, one) for one in self._ids)

    def decide(self, world: World) -> None:
        for key in self.records():
            if world.find_record(key) is not None:
                RECEIVED.remove(world, self._namespace, key.key)


def _put_received(
    world: World,
    namespace: str,
    received: Received,
    *,
    trigger: Trigger,
    status: Admitted,
    failure_reason: str | None = None,
    event_id: str | None = None,
    run_id: str | None = None,
    due_at: int | None = None,
) -> Received:
    now = world.ctx.now
    before = RECEIVED.find(world, namespace, received.id) or received
    admittance = Admittance(
        attempt=before.attempt_count + 1,
        trigger=trigger,
        status=status,
        created_at=now,
        failure_reason=failure_reason,
        event_id=event_id,
        run_id=run_id,
    )
    received_now = structs.replace(
        before,
        updated_at=now,
        attempt_count=before.attempt_count + 1,
        attempts=(*before.attempts, admittance)[-WEBHOOK_ATTEMPTS_KEPT:],
    )
    RECEIVED.put(world, namespace, received_now.id, received_now, due_at=due_at)
    return received_now
