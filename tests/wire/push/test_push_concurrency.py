"""How many passes of a workflow run at once."""

from tests.support.http import Wire
from tests.support.runner import a_runner, op, ran, settled, start, workflow


def test_no_more_passes_run_at_once_than_a_workflow_allows(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order", concurrency={"limit": 2}), workflow("mail"))
    runs = [start(wire, "order", number) for number in range(5)]

    first, second = runner.next(), runner.next()
    assert wire.server.invoker.count == 2
    start(wire, "mail")
    assert runner.next().context["workflow"] == "mail"
    first.found(op("Sleep", "nap", sleepMs=1_000))
    third = runner.next()
    assert third.run_id not in (first.run_id, second.run_id)
    settled(wire, first.run_id, "waiting")
    wire.advance(seconds=2)
    second.returned()
    for _ in range(3):
        invoke = runner.next()
        assert wire.server.invoker.count <= 3
        invoke.returned()
    third.returned()

    for run_id in runs:
        settled(wire, run_id, "succeeded")


def test_passes_are_counted_by_what_the_key_leads_to(wire: Wire) -> None:
    limited = workflow("order", concurrency={"limit": 1, "key": "user.id"})
    runner = a_runner(wire, limited)
    start(wire, "order", {"user": {"id": "a"}})
    blocked = start(wire, "order", {"user": {"id": "a"}})
    start(wire, "order", {"user": {"id": "b/\x1f"}})
    start(wire, "order", {"user": None})

    invokes = [runner.next() for _ in range(3)]

    assert blocked not in {invoke.run_id for invoke in invokes}
    assert wire.server.invoker.count == 3
    invokes[0].found(ran("x"))
    later = set()
    for _ in range(2):
        invoke = runner.next()
        later.add(invoke.run_id)
        invoke.returned()
    assert later == {invokes[0].run_id, blocked}


def test_a_slot_is_given_back_when_a_runner_vanishes(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order", concurrency={"limit": 1}))
    first, second = start(wire, "order"), start(wire, "order")
    runner.next()
    runner.vanish()
    settled(wire, first, "running", errorCount=1)

    runner = a_runner(wire, workflow("order", concurrency={"limit": 1}))
    invoke = runner.next()
    assert invoke.run_id == second
    invoke.returned()
    settled(wire, second, "succeeded")
    wire.advance(seconds=1)

    invoke = runner.next()
    assert invoke.run_id == first
    invoke.returned()
    settled(wire, first, "succeeded")
