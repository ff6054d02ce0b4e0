"""Describing, listing and following runs."""

import base64
from collections.abc import Sequence
from typing import Any

import pytest

from perdure.core.limits import SECOND
from perdure.core.run.state import Run
from perdure.store.interface import Instance
from tests.support.http import (
    CONTROL_VERSION,
    Json,
    Parked,
    Wire,
    complete_workflow,
    continue_as_new,
    fail_workflow,
    schedule_activity,
    start_timer,
)


def ids(answer: Json) -> list[str]:
    return [run["workflow_id"] for run in answer["workflows"]]


def listed(wire: Wire, query: str = "") -> Json:
    return wire.control("GET", f"/workflows{query}").ok()


# Describing ---------------------------------------------------------------------------------------


def test_a_description_tells_everything_about_a_run(wire: Wire) -> None:
    wire.register()
    wire.run_to(complete_workflow({"total": 5}), memo={"a": 1}, business_key="B")

    told = wire.describe()

    expected = {
        "workflow_id": "order-1",
        "namespace": "default",
        "workflow_type": "Order",
        "business_key": "B",
        "status": "completed",
        "status_bucket": "completed",
        "is_terminal": True,
        "closed_reason": "completed",
        "task_queue": "q",
        "run_number": 1,
        "run_count": 1,
        "is_current_run": True,
        "payload_codec": "avro",
        "input": [],
        "output": {"total": 5},
        "memo": {"a": 1},
        "search_attributes": {},
        "wait_kind": None,
        "wait_reason": None,
        "next_cause": None,
        "started_at": "2026-01-01T00:00:00.000000Z",
        "closed_at": "2026-01-01T00:00:00.000000Z",
    }
    assert expected.items() <= told.items()
    assert told["control_plane"]["operation"] == "describe"
    assert told["control_plane"]["status"] == "completed"
    assert not any(told["actions"].values())


def test_a_chain_that_goes_on_while_it_is_described_is_not_over(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ids of the runs and the newest run are two reads; the chain may move between them."""
    wire.register()
    wire.start()
    store = wire.server.engine.store
    runs_of = store.read_instance
    before = wire.run(runs_of(Instance("default", "order-1")))
    wire.complete(wire.take(), continue_as_new())
    answers = [before]

    async def read_instance(instance: Instance) -> Sequence[Run]:
        return answers.pop() if answers else await runs_of(instance)

    monkeypatch.setattr(store, "read_instance", read_instance)
    told = wire.describe()

    assert not answers
    assert told["status"] == "pending"
    assert told["run_number"] == 2
    assert told["run_count"] == 2
    assert told["is_current_run"] is True


def test_a_value_that_json_cannot_show_is_given_as_its_envelope(wire: Wire) -> None:
    wire.register()
    wire.run_to(complete_workflow(b"\x00\xff"))

    told = wire.describe()

    assert told["output"] is None
    assert told["output_envelope"] == complete_workflow(b"\x00\xff")["result"]


def test_a_failed_run_says_why(wire: Wire) -> None:
    wire.register()
    wire.run_to(
        fail_workflow("no stock", exception_type="OutOfStock", exception_class="shop.OutOfStock")
    )

    told = wire.describe()

    assert (told["status"], told["error"]) == ("failed", "no stock")
    assert told["exception"] == {
        "type": "OutOfStock",
        "class": "shop.OutOfStock",
        "message": "no stock",
    }
    assert told["failure"]["failure_category"] == "application"
    assert told["output"] is None


def test_unknown_workflows_and_runs_are_404(shared_wire: Wire) -> None:
    shared_wire.start("known")
    for path, operation in (
        ("/workflows/nobody", "describe"),
        ("/workflows/nobody/runs", "list_runs"),
        ("/workflows/nobody/runs/x", "describe_run"),
        ("/workflows/nobody/runs/x/history", "history"),
    ):
        body = shared_wire.control("GET", path).refused(404, "instance_not_found")
        assert body["workflow_id"] == "nobody"
        assert body["control_plane"]["operation"] == operation
    for path in ("/workflows/known/runs/x", "/workflows/known/runs/x/history"):
        body = shared_wire.control("GET", path).refused(404, "run_not_found")
        assert (body["workflow_id"], body["run_id"]) == ("known", "x")


def test_the_runs_of_an_id_are_listed_oldest_first(wire: Wire) -> None:
    wire.register()
    first = wire.start()
    wire.complete(wire.take(), continue_as_new())
    second = wire.describe()

    answer = wire.control("GET", "/workflows/order-1/runs").ok()

    assert (answer["workflow_id"], answer["run_count"]) == ("order-1", 2)
    assert [run["run_id"] for run in answer["runs"]] == [first["run_id"], second["run_id"]]
    assert [run["run_number"] for run in answer["runs"]] == [1, 2]
    assert [run["is_current_run"] for run in answer["runs"]] == [False, True]
    assert (second["run_number"], second["run_count"]) == (2, 2)
    assert second["continued_from_run_id"] == first["run_id"]

    old = wire.control("GET", f"/workflows/order-1/runs/{first['run_id']}").ok()
    assert (old["is_current_run"], old["status"]) == (False, "completed")
    assert old["closed_reason"] == "continued"
    assert old["continued_to_run_id"] == second["run_id"]
    assert old["control_plane"]["operation"] == "describe_run"
    assert not any(old["actions"].values())


def test_a_run_of_another_id_is_not_found_under_this_one(wire: Wire) -> None:
    wire.start("a")
    other = wire.start("b")
    wire.control("GET", f"/workflows/a/runs/{other['run_id']}").refused(404, "run_not_found")


# Listing ------------------------------------------------------------------------------------------


def test_lists_show_the_newest_first(wire: Wire) -> None:
    for number in range(3):
        wire.start(f"order-{number}")
        wire.advance(seconds=1)

    answer = listed(wire)

    assert ids(answer) == ["order-2", "order-1", "order-0"]
    assert (answer["workflow_count"], answer["next_page_token"]) == (3, None)
    assert answer["control_plane"]["operation"] == "list"
    assert answer["control_plane"]["workflow_count"] == 3


def test_lists_are_filtered_by_type_status_and_text(wire: Wire) -> None:
    wire.register(supported_workflow_types=["Order"])
    wire.run_to(complete_workflow(), workflow_id="done-1")
    wire.run_to(fail_workflow(), workflow_id="bad-1")
    wire.run_to(start_timer(60), workflow_id="open-1")
    wire.start("stopped-1")
    wire.control("POST", "/workflows/stopped-1/cancel").ok()
    wire.start("child-1", workflow_type="Child")

    assert set(ids(listed(wire, "?workflow_type=Child"))) == {"child-1"}
    assert set(ids(listed(wire, "?workflow_type=Nothing"))) == set()
    assert set(ids(listed(wire, "?status=completed"))) == {"done-1"}
    assert set(ids(listed(wire, "?status=failed"))) == {"bad-1", "stopped-1"}
    assert set(ids(listed(wire, "?status=running"))) == {"open-1", "child-1"}
    assert set(ids(listed(wire, "?status=running&workflow_type=Order"))) == {"open-1"}
    assert set(ids(listed(wire, "?query=-1"))) == set(ids(listed(wire)))
    assert set(ids(listed(wire, "?query=bad"))) == {"bad-1"}


@pytest.mark.parametrize("page_size", [1, 2, 3, 7])
@pytest.mark.parametrize("spread", [0, 1], ids=["same instant", "one second apart"])
def test_pages_are_stable_while_new_runs_arrive(wire: Wire, page_size: int, spread: int) -> None:
    for number in range(7):
        wire.start(f"order-{number}")
        if spread:
            wire.advance(seconds=spread)
    expected = ids(listed(wire))
    assert len(expected) == 7

    seen: list[str] = []
    token = ""
    while True:
        page = listed(wire, f"?page_size={page_size}{token and '&next_page_token='}{token}")
        seen += ids(page)
        assert page["workflow_count"] <= page_size
        wire.advance(seconds=1)
        wire.start(f"late-{len(seen)}")
        if page["next_page_token"] is None:
            break
        token = page["next_page_token"]

    assert seen == expected


def test_a_page_without_a_size_has_fifty_runs(wire: Wire) -> None:
    for number in range(51):
        wire.start(f"order-{number}")

    answer = listed(wire)

    assert answer["workflow_count"] == 50
    rest = listed(wire, f"?next_page_token={answer['next_page_token']}")
    assert len({*ids(answer), *ids(rest)}) == 51


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("page_size=0", "page_size"),
        ("page_size=201", "page_size"),
        ("page_size=-1", "page_size"),
        ("page_size=many", "page_size"),
        ("page_size=99999999999999999999", "page_size"),
        ("query=CustomerId%3D%2242", "query"),
        ("status=cancelled", "status"),
        ("status=pending", "status"),
        ("next_page_token=nonsense", "next_page_token"),
        ("next_page_token=%FF", "next_page_token"),
        ("next_page_token=MA==", "next_page_token"),
        ("next_page_token=" + base64.b64encode(b"x:y").decode(), "next_page_token"),
        ("next_page_token=" + base64.b64encode(b"9" * 30 + b":y").decode(), "next_page_token"),
    ],
)
def test_a_list_refuses_what_it_cannot_follow(shared_wire: Wire, query: str, field: str) -> None:
    body = shared_wire.control("GET", f"/workflows?{query}").invalid(field)
    assert body["control_plane"]["operation"] == "list"


# History ------------------------------------------------------------------------------------------


def a_long_run(wire: Wire, events: int) -> str:
    """The path of a history with so many events."""
    wire.register()
    started = wire.start()
    markers = [
        {"type": "record_side_effect", "result": f"blob-{number}"} for number in range(events - 3)
    ]
    wire.complete(wire.take(), *markers, start_timer(60))
    return f"/workflows/order-1/runs/{started['run_id']}/history"


def test_without_a_page_size_the_history_is_whole(wire: Wire) -> None:
    path = a_long_run(wire, 1203)

    answer = wire.control("GET", path).ok()

    assert [event["sequence"] for event in answer["events"]] == list(range(1, 1204))
    assert answer["next_page_token"] is None
    assert answer["control_plane"]["operation"] == "history"
    for event in answer["events"]:
        assert set(event) == {
            "id",
            "sequence",
            "event_type",
            "recorded_at",
            "timestamp",
            "namespace",
            "payload",
        }
        assert event["recorded_at"] == event["timestamp"]
    assert len({event["id"] for event in answer["events"]}) == 1203


@pytest.mark.parametrize("page_size", [1, 2, 7, 24, 25, 26, 1000])
def test_pages_of_a_history_put_together_are_the_history(wire: Wire, page_size: int) -> None:
    path = a_long_run(wire, 25)
    whole = wire.control("GET", path).ok()["events"]

    pages: list[Json] = []
    tokens: set[str] = set()
    query = f"?page_size={page_size}"
    while True:
        page = wire.control("GET", path + query).ok()
        assert 1 <= len(page["events"]) <= page_size
        pages += page["events"]
        token = page["next_page_token"]
        if token is None:
            break
        assert token not in tokens
        tokens.add(token)
        query = f"?page_size={page_size}&next_page_token={token}"

    assert pages == whole


@pytest.mark.parametrize("token", ["x", "%FF", "eA==", "LTE=", "MS4w", "OTk5OTk5OTk5OTk5OTk5OQ=="])
def test_a_history_refuses_a_token_that_is_not_its_own(shared_wire: Wire, token: str) -> None:
    if shared_wire.control("GET", "/workflows/tokens").status == 404:
        shared_wire.start("tokens")
    run_id = shared_wire.describe("tokens")["run_id"]
    path = f"/workflows/tokens/runs/{run_id}/history?next_page_token={token}"
    body = shared_wire.control("GET", path).refused(400, "invalid_page_token")
    assert body["control_plane"]["operation"] == "history"


@pytest.mark.parametrize("page_size", ["0", "1001", "x", "-1"])
def test_a_page_of_history_has_bounds(shared_wire: Wire, page_size: str) -> None:
    started = shared_wire.control("POST", "/workflows", {"workflow_type": "Order"}).ok(201)
    path = f"/workflows/{started['workflow_id']}/runs/{started['run_id']}/history"
    shared_wire.control("GET", f"{path}?page_size={page_size}").invalid("page_size")


def test_whether_a_reader_waits_is_true_or_false(shared_wire: Wire) -> None:
    started = shared_wire.control("POST", "/workflows", {"workflow_type": "Order"}).ok(201)
    path = f"/workflows/{started['workflow_id']}/runs/{started['run_id']}/history?wait_new_event="
    shared_wire.control("GET", f"{path}maybe").invalid("wait_new_event")
    for told in ("", "0", "false", "False", "1", "TRUE"):
        assert len(shared_wire.control("GET", f"{path}{told}").ok()["events"]) == 2


def follow(wire: Wire, path: str) -> Parked:
    """A reader that waits for news at the server."""
    watchers = wire.server.watchers
    reader = wire.call_later("GET", f"/api{path}", headers={CONTROL_VERSION: "2"})
    wire.until(lambda: watchers._count > 0 or not reader.is_waiting)
    return reader


def test_a_reader_who_waits_for_new_events_is_woken_by_one(wire: Wire) -> None:
    wire.register()
    started = wire.run_to(schedule_activity())
    path = f"/workflows/order-1/runs/{started['run_id']}/history"
    # Nothing new: three events are known.
    reader = follow(wire, f"{path}?wait_new_event=true&next_page_token=Mw==")
    assert reader.is_waiting

    wire.signal("hello")

    answer = reader.answer().ok()
    assert [event["event_type"] for event in answer["events"]] == ["SignalReceived"]
    assert answer["next_page_token"] == base64.b64encode(b"4").decode()


def test_what_is_no_event_wakes_no_reader(wire: Wire) -> None:
    """Nor does it make them come again for nothing: leases, signs of life, signals that wait."""
    wire.register()
    started = wire.start()
    path = f"/workflows/order-1/runs/{started['run_id']}/history"
    reader = follow(wire, f"{path}?wait_new_event=true&next_page_token=Mg==")

    task = wire.take()
    wire.report(task, "heartbeat").ok()
    wire.signal("hello")
    assert reader.is_waiting
    wire.complete(task, schedule_activity())

    answer = reader.answer().ok()
    types = [event["event_type"] for event in answer["events"]]
    assert types == ["ActivityScheduled", "SignalReceived"]


def test_an_event_that_comes_while_a_reader_looks_is_not_missed(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would read of it when its time is up, half a minute too late."""
    wire.register()
    started = wire.run_to(schedule_activity())
    monkeypatch.setattr(find_control(wire), "_poll_timeout", 3_600 * SECOND)
    store, looks = wire.server.store, []
    read = store.read_history

    async def read_slowly(run_id: str, after: int, limit: int) -> list[bytes]:
        found = await read(run_id, after, limit)
        looks.append(len(found))
        if len(looks) == 1:
            sent = {CONTROL_VERSION: "2"}
            await wire.send("POST", "/api/workflows/order-1/signal/hello", {}, headers=sent)
        return found

    monkeypatch.setattr(store, "read_history", read_slowly)
    path = f"/workflows/order-1/runs/{started['run_id']}/history"
    answer = follow(wire, f"{path}?wait_new_event=1&next_page_token=Mw==").answer().ok()

    assert [event["event_type"] for event in answer["events"]] == ["SignalReceived"]
    assert looks == [0, 1]


def find_control(wire: Wire) -> Any:
    """What answers readers of histories."""
    routes = wire.server.app.router.routes
    route = next(r for r in routes if (r.method, r.path[-8:]) == ("GET", "/history"))
    return route.handler.__self__  # type: ignore[attr-defined]  # a bound method


def test_a_server_that_stops_lets_its_readers_go(wire: Wire) -> None:
    started = wire.start()
    path = f"/workflows/order-1/runs/{started['run_id']}/history"
    query = "?wait_new_event=1&next_page_token=Mg=="
    reader = follow(wire, path + query)
    assert reader.is_waiting

    wire.server.drain()

    assert reader.answer().ok()["events"] == []
    assert follow(wire, path + query).answer().ok()["events"] == []


def test_a_reader_with_news_to_read_does_not_wait(wire: Wire) -> None:
    started = wire.start()
    path = f"/workflows/order-1/runs/{started['run_id']}/history?wait_new_event=1"
    answer = follow(wire, path).answer().ok()
    assert len(answer["events"]) == 2


def test_nobody_waits_for_news_of_a_closed_run(wire: Wire) -> None:
    wire.register()
    started = wire.run_to(complete_workflow())
    path = f"/workflows/order-1/runs/{started['run_id']}/history"

    answer = follow(wire, f"{path}?wait_new_event=1&next_page_token=Mw==").answer().ok()

    assert answer["events"] == []
    assert answer["next_page_token"] is None


def test_a_reader_who_leaves_gives_up_its_place(wire: Wire) -> None:
    """Places are bounded; readers that come and go must not use them up."""
    started = wire.start()
    path = f"/api/workflows/order-1/runs/{started['run_id']}/history"
    stream = wire.stream()
    stream.send(
        f"GET {path}?wait_new_event=1&next_page_token=Mg== HTTP/1.1\r\nHost: localhost\r\n"
        f"{CONTROL_VERSION}: 2\r\n\r\n".encode()
    )
    wire.until(lambda: wire.server.watchers._count == 1)
    connected = len(wire.connections.open)

    stream.close()
    wire.until(lambda: len(wire.connections.open) < connected)
    wire.control("GET", "/workflows").ok()

    assert wire.server.watchers._count == 0


def test_the_end_of_a_run_is_in_its_history_as_soon_as_its_status_says_so(wire: Wire) -> None:
    wire.register()
    wire.run_to(complete_workflow(7))

    assert wire.describe()["status"] == "completed"
    ending = wire.events()[-1]
    assert ending["event_type"] == "WorkflowCompleted"
    assert ending["payload"] == {"output": complete_workflow(7)["result"], "payload_codec": "avro"}
