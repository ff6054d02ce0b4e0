"""Queues with limits: no more is leased than may be, and what waits goes on by itself."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from perdure.core.fleet.quota import MINUTE, Allowance, Allowances
from perdure.core.limits import SECOND
from perdure.dispatch import polls as polling
from tests.support.http import (
    PATIENCE_SECONDS,
    Json,
    Parked,
    Wire,
    a_wire,
    avro,
    schedule_activity,
)
from tests.support.tables import empty

MakeWire = Callable[..., Wire]

TWO_AT_ONCE = Allowance(leases_per_queue=2)
TWO_A_MINUTE = Allowance(dispatches_per_queue=2)


@pytest.fixture
def limited(wire_store: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeWire]:
    """Makes a server whose queues have limits."""
    with ExitStack() as stack:

        def make(overrides: Any = None, **everywhere: Allowance) -> Wire:
            settings: dict[str, Any] = {"allowances": Allowances(everywhere, overrides)}
            if wire_store == "postgres":
                settings["store"] = request.getfixturevalue("common_database")
                empty(settings["store"])
            return stack.enter_context(a_wire(tmp_path, **settings))

        yield make


def make_activities(wire: Wire, count: int, *, queue: str = "q", prefix: str = "order") -> None:
    """Runs with one ready activity each."""
    wire.register("maker", supported_activity_types=[])
    for number in range(count):
        wire.start(f"{prefix}-{number}")
        wire.complete(wire.take(worker_id="maker"), schedule_activity(queue=queue))


def finish(wire: Wire, task: Json) -> None:
    wire.report_attempt(task, "complete", result=avro(1)).ok()


def park(wire: Wire, worker_id: str = "w1", *, kind: str = "activity", queue: str = "q") -> Parked:
    body = {"worker_id": worker_id, "task_queue": queue, "timeout_seconds": 30}
    return wire.park(f"/{kind}-tasks/poll", body)


def given(parked: Parked) -> Json:
    answer = parked.answer().ok()
    assert answer["poll_status"] == "leased", answer
    task = answer["task"]
    assert isinstance(task, dict)
    return task


# At once ------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_mercy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll with no time is answered because somebody has looked, or never."""
    monkeypatch.setattr(polling, "_HASTY_SECONDS_MAX", 2.0 * PATIENCE_SECONDS)


def test_no_more_activities_are_leased_at_once_than_may_be(limited: MakeWire) -> None:
    wire = limited(activity=TWO_AT_ONCE)
    make_activities(wire, 4)
    wire.register()

    first, second = wire.take("activity"), wire.take("activity")
    with wire.nothing_changes():
        refused = wire.poll("activity")
    assert (refused["task"], refused["poll_status"]) == (None, "throttled")

    waiting = park(wire)
    finish(wire, first)
    third = given(waiting)
    assert third["workflow_id"] not in (first["workflow_id"], second["workflow_id"])
    assert wire.poll("activity")["poll_status"] == "throttled"
    finish(wire, second)
    finish(wire, third)
    finish(wire, wire.take("activity"))
    assert wire.poll("activity")["poll_status"] == "empty", "nothing waits any more"


def test_parked_polls_get_no_more_than_may_be(limited: MakeWire) -> None:
    wire = limited(activity=TWO_AT_ONCE)
    wire.register()
    polls = [park(wire) for _ in range(4)]
    make_activities(wire, 4)
    wire.until(lambda: sum(not poll.is_waiting for poll in polls) == 2)
    wire.until(lambda: bool(wire.server.parked_polls.shut))
    assert sum(not poll.is_waiting for poll in polls) == 2

    for poll in [poll for poll in polls if not poll.is_waiting]:
        finish(wire, given(poll))
    wire.until(lambda: not any(poll.is_waiting for poll in polls))


def test_a_poll_that_waited_in_vain_hears_that_the_queue_is_throttled(limited: MakeWire) -> None:
    wire = limited(activity=Allowance(leases_per_queue=1))
    make_activities(wire, 2)
    wire.register()
    wire.take("activity")

    body = {"worker_id": "w1", "task_queue": "q", "timeout_seconds": 1}
    answer = wire.worker("/activity-tasks/poll", body).ok()
    assert (answer["task"], answer["poll_status"]) == (None, "throttled")


def test_workflow_tasks_have_a_limit_of_their_own(limited: MakeWire) -> None:
    wire = limited(workflow=Allowance(leases_per_queue=1))
    wire.register()
    wire.start("order-1")
    wire.start("order-2")

    task = wire.take()
    assert wire.poll()["poll_status"] == "throttled"
    waiting = park(wire, kind="workflow")
    wire.complete(task, schedule_activity(), schedule_activity())
    second = given(waiting)
    assert second["workflow_id"] != task["workflow_id"]
    wire.take("activity")
    wire.take("activity")


@pytest.mark.parametrize("way", ["fail", "expire", "terminate", "cancel"])
def test_a_lease_that_ends_in_any_way_makes_room(limited: MakeWire, way: str) -> None:
    wire = limited(activity=Allowance(leases_per_queue=1))
    make_activities(wire, 2)
    wire.register()
    task = wire.take("activity")
    waiting = park(wire)
    assert waiting.is_waiting

    match way:
        case "fail":
            wire.report_attempt(task, "fail", failure={"message": "no"}).ok()
        case "expire":
            wire.advance(seconds=301)
        case _:
            wire.control("POST", f"/workflows/{task['workflow_id']}/{way}", {}).ok()
    assert given(waiting)["task_id"]


def test_a_lease_that_nobody_received_makes_room(limited: MakeWire) -> None:
    wire = limited(activity=Allowance(leases_per_queue=1))
    wire.register()
    stream = wire.stream()
    body = b'{"worker_id":"w1","task_queue":"q","timeout_seconds":30}'
    stream.send(
        b"POST /api/worker/activity-tasks/poll HTTP/1.1\r\nHost: localhost\r\n"
        b"X-Durable-Workflow-Protocol-Version: 1.20\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body) + body
    )
    wire.until(lambda: wire.server.parked_polls.count == 1)
    stream.close()
    make_activities(wire, 2)
    finish(wire, wire.take("activity"))
    finish(wire, wire.take("activity"))


def test_a_namespace_has_a_limit_for_all_of_its_queues(limited: MakeWire) -> None:
    wire = limited(activity=Allowance(leases_per_namespace=2))
    make_activities(wire, 2)
    make_activities(wire, 2, queue="slow", prefix="slow")
    wire.register()
    wire.register("w2", task_queue="slow")

    first = wire.take("activity")
    wire.take("activity", "w2", task_queue="slow")
    assert wire.poll("activity")["poll_status"] == "throttled"
    assert wire.poll("activity", "w2", task_queue="slow")["poll_status"] == "throttled"

    waiting = park(wire, "w2", queue="slow")
    finish(wire, first)
    assert given(waiting)["task_queue"] == "slow"


def test_queues_without_a_limit_know_nothing_of_it(limited: MakeWire) -> None:
    wire = limited({"slow": {"activity": Allowance(leases_per_queue=1)}})
    make_activities(wire, 3)
    make_activities(wire, 2, queue="slow", prefix="slow")
    wire.register()
    wire.register("w2", task_queue="slow")

    for _ in range(3):
        wire.take("activity")
    wire.take("activity", "w2", task_queue="slow")
    assert wire.poll("activity", "w2", task_queue="slow")["poll_status"] == "throttled"
    assert wire.poll("activity")["poll_status"] == "empty"
    assert {row[2] for row in wire.stored()["record"]} == {"activity/queue/slow"}


def in_session(session_id: str = "s") -> Json:
    return schedule_activity(worker_session={"session_id": session_id})


def test_activities_of_sessions_are_counted_too(limited: MakeWire) -> None:
    wire = limited(activity=Allowance(leases_per_queue=1))
    wire.register()
    wire.run_to(in_session("a"), in_session("b"), in_session("c"))

    first = wire.take("activity")
    assert wire.poll("activity")["task"] is None
    waiting = park(wire)
    finish(wire, first)
    second = given(waiting)
    assert wire.poll("activity")["task"] is None
    wire.start("order-2")
    wire.complete(wire.take(), schedule_activity())
    assert wire.poll("activity")["poll_status"] == "throttled", "others wait for it, too"
    finish(wire, second)
    finish(wire, wire.take("activity"))
    finish(wire, wire.take("activity"))


def test_a_limit_outlives_the_server(limited: MakeWire) -> None:
    wire = limited(activity=TWO_AT_ONCE)
    make_activities(wire, 3)
    wire.register()
    first = wire.take("activity")
    wire.take("activity")
    wire.restart()

    assert wire.poll("activity")["poll_status"] == "throttled"
    waiting = park(wire)
    finish(wire, first)
    assert given(waiting)["task_id"]


# In a minute --------------------------------------------------------------------------------------


def test_no_more_are_leased_in_a_minute_than_may_be(limited: MakeWire) -> None:
    wire = limited(activity=TWO_A_MINUTE)
    make_activities(wire, 5)
    wire.register()
    for _ in range(2):
        finish(wire, wire.take("activity"))
    assert wire.poll("activity")["poll_status"] == "throttled"

    waiting = park(wire)
    assert waiting.is_waiting
    wire.advance(seconds=60)
    finish(wire, given(waiting))
    finish(wire, wire.take("activity"))
    assert wire.poll("activity")["poll_status"] == "throttled"
    wire.advance(seconds=60)
    finish(wire, wire.take("activity"))
    wire.advance(seconds=120)
    assert wire.stored()["record"] == [], "what counts no more is not kept"


def test_queues_of_a_group_share_what_they_may_have_in_a_minute(limited: MakeWire) -> None:
    bank = Allowance(group="bank", dispatches_per_group=2)
    wire = limited({"q": {"activity": bank}, "slow": {"activity": bank}})
    make_activities(wire, 2)
    make_activities(wire, 2, queue="slow", prefix="slow")
    wire.register()
    wire.register("w2", task_queue="slow")

    wire.take("activity")
    wire.take("activity", "w2", task_queue="slow")
    assert wire.poll("activity")["poll_status"] == "throttled"
    waiting, other = park(wire), park(wire, "w2", queue="slow")
    wire.advance(seconds=60)
    given(waiting)
    given(other)


def near_the_end_of_a_minute(wire: Wire, *, seconds: int) -> None:
    """Nobody looks around by chance in the time that is left."""
    wire.advance(seconds=(MINUTE - wire.clock.now() % MINUTE) / SECOND - seconds)


def test_sessions_wait_for_the_next_minute_too(limited: MakeWire) -> None:
    wire = limited(activity=Allowance(dispatches_per_queue=1))
    near_the_end_of_a_minute(wire, seconds=3)
    wire.register()
    wire.run_to(in_session("a"), in_session("b"))
    wire.take("activity")
    assert wire.poll("activity")["task"] is None

    waiting = park(wire)
    wire.advance(seconds=2)
    assert waiting.is_waiting
    wire.advance(seconds=1)
    given(waiting)


def test_a_new_minute_does_not_end_leases(limited: MakeWire) -> None:
    wire = limited(activity=Allowance(leases_per_queue=1, dispatches_per_queue=9))
    make_activities(wire, 2)
    wire.register()
    first = wire.take("activity")
    for _ in range(2):
        wire.advance(seconds=60)
        assert wire.poll("activity")["poll_status"] == "throttled"
    waiting = park(wire)
    finish(wire, first)
    given(waiting)


# What operators see -------------------------------------------------------------------------------


def test_a_run_whose_queue_is_at_its_limit_says_so(limited: MakeWire) -> None:
    wire = limited(activity=Allowance(leases_per_queue=1))
    make_activities(wire, 2)
    wire.register()
    first = wire.take("activity")
    waiting = park(wire)
    wire.until(lambda: bool(wire.server.parked_polls.shut))

    (other,) = {"order-0", "order-1"} - {first["workflow_id"]}
    told = wire.describe(other)
    assert told["wait_reason"].endswith("quotas allow no more leases from its queue for now")
    assert told["next_cause"]["staffing"] == "throttled"
    finish(wire, first)
    assert given(waiting)["workflow_id"] == other
    assert "staffing" not in wire.describe(other)["next_cause"]


def test_a_queue_shows_its_limits_and_what_is_used(limited: MakeWire) -> None:
    bank = Allowance(
        leases_per_queue=2,
        leases_per_namespace=50,
        dispatches_per_queue=10,
        dispatches_per_namespace=100,
        group="bank",
        dispatches_per_group=5,
    )
    wire = limited({"q": {"activity": bank}})
    make_activities(wire, 3)
    wire.register()

    def admission(kind: str = "activity") -> Json:
        queue = wire.control("GET", "/task-queues/q").ok()
        (listed,) = wire.control("GET", "/task-queues").ok()["task_queues"]
        assert listed["admission"] == queue["admission"]
        told = queue["admission"][f"{kind}_tasks"]
        assert isinstance(told, dict)
        return {name: told[name] for name in told if "server" in name or name == "status"}

    unlimited = {"status": "accepting"}
    assert admission("workflow") == unlimited
    for used, status in ((0, "accepting"), (1, "accepting"), (2, "throttled")):
        assert admission() == {
            "status": status,
            "server_max_active_leases_per_queue": 2,
            "server_active_lease_count": used,
            "server_remaining_active_lease_capacity": 2 - used,
            "server_max_active_leases_per_namespace": 50,
            "server_max_dispatches_per_minute": 10,
            "server_dispatch_count_this_minute": used,
            "server_remaining_dispatch_capacity": 10 - used,
            "server_max_dispatches_per_minute_per_namespace": 100,
            "server_namespace_dispatch_count_this_minute": used,
            "server_remaining_namespace_dispatch_capacity": 100 - used,
            "server_dispatch_budget_group": "bank",
            "server_max_dispatches_per_minute_per_budget_group": 5,
            "server_budget_group_dispatch_count_this_minute": used,
            "server_remaining_budget_group_dispatch_capacity": 5 - used,
        }
        if used < 2:
            wire.take("activity")
    assert admission("workflow") == unlimited
