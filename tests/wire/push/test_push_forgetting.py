"""What is older than the operator wants to keep is forgotten, and nothing else."""

import pytest

from perdure.core.limits import SECOND
from perdure.engine.operation import Operation
from perdure.features.webhooks import expiry_rules
from perdure.features.webhooks.delivery_operations import ConcludeDelivery
from perdure.features.webhooks.rules import Attempt
from perdure.server.features import make_expiry
from perdure.server.settings import Settings
from tests.support.http import Wire
from tests.support.runner import a_runner, emit, op, rows, settled, show, start, workflow

DAY = 86_400


def forget(wire: Wire, **settings: int) -> int:
    made = Settings(**{name: days * DAY * SECOND for name, days in settings.items()})  # type: ignore[arg-type]
    expiry = make_expiry(made, wire.server.engine, wire.clock, expiry_rules(made))
    assert expiry is not None
    return wire.run(expiry.forget())


def test_nothing_is_forgotten_unless_somebody_says_so(wire: Wire) -> None:
    assert expiry_rules(Settings()) == []
    assert wire.server.expiry is None


def test_old_events_are_forgotten_and_what_they_began_stays(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.engine.record_expiry.FORGOTTEN_AT_ONCE_MAX", 2)
    monkeypatch.setattr("perdure.dispatch.record_expiry.FORGET_PAUSE", 0)
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order", 0)
    runner.next().returned()
    settled(wire, run_id, "succeeded")
    for number in range(1, 5):
        emit(wire, "old", number)
    wire.advance(seconds=2 * DAY)
    emit(wire, "young", 5)

    assert forget(wire, event_retention=3) == 0
    assert forget(wire, event_retention=1) == 5
    assert forget(wire, event_retention=1) == 0
    assert [row["data"] for row in rows(wire, "/events")] == [5]
    assert show(wire, run_id)["status"] == "succeeded"


def test_a_delivery_is_kept_until_it_has_come_to_an_end(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    start(wire, "order")
    posts = [op("Webhook", f"w{n}", webhookUrl="http://hook.test/", data=n) for n in range(2)]
    runner.next().found(*posts)
    runner.next().returned()
    assert "x-next-cursor" not in wire.call("GET", "/webhook-deliveries?limit=2").headers
    assert "x-next-cursor" in wire.call("GET", "/webhook-deliveries?limit=1").headers
    done, waiting = (row["id"] for row in rows(wire, "/webhook-deliveries"))
    wire.advance(seconds=1)
    ended = Attempt(attempt=1, outcome="succeeded", created_at=0, duration_ms=1)
    wire.run(submitted(wire, ConcludeDelivery("default", done, ended)))
    wire.clock.jump(seconds=2 * DAY)

    assert forget(wire, delivery_retention=1) == 1

    assert [row["id"] for row in rows(wire, "/webhook-deliveries")] == [waiting]


async def submitted(wire: Wire, operation: Operation) -> None:
    await wire.server.engine.submit(operation)
