"""Engines, runners and sockets that go away in the middle of a pass."""

from tests.support.http import Wire
from tests.support.runner import (
    DURATON,
    a_runner,
    dial,
    emit,
    op,
    ran,
    settled,
    show,
    start,
    steps,
    workflow,
)


def look(wire: Wire) -> None:
    """Watch over the passes under way, as the server does every second."""

    async def once() -> None:
        wire.server.invoker.look()

    wire.run(once())


def test_a_run_waits_for_a_runner_that_comes_later(wire: Wire) -> None:
    first = a_runner(wire, workflow("order"))
    first.vanish()
    run_id = start(wire, "order")
    assert settled(wire, run_id, "queued")["errorCount"] == 0

    runner = a_runner(wire, workflow("order"))
    runner.next().returned()

    settled(wire, run_id, "succeeded")


def test_a_pass_whose_socket_broke_goes_to_another_runner(wire: Wire) -> None:
    first = a_runner(wire, workflow("order"), runner="r1")
    run_id = start(wire, "order")
    lost = first.next()
    second = a_runner(wire, workflow("order"), runner="r2")

    first.vanish()
    settled(wire, run_id, "running", errorCount=1)
    wire.advance(seconds=0.3)
    again = second.next()

    assert again.run_id == run_id
    assert again.id != lost.id
    again.returned("done")
    run = settled(wire, run_id, "succeeded")
    assert (run["result"], run["executedBy"]) == ("done", "r2")


def test_an_answer_that_was_given_before_the_socket_broke_counts(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    runner.next().found(ran("charge", 1))
    settled(wire, run_id, "running", stepCount=1)

    runner.vanish()
    settled(wire, run_id, "running", errorCount=1)
    wire.advance(seconds=0.3)
    invoke = a_runner(wire, workflow("order")).next()

    assert invoke.memo("charge") == {"data": 1}


def test_an_engine_that_starts_again_goes_on_where_it_was(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    running = start(wire, "order", 1)
    runner.next().found(ran("charge", 1))
    runner.next()
    sleeping = start(wire, "order", 2)
    runner.next().found(op("Sleep", "nap", sleepMs=60_000))
    settled(wire, sleeping, "waiting")
    waiting = start(wire, "order", 3)
    runner.next().found(op("WaitForEvent", "paid", eventName="pay", timeoutMs=90_000))
    settled(wire, waiting, "waiting")

    runner.vanish()
    wire.restart()
    runner = a_runner(wire, workflow("order"))
    wire.advance(seconds=31)
    invoke = runner.next()

    assert invoke.run_id == running
    assert invoke.memo("charge") == {"data": 1}
    invoke.returned()
    settled(wire, running, "succeeded")
    wire.advance(seconds=30)
    invoke = runner.next()
    assert invoke.run_id == sleeping
    assert invoke.memo("nap") == {"data": None}
    assert emit(wire, "pay")["woke"] == 1
    assert runner.next().run_id == waiting


def test_a_pass_that_takes_long_keeps_its_lease(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    invoke = runner.next()

    for _ in range(8):
        wire.advance(seconds=15)
        look(wire)
        settled(wire, run_id, "running")
    invoke.returned("slowly")

    run = settled(wire, run_id, "succeeded")
    assert (run["result"], run["errorCount"]) == ("slowly", 0)


def test_a_runner_that_never_answers_is_given_up(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    late = runner.next()

    for _ in range(21):
        wire.advance(seconds=15)
        look(wire)
    settled(wire, run_id, "running", errorCount=1)
    wire.advance(seconds=1)
    again = runner.next()
    late.returned("too late")
    again.returned("in time")

    assert settled(wire, run_id, "succeeded")["result"] == "in time"


def test_a_late_answer_counts_while_nobody_has_begun_again(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    late = runner.next()
    for _ in range(21):
        wire.advance(seconds=15)
        look(wire)
    settled(wire, run_id, "running", errorCount=1)

    late.found(ran("charge", 1))

    invoke = runner.next()
    assert invoke.memo("charge") == {"data": 1}
    invoke.returned()
    assert settled(wire, run_id, "succeeded")["errorCount"] == 1


def test_a_pass_that_its_runner_works_on_is_never_given_up(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    other = a_runner(wire, workflow("other"))
    run_id = start(wire, "order")
    invoke = runner.next()
    for _ in range(5):
        for _ in range(19):
            wire.advance(seconds=15)
            look(wire)
        other.send({"type": "invoke.heartbeat", "payload": {"ids": [invoke.id]}})
        runner.send({"type": "invoke.heartbeat", "payload": {"ids": "nonsense"}})
        runner.send({"type": "invoke.heartbeat", "payload": {"ids": ["x", invoke.id]}})
        wire.until(lambda: heard_now(wire))
    invoke.returned("after half an hour")

    run = settled(wire, run_id, "succeeded")
    assert (run["result"], run["errorCount"]) == ("after half an hour", 0)


def heard_now(wire: Wire) -> bool:
    [call] = wire.server.invoker._calls.values()
    return call.heard_at == wire.clock.now()


def test_a_workflow_says_how_long_its_passes_may_take(wire: Wire) -> None:
    runner = a_runner(wire, workflow("long", passTimeoutMs=900_000), workflow("order"))
    run_id, short = start(wire, "long"), start(wire, "order")
    invokes = {invoke.run_id: invoke for invoke in (runner.next(), runner.next())}
    told = {one: invoke.context["passTimeoutMs"] for one, invoke in invokes.items()}
    assert told == {run_id: 900_000, short: 300_000}

    for _ in range(59):
        wire.advance(seconds=15)
        look(wire)
    assert show(wire, run_id)["errorCount"] == 0
    assert show(wire, short)["errorCount"] >= 1
    for _ in range(2):
        wire.advance(seconds=15)
        look(wire)
    assert settled(wire, run_id, "running", errorCount=1)


def test_a_step_may_ask_for_a_longer_pass(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    runner.next().found(op("ExtendPass", "train", timeoutMs=1_200_000), ran("first"))
    invoke = runner.next()
    assert invoke.context["passTimeoutMs"] == 1_200_000
    assert invoke.memo("train") is None
    for _ in range(79):
        wire.advance(seconds=15)
        look(wire)
    invoke.found(ran("train", "done"))

    last = runner.next()
    assert last.context["passTimeoutMs"] == 300_000, "it was for one pass"
    last.returned()
    run = settled(wire, run_id, "succeeded")
    assert (run["errorCount"], run["stepCount"]) == (0, 2)


def test_a_runner_that_only_asks_for_longer_passes_fails_its_run(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    runner.next().found(op("ExtendPass", "train", timeoutMs=400_000))
    runner.next().found(op("ExtendPass", "train", timeoutMs=800_000))
    runner.next().found(op("ExtendPass", "train", timeoutMs=900_000))

    assert "without using the last one" in settled(wire, run_id, "failed")["error"]["message"]


def test_an_extension_that_makes_no_sense_fails_the_run(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    for told in ({}, {"timeoutMs": 0}, {"timeoutMs": 604_800_001}):
        run_id = start(wire, "order")
        runner.next().found(op("ExtendPass", "train", **told))
        assert "ExtendPass" in settled(wire, run_id, "failed")["error"]["message"]


def test_a_runner_that_waits_for_what_is_pending_costs_no_try(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    runner.next().found(ran("a"), op("Sleep", "nap", sleepMs=3_600_000))
    silent = runner.next()
    assert silent.memo("nap") == {"pending": True}

    for _ in range(21):
        wire.advance(seconds=15)
        look(wire)

    assert settled(wire, run_id, "waiting")["errorCount"] == 0
    wire.advance(seconds=3_600)
    runner.next().returned()
    settled(wire, run_id, "succeeded")


def test_a_pinned_run_goes_to_its_runner_alone(wire: Wire) -> None:
    one = a_runner(wire, workflow("order"), runner="r1")
    two = a_runner(wire, workflow("order"), runner="r2")

    for _ in range(5):
        run_id = start(wire, "order", runner="r2")
        invoke = two.next()
        assert invoke.context["runner"] == "r2"
        invoke.returned()
        assert settled(wire, run_id, "succeeded")["runner"] == "r2"
    one.close()


def test_a_run_that_is_pinned_to_nobody_fails_at_once(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"), workflow("child"), runner="r1")

    failed = settled(wire, start(wire, "order", runner="r9"), "failed")

    assert "r9" in failed["error"]["message"]
    start(wire, "order")
    runner.next().found(op("RunWorkflow", "kid", childName="child", childRunner="r9"))
    error = runner.next().memo("kid")
    assert error is not None
    assert "r9" in error["error"]["message"]
    runner.vanish()
    a_runner(wire, workflow("order"), runner="r2")
    late = settled(wire, start(wire, "order", runner="r1"), "failed")
    assert "r1" in late["error"]["message"]


def test_work_is_spread_among_runners(wire: Wire) -> None:
    runners = [a_runner(wire, workflow("order"), runner=f"r{number}") for number in range(2)]
    for _ in range(40):
        start(wire, "order")

    in_flight = sorted(
        runner.in_flight for known in wire.server.runners._runners.values() for runner in known
    )
    assert sum(in_flight) == 40
    assert in_flight[0] > 0
    for runner in runners:
        runner.close()


def test_a_socket_may_register_anew_with_other_workflows(wire: Wire) -> None:
    runner = dial(wire, DURATON)
    runner.read()
    runner.register(workflow("order"))
    first = start(wire, "order")
    invoke = runner.next()

    payload = {"app": "shop", "workflows": [workflow("order"), workflow("mail")]}
    runner.send({"type": "runner.register", "payload": payload})
    second = start(wire, "order")
    runner.next().returned()
    invoke.returned()

    settled(wire, first, "succeeded")
    settled(wire, second, "succeeded")
    assert steps(wire, first) == []
