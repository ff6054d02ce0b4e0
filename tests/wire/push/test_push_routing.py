"""Which workflows an app has, and what becomes of runs whose one runner is gone."""

from tests.support.http import Wire
from tests.support.runner import a_runner, emit, op, ran, rows, settled, show, start, workflow


def names(wire: Wire) -> list[str]:
    return [row["name"] for row in rows(wire, "/workflows")]


# Workflows that nobody knows any more -------------------------------------------------------------


def test_a_workflow_that_a_newer_manifest_of_its_runner_lacks_is_dropped(wire: Wire) -> None:
    crons = [{"cron": "*/5 * * * *"}]
    old = a_runner(
        wire, workflow("order"), workflow("mail"), workflow("tick", triggers=crons), runner="r1"
    )
    run_id = start(wire, "mail")
    old.next().returned()
    settled(wire, run_id, "succeeded")
    old.vanish()
    wire.advance(seconds=1)
    assert names(wire) == ["mail", "order", "tick"], "while nobody is live, everything stays"

    a_runner(wire, workflow("order"), runner="r1")

    assert names(wire) == ["order"]
    assert emit(wire, "mail")["triggered"] == []
    wire.call("POST", "/workflows/shop/mail/trigger").refused(404, "workflow_not_found")
    assert show(wire, run_id)["status"] == "succeeded"
    before = len(rows(wire, "/runs"))
    wire.advance(seconds=600)
    assert len(rows(wire, "/runs")) == before, "its schedule has gone with it"
    told = wire.call("POST", "/runs/bulk-replay", {"status": "succeeded"}).ok()
    assert told == {"matched": 1, "replayed": 0, "skipped": 1, "failed": 0, "capped": False}


def test_what_another_runner_knows_stays(wire: Wire) -> None:
    a_runner(wire, workflow("order"), workflow("mail"), runner="r1")
    a_runner(wire, workflow("order"), runner="r2")
    assert names(wire) == ["mail", "order"]
    a_runner(wire, workflow("wrap"), app="depot")
    assert names(wire) == ["mail", "order", "wrap"]


def test_what_only_a_lost_runner_knew_is_dropped_when_it_stays_away(wire: Wire) -> None:
    lost = a_runner(wire, workflow("order"), workflow("mail"), runner="r1")
    a_runner(wire, workflow("order"), runner="r2")
    lost.vanish()
    wire.advance(seconds=60)
    assert names(wire) == ["mail", "order"], "most runners that are lost come back"

    a_runner(wire, workflow("order"), runner="r3")
    assert names(wire) == ["mail", "order"]
    wire.advance(seconds=31)

    assert names(wire) == ["order"]


def test_a_workflow_that_comes_back_is_matched_again(wire: Wire) -> None:
    first = a_runner(wire, workflow("order"), workflow("mail"), runner="r1")
    first.vanish()
    a_runner(wire, workflow("order"), runner="r1")
    assert names(wire) == ["order"]

    third = a_runner(wire, workflow("mail"), runner="r3")

    assert names(wire) == ["mail", "order"]
    run_id = start(wire, "mail")
    third.next().returned()
    settled(wire, run_id, "succeeded")


# Pinned runs --------------------------------------------------------------------------------------


def test_a_pinned_run_waits_a_while_for_a_runner_that_it_had(wire: Wire) -> None:
    lost = a_runner(wire, workflow("order"), runner="r1")
    other = a_runner(wire, workflow("order"), runner="r2")
    run_id = start(wire, "order", runner="r1")
    lost.next().found(ran("a", 1))
    lost.next()
    lost.vanish()

    wire.advance(seconds=25)
    assert show(wire, run_id)["status"] == "running"
    wire.advance(seconds=40)

    failed = settled(wire, run_id, "failed")
    assert "r1" in failed["error"]["message"]
    assert other.has_nothing()


def test_a_pinned_run_goes_on_when_its_runner_is_back_in_time(wire: Wire) -> None:
    lost = a_runner(wire, workflow("order"), runner="r1")
    run_id = start(wire, "order", runner="r1")
    lost.next().found(ran("a", 1))
    lost.next()
    lost.vanish()
    wire.advance(seconds=25)

    back = a_runner(wire, workflow("order"), runner="r1")
    invoke = back.next()
    assert invoke.memo("a") == {"data": 1}
    invoke.found(op("Sleep", "nap", sleepMs=40_000))
    settled(wire, run_id, "waiting")
    wire.advance(seconds=40)
    back.next().returned()

    settled(wire, run_id, "succeeded")


def test_a_pinned_run_is_not_given_up_while_its_runner_lives(wire: Wire) -> None:
    """Looked at while its runner has more than enough to do."""
    runner = a_runner(wire, workflow("order"), runner="r1")
    parked_polls = wire.server.runners
    [known] = parked_polls._runners.values()
    known[0].in_flight += 1_000
    run_id = start(wire, "order", runner="r1")

    wire.advance(seconds=45)

    assert show(wire, run_id)["status"] == "queued"
    known[0].in_flight -= 1_000

    async def look() -> None:
        parked_polls.look_for(known[0].key)

    wire.run(look())
    runner.next().returned()
    settled(wire, run_id, "succeeded")
