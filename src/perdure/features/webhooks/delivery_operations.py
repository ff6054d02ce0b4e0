"""Operations of outgoing webhooks: open a delivery, begin a try, conclude it.

A delivery is a record that is due at its next try. It is opened in the beat that decides what it
reports, so neither is ever stored without the other.
"""

from perdure.core.limits import SECOND
from perdure.engine.operation import Operation
from perdure.engine.records import RecordKind
from perdure.engine.world import World
from perdure.features.webhooks.rules import (
    Attempt,
    Delivery,
    begin,
    conclude,
    redeliver,
)
from perdure.store.interface import RecordKey

DELIVERY = RecordKind("delivery", Delivery)


def open_delivery(world: World, namespace: str, delivery: Delivery) -> None:
    """Add a delivery, which is sent once the current beat has committed."""
    # Its id is new, so no such record can exist.
    world.records.setdefault(DELIVERY.key(namespace, delivery.id), None)
    _put(world, namespace, delivery)


class BeginDelivery(Operation):
    """Counts one more try of a delivery that is due. `begun` is sent once the count is on disk."""

    __slots__ = ("_has_room", "_record", "begun")
    name = "begin_delivery"

    def __init__(self, record: RecordKey, *, has_room: bool) -> None:
        self._record = record
        self._has_room = has_room
        self.begun: Delivery | None = None

    def records(self) -> tuple[RecordKey, ...]:
        return (self._record,)

    def decide(self, world: World) -> bool:
        self.begun = None
        _, namespace, key = self._record
        delivery = DELIVERY.find(world, namespace, key)
        now = world.ctx.now
        if delivery is None or delivery.due_at is None or now < delivery.due_at:
            return True
        if not self._has_room:
            DELIVERY.put(world, namespace, key, delivery, due_at=now + SECOND)
            return True
        begun = begin(delivery, now)
        assert begun is not None
        _put(world, namespace, begun)
        self.begun = begun if begun.status == "delivering" else None
        return True


class ConcludeDelivery(Operation):
    """Stores the result of a try."""

    __slots__ = ("_attempt", "_key", "_namespace")
    name = "conclude_delivery"

    def __init__(self, namespace: str, key: str, attempt: Attempt) -> None:
        self._namespace = namespace
        self._key = key
        self._attempt = attempt

    def records(self) -> tuple[RecordKey, ...]:
        return (DELIVERY.key(self._namespace, self._key),)

    def decide(self, world: World) -> Delivery | None:
        delivery = DELIVERY.find(world, self._namespace, self._key)
        if delivery is not None:
            delivery = conclude(delivery, self._attempt, world.ctx.now)
            _put(world, self._namespace, delivery)
        return delivery


class Redeliver(Operation):
    """Restarts a delivery on request. Returns none if there is no such delivery."""

    __slots__ = ("_key", "_namespace")
    name = "redeliver"

    def __init__(self, namespace: str, key: str) -> None:
        self._namespace = namespace
        self._key = key

    def records(self) -> tuple[RecordKey, ...]:
        return (DELIVERY.key(self._namespace, self._key),)

    def decide(self, world: World) -> Delivery | None:
        delivery = DELIVERY.find(world, self._namespace, self._key)
        if delivery is not None:
            delivery = redeliver(delivery, world.ctx.now)
            _put(world, self._namespace, delivery)
        return delivery


def _put(world: World, namespace: str, delivery: Delivery) -> None:
    DELIVERY.put(world, namespace, delivery.id, delivery, due_at=delivery.due_at)
