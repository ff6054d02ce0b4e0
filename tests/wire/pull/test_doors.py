"""The door of both planes: what is checked, in which order, and how a refusal looks."""

import gzip
import hmac
import itertools
import json
import logging
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.server.settings import load_settings
from perdure.web.routing import PUBLIC
from tests.support.http import (
    CONTROL_VERSION,
    WORKER_VERSION,
    Answer,
    Json,
    Wire,
    a_wire,
    schedule_activity,
)

TOKENS = {"worker": "worker-s3cret", "operator": "operator-s3cret", "admin": "admin-s3cret"}
KEYS = {"read": "read-k3y", "full": "full-k3y"}
"""Those of the push plane, by their scope."""
CREDENTIALS = {**TOKENS, **KEYS}
BODY_BYTES_MAX = 2_000


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """A server with a token per role and a small limit of bodies."""
    folder = tmp_path_factory.mktemp("guarded")
    with a_wire(
        folder,
        auth_driver="token",
        role_tokens=TOKENS,
        api_keys=(KEYS["full"], "full-other"),
        read_keys=(KEYS["read"],),
        body_bytes_max=BODY_BYTES_MAX,
    ) as wire:
        yield wire


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


# The order of checks ------------------------------------------------------------------------------


class Attempt:
    """A request that would succeed, until faults are put into it."""

    def __init__(self, path: str, version: tuple[str, str], role: str, body: Json) -> None:
        self.path = path
        self.version_header = version[0]
        self.headers = {
            **bearer(TOKENS[role]),
            version[0]: version[1],
            "X-Namespace": "default",
            "Content-Type": "application/json",
        }
        self.body: Json = body
        self.wrong_role = "operator" if role == "worker" else "worker"

    def spoil(self, fault: str) -> None:
        match fault:
            case "payload_too_large":
                self.body["padding"] = "x" * BODY_BYTES_MAX
            case "unsupported_media_type":
                self.headers["Content-Type"] = "text/plain"
            case "unauthorized":
                self.headers["Authorization"] = "Bearer nobody"
            case "forbidden":
                if self.headers["Authorization"] != "Bearer nobody":
                    self.headers |= bearer(TOKENS[self.wrong_role])
            case "version":
                del self.headers[self.version_header]
            case "namespace_not_found":
                self.headers["X-Namespace"] = "nowhere"
            case "validation_failed":
                self.body = {"padding": self.body.get("padding")}
            case _:
                raise AssertionError(fault)

    def send(self, wire: Wire) -> Answer:
        return wire.call(
            "POST", self.path, content=json.dumps(self.body).encode(), headers=self.headers
        )


CHECKS = {
    "payload_too_large": 413,
    "unsupported_media_type": 415,
    "unauthorized": 401,
    "forbidden": 403,
    "version": 400,
    "namespace_not_found": 404,
    "validation_failed": 422,
}
"""Every check of the door, in the order in which they are made."""

COMBINATIONS = [
    faults
    for count in range(1, len(CHECKS) + 1)
    for faults in itertools.combinations(CHECKS, count)
]


def test_every_check_of_the_control_plane_wins_over_all_later_ones(guarded: Wire) -> None:
    with guarded.nothing_changes():
        for faults in COMBINATIONS:
            attempt = Attempt(
                "/api/workflows", (CONTROL_VERSION, "2"), "operator", {"workflow_type": "Order"}
            )
            for fault in faults:
                attempt.spoil(fault)

            answer = attempt.send(guarded)

            first = faults[0]
            reason = "missing_control_plane_version" if first == "version" else first
            answer.refused(CHECKS[first], reason)
            assert answer.headers[CONTROL_VERSION.lower()] == "2"
            assert "protocol_version" not in answer.body


def test_every_check_of_the_worker_plane_wins_over_all_later_ones(guarded: Wire) -> None:
    with guarded.nothing_changes():
        for faults in COMBINATIONS:
            attempt = Attempt(
                "/api/worker/heartbeat", (WORKER_VERSION, "1.20"), "worker", {"worker_id": "w1"}
            )
            for fault in faults:
                attempt.spoil(fault)

            answer = attempt.send(guarded)

            first = faults[0]
            reason = "missing_protocol_version" if first == "version" else first
            body = answer.refused(CHECKS[first], reason)
            assert answer.headers[WORKER_VERSION.lower()] == "1.20"
            assert body["error"] == body["message"]
            assert body["protocol_version"] == "1.20"
            assert body["server_capabilities"]["poll_status"] is True


def test_the_attempts_of_these_tests_succeed_without_faults(wire: Wire) -> None:
    start = Attempt("/api/workflows", (CONTROL_VERSION, "2"), "operator", {"workflow_type": "O"})
    start.send(wire).ok(201)
    wire.register()
    beat = Attempt("/api/worker/heartbeat", (WORKER_VERSION, "1.20"), "worker", {"worker_id": "w1"})
    beat.send(wire).ok()


# Bodies -------------------------------------------------------------------------------------------


def test_a_body_is_too_large_by_its_announced_and_by_its_real_size(guarded: Wire) -> None:
    whole = b'{"workflow_type": "%s"}' % (b"x" * BODY_BYTES_MAX)
    head = b"POST /api/workflows HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with guarded.nothing_changes():
        announced = guarded.stream()
        announced.send(head + b"Content-Length: %d\r\n\r\n" % len(whole))
        refusal = announced.read_answer().refused(413, "payload_too_large")
        assert refusal["limit"] == BODY_BYTES_MAX

        known = b"Authorization: Bearer %b\r\n" % TOKENS["operator"].encode()
        known += b"%b: 2\r\nTransfer-Encoding: chunked\r\n\r\n" % CONTROL_VERSION.encode()
        chunked = guarded.stream()
        chunked.send(head + known)
        for piece in (whole[:900], whole[900:1800], whole[1800:]):
            chunked.send(b"%x\r\n%s\r\n" % (len(piece), piece))
        assert chunked.read_answer().refused(413, "payload_too_large")["limit"] == BODY_BYTES_MAX


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"nonsense",
        b'{"workflow_type": }',
        b'{"workflow_type": "\xff"}',
        b'{"workflow_type": "\\ud800"}',
        b'{"workflow_type": "Order", "memo": {"a": NaN}}',
        b"\xef\xbb\xbf{}",
        b"\x00",
        b'{"workflow_type": "Order", "memo": {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
        b'{"a":' * 300_000,
    ],
    ids=lambda content: content[:24].decode("latin-1").encode("unicode_escape").decode(),
)
def test_what_is_no_json_is_400_on_both_planes(shared_wire: Wire, content: bytes) -> None:
    sent = {"Content-Type": "application/json"}
    with shared_wire.nothing_changes():
        control = shared_wire.call(
            "POST", "/api/workflows", content=content, headers={**sent, CONTROL_VERSION: "2"}
        )
        worker = shared_wire.call(
            "POST", "/api/worker/register", content=content, headers={**sent, WORKER_VERSION: "1.1"}
        )

    assert control.refused(400, "malformed_json")["json_error"]
    assert worker.refused(400, "malformed_json")["json_error"]
    assert worker.body["protocol_version"] == "1.20"


@pytest.mark.parametrize("content", [b"[1]", b"null", b"1", b'"text"', b"true", b"[" * 500_000])
def test_a_body_that_is_no_object_is_422(shared_wire: Wire, content: bytes) -> None:
    sent = {"Content-Type": "application/json", CONTROL_VERSION: "2"}
    with shared_wire.nothing_changes():
        shared_wire.call("POST", "/api/workflows", content=content, headers=sent).invalid("body")


@pytest.mark.parametrize("number", [2**63, 2**64, 10**30, -(2**63) - 1])
def test_numbers_that_do_not_fit_the_disk_are_422_wherever_they_stand(
    wire: Wire, number: int
) -> None:
    """They were 500: the encoder of rows met them only when the beat was being written."""
    wire.register()
    wire.start()
    task = wire.take()
    worker = {"worker_id": "w2", "task_queue": "q", "runtime": "python"}
    start = {"workflow_type": "Order"}

    def command(**members: Any) -> Answer:
        return wire.report(task, "complete", commands=[members])

    with wire.nothing_changes():
        for field, answer in {
            "memo": wire.control("POST", "/workflows", {**start, "memo": {"a": [number]}}),
            "search_attributes": wire.control(
                "POST", "/workflows", {**start, "search_attributes": {"a": number}}
            ),
            "input": wire.control("POST", "/workflows", {**start, "input": [number]}),
            "priority": wire.control("POST", "/workflows", {**start, "priority": number}),
            "max_concurrent_workflow_tasks": wire.worker(
                "/register", {**worker, "max_concurrent_workflow_tasks": number}
            ),
            "process_metrics": wire.worker(
                "/register", {**worker, "process_metrics": {"load": number}}
            ),
            "workflow_command_contracts": wire.worker(
                "/register", {**worker, "workflow_command_contracts": {"Order": number}}
            ),
            "task_slots": wire.worker(
                "/heartbeat", {"worker_id": "w1", "task_slots": {"other": number}}
            ),
            "commands.0.version": command(
                type="record_version_marker",
                change_id="c",
                version=number,
                min_supported=number,
                max_supported=number,
            ),
            "commands.0.attributes": command(
                type="upsert_search_attributes", attributes={"a": number}
            ),
            "commands.0.retry_policy.max_attempts": command(
                type="schedule_activity", activity_type="x", retry_policy={"max_attempts": number}
            ),
            "commands.0.delay_seconds": command(type="start_timer", delay_seconds=number),
        }.items():
            answer.invalid(field)


@pytest.mark.parametrize(
    ("value", "status", "reason"),
    [
        (b'{"codec":"avro","blob":"\xff\xff"}', 400, "malformed_json"),
        (b'["\xff"]', 400, "malformed_json"),
        (b'["\\ud800"]', 400, "malformed_json"),
        (b"[1e999]", 400, "malformed_json"),
        (b"[" * 200 + b"]" * 200, 422, "validation_failed"),
    ],
    ids=["blob of no text", "no text", "half a character", "no number", "deep"],
)
def test_what_is_carried_unopened_must_still_be_json_that_everybody_can_read(
    wire: Wire, value: bytes, status: int, reason: str
) -> None:
    """It is spliced into histories; one bad byte would make a run unreadable for good."""
    sent = {"Content-Type": "application/json", CONTROL_VERSION: "2", WORKER_VERSION: "1.20"}
    wire.register()
    wire.run_to(schedule_activity())
    task = wire.take("activity")
    lease = f'"activity_attempt_id":"{task["activity_attempt_id"]}","lease_owner":"w1"'.encode()

    with wire.nothing_changes():
        for path, body in (
            ("/api/workflows", b'{"workflow_type":"Order","input":%s}' % value),
            ("/api/workflows/order-1/signal/pay", b'{"input":%s}' % value),
            (
                f"/api/worker/activity-tasks/{task['task_id']}/complete",
                b'{%s,"result":%s}' % (lease, value),
            ),
        ):
            wire.call("POST", path, content=body, headers=sent).refused(status, reason)


# Paths --------------------------------------------------------------------------------------------


def test_a_path_that_leads_nowhere_is_404_in_the_shape_of_its_plane(shared_wire: Wire) -> None:
    control = shared_wire.call("GET", "/api/nothing")
    worker = shared_wire.call("POST", "/api/worker/nothing")
    outside = shared_wire.call("GET", "/")

    control.refused(404, "not_found")
    outside.refused(404, "not_found")
    assert control.headers[CONTROL_VERSION.lower()] == "2"
    body = worker.refused(404, "not_found")
    assert body["protocol_version"] == "1.20"
    assert worker.headers[WORKER_VERSION.lower()] == "1.20"
    beside = shared_wire.call("GET", "/api/workers-nowhere")
    assert "protocol_version" not in beside.refused(404, "not_found")


def test_another_method_is_405_and_names_those_that_work(shared_wire: Wire) -> None:
    control = shared_wire.call("PUT", "/api/workflows")
    worker = shared_wire.call("GET", "/api/worker/workflow-tasks/poll")

    control.refused(405, "method_not_allowed")
    assert control.headers["allow"] == "GET, HEAD, POST"
    assert worker.refused(405, "method_not_allowed")["protocol_version"] == "1.20"
    assert worker.headers["allow"] == "POST"
    assert shared_wire.call("HEAD", "/api/health").status == 200


@pytest.mark.parametrize(
    "escaped", ["a%2Fb", "a%20b", "%C3%A9t%C3%A9", "a%3Fb%23c", "..%2F..", "a%00b", "x" * 3000]
)
def test_ids_are_decoded_segment_by_segment(shared_wire: Wire, escaped: str) -> None:
    answer = shared_wire.control("GET", f"/workflows/{escaped}")

    body = answer.refused(404, "instance_not_found")
    assert body["control_plane"]["operation"] == "describe"
    assert body["workflow_id"] == json.loads(json.dumps(_unquoted(escaped)))
    run = shared_wire.control("GET", f"/workflows/{escaped}/runs/{escaped}")
    run.refused(404, "instance_not_found")
    assert run.body["run_id"] == _unquoted(escaped)


def test_an_escaped_slash_belongs_to_the_name_of_a_signal(wire: Wire) -> None:
    wire.start()
    body = wire.signal("orders%2Fpaid%20now")
    assert body["signal_name"] == "orders/paid now"
    assert body["control_plane"]["operation_name"] == "orders/paid now"


def _unquoted(text: str) -> str:
    parts = text.encode().split(b"%")
    decoded = parts[0] + b"".join(bytes([int(p[:2], 16)]) + p[2:] for p in parts[1:])
    return decoded.decode()


# Credentials --------------------------------------------------------------------------------------


def test_every_route_says_who_may_use_it(shared_wire: Wire) -> None:
    routes = shared_wire.server.app.router.routes
    for route in routes:
        assert route.roles, f"{route.method} {route.path} names no role"
        assert route.roles is PUBLIC or route.roles <= set(CREDENTIALS), (
            f"{route.method} {route.path}"
        )
    open_to_all = {route.path for route in routes if route.roles is PUBLIC}
    probes = {"/api/health", "/api/ready", "/healthz", "/readyz"}
    assert open_to_all == probes | {"/webhooks/{token}"}


def test_no_two_routes_are_the_same(shared_wire: Wire) -> None:
    names = [(route.method, route.path) for route in shared_wire.server.app.router.routes]
    assert len(names) == len(set(names))


def test_every_guarded_route_refuses_strangers_and_wrong_roles(guarded: Wire) -> None:
    with guarded.nothing_changes():
        for route in guarded.server.app.router.routes:
            if route.roles is PUBLIC:
                continue
            path = route.path.replace("{", "").replace("}", "")
            sent = {CONTROL_VERSION: "2", WORKER_VERSION: "1.20"}
            stranger, wrong = "unauthorized", "forbidden"
            if path.startswith("/api/external-payloads"):
                stranger = wrong = "external_payload_unauthorized"
            guarded.call(route.method, path, headers=sent).refused(401, stranger)
            for role in set(CREDENTIALS) - route.roles:
                headers = {**sent, **bearer(CREDENTIALS[role])}
                body = guarded.call(route.method, path, headers=headers).refused(403, wrong)
                assert body["role"] == role
                assert body["allowed_roles"] == sorted(route.roles)
            if route.path.endswith("/stream"):
                # Whoever is let in there is answered without an end.
                continue
            for role in route.roles:
                # Where nothing is, nothing can be changed.
                headers = {**sent, **bearer(CREDENTIALS[role]), "X-Namespace": "nowhere"}
                answer = guarded.call(route.method, path, headers=headers)
                assert answer.status != 401, (route.method, path, role)
                assert answer.status != 403 or answer.reason != wrong, (route.method, path, role)


def test_api_keys_open_the_push_plane_and_nothing_else(shared_wire: Wire) -> None:
    for route in shared_wire.server.app.router.routes:
        if route.roles is PUBLIC:
            continue
        named = f"{route.method} {route.path}"
        if route.path.startswith("/api/"):
            assert route.roles.isdisjoint(KEYS), named
            continue
        only_reads = route.method == "GET" and route.path != "/connect"
        assert ("read" in route.roles) == only_reads, named
        assert "full" in route.roles, named


def test_a_key_that_only_reads_sees_events_and_sends_none(guarded: Wire) -> None:
    event = {"name": "paid"}
    refused = guarded.call("POST", "/events", event, headers=bearer(KEYS["read"]))
    assert refused.refused(403, "forbidden")["error"]
    told = guarded.call("POST", "/events", event, headers=bearer("full-other")).ok(202)
    shown = guarded.call("GET", f"/events/{told['eventId']}", headers=bearer(KEYS["read"]))
    assert shown.ok()["name"] == "paid"


def test_health_and_readiness_are_open_to_all(guarded: Wire) -> None:
    health, ready = guarded.call("GET", "/api/health"), guarded.call("GET", "/api/ready")

    assert health.ok()["status"] == "serving"
    assert health.body["checks"] == {"database": "ok"}
    assert ready.ok()["status"] == "ready"
    assert {check["status"] for check in ready.body["checks"].values()} == {"ok"}
    assert ready.body["checks"]["auth"] == {"status": "ok", "driver": "token"}
    wrong = guarded.call("GET", "/api/ready", headers=bearer("nobody"))
    assert wrong.ok()["checks"] == ready.body["checks"]
    for answer in (health, ready):
        assert CONTROL_VERSION.lower() not in answer.headers
        assert WORKER_VERSION.lower() not in answer.headers


def test_a_principal_may_do_what_its_roles_may(tmp_path: Path) -> None:
    told = (
        '[{"token":"a-s3cret","subject":"ann","roles":["operator"],"tenant":"t","claims":{"x":1}},'
        '{"token":"b-s3cret","subject":"bob","roles":["worker","admin"]}]'
    )
    settings = load_settings({"DW_PRINCIPAL_TOKENS": told})
    assert "s3cret" not in repr(settings)
    with a_wire(tmp_path, auth_driver="token", principals=settings.principals) as wire:
        listing = {CONTROL_VERSION: "2"}
        for token in ("a-s3cret", "b-s3cret"):
            wire.call("GET", "/api/workflows", headers={**listing, **bearer(token)}).ok()
        wire.call("GET", "/api/workflows", headers=listing).refused(401, "unauthorized")
        polling = {WORKER_VERSION: "1.20", **bearer("a-s3cret")}
        refused = wire.call("POST", "/api/worker/heartbeat", {"worker_id": "w"}, headers=polling)
        assert refused.refused(403, "forbidden")["role"] == "operator"
        polling |= bearer("b-s3cret")
        beat = wire.call("POST", "/api/worker/heartbeat", {"worker_id": "w"}, headers=polling)
        beat.refused(404, "worker_not_registered")


def test_a_signed_body_is_let_in(tmp_path: Path) -> None:
    with a_wire(
        tmp_path, auth_driver="signature", role_signature_keys={"operator": "k", "worker": "wk"}
    ) as wire:

        def start(key: str, body: bytes = b'{"workflow_type":"Order"}') -> Answer:
            signature = hmac.new(key.encode(), b'{"workflow_type":"Order"}', "sha256").hexdigest()
            headers = {CONTROL_VERSION: "2", "Content-Type": "application/json"}
            headers["X-Signature"] = signature
            return wire.call("POST", "/api/workflows", content=body, headers=headers)

        start("k").ok(201)
        start("other").refused(401, "unauthorized")
        start("k", b'{"workflow_type":"Other"}').refused(401, "unauthorized")
        start("wk").refused(403, "forbidden")
        assert wire.call("GET", "/api/ready").ok()["checks"]["auth"]["driver"] == "signature"


def test_a_shared_token_beside_role_tokens_is_an_administrators(tmp_path: Path) -> None:
    with a_wire(
        tmp_path, auth_driver="token", auth_token="shared", role_tokens={"worker": "w"}
    ) as wire:
        shared = bearer("shared")
        wire.control("GET", "/workflows", headers=shared).ok()
        wire.call("GET", "/api/cluster/info", headers=shared).ok()
        body = wire.worker("/heartbeat", {"worker_id": "w1"}, headers=shared)
        assert body.refused(403, "forbidden")["allowed_roles"] == ["worker"]
        wire.worker("/heartbeat", {"worker_id": "w1"}, headers=bearer("w")).refused(
            404, "worker_not_registered"
        )
        wire.control("GET", "/workflows", headers=bearer("w")).refused(403, "forbidden")


def test_the_only_token_opens_both_planes(tmp_path: Path) -> None:
    with a_wire(tmp_path, auth_driver="token", auth_token="only") as wire:
        wire.control("GET", "/workflows", headers=bearer("only")).ok()
        wire.worker("/heartbeat", {"worker_id": "w"}, headers=bearer("only")).refused(
            404, "worker_not_registered"
        )
        wire.control("GET", "/workflows").refused(401, "unauthorized")
        wire.control("GET", "/workflows", headers=bearer("onl")).refused(401, "unauthorized")


def test_without_credentials_nobody_is_asked(shared_wire: Wire) -> None:
    shared_wire.control("GET", "/workflows").ok()
    shared_wire.control("GET", "/workflows", headers=bearer("anything")).ok()
    shared_wire.call("GET", "/api/cluster/info").ok()


def test_no_token_is_ever_repeated_in_an_answer_or_a_log(
    guarded: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    offered = "an-0ffered-token"
    with caplog.at_level(logging.DEBUG):
        answers = [
            guarded.control(method, path, body, headers={**bearer(token), "X-Namespace": namespace})
            for token in (offered, *TOKENS.values())
            for namespace in ("default", "nowhere")
            for method, path, body in (
                ("GET", "/workflows", None),
                ("POST", "/workflows", {}),
                ("GET", "/nothing", None),
                ("PUT", "/workflows", None),
            )
        ]
        answers.append(guarded.call("GET", "/api/cluster/info", headers=bearer(TOKENS["admin"])))

    secrets = [offered, *TOKENS.values()]
    for answer in answers:
        told = answer.content.decode() + repr(answer.headers)
        assert not any(secret in told for secret in secrets)
    assert not any(secret in caplog.text for secret in secrets)


# Versions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["1", "3", "2.0", "two", "", "2,2"])
def test_another_version_of_the_control_plane_is_refused(shared_wire: Wire, asked: str) -> None:
    with shared_wire.nothing_changes():
        answer = shared_wire.control(
            "POST", "/workflows", {"workflow_type": "Order"}, headers={CONTROL_VERSION: asked}
        )

    body = answer.refused(400, "unsupported_control_plane_version")
    assert (body["supported_version"], body["requested_version"]) == ("2", asked)
    assert body["remediation"]
    assert answer.headers[CONTROL_VERSION.lower()] == "2"


def test_a_missing_version_of_the_control_plane_is_refused(shared_wire: Wire) -> None:
    body = shared_wire.call("GET", "/api/workflows").refused(400, "missing_control_plane_version")
    assert (body["supported_version"], body["requested_version"]) == ("2", None)


def test_the_version_of_the_control_plane_may_have_blanks_around_it(shared_wire: Wire) -> None:
    stream = shared_wire.stream()
    stream.send(
        f"GET /api/workflows HTTP/1.1\r\nHost: localhost\r\n"
        f"{CONTROL_VERSION}:  2  \r\n\r\n".encode()
    )
    stream.read_answer().ok()


def test_every_worker_protocol_from_1_0_to_1_20_is_served(shared_wire: Wire) -> None:
    for minor in range(21):
        answer = shared_wire.worker(
            "/heartbeat", {"worker_id": "nobody"}, headers={WORKER_VERSION: f"1.{minor}"}
        )
        assert answer.refused(404, "worker_not_registered")["protocol_version"] == "1.20"


@pytest.mark.parametrize(
    "asked",
    ["1.21", "1.100", "1.99999", "2.0", "0.9", "1", "1.", ".1", "1.x", "1.-1", "1.2.3", "v1.1", ""],
)
def test_any_other_worker_protocol_is_refused(shared_wire: Wire, asked: str) -> None:
    with shared_wire.nothing_changes():
        answer = shared_wire.worker(
            "/register", {"task_queue": "q", "runtime": "python"}, headers={WORKER_VERSION: asked}
        )

    body = answer.refused(400, "unsupported_protocol_version")
    assert (body["supported_version"], body["requested_version"]) == ("1.20", asked)
    assert body["remediation"]
    assert body["protocol_version"] == "1.20"
    assert answer.headers[WORKER_VERSION.lower()] == "1.20"


def test_a_missing_worker_protocol_is_refused(shared_wire: Wire) -> None:
    body = shared_wire.call("POST", "/api/worker/register").refused(400, "missing_protocol_version")
    assert (body["supported_version"], body["requested_version"]) == ("1.20", None)


def test_successes_carry_the_version_of_their_plane(wire: Wire) -> None:
    control = wire.control("GET", "/workflows")
    worker = wire.worker(
        "/register", {"task_queue": "q", "runtime": "python"}, headers={WORKER_VERSION: "1.1"}
    )
    discovery = wire.call("GET", "/api/cluster/info")

    assert control.headers[CONTROL_VERSION.lower()] == "2"
    assert worker.headers[WORKER_VERSION.lower()] == "1.20"
    capabilities = discovery.ok()["worker_protocol"]["server_capabilities"]
    assert worker.ok(201)["protocol_version"] == "1.20"
    assert worker.body["server_capabilities"] == capabilities
    assert CONTROL_VERSION.lower() not in discovery.headers
    assert {answer.headers["content-type"] for answer in (control, worker, discovery)} == {
        "application/json"
    }


# Namespaces ---------------------------------------------------------------------------------------


def test_a_namespace_is_named_by_header_or_query_or_not_at_all(shared_wire: Wire) -> None:
    for headers, query in (
        ({}, ""),
        ({"X-Namespace": "default"}, ""),
        ({"X-Namespace": "DEFAULT"}, ""),
        ({}, "?namespace=Default"),
        ({"X-Namespace": "default"}, "?namespace=nowhere"),
    ):
        shared_wire.control("GET", f"/workflows{query}", headers=headers).ok()
    for headers, query in (({"X-Namespace": "nowhere"}, ""), ({}, "?namespace=nowhere")):
        body = shared_wire.control("GET", f"/workflows{query}", headers=headers)
        assert body.refused(404, "namespace_not_found")["namespace"] == "nowhere"


def test_an_unknown_namespace_is_refused_on_the_worker_plane_too(shared_wire: Wire) -> None:
    with shared_wire.nothing_changes():
        body = shared_wire.worker(
            "/register",
            {"task_queue": "q", "runtime": "python"},
            headers={"X-Namespace": "nowhere"},
        ).refused(404, "namespace_not_found")
    assert body["namespace"] == "nowhere"
    assert body["remediation"]
    assert body["protocol_version"] == "1.20"


# Compression --------------------------------------------------------------------------------------


def test_answers_are_compressed_for_clients_that_ask(shared_wire: Wire) -> None:
    plain = shared_wire.call("GET", "/api/cluster/info").ok()
    for accept, encoding in (
        ("gzip, deflate", "gzip"),
        ("gzip;q=0.1, deflate;q=0.5", "deflate"),
        ("identity", None),
        ("gzip;q=0", None),
    ):
        stream = shared_wire.stream()
        stream.send(
            b"GET /api/cluster/info HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: %s\r\n\r\n"
            % accept.encode()
        )
        answer = stream.read_answer()
        assert answer.headers.get("content-encoding") == encoding
        content = answer.content
        if encoding == "gzip":
            content = gzip.decompress(content)
        elif encoding == "deflate":
            content = zlib.decompress(content, -15)
        assert json.loads(content) == plain


def test_compression_can_be_switched_off_and_is_then_not_promised(tmp_path: Path) -> None:
    with a_wire(tmp_path, compression=False) as wire:
        answer = wire.call("GET", "/api/cluster/info", headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in answer.headers
    info = answer.ok()
    assert info["capabilities"]["response_compression"] == []
    assert info["worker_protocol"]["server_capabilities"]["response_compression"] == []


def test_without_credentials_a_page_of_another_site_neither_reads_nor_writes(wire: Wire) -> None:
    event = {"name": "order.created"}
    for path, body in (("/events", event), ("/api/workflows", {"workflow_type": "Order"})):
        for headers, reason in (
            ({"Host": "evil.example"}, "host_not_allowed"),
            ({"Origin": "https://evil.example"}, "origin_not_allowed"),
            ({"Origin": "null", "Content-Type": "text/plain"}, "origin_not_allowed"),
        ):
            with wire.nothing_changes():
                answer = wire.call("POST", path, body, headers=headers)
            assert (answer.status, answer.body["reason"]) == (403, reason)
    answer = wire.call("GET", "/runs", headers={"Host": "evil.example"})
    assert (answer.status, answer.body["reason"]) == (403, "host_not_allowed")


def test_without_credentials_a_socket_of_another_site_is_refused(wire: Wire) -> None:
    stream = wire.stream()
    stream.send(
        b"GET /connect HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\n"
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    assert stream.read_answer().status == 403


def test_a_server_with_credentials_answers_to_any_name(tmp_path: Path) -> None:
    with a_wire(tmp_path, auth_driver="token", auth_token="t" * 32) as wire:
        headers = {
            "Host": "perdure.example",
            "Origin": "https://else.example",
            "Authorization": "Bearer " + "t" * 32,
        }
        assert wire.call("POST", "/events", {"name": "order.created"}, headers=headers).status < 300


def test_requests_without_a_valid_credential_are_counted_and_logged_now_and_then(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "t" * 32
    with a_wire(tmp_path, auth_driver="token", auth_token=secret) as wire:
        for number in range(5):
            headers = {"Authorization": f"Bearer guess-{number}"}
            assert wire.call("GET", "/runs", headers=headers).status == 401
        assert wire.call("GET", "/runs").status == 401
        failed = wire.server.app.failed_logins
        assert failed.count == 6

        for _ in range(3):
            wire.connections.check_all()
        lines = [line for line in caplog.messages if "valid credential" in line]
        assert lines == [
            "refused 6 requests without a valid credential, the latest from 127.0.0.1 to GET "
            "/runs; 6 since the start"
        ]

        wire.call("GET", "/runs")
        wire.connections.check_all()
        wire.call("GET", "/runs")
        wire.connections.check_all()
        wire.connections.check_all()
        wire.connections.check_all()
        lines = [line for line in caplog.messages if "valid credential" in line]
        assert len(lines) == 3
        assert lines[1].startswith("refused 1 requests")
        assert lines[2].startswith("refused 1 requests")
        assert lines[2].endswith("8 since the start")
        assert "guess" not in caplog.text
        headers = {"Authorization": f"Bearer {secret}"}
        assert wire.call("GET", "/runs", headers=headers).status == 200
        assert failed.count == 8
