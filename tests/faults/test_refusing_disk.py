"""A disk that refuses for a while: every change is refused with a reason, then all goes on."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure.store.sqlite.store import SqliteStore
from tests.engine.invariants import check_disk
from tests.store.refusing import RefusingCommitter, refusing_commits
from tests.support.http import (
    CONTROL_VERSION,
    Answer,
    Wire,
    a_wire,
    avro,
    complete_workflow,
    fail_workflow,
    local_call,
    schedule_activity,
    start_timer,
    wait_for_condition,
)
from tests.support.uploads import post

Json = dict[str, Any]

POLLS = {
    "POST /api/worker/workflow-tasks/poll",
    "POST /api/worker/activity-tasks/poll",
    "POST /api/worker/query-tasks/poll",
    "POST /api/worker/update-validation-tasks/poll",
}
QUESTIONS = {
    "POST /api/worker/workflow-tasks/{task_id}/history",
    "POST /api/worker/activity-tasks/{task_id}/status",
    "POST /api/workflows/{workflow_id}/query/{name}",
    "POST /api/workflows/{workflow_id}/runs/{run_id}/query/{name}",
    "POST /api/worker/query-tasks/{query_task_id}/complete",
    "POST /api/worker/query-tasks/{query_task_id}/fail",
}
"""Sent by POST, but they change nothing."""
TOLD_OTHERWISE = {
    "POST /api/external-payloads/v1": "external_payload_unavailable",
    "POST /api/worker/register": "backend_unavailable",
    "POST /api/worker/heartbeat": "backend_unavailable",
    "POST /api/worker/registrations/{worker_id}/deregister": "backend_unavailable",
    "POST /api/worker/workflow-tasks/{task_id}/heartbeat": "backend_unavailable",
}
"""What the disk refuses there is told in words that the SDKs look for."""


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    # Whatever is closed may be removed as soon as time passes, if somebody asks for that.
    with a_wire(tmp_path, history_retention=1) as wire:
        wire.register(capabilities=["query_tasks"])
        yield wire


def a_full_disk(wire: Wire) -> AbstractContextManager[RefusingCommitter]:
    return refusing_commits(store_of(wire), apsw.FullError("database or disk is full"))


def store_of(wire: Wire) -> SqliteStore:
    store = wire.server.store
    assert isinstance(store, SqliteStore)
    return store


def test_every_route_that_changes_something_is_refused_with_a_reason_and_works_afterwards(
    wire: Wire,
) -> None:
    calls = changing_calls(wire)
    routes = wire.server.app.router.routes
    changing = {
        f"{r.method} {r.path}" for r in routes if r.method != "GET" and r.path.startswith("/api/")
    }
    assert set(calls) == changing - POLLS - QUESTIONS, "a route is missing in this test"

    with a_full_disk(wire), wire.nothing_changes():
        for name, call in calls.items():
            answer = call()
            body = answer.refused(503, TOLD_OTHERWISE.get(name, "storage_full"))
            assert body["retryable"] is True, name
            assert int(answer.headers["retry-after"]) == body["retry_after_seconds"] >= 1, name

    for name, call in calls.items():
        assert call().status in (200, 201, 202), name
    wire.run(check_disk(store_of(wire)))


def changing_calls(wire: Wire) -> dict[str, Callable[[], Answer]]:
    """One call of every route that changes something, all of them possible one after another."""
    tasks, attempts = {}, {}
    wire.register("goes")
    for name in ("completed", "failed"):
        wire.run_to(schedule_activity(), workflow_id=f"activity-{name}")
        attempts[name] = wire.take("activity")
        wire.start(f"task-{name}")
        tasks[name] = wire.take()
    for name in ("order", "pinned"):
        for end in ("cancel", "terminate"):
            wire.start(f"{name}-{end}", task_queue="nobody")
    wire.register_validator("judge", task_queue="judged")
    judged = {}
    for name in ("approve", "reject"):
        started = wire.start(f"judged-{name}", task_queue="judged")
        wire.complete(wire.take(worker_id="judge", task_queue="judged"), wait_for_condition())
        wire.update_later("add", started["workflow_id"], input=[1])
        kinds = ["workflow", "update_validation"]
        judged[name] = wire.take(worker_id="judge", task_queue="judged", task_kinds=kinds)
    pinned = {end: wire.describe(f"pinned-{end}")["run_id"] for end in ("cancel", "terminate")}
    fenced = {"registration_token": wire.register("fenced")["registration_token"]}

    flow, run = "/api/workflows/{workflow_id}", "/api/workflows/{workflow_id}/runs/{run_id}"
    task, activity = "/api/worker/workflow-tasks/{task_id}", "/api/worker/activity-tasks/{task_id}"
    validation = "/api/worker/update-validation-tasks/{task_id}"

    def control(path: str, body: Json) -> Callable[[], Answer]:
        return lambda: wire.control("POST", path, body)

    def worker(path: str, body: Json | None, method: str = "POST") -> Callable[[], Answer]:
        return lambda: wire.worker(path, body, method=method)

    def report(name: str, verb: str, **members: Any) -> Callable[[], Answer]:
        return lambda: wire.report(tasks[name], verb, **members)

    def attempt(name: str, verb: str, **members: Any) -> Callable[[], Answer]:
        return lambda: wire.report_attempt(attempts[name], verb, **members)

    def verdict(name: str, **members: Any) -> Callable[[], Answer]:
        return lambda: wire.judge(judged[name], name, **members)

    def at(name: str, end: str) -> str:
        tail = f"/runs/{pinned[end]}" if name == "pinned" else ""
        return f"/workflows/{name}-{end}{tail}"

    wire.start("failed", task_queue="q")
    wire.complete(wire.take(), fail_workflow())
    broken = wire.describe("failed")["run_id"]
    wire.jump(seconds=0.001)
    for name in ("kept", "ended"):
        wire.worker("/sessions", {"worker_id": "w1", "session_id": name}).ok(201)
    session = "/api/worker/sessions/{session_id}"
    streams = at("order", "cancel") + "/message-streams/orders/messages"

    output, items = at("pinned", "cancel") + "/streams/out", {"items": [{"payload": avro(1)}]}
    wire.control("POST", f"{output}/items", items).ok()
    delivering, acknowledging = asked_to_cancel(wire)

    start = {"workflow_id": "new", "workflow_type": "Order", "task_queue": "nobody"}
    told = {"task_queue": "q", "runtime": "python"}
    registration = "/api/worker/registrations/{worker_id}"
    return {
        "POST /api/workflows": control("/workflows", start),
        f"POST {flow}/signal/{{name}}": control(at("order", "cancel") + "/signal/go", {}),
        f"POST {run}/signal/{{name}}": control(at("pinned", "cancel") + "/signal/go", {}),
        f"POST {flow}/update/{{name}}": control(at("order", "cancel") + "/update/add", {}),
        f"POST {run}/update/{{name}}": control(at("pinned", "cancel") + "/update/add", {}),
        f"POST {run}/streams/{{stream_name}}/items": control(f"{output}/items", items),
        f"POST {run}/streams/{{stream_name}}/close": control(f"{output}/close", {}),
        f"POST {flow}/message-streams/{{stream_name}}/messages": control(
            streams, {"message_id": "m"}
        ),
        f"POST {flow}/request-cancellation": control(
            at("order", "terminate") + "/request-cancellation", {}
        ),
        f"POST {run}/request-cancellation": control(
            at("pinned", "terminate") + "/request-cancellation", {}
        ),
        f"POST {task}/deliver-cancellation": delivering,
        **local_work(wire),
        f"POST {activity}/acknowledge-cancellation": acknowledging,
        f"POST {flow}/cancel": control(at("order", "cancel") + "/cancel", {}),
        f"POST {run}/cancel": control(at("pinned", "cancel") + "/cancel", {}),
        f"POST {flow}/terminate": control(at("order", "terminate") + "/terminate", {}),
        f"POST {run}/terminate": control(at("pinned", "terminate") + "/terminate", {}),
        "POST /api/external-payloads/v1": lambda: post(wire, b"blob"),
        "POST /api/activities": control("/activities", {"activity_type": "a", "task_queue": "no"}),
        f"POST {run}/redrive": control(f"/workflows/failed/runs/{broken}/redrive", {}),
        **services(wire),
        "POST /api/worker/sessions": worker("/sessions", {"worker_id": "w1", "session_id": "new"}),
        f"POST {session}/heartbeat": worker("/sessions/kept/heartbeat", {"worker_id": "w1"}),
        f"DELETE {session}": worker("/sessions/ended", {"worker_id": "w1"}, "DELETE"),
        "POST /api/worker/register": worker("/register", {"worker_id": "comes", **told}),
        "POST /api/worker/heartbeat": worker("/heartbeat", {"worker_id": "w1"}),
        f"DELETE {registration}": worker("/registrations/goes", None, "DELETE"),
        **fleet(wire),
        f"POST {registration}/deregister": worker("/registrations/fenced/deregister", fenced),
        f"POST {task}/heartbeat": report("completed", "heartbeat"),
        f"POST {task}/complete": report("completed", "complete", commands=[complete_workflow()]),
        f"POST {task}/fail": report("failed", "fail", failure={"message": "boom"}),
        f"POST {validation}/approve": verdict("approve"),
        f"POST {validation}/reject": verdict("reject", failure={"message": "no"}),
        f"POST {activity}/heartbeat": attempt("completed", "heartbeat"),
        f"POST {activity}/renew-lease": attempt("completed", "renew-lease"),
        f"POST {activity}/complete": attempt("completed", "complete", result=avro("paid")),
        f"POST {activity}/fail": attempt("failed", "fail", failure={"message": "boom"}),
        "POST /api/system/retention/pass": control("/system/retention/pass", {}),
    }


def fleet(wire: Wire) -> dict[str, Callable[[], Answer]]:
    """What operators do with workers and their builds."""
    wire.register("removed")
    wire.register("rolled", build_id="new", task_queue="rolled")
    builds = "/task-queues/{task_queue}/build-ids"

    def steer(verb: str, build_id: str) -> Answer:
        path = builds.format(task_queue="rolled")
        return wire.control("POST", f"{path}/{verb}", {"build_id": build_id})

    steer("drain", "older").ok()
    return {
        "DELETE /api/workers/{worker_id}": partial(wire.control, "DELETE", "/workers/removed"),
        f"POST /api{builds}/drain": partial(steer, "drain", "old"),
        f"POST /api{builds}/resume": partial(steer, "resume", "older"),
        f"POST /api{builds}/promote": partial(steer, "promote", "new"),
    }


def services(wire: Wire) -> dict[str, Callable[[], Answer]]:
    """Entries that come and go, a call that begins and one that is stopped."""
    binding = {
        "handler_binding_kind": "workflow_run",
        "handler_binding": {"workflow_type": "Order", "task_queue": "nobody"},
    }
    endpoint, service = "/service-endpoints/{endpoint}", "/services/{service}"
    operation = "/operations/{operation}"
    templates = (endpoint, endpoint + service, endpoint + service + operation)
    kept = ("/service-endpoints/kept", "/services/kept", "/operations/kept")

    def entry(level: int, name: str) -> str:
        return "".join(kept[:level]) + kept[level].replace("kept", name)

    def put(level: int, name: str) -> Answer:
        return wire.control("PUT", entry(level, name), binding if level == 2 else {})

    for level in range(3):
        for name in ("kept", "goes"):
            put(level, name).ok(201)
    charge = entry(2, "kept")
    begin = {"wait_for": "accepted"}
    begun = wire.control("POST", f"{charge}/execute", begin).ok()["service_call_id"]
    stop = f"{charge}/service-calls/{begun}/cancel"
    calls: dict[str, Callable[[], Answer]] = {
        f"POST /api{templates[2]}/execute": lambda: wire.control(
            "POST", f"{charge}/execute", begin
        ),
        f"POST /api{templates[2]}/service-calls/{{call_id}}/cancel": lambda: wire.control(
            "POST", stop, {}
        ),
    }
    for level, template in enumerate(templates):
        calls[f"PUT /api{template}"] = partial(put, level, "comes")
        calls[f"DELETE /api{template}"] = partial(wire.control, "DELETE", entry(level, "goes"))
    return calls


def local_work(wire: Wire) -> dict[str, Callable[[], Answer]]:
    """Local activities that a worker asks for, one run for each thing that it may say."""
    able = ["cooperative_cancellation", "prepared_local_activities"]
    wire.register("asks", task_queue="local", capabilities=able)

    def take() -> Json:
        return wire.take(worker_id="asks", task_queue="local")

    def say(task: Json, verb: str, **members: Any) -> Callable[[], Answer]:
        return lambda: wire.report(task, f"local-activities/{verb}", **members)

    def begin(workflow_id: str) -> tuple[Json, str]:
        wire.start(f"local-{workflow_id}", task_queue="local")
        task, asked = take(), {"sequence": 1, "descriptor": local_call()}
        begun = say(task, "prepare", worker_attempt_id="n", **asked)().ok()
        return task, begun["activity_attempt_id"]

    begin("lost")
    # Who registers anew has lost what it held.
    wire.register("asks", task_queue="local", capabilities=able)
    lost = take()
    stopped, told_to_stop = begin("stopped")
    asked = wire.control("POST", "/workflows/local-stopped/request-cancellation", {}).ok(202)
    say(stopped, f"{told_to_stop}/control")().ok()
    named = {"request_id": asked["cancellation_request"]["request_id"]}
    running, attempt_id = begin("running")
    fresh = {}
    for name in ("checkpoint", "list", "prepare"):
        wire.start(f"local-{name}", task_queue="local")
        fresh[name] = take()
    path = {
        "parallel_group_id": "parallel-activities:1:1",
        "parallel_group_kind": "activity",
        "parallel_group_base_sequence": 1,
        "parallel_group_size": 1,
        "parallel_group_index": 0,
    }
    member = local_call(type="prepare_local_activity", parallel_group_path=[path])
    base = {"checkpoint_id": "c", "start_sequence": 1}
    effect = {"type": "record_side_effect", "result": avro(1)}
    call = {"sequence": 1, "descriptor": local_call()}
    report = {"outcome": "completed", "result": avro(1), "payload_codec": "avro"}
    calls = {
        "checkpoint": say(fresh["checkpoint"], "checkpoint", commands=[effect], **base),
        "checkpoint-group": say(fresh["list"], "checkpoint-group", commands=[member], **base),
        "prepare": say(fresh["prepare"], "prepare", worker_attempt_id="n", **call),
        "recover": say(lost, "recover", **call),
        "{attempt_id}/control": say(running, f"{attempt_id}/control"),
        "{attempt_id}/heartbeat": say(running, f"{attempt_id}/heartbeat"),
        "{attempt_id}/outcome": say(running, f"{attempt_id}/outcome", report=report),
        "{attempt_id}/acknowledge-cancellation": say(
            stopped, f"{told_to_stop}/acknowledge-cancellation", **named
        ),
    }
    at = "POST /api/worker/workflow-tasks/{task_id}/local-activities"
    return {f"{at}/{verb}": play for verb, play in calls.items()}


def asked_to_cancel(wire: Wire) -> tuple[Callable[[], Answer], Callable[[], Answer]]:
    """A delivery to code that sleeps, and the acknowledgement of an activity it waits for."""
    able = {"task_queue": "asked", "capabilities": ["cooperative_cancellation"]}
    wire.register("able", **able)

    def take(kind: str) -> Json:
        return wire.take(kind, worker_id="able", task_queue="asked")

    def deliver(task: Json, call_kind: str) -> Answer:
        request_id = task["cancellation_request"]["request_id"]
        call = {"request_id": request_id, "sequence": 1, "call_kind": call_kind}
        return wire.report(task, "deliver-cancellation", **call)

    def ask(workflow_id: str) -> Json:
        wire.control("POST", f"/workflows/{workflow_id}/request-cancellation", {}).ok(202)
        return take("workflow")

    waited = schedule_activity(cancellation_policy="wait_cancellation_completed", queue="asked")
    wire.start("waits", task_queue="asked")
    wire.complete(take("workflow"), waited)
    attempt = take("activity")
    told = ask("waits")
    assert deliver(told, "activity").ok()["claim_released"] is True
    request_id = told["cancellation_request"]["request_id"]
    wire.start("sleeps", task_queue="asked")
    wire.complete(take("workflow"), start_timer(3_600))
    asleep = ask("sleeps")
    return (
        lambda: deliver(asleep, "timer"),
        lambda: wire.report_attempt(attempt, "acknowledge-cancellation", request_id=request_id),
    )


def test_readers_do_not_notice(wire: Wire) -> None:
    wire.run_to(start_timer(60))
    before = wire.events()

    with a_full_disk(wire):
        assert wire.events() == before
        assert wire.describe()["status"] == "waiting"
        assert wire.control("GET", "/workflows").ok()["workflow_count"] == 1
        wire.call("GET", "/api/health").ok()


def test_queries_do_not_notice(wire: Wire) -> None:
    wire.run_to(start_timer(60))

    with a_full_disk(wire) as disk, wire.nothing_changes():
        headers = {CONTROL_VERSION: "2"}
        asked = wire.call_later("POST", "/api/workflows/order-1/query/total", {}, headers=headers)
        wire.until(lambda: wire.server.query_broker.open_count == 1 or not asked.is_waiting)
        task = wire.take("query")
        lease = {"lease_owner": "w1", "query_task_attempt": task["query_task_attempt"]}
        wire.worker(f"/query-tasks/{task['query_task_id']}/complete", {**lease, "result": 3}).ok()
        assert asked.answer().ok()["result"] == 3
        assert disk.attempts == 0


def test_a_poll_leases_nothing_does_not_press_the_disk_and_is_served_afterwards(
    wire: Wire,
) -> None:
    wire.run_to(schedule_activity())
    wire.start("order-2")

    with a_full_disk(wire) as disk, wire.nothing_changes():
        for kind in ("workflow", "activity"):
            body = {"worker_id": "w1", "task_queue": "q", "timeout_seconds": 1}
            answer = wire.worker(f"/{kind}-tasks/poll", body)
            assert answer.status == 503 or answer.ok()["task"] is None
        assert 1 <= disk.attempts <= 20

    assert wire.take()["workflow_task_attempt"] == 1
    assert wire.take("activity")["attempt_number"] == 1


def test_a_parked_poll_outlives_a_start_that_is_refused(wire: Wire) -> None:
    poll = wire.park("/workflow-tasks/poll", {"worker_id": "w1", "task_queue": "q"})

    with a_full_disk(wire):
        refused = wire.control("POST", "/workflows", {"workflow_type": "Order", "task_queue": "q"})
        refused.refused(503, "storage_full")
        assert poll.is_waiting
    wire.start()

    task = poll.answer().ok()["task"]
    assert (task["workflow_id"], task["workflow_task_attempt"]) == ("order-1", 1)


def test_a_timer_that_is_due_meanwhile_fires_once_afterwards(wire: Wire) -> None:
    wire.run_to(start_timer(60))

    with a_full_disk(wire) as disk, wire.nothing_changes():
        for _ in range(5):
            wire.advance(seconds=60)
        assert 1 <= disk.attempts <= 50

    for _ in range(3):
        wire.advance(seconds=60)
    assert wire.event_types().count("TimerFired") == 1
    wire.complete(wire.take(), complete_workflow())


def test_a_stop_in_the_middle_loses_nothing_that_was_acknowledged(wire: Wire) -> None:
    wire.run_to(start_timer(60))
    with a_full_disk(wire):
        wire.control("POST", "/workflows/order-1/signal/go", {}).refused(503, "storage_full")
    wire.signal("go")

    wire.restart()

    assert wire.event_types().count("SignalReceived") == 1
