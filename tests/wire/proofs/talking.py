"""Queries, updates, payloads and what workers tell of themselves."""

import base64

from tests.support.http import (
    CONTROL_VERSION,
    Json,
    Parked,
    Wire,
    avro,
    complete_update,
    complete_workflow,
    fail_update,
    unavro,
    wait_for_condition,
)
from tests.wire.proofs import proves


def ask(wire: Wire) -> tuple[Parked, Json]:
    """A query that is under way, and the task of the worker who has it."""
    wire.register(capabilities=["query_tasks"])
    wire.run_to(wait_for_condition())
    headers = {CONTROL_VERSION: "2"}
    asked = wire.call_later("POST", "/api/workflows/order-1/query/total", {}, headers=headers)
    return asked, wire.take("query")


def lease_of(task: Json) -> Json:
    return {name: task[name] for name in ("lease_owner", "query_task_attempt")}


@proves("cluster.queries", "server.query_tasks")
def a_query_is_answered_by_a_worker(wire: Wire) -> None:
    asked, task = ask(wire)
    body = {**lease_of(task), "result": 42, "result_envelope": avro(42)}
    wire.worker(f"/query-tasks/{task['query_task_id']}/complete", body).ok()
    answer = asked.answer().ok()
    assert (answer["result"], unavro(answer["result_envelope"])) == (42, 42)


@proves("server.query_task_authority")
def a_worker_is_told_whether_its_query_still_matters(wire: Wire) -> None:
    asked, task = ask(wire)
    lease = "&".join(f"{name}={value}" for name, value in lease_of(task).items())
    path = f"/query-tasks/{task['query_task_id']}/status?{lease}"
    assert wire.worker(path, method="GET").ok()["can_continue"] is True
    wire.worker(f"/query-tasks/{task['query_task_id']}/complete", lease_of(task)).ok()
    assert wire.worker(path, method="GET").ok()["can_continue"] is False
    asked.answer().ok()


@proves("cluster.updates", "command.complete_update")
def an_update_is_answered_by_the_code(wire: Wire) -> None:
    wire.register()
    wire.run_to(wait_for_condition())
    waiting = wire.update_later(wait_for="completed", input=avro([1]))
    task = wire.take()
    wire.complete(task, complete_update(task, "added"))
    assert waiting.answer().ok()["result"] == "added"


@proves("command.fail_update")
def an_update_is_refused_by_the_code(wire: Wire) -> None:
    wire.register()
    wire.run_to(wait_for_condition())
    waiting = wire.update_later(wait_for="completed")
    task = wire.take()
    wire.complete(task, fail_update(task, "too late"))
    body = waiting.answer().body
    assert (body["update_status"], body["failure_message"]) == ("failed", "too late")


@proves("server.update_validation_tasks", "server.synchronous_update_validation")
def an_update_is_accepted_when_its_validator_has_approved(wire: Wire) -> None:
    wire.register_validator()
    wire.run_to(wait_for_condition())
    refused = wire.update_later("add", input=avro([2]))
    failure = {"message": "too many", "reason": "update_validator_rejected"}
    wire.judge(wire.take_validation(), "reject", failure=failure).ok()
    refused.answer().refused(422, "update_validator_rejected")
    assert "UpdateAccepted" not in wire.event_types()
    approved = wire.update_later("add", input=avro([1]))
    wire.judge(wire.take_validation(), "approve").ok()
    assert approved.answer().ok(202)["update_status"] == "accepted"


@proves("server.worker_deregistration_fencing")
def a_goodbye_counts_only_with_the_token_of_the_registration(wire: Wire) -> None:
    told = wire.register()
    endpoint = told["server_capabilities"]["worker_deregistration_fencing"]["endpoint"]
    path = endpoint.replace("{workerId}", "w1").removeprefix("/worker")
    wire.worker(path, {"registration_token": "0" * 32}).refused(409, "worker_registration_replaced")
    token = {"registration_token": told["registration_token"]}
    assert wire.worker(path, token).ok()["outcome"] == "deregistered"


@proves("server.worker_status")
def a_worker_is_kept_alive_by_its_heartbeats(wire: Wire) -> None:
    told = wire.register()["server_capabilities"]["worker_status"]
    wire.start()
    for _ in range(3):
        wire.advance(seconds=told["heartbeat_interval_seconds"])
        wire.worker("/heartbeat", {"worker_id": "w1"}).ok()
    assert wire.describe()["status"] in ("pending", "running", "waiting")
    assert wire.take()["lease_owner"] == "w1"


@proves("cluster.payload_codec_envelope", "cluster.payload_codecs")
def an_envelope_of_each_codec_passes_verbatim(wire: Wire) -> None:
    codecs = wire.call("GET", "/api/cluster/info").ok()["capabilities"]["payload_codecs"]
    wire.register()
    for codec in codecs:
        envelope = {"codec": codec, "blob": avro(["as it is"])["blob"]}
        wire.start(f"with-{codec}", input=envelope)
        assert wire.take()["arguments"] == envelope
    body = {"workflow_type": "Order", "input": {"codec": "xml", "blob": "x"}}
    wire.control("POST", "/workflows", body).invalid("input.codec")


@proves("cluster.payload_codec_envelope_responses")
def what_json_cannot_show_comes_in_an_envelope(wire: Wire) -> None:
    wire.register()
    wire.run_to(complete_workflow(b"no JSON"))
    assert unavro(wire.describe()["output_envelope"]) == b"no JSON"


@proves("cluster.avro_value_protocol")
def plain_json_becomes_a_payload_in_the_said_frame(wire: Wire) -> None:
    told = wire.call("GET", "/api/cluster/info").ok()["capabilities"]["avro_value_protocol"]
    wire.register()
    wire.start(input=["plain"])
    raw = base64.b64decode(wire.take()["arguments"]["blob"])
    assert raw.startswith(bytes.fromhex(told["magic_hex"] + told["fingerprint"]))
