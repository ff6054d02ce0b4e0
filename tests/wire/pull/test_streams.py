"""Streams of output over the wire: appending, reading, waiting, ending, and every refusal."""

from typing import Any

import pytest

from perdure.core import limits
from tests.support.http import (
    CONTROL_VERSION,
    Answer,
    Json,
    Parked,
    Wire,
    avro,
    complete_workflow,
    start_timer,
    unavro,
)
from tests.support.uploads import fetch, outside


class Log:
    """The stream `log` of a run, and others of it."""

    def __init__(self, wire: Wire, run_id: str, workflow_id: str = "order-1") -> None:
        self.wire = wire
        self.base = f"/workflows/{workflow_id}/runs/{run_id}/streams"

    def append(self, *items: Json, name: str = "log", **members: Any) -> Answer:
        return self.wire.control("POST", f"{self.base}/{name}/items", {"items": items, **members})

    def put(self, *payloads: Any) -> Json:
        return self.append(*({"payload": avro(payload)} for payload in payloads)).ok()

    def read(self, query: str = "", name: str = "log") -> Answer:
        return self.wire.control("GET", f"{self.base}/{name}/items{query}")

    def tail(self, first: int, seconds: int = 30, name: str = "log") -> Parked:
        stream_readers = self.wire.server.stream_readers
        waiting = stream_readers.count
        path = f"/api{self.base}/{name}/items?from={first}&wait_seconds={seconds}"
        parked = self.wire.call_later("GET", path, headers={CONTROL_VERSION: "2"})
        self.wire.until(lambda: stream_readers.count > waiting or not parked.is_waiting)
        return parked

    def close(self, name: str = "log", **body: Any) -> Answer:
        return self.wire.control("POST", f"{self.base}/{name}/close", body)

    def describe(self, name: str = "log") -> Answer:
        return self.wire.control("GET", f"{self.base}/{name}")

    def list(self) -> Answer:
        return self.wire.control("GET", self.base)


@pytest.fixture
def log(wire: Wire) -> Log:
    return Log(wire, wire.start()["run_id"])


def values(page: Json) -> list[Any]:
    return [unavro(item["payload"]) for item in page["items"]]


# Appending and reading --------------------------------------------------------------------------


def test_items_are_appended_and_read(wire: Wire, log: Log) -> None:
    body = log.append(
        {
            "payload": avro("one"),
            "payload_codec": "avro",
            "idempotency_key": "k",
            "item_type": "note",
            "content_type": "text/plain",
        },
        {"payload_reference": "s3://bucket/two", "origin": "me", "origin_reference": "here"},
    ).ok()

    run = {"workflow_id": "order-1", "workflow_run_id": log.base.split("/")[4]}
    stream = {
        **run,
        "stream_name": "log",
        "status": "open",
        "first_offset": 0,
        "last_offset": 1,
        "total_items": 2,
        "pending_items": 2,
        "opened_at": "2026-01-01T00:00:00.000000Z",
        "last_appended_at": "2026-01-01T00:00:00.000000Z",
        "closed_at": None,
        "error_reason": None,
        "retention_seconds": None,
    }
    assert body.pop("control_plane")["operation"] == "append_stream"
    told = {"accepted_offsets": [0, 1], "accepted": 2, "deduped": 0}
    assert body == {**run, "stream": stream, **told}
    page = log.read().ok()
    assert page.pop("control_plane")["operation"] == "read_stream"
    at = "2026-01-01T00:00:00.000000Z"
    assert page == {
        **run,
        "stream": stream,
        "items": [
            {
                "offset": 0,
                "idempotency_key": "k",
                "origin": "control_plane",
                "origin_reference": None,
                "item_type": "note",
                "content_type": "text/plain",
                "payload": avro("one"),
                "payload_reference": None,
                "payload_codec": "avro",
                "emitted_at": at,
            },
            {
                "offset": 1,
                "idempotency_key": None,
                "origin": "me",
                "origin_reference": "here",
                "item_type": None,
                "content_type": None,
                "payload": None,
                "payload_reference": "s3://bucket/two",
                "payload_codec": None,
                "emitted_at": at,
            },
        ],
        "next_offset": 2,
        "terminal": False,
    }
    described = log.describe().ok()
    assert (described["stream"], described["workflow_run_id"]) == (stream, run["workflow_run_id"])
    listed = log.list().ok()
    del stream["workflow_id"], stream["workflow_run_id"]
    assert (listed["count"], listed["streams"]) == (1, [stream])


def test_pages_join_to_the_whole(wire: Wire, log: Log) -> None:
    for number in range(7):
        log.put(number)
    read: list[Any] = []
    at = 0
    while at < 7:
        page = log.read(f"?from={at}&max_items=3").ok()
        assert len(page["items"]) <= 3
        read += values(page)
        at = page["next_offset"]

    assert read == list(range(7))
    assert log.read("?from=7").ok()["items"] == []
    assert log.read("?from=99").ok()["next_offset"] == 99


def test_a_page_has_a_bound_of_bytes(wire: Wire, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        log.put([number, "x" * 1000])
    monkeypatch.setattr(limits, "STREAM_PAGE_BYTES_MAX", 100)
    first = log.read().ok()
    assert (len(first["items"]), first["next_offset"]) == (1, 1)
    monkeypatch.setattr(limits, "STREAM_PAGE_BYTES_MAX", 4_000)
    assert len(log.read().ok()["items"]) == 2


def test_a_key_is_one_item(wire: Wire, log: Log) -> None:
    one = {"payload": avro(1), "idempotency_key": "k"}
    log.append(one).ok()
    with wire.nothing_changes():
        again = log.append(one, {**one, "payload": avro(2)}).ok()
    assert (again["accepted_offsets"], again["accepted"], again["deduped"]) == ([0, 0], 0, 2)

    mixed = log.append(
        {"payload": avro(3)}, one, {"idempotency_key": "j"}, {"idempotency_key": "j"}
    )
    body = mixed.ok()
    assert (body["accepted_offsets"], body["deduped"]) == ([1, 0, 2, 2], 2)
    other = log.append(one, name="other").ok()
    assert other["accepted_offsets"] == [0]


def test_a_key_may_be_any_text(wire: Wire, log: Log) -> None:
    keys = ["a\0b", "\0", "\x1b0", "\U0001f600", "é", "a/b", " "]
    items = [{"payload": avro(key), "idempotency_key": key, "item_type": key} for key in keys]
    assert log.append(*items).ok()["accepted"] == len(keys)

    again = log.append(*reversed(items)).ok()
    assert (again["accepted_offsets"], again["accepted"]) == ([6, 5, 4, 3, 2, 1, 0], 0)
    page = log.read().ok()
    assert [item["idempotency_key"] for item in page["items"]] == keys
    assert [item["item_type"] for item in page["items"]] == keys


def test_streams_survive_a_restart(wire: Wire, log: Log) -> None:
    log.append({"payload": avro(1), "idempotency_key": "k"}).ok()
    wire.restart()

    body = log.append({"payload": avro(1), "idempotency_key": "k"}, {"payload": avro(2)}).ok()
    assert body["accepted_offsets"] == [0, 1]
    assert values(log.read().ok()) == [1, 2]


def test_a_closed_run_still_has_its_streams(wire: Wire, log: Log) -> None:
    wire.register()
    log.put(1)
    wire.complete(wire.take(), complete_workflow())

    assert log.put(2)["accepted_offsets"] == [1]
    assert values(log.read().ok()) == [1, 2]


def test_any_json_may_be_a_payload(wire: Wire, log: Log) -> None:
    log.append({"payload": {"plain": [1, "two"]}}, {"payload": None}, {}).ok()

    assert [item["payload"] for item in log.read().ok()["items"]] == [
        {"plain": [1, "two"]},
        None,
        None,
    ]


def test_an_uploaded_payload_is_kept_with_its_item(wire: Wire, log: Log) -> None:
    envelope = outside(wire, "n" * 500)
    log.append({"payload": envelope}).ok()
    wire.advance(seconds=30 * 86_400)

    (item,) = log.read().ok()["items"]
    assert item["payload"] == envelope
    assert fetch(wire, envelope["external_payload"]).status == 200


# Waiting ----------------------------------------------------------------------------------------


def test_a_tail_is_woken_by_the_next_item(wire: Wire, log: Log) -> None:
    log.put("one")
    tail = log.tail(1)
    assert tail.is_waiting
    log.put("two", "three")

    page = tail.answer().ok()
    assert (values(page), page["next_offset"]) == (["two", "three"], 3)
    assert wire.server.stream_readers.count == 0


def test_a_tail_does_not_wait_for_what_is_there(wire: Wire, log: Log) -> None:
    log.put("one")
    assert values(log.tail(0).answer().ok()) == ["one"]


def test_a_tail_may_be_there_before_its_stream(wire: Wire, log: Log) -> None:
    tail = log.tail(0)
    log.append({"payload": avro(0)}, name="other").ok()
    assert tail.is_waiting
    log.put("one")
    assert values(tail.answer().ok()) == ["one"]


def test_a_tail_of_a_stream_that_nobody_opens_finds_nothing(wire: Wire, log: Log) -> None:
    log.tail(0, seconds=1).answer().refused(404, "stream_not_found")


def test_a_tail_ends_when_its_time_is_up(wire: Wire, log: Log) -> None:
    log.put("one")
    page = log.tail(1, seconds=1).answer().ok()
    assert (page["items"], page["next_offset"], page["terminal"]) == ([], 1, False)


@pytest.mark.parametrize("body", [{}, {"error_reason": "broken"}])
def test_a_tail_is_told_the_end(wire: Wire, log: Log, body: Json) -> None:
    log.put("one")
    tail = log.tail(1)
    log.close(**body).ok()

    page = tail.answer().ok()
    assert (page["items"], page["terminal"]) == ([], True)
    assert log.read("?from=0&max_items=1").ok()["terminal"] is True
    assert not log.tail(1).answer().ok()["items"]


def test_the_end_is_told_only_to_those_who_have_read_everything(wire: Wire, log: Log) -> None:
    log.put("one", "two")
    log.close().ok()
    assert log.read("?max_items=1").ok()["terminal"] is False
    assert log.read("?from=1").ok()["terminal"] is True


def test_so_many_readers_may_wait(wire: Wire, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.put("one")
    monkeypatch.setattr("perdure.dispatch.stream_readers.STREAM_TAILS_MAX", 1)
    tail = log.tail(1)
    log.read("?from=1&wait_seconds=5").refused(429, "long_poll_capacity_exhausted")
    log.put("two")
    assert values(tail.answer().ok()) == ["two"]


def test_a_server_that_stops_answers_its_tails(wire: Wire, log: Log) -> None:
    log.put("one")
    tail = log.tail(1, seconds=60)
    wire.server.drain()
    assert tail.answer().ok()["items"] == []


def test_a_tail_that_missed_the_word_finds_out_by_looking(wire: Wire, log: Log) -> None:
    if wire.server.cluster is None:
        pytest.skip("a file has one process, and nobody else to hear from")
    log.put("one")
    tail = log.tail(1)
    wire.look_around()
    assert tail.is_waiting
    changed = wire.server.stream_readers.changed
    wire.server.stream_readers.changed = lambda topic: None  # type: ignore[method-assign]
    log.put("two")
    wire.server.stream_readers.changed = changed  # type: ignore[method-assign]
    assert tail.is_waiting
    wire.look_around()
    assert values(tail.answer().ok()) == ["two"]


# The end ----------------------------------------------------------------------------------------


def test_a_closed_stream_takes_nothing_more(wire: Wire, log: Log) -> None:
    known = {"payload": avro(1), "idempotency_key": "k"}
    log.append(known).ok()
    stream = log.close(retention_seconds=60).ok()["stream"]
    assert (stream["status"], stream["retention_seconds"]) == ("closed", 60)
    assert stream["closed_at"] == "2026-01-01T00:00:00.000000Z"

    with wire.nothing_changes():
        log.append({"payload": avro(2)}).refused(409, "stream_closed")
        log.append(known, {"payload": avro(2)}).refused(409, "stream_closed")
        assert log.append(known).ok()["accepted_offsets"] == [0]
        assert log.close(error_reason="late", retention_seconds=1).ok()["stream"] == stream


def test_an_errored_stream_says_why(wire: Wire, log: Log) -> None:
    log.put(1)
    stream = log.close(error_reason="the disk is full").ok()["stream"]
    assert (stream["status"], stream["error_reason"]) == ("errored", "the disk is full")
    assert stream["retention_seconds"] == 3600

    body = log.append({"payload": avro(2)}).refused(409, "stream_errored")
    assert body["error_reason"] == "the disk is full"


def test_items_go_after_their_retention(
    wire: Wire, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STREAM_TRIM_ITEMS_MAX", 2)
    log.put(*range(5))
    log.close(retention_seconds=60).ok()
    wire.advance(seconds=59)
    assert values(log.read().ok()) == list(range(5))

    wire.advance(seconds=2)
    for _ in range(1000):
        if not log.describe().ok()["stream"]["pending_items"]:
            break
    assert not wire.stored()["stream_item"]
    page = log.read().ok()
    assert (page["items"], page["next_offset"], page["terminal"]) == ([], 5, True)
    stream = page["stream"]
    assert (stream["first_offset"], stream["total_items"], stream["pending_items"]) == (5, 5, 0)
    log.append({"payload": avro("again")}).refused(409, "stream_closed")
    assert not [row for row in wire.stored()["deadline"] if row[0] == "record"]


def test_an_open_stream_keeps_its_items(wire: Wire, log: Log) -> None:
    log.put(1)
    wire.advance(seconds=10 * 86_400)
    assert values(log.read().ok()) == [1]


# Refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a b", "-a", ".a", "caf%C3%A9", "a%2Fb", "n" * 192, "a%0A"])
def test_a_stream_is_named_portably(wire: Wire, log: Log, name: str) -> None:
    with wire.nothing_changes():
        log.append({}, name=name).refused(400, "invalid_stream_name")
        log.read(name=name).refused(400, "invalid_stream_name")
        log.describe(name).refused(400, "invalid_stream_name")
        log.close(name).refused(400, "invalid_stream_name")


def test_nobody_has_no_streams(wire: Wire, log: Log) -> None:
    wire.start("order-2")
    mine = log.base.split("/")[4]
    with wire.nothing_changes():
        for workflow_id, run_id in (("nobody", mine), ("order-2", mine), ("order-1", "0" * 26)):
            other = Log(wire, run_id, workflow_id)
            for answer in (
                other.append({}),
                other.read(),
                other.describe(),
                other.close(),
                other.list(),
            ):
                answer.refused(404, "instance_not_found")
        headers = {"X-Namespace": "other"}
        answer = wire.control("GET", log.base, headers=headers)
        answer.refused(404, "namespace_not_found")


def test_a_stream_that_nobody_opened_is_not_found(wire: Wire, log: Log) -> None:
    with wire.nothing_changes():
        for answer in (log.read(), log.describe(), log.close()):
            body = answer.refused(404, "stream_not_found")
            assert body["stream_name"] == "log"
    assert log.list().ok()["streams"] == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "items"),
        ({"items": []}, "items"),
        ({"items": [{}] * 501}, "items"),
        ({"items": {}}, "items"),
        ({"items": [7]}, "items.0"),
        ({"items": [{}, {"idempotency_key": ""}]}, "items.1.idempotency_key"),
        ({"items": [{"idempotency_key": "k" * 192}]}, "items.0.idempotency_key"),
        ({"items": [{"payload_reference": "r" * 192}]}, "items.0.payload_reference"),
        ({"items": [{"payload_codec": "c" * 65}]}, "items.0.payload_codec"),
        ({"items": [{"origin": "o" * 65}]}, "items.0.origin"),
        ({"items": [{"origin_reference": "o" * 192}]}, "items.0.origin_reference"),
        ({"items": [{"item_type": "t" * 65}]}, "items.0.item_type"),
        ({"items": [{"content_type": "t" * 192}]}, "items.0.content_type"),
        ({"items": [{"payload": {"codec": "json", "blob": "x"}}]}, "items.0.payload.codec"),
        ({"items": [{"payload": 2**70}]}, "items.0.payload"),
        ({"items": [{}], "max_pending_items": 0}, "max_pending_items"),
    ],
)
def test_an_append_that_makes_no_sense_is_refused(
    wire: Wire, log: Log, body: Json, field: str
) -> None:
    with wire.nothing_changes():
        answer = wire.control("POST", f"{log.base}/log/items", body)
    assert list(answer.refused(400, "invalid_request")["errors"]) == [field]


def test_an_item_has_a_bound_of_bytes(
    wire: Wire, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STREAM_ITEM_BYTES_MAX", 100)
    with wire.nothing_changes():
        answer = log.append({"payload": avro("small")}, {"payload": "x" * 101})
    assert list(answer.refused(400, "invalid_request")["errors"]) == ["items.1.payload"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("?from=-1", "from"),
        ("?from=x", "from"),
        ("?from=1e3", "from"),
        ("?from=99999999999999999999", "from"),
        ("?max_items=0", "max_items"),
        ("?max_items=501", "max_items"),
        ("?wait_seconds=61", "wait_seconds"),
        ("?wait_seconds=-1", "wait_seconds"),
    ],
)
def test_a_page_that_makes_no_sense_is_refused(
    wire: Wire, log: Log, query: str, field: str
) -> None:
    log.put(1)
    assert list(log.read(query).refused(400, "invalid_request")["errors"]) == [field]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"error_reason": ""}, "error_reason"),
        ({"error_reason": "r" * 192}, "error_reason"),
        ({"retention_seconds": 0}, "retention_seconds"),
        ({"retention_seconds": 10**11}, "retention_seconds"),
        ({"retention_seconds": "long"}, "retention_seconds"),
    ],
)
def test_a_close_that_makes_no_sense_is_refused(
    wire: Wire, log: Log, body: Json, field: str
) -> None:
    log.put(1)
    with wire.nothing_changes():
        answer = log.close(**body)
    assert list(answer.refused(400, "invalid_request")["errors"]) == [field]


def test_a_full_stream_says_how_full(wire: Wire, log: Log) -> None:
    log.put(1, 2)
    with wire.nothing_changes():
        body = log.append({}, {}, max_pending_items=3).refused(429, "stream_full")
    assert (body["pending_items"], body["max_pending_items"]) == (2, 3)
    log.append({}, max_pending_items=3).ok()


def test_a_run_has_so_many_streams(wire: Wire, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STREAMS_PER_RUN_MAX", 2)
    log.append({}, name="one").ok()
    log.append({}, name="two").ok()
    with wire.nothing_changes():
        body = log.append({}, name="three").refused(409, "structural_limit_exceeded")
    assert (body["limit_kind"], body["configured_limit"]) == ("stream_count", 2)
    log.append({}, name="two").ok()
    Log(wire, wire.start("order-2")["run_id"], "order-2").append({}, name="three").ok()


# Written by the code ----------------------------------------------------------------------------


def effect(**directive: Any) -> Json:
    """A side effect that writes to a stream."""
    return {
        "type": "record_side_effect",
        "result": avro(None)["blob"],
        "workflow_stream": {"stream_name": "log", **directive},
    }


def appended(*keys: str, **members: Any) -> Json:
    items = [{"payload": avro(key), "idempotency_key": key} for key in keys]
    return effect(operation="append", command_identity="task-1", items=items, **members)


@pytest.fixture
def task(wire: Wire, log: Log) -> Json:
    wire.register()
    return wire.take()


def test_a_completion_writes_to_streams_with_its_events(wire: Wire, log: Log, task: Json) -> None:
    tail = log.tail(0)
    closing = effect(operation="close", retention_seconds=5)
    wire.complete(task, appended("a", "b"), appended("b", "c"), closing, start_timer(60))

    page = tail.answer().ok()
    assert (values(page), page["terminal"]) == (["a", "b", "c"], True)
    assert {item["origin"] for item in page["items"]} == {"workflow"}
    assert {item["origin_reference"] for item in page["items"]} == {"task-1"}
    effects = [e for e in wire.events() if e["event_type"] == "SideEffectRecorded"]
    told = [e["payload"]["workflow_stream"]["operation"] for e in effects]
    assert told == ["append", "append", "close"]


def test_a_repeated_completion_writes_once(wire: Wire, log: Log, task: Json) -> None:
    commands = [appended("a"), effect(operation="append", items=[{}]), start_timer(60)]
    wire.complete(task, *commands)
    with wire.nothing_changes():
        wire.complete(task, *commands)
    assert log.describe().ok()["stream"]["total_items"] == 2


def test_a_completion_that_a_stream_refuses_changes_nothing(
    wire: Wire, log: Log, task: Json
) -> None:
    log.append({}, name="over").ok()
    log.close("over").ok()
    late = {**appended("a"), "workflow_stream": {**appended("a")["workflow_stream"]}}
    late["workflow_stream"]["stream_name"] = "over"
    full = appended("x", "y", max_pending_items=1)
    with wire.nothing_changes():
        for commands, status, reason in (
            ([appended("a"), late, start_timer(1)], 409, "stream_closed"),
            ([appended("a"), full, start_timer(1)], 422, "stream_full"),
        ):
            wire.report(task, "complete", commands=commands).refused(status, reason)
        stale = {**task, "workflow_task_attempt": task["workflow_task_attempt"] + 1}
        answer = wire.report(stale, "complete", commands=[late, start_timer(1)])
        answer.refused(409, "workflow_task_attempt_mismatch")
    wire.complete(task, appended("a"), start_timer(1))


def test_code_may_end_a_stream_twice_and_one_that_it_never_opened(
    wire: Wire, log: Log, task: Json
) -> None:
    error = effect(operation="error", error_reason="bad")
    wire.complete(task, error, effect(operation="close"), start_timer(1))
    assert log.describe().ok()["stream"]["status"] == "errored"


@pytest.mark.parametrize(
    ("directive", "field"),
    [
        ({"operation": "drop"}, "operation"),
        ({"operation": "append"}, "items"),
        ({"operation": "append", "items": []}, "items"),
        ({"operation": "append", "items": [{}], "stream_name": "a b"}, "stream_name"),
        ({"operation": "close", "error_reason": "bad"}, "error_reason"),
        ({"operation": "error"}, "error_reason"),
        ({"operation": "close", "retention_seconds": 0}, "retention_seconds"),
        ({"operation": "append", "items": [{"payload": 2**70}]}, "items.0.payload"),
    ],
)
def test_a_directive_that_makes_no_sense_is_refused(
    wire: Wire, log: Log, task: Json, directive: Json, field: str
) -> None:
    with wire.nothing_changes():
        answer = wire.report(task, "complete", commands=[effect(**directive), start_timer(1)])
        answer.invalid(f"commands.0.workflow_stream.{field}")


def test_discovery_tells_of_streams(wire: Wire) -> None:
    info = wire.call("GET", "/api/cluster/info").ok()
    told = info["worker_protocol"]["server_capabilities"]["workflow_streams"]
    assert info["capabilities"]["workflow_streams"] is True
    assert (told["supported"], told["version"]) == (True, 1)
    assert told["schema"] == "durable-workflow.v2.workflow-streams.contract"
