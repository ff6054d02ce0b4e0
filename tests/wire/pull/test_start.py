"""Starting workflows."""

import asyncio
import json
import re
from typing import Any

import pytest

from perdure.core.payload import Frame, frame_of
from tests.support.http import Json, Wire, avro, complete_workflow, unavro

ULID = re.compile(r"[0-9a-hjkmnp-tv-z]{26}")


def start(wire: Wire, **members: Any) -> Any:
    return wire.control("POST", "/workflows", {"workflow_type": "Order", **members})


# Fields -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("workflow_type", None),
        ("workflow_type", ""),
        ("workflow_type", "x" * 256),
        ("workflow_type", 5),
        ("workflow_id", ""),
        ("workflow_id", "a b"),
        ("workflow_id", "a/b"),
        ("workflow_id", "été"),
        ("workflow_id", "abc\n"),
        ("workflow_id", "x" * 129),
        ("workflow_id", 5),
        ("task_queue", "x" * 256),
        ("task_queue", ["q"]),
        ("business_key", "x" * 256),
        ("memo", ["a"]),
        ("memo", "a"),
        ("search_attributes", ["a"]),
        ("duplicate_policy", "use_existing"),
        ("duplicate_policy", "replace"),
        ("duplicate_policy", 1),
        ("execution_timeout_seconds", 0),
        ("execution_timeout_seconds", -1),
        ("execution_timeout_seconds", 1.5),
        ("execution_timeout_seconds", "soon"),
        ("execution_timeout_seconds", 10**11),
        ("run_timeout_seconds", 0),
        ("run_timeout_seconds", True),
        ("start_delay_seconds", -1),
        ("start_delay_seconds", 10**11),
        ("priority", -1),
        ("priority", 10),
        ("priority", "high"),
        ("fairness_key", ""),
        ("fairness_key", "a b"),
        ("fairness_key", "x" * 65),
        ("fairness_weight", 0),
        ("fairness_weight", 1001),
        ("build_id", "x" * 256),
        ("compatibility", "x" * 256),
        ("input", "text"),
        ("input", 5),
        ("input", True),
    ],
)
def test_a_field_that_does_not_fit_is_refused_by_its_name(
    shared_wire: Wire, field: str, value: Any
) -> None:
    with shared_wire.nothing_changes():
        body = start(shared_wire, **{field: value}).invalid(field)
    assert body["control_plane"]["operation"] == "start"
    assert body["control_plane"]["validation_errors"] == body["errors"]


def test_the_workflow_type_is_required(shared_wire: Wire) -> None:
    with shared_wire.nothing_changes():
        shared_wire.control("POST", "/workflows", {}).invalid("workflow_type")
        shared_wire.control("POST", "/workflows").invalid("workflow_type")


@pytest.mark.parametrize(
    ("envelope", "field"),
    [
        ({"codec": "json", "blob": "x"}, "input.codec"),
        ({"codec": None, "blob": "x"}, "input.codec"),
        ({"codec": "avro", "blob": 5}, "input.blob"),
        ({"codec": "avro", "blob": None}, "input.blob"),
        ({"codec": "avro", "external_storage": "x"}, "input.external_storage"),
        ({"codec": "avro", "external_payload": []}, "input.external_payload"),
    ],
)
def test_an_envelope_must_make_sense(shared_wire: Wire, envelope: Json, field: str) -> None:
    with shared_wire.nothing_changes():
        start(shared_wire, input=envelope).invalid(field)


@pytest.mark.parametrize("value", [None, "x", 5])
@pytest.mark.parametrize(
    "field",
    [
        "workflow_execution_timeout",
        "workflow_run_timeout",
        "workflow_task_timeout",
        "retry_policy",
        "idempotency_key",
        "request_id",
    ],
)
def test_fields_that_do_nothing_are_refused_even_when_null(
    shared_wire: Wire, field: str, value: Any
) -> None:
    with shared_wire.nothing_changes():
        start(shared_wire, **{field: value}).invalid(field)


def test_optional_fields_may_be_null_and_numbers_may_be_written_as_text(shared_wire: Wire) -> None:
    optional = (
        "workflow_id task_queue input business_key memo search_attributes duplicate_policy "
        "execution_timeout_seconds run_timeout_seconds start_delay_seconds priority fairness_key "
        "fairness_weight build_id compatibility"
    )
    start(shared_wire, **dict.fromkeys(optional.split())).ok(201)

    body = start(shared_wire, priority="3", run_timeout_seconds="60", unknown="ignored").ok(201)
    told = shared_wire.describe(body["workflow_id"])
    assert told["run_timeout_seconds"] == 60


def test_no_run_may_take_longer_than_its_chain(shared_wire: Wire) -> None:
    """The SDKs send both time-outs with defaults of their own; the shorter one rules."""
    limits = {"execution_timeout_seconds": 10, "run_timeout_seconds": 99}
    told = shared_wire.describe(start(shared_wire, **limits).ok(201)["workflow_id"])
    assert told["run_timeout_seconds"] == 10
    assert told["run_deadline_at"] == told["execution_deadline_at"]


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"memo": {"a": "x" * 262_144}}, "memo"),
        ({"memo": {"a": json.loads("[" * 200 + "]" * 200)}}, "memo"),
        ({"search_attributes": {f"a{n}": n for n in range(101)}}, "search_attributes"),
        ({"search_attributes": {"": 1}}, "search_attributes"),
        ({"search_attributes": {"x" * 129: 1}}, "search_attributes"),
        ({"search_attributes": {"a": "x" * 2_049}}, "search_attributes.a"),
        ({"search_attributes": {"a": {"b": 1}}}, "search_attributes.a"),
        ({"search_attributes": {"a": ["x", ["y"]]}}, "search_attributes.a"),
        ({"search_attributes": {"a": ["x", 1]}}, "search_attributes.a"),
        ({"search_attributes": {"a": ["x", None]}}, "search_attributes.a"),
        ({"search_attributes": {"a b": 1}}, "search_attributes"),
        ({"search_attributes": {"1a": 1}}, "search_attributes"),
        ({"search_attributes": {"é": 1}}, "search_attributes"),
        ({"search_attributes": {"a\n": 1}}, "search_attributes"),
        (
            {"search_attributes": {f"a{n}": "x" * 2_000 for n in range(21)}},
            "search_attributes",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_memo_and_search_attributes_have_bounds(
    shared_wire: Wire, members: Json, field: str
) -> None:
    with shared_wire.nothing_changes():
        start(shared_wire, **members).invalid(field)


def test_memo_and_search_attributes_up_to_their_bounds_are_kept(shared_wire: Wire) -> None:
    memo = {"note": "x" * 262_000, "nested": [{"a": None}]}
    attributes = {**{f"a{n}": n for n in range(99)}, "texts": ["x", "y"]}

    body = start(shared_wire, memo=memo, search_attributes=attributes).ok(201)

    told = shared_wire.describe(body["workflow_id"])
    assert (told["memo"], told["search_attributes"]) == (memo, attributes)


# Outcomes -----------------------------------------------------------------------------------------


def test_a_new_workflow_is_201_and_its_history_begins(wire: Wire) -> None:
    answer = wire.control(
        "POST",
        "/workflows",
        {
            "workflow_id": "a.B_c:d-1",
            "workflow_type": "Order",
            "task_queue": "q",
            "input": avro([1, "two"]),
            "business_key": "B-7",
            "memo": {"note": "n"},
            "search_attributes": {"city": "Bern"},
            "execution_timeout_seconds": 3600,
            "run_timeout_seconds": 600,
        },
    )

    body = answer.ok(201)
    assert ULID.fullmatch(body["run_id"])
    expected = {
        "workflow_id": "a.B_c:d-1",
        "workflow_type": "Order",
        "namespace": "default",
        "task_queue": "q",
        "status": "pending",
        "business_key": "B-7",
        "payload_codec": "avro",
        "outcome": "started_new",
        "command_status": "accepted",
        "command_source": "control_plane",
    }
    assert expected.items() <= body.items()
    block = body["control_plane"]
    assert block["schema"] == "durable-workflow.v2.control-plane-response"
    assert (block["operation"], block["workflow_id"]) == ("start", "a.B_c:d-1")
    assert (block["outcome"], block["run_id"]) == ("started_new", body["run_id"])

    accepted, started = wire.events("a.B_c:d-1")
    assert accepted["event_type"] == "StartAccepted"
    assert started["event_type"] == "WorkflowStarted"
    payload = started["payload"]
    assert unavro(payload["input"]) == [1, "two"]
    assert payload["timestamp"] == started["recorded_at"] == "2026-01-01T00:00:00.000000Z"
    assert payload["run_deadline_at"] == "2026-01-01T00:10:00.000000Z"
    assert payload["execution_deadline_at"] == "2026-01-01T01:00:00.000000Z"
    assert (payload["memo"], payload["search_attributes"]) == ({"note": "n"}, {"city": "Bern"})


def test_without_an_id_or_a_queue_the_server_gives_them(shared_wire: Wire) -> None:
    body = start(shared_wire).ok(201)
    assert ULID.fullmatch(body["workflow_id"])
    assert body["task_queue"] == "default"


def test_a_second_start_is_refused_and_names_the_run_that_exists(wire: Wire) -> None:
    first = wire.start("order-1")

    with wire.nothing_changes():
        for members in ({}, {"duplicate_policy": "fail"}, {"workflow_type": "Other"}):
            body = start(wire, workflow_id="order-1", **members).refused(
                409, "duplicate_not_allowed"
            )
            assert body["run_id"] == first["run_id"]
            assert body["outcome"] == "rejected_duplicate"
            assert body["rejection_reason"] == "instance_already_started"
            assert body["control_plane"]["operation"] == "start"


def test_use_existing_returns_the_open_run(wire: Wire) -> None:
    first = wire.start("order-1", business_key="B-7")

    with wire.nothing_changes():
        body = start(
            wire, workflow_id="order-1", task_queue="other", duplicate_policy="use-existing"
        ).ok()

    assert body["outcome"] == "returned_existing_active"
    assert (body["run_id"], body["business_key"]) == (first["run_id"], "B-7")
    assert (body["status"], body["task_queue"]) == ("pending", first["task_queue"])


def test_use_existing_does_not_pass_off_one_workflow_as_another(wire: Wire) -> None:
    wire.start("order-1")
    with wire.nothing_changes():
        body = start(
            wire, workflow_id="order-1", workflow_type="Refund", duplicate_policy="use-existing"
        ).invalid("workflow_type")
    assert "Order" in body["message"]


def test_an_id_is_never_started_twice_not_even_when_its_run_is_closed(wire: Wire) -> None:
    wire.register()
    wire.run_to(complete_workflow())

    with wire.nothing_changes():
        for policy in ("fail", "use-existing"):
            start(wire, workflow_id="order-1", duplicate_policy=policy).refused(
                409, "duplicate_not_allowed"
            )


def test_use_existing_opens_a_run_when_there_is_none(wire: Wire) -> None:
    body = start(wire, workflow_id="fresh", duplicate_policy="use-existing").ok(201)
    assert body["outcome"] == "started_new"


def test_of_many_starts_at_once_exactly_one_wins(wire: Wire) -> None:
    body = {"workflow_id": "race", "workflow_type": "Order"}
    headers = {"X-Durable-Workflow-Control-Plane-Version": "2"}

    async def all_at_once() -> list[int]:
        sent = [wire.send("POST", "/api/workflows", body, headers=headers) for _ in range(20)]
        return [answer.status for answer in await asyncio.gather(*sent)]

    statuses = wire.run(all_at_once())

    assert sorted(statuses) == [201] + [409] * 19
    assert wire.control("GET", "/workflows/race/runs").ok()["run_count"] == 1


# Input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sdk", ["2.12.0", "0.4.106"])
@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ({"input": [1, {"a": None}, "x"]}, [1, {"a": None}, "x"]),
        ({"input": {"first": 1, "second": [2]}}, [1, [2]]),
        ({"input": {"codec": "avro", "blob": "x", "more": 1}}, ["avro", "x", 1]),
        ({"input": []}, []),
        ({"input": {}}, []),
        ({"input": None}, []),
        ({}, []),
    ],
    ids=["list", "object", "no envelope", "empty", "empty object", "null", "absent"],
)
def test_plain_input_reaches_the_worker_in_the_frame_that_it_reads(
    wire: Wire, given: Json, arguments: list[Any], sdk: str
) -> None:
    start(wire, workflow_id="order-1", task_queue="q", **given).ok(201)
    wire.register(sdk_version=f"durable-workflow-python/{sdk}")

    task = wire.take()

    assert unavro(task["arguments"]) == arguments
    frame = Frame.WRAPPER if sdk.startswith("0.4") else Frame.VALUE
    assert frame_of(task["arguments"]["blob"]) is frame
    started = next(e for e in task["history_events"] if e["event_type"] == "WorkflowStarted")
    assert started["payload"]["input"] == task["arguments"]
    assert wire.describe()["input"] == arguments


@pytest.mark.parametrize("frame", list(Frame))
def test_an_envelope_reaches_the_worker_byte_for_byte(wire: Wire, frame: Frame) -> None:
    envelope = avro([1, 2.5, True], frame)
    wire.start(input=envelope)
    wire.register()

    assert wire.take()["arguments"] == envelope
    assert wire.describe()["input"] == [1, 2.5, True]


@pytest.mark.parametrize(
    "envelope",
    [
        {"codec": "avro", "blob": "bm90IGF2cm8="},
        {"codec": "avro", "blob": "?"},
        {"codec": "avro", "blob": ""},
        {"codec": "avro", "external_storage": {"uri": "s3://x"}},
    ],
)
def test_an_envelope_that_cannot_be_opened_is_carried_as_it_is(wire: Wire, envelope: Json) -> None:
    wire.start(input=envelope)
    wire.register()

    assert wire.take()["arguments"] == envelope
    told = wire.describe()
    assert told["input"] is None
    assert told["input_envelope"] == envelope


# Time ---------------------------------------------------------------------------------------------


def test_a_delayed_start_gives_its_first_task_when_its_time_has_come(wire: Wire) -> None:
    wire.register()
    wire.start(start_delay_seconds=60)

    assert wire.poll()["poll_status"] == "empty"
    wire.advance(seconds=59)
    assert wire.poll()["poll_status"] == "empty"
    assert wire.describe()["next_cause"]["kind"] == "delayed_start"
    wire.advance(seconds=1)

    task = wire.take()
    assert (task["workflow_id"], task["workflow_task_attempt"]) == ("order-1", 1)


def test_time_outs_of_a_delayed_start_count_from_its_first_task(wire: Wire) -> None:
    wire.register()
    wire.start(start_delay_seconds=60, run_timeout_seconds=10, execution_timeout_seconds=20)
    wire.advance(seconds=60)

    wire.take()
    wire.advance(seconds=9)
    assert wire.describe()["status"] == "pending"
    wire.advance(seconds=1)

    assert wire.describe()["closed_reason"] == "timed_out"


def test_a_delayed_start_survives_a_restart(wire: Wire) -> None:
    wire.register()
    wire.start(start_delay_seconds=60)
    wire.restart()

    wire.advance(seconds=60)

    assert wire.take()["workflow_id"] == "order-1"


@pytest.mark.parametrize(
    ("timeouts", "kind"),
    [
        ({"run_timeout_seconds": 10}, "run_timeout"),
        ({"execution_timeout_seconds": 10}, "execution_timeout"),
        ({"execution_timeout_seconds": 10, "run_timeout_seconds": 99}, "execution_timeout"),
    ],
)
def test_a_run_that_passes_its_deadline_has_failed(wire: Wire, timeouts: Json, kind: str) -> None:
    wire.start(**timeouts)

    wire.advance(seconds=9)
    assert wire.describe()["status"] == "pending"
    wire.advance(seconds=1)

    told = wire.describe()
    assert (told["status"], told["status_bucket"], told["is_terminal"]) == ("failed",) * 2 + (True,)
    assert told["closed_reason"] == "timed_out"
    ending = wire.events()[-1]
    assert ending["event_type"] == "WorkflowTimedOut"
    assert ending["payload"]["timeout_kind"] == kind


def test_a_start_needs_no_worker_that_was_ever_seen(wire: Wire) -> None:
    body = wire.start(task_queue="nobody-knows")
    assert body["outcome"] == "started_new"
    assert wire.describe()["status"] == "pending"
