"""External payloads: uploaded once, fetched by whoever names them."""

import hashlib
import re
from pathlib import Path

import apsw
import pytest

from perdure.core import limits
from perdure.server.settings import sqlite_path
from tests.support.http import (
    CONTROL_VERSION,
    WORKER_VERSION,
    Wire,
    a_wire,
)
from tests.support.uploads import BLOB, UPLOAD, fetch, headers_of, post, upload

# Upload and fetch ---------------------------------------------------------------------------------


def test_what_was_uploaded_is_given_out_with_its_hash(wire: Wire) -> None:
    answer = post(wire, BLOB)
    body = answer.ok(201)

    assert body["schema"] == "durable-workflow.v2.runtime-external-payload-upload.v1"
    assert body["transport_version"] == 1
    reference = body["reference"]
    assert re.fullmatch(r"ep_[0-9A-HJKMNP-TV-Z]{26}", reference.pop("reference_id"))
    assert reference == {
        "schema": "durable-workflow.v2.runtime-external-payload-reference.v1",
        "codec": "avro",
        "size_bytes": len(BLOB),
        "sha256": hashlib.sha256(BLOB).hexdigest(),
    }
    assert answer.headers["cache-control"] == "no-store, private"

    for told in ({}, headers_of(BLOB)):
        got = fetch(wire, body["reference"] | upload(wire, BLOB), **told)
        assert (got.status, got.content) == (200, BLOB)
        assert got.headers["content-type"] == "application/octet-stream"
        assert got.headers["cache-control"] == "immutable, max-age=60, private"
        for name, value in headers_of(BLOB).items():
            assert got.headers[name.lower()] == value


def test_the_same_bytes_have_one_reference_and_are_kept_once(wire: Wire) -> None:
    first = upload(wire, BLOB)
    with wire.nothing_changes():
        assert upload(wire, BLOB) == first
    assert upload(wire, BLOB + b"=") != first
    assert len(wire.stored()["payload"]) == 2


def test_uploads_need_no_version_and_take_those_of_both_planes(wire: Wire) -> None:
    for headers in ({}, {CONTROL_VERSION: "2"}, {WORKER_VERSION: "1.19"}):
        reference = upload(wire, BLOB, **headers)
        assert fetch(wire, reference, **headers).status == 200


@pytest.mark.parametrize(
    ("headers", "status", "reason"),
    [
        ({"codec": "json"}, 415, "unsupported"),
        ({"codec": ""}, 415, "unsupported"),
        ({"size": "1"}, 422, "integrity_mismatch"),
        ({"size": "-1"}, 422, "integrity_mismatch"),
        ({"size": "many"}, 422, "integrity_mismatch"),
        ({"size": "9" * 400}, 422, "integrity_mismatch"),
        ({"sha256": "0" * 64}, 422, "integrity_mismatch"),
        ({"sha256": "short"}, 422, "integrity_mismatch"),
        ({"sha256": hashlib.sha256(BLOB).hexdigest().upper()}, 422, "integrity_mismatch"),
    ],
)
def test_an_upload_that_is_not_what_it_says_is_refused(
    shared_wire: Wire, headers: dict[str, str], status: int, reason: str
) -> None:
    with shared_wire.nothing_changes():
        answer = post(shared_wire, BLOB, **headers_of(BLOB, **headers))
        body = answer.refused(status, f"external_payload_{reason}")
    assert body["schema"] == "durable-workflow.v2.runtime-external-payload-error.v1"
    assert (body["retryable"], body["status"]) == (False, status)


@pytest.mark.parametrize("name", ["Codec", "Size", "SHA256"])
def test_an_upload_must_say_what_it_is(shared_wire: Wire, name: str) -> None:
    sent = {"Content-Type": "application/octet-stream", **headers_of(BLOB)}
    missing = next(key for key in sent if key.lower().endswith(name.lower()))
    del sent[missing]
    with shared_wire.nothing_changes():
        answer = shared_wire.call("POST", UPLOAD, content=BLOB, headers=sent)
        assert answer.status in (415, 422)
        assert answer.reason.startswith("external_payload_")  # type: ignore[union-attr]  # a 4xx


def test_an_upload_of_another_kind_is_refused(shared_wire: Wire) -> None:
    with shared_wire.nothing_changes():
        for media_type in ("text/plain", "application/json", ""):
            sent = {**headers_of(BLOB), "Content-Type": media_type}
            answer = shared_wire.call("POST", UPLOAD, content=BLOB, headers=sent)
            answer.refused(415, "external_payload_unsupported")
        binary = b"\xc3\x01binary"
        post(shared_wire, binary).refused(415, "external_payload_unsupported")


def test_nothing_may_be_uploaded_as_well(wire: Wire) -> None:
    reference = upload(wire, b"")
    assert fetch(wire, reference).content == b""


def test_the_limit_of_uploads_is_their_own(tmp_path: Path) -> None:
    with a_wire(tmp_path, body_bytes_max=5_000) as wire:
        larger = b"A" * 100_000
        assert fetch(wire, upload(wire, larger)).content == larger
        start = {"workflow_type": "Order", "input": ["x" * 6_000]}
        wire.control("POST", "/workflows", start).refused(413, "payload_too_large")
        with wire.nothing_changes():
            stream = wire.stream()
            stream.send(
                b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
                b"Content-Length: %d\r\n\r\n"
                % (UPLOAD.encode(), limits.EXTERNAL_PAYLOAD_BYTES_MAX + 1)
            )
            stream.read_answer().refused(413, "external_payload_oversized")


def test_a_payload_may_be_as_large_as_was_said(wire: Wire) -> None:
    info = wire.call("GET", "/api/cluster/info").ok()
    most = info["namespace"]["external_payload_storage"]["transport"]["limits"]["max_payload_bytes"]
    largest = b"A" * most
    assert fetch(wire, upload(wire, largest)).content == largest


def test_who_may_not_in_is_told_so_in_the_words_of_the_transport(tmp_path: Path) -> None:
    with a_wire(
        tmp_path, auth_driver="token", role_tokens={"worker": "w", "operator": "o"}
    ) as wire:
        post(wire, BLOB).refused(401, "external_payload_unauthorized")
        for token in ("w", "o"):
            bearer = {"Authorization": f"Bearer {token}"}
            reference = upload(wire, BLOB, **bearer)
            assert fetch(wire, reference, **bearer).status == 200
            fetch(wire, reference).refused(401, "external_payload_unauthorized")


@pytest.mark.parametrize(
    "reference_id", ["ep_" + "0" * 26, "ep_1", "ep_" + "U" * 26, "%00", "ep_" + "0" * 27]
)
def test_an_unknown_payload_is_not_found(shared_wire: Wire, reference_id: str) -> None:
    answer = shared_wire.call("GET", f"{UPLOAD}/{reference_id}")
    assert answer.refused(404, "external_payload_not_found")["retryable"] is False


def test_a_fetch_that_expects_something_else_is_refused(wire: Wire) -> None:
    reference = upload(wire, BLOB)
    for changed in ({"codec": "json"}, {"size": "3"}, {"size": "x"}, {"sha256": "0" * 64}):
        answer = fetch(wire, reference, **headers_of(BLOB, **changed))
        answer.refused(422, "external_payload_integrity_mismatch")


def test_damage_on_disk_is_found_and_not_given_out(tmp_path: Path) -> None:
    with a_wire(tmp_path) as wire:
        reference = upload(wire, BLOB)
        wire.close()
        for damaged in (b"X" + BLOB[1:], BLOB[:-1], b""):
            file = apsw.Connection(str(sqlite_path(wire._settings.store)))
            file.execute("update payload set data = ?", (damaged,))
            file.close()
            wire.open()
            fetch(wire, reference).refused(422, "external_payload_integrity_mismatch")
            wire.close()
        wire.open()


# The announcement ---------------------------------------------------------------------------------


def test_each_namespace_is_told_how_to_upload(shared_wire: Wire) -> None:
    info = shared_wire.call("GET", "/api/cluster/info").ok()
    assert info["worker_protocol"]["server_capabilities"]["runtime_external_payload_transport"]
    policy = info["namespace"]["external_payload_storage"]
    assert (policy["status"], policy["threshold_bytes"]) == ("available", 65_536)
    transport = policy["transport"]
    assert transport["upload"]["path"] == UPLOAD
    assert transport["limits"]["max_payload_bytes"] >= policy["threshold_bytes"]
    nowhere = shared_wire.call("GET", "/api/cluster/info", headers={"X-Namespace": "nowhere"}).ok()
    assert "external_payload_storage" not in nowhere["namespace"]


def test_uploads_can_be_switched_off_and_what_there_is_can_still_be_had(tmp_path: Path) -> None:
    with a_wire(tmp_path) as wire:
        reference = upload(wire, BLOB)
    with a_wire(tmp_path, external_payloads=False) as wire:
        info = wire.call("GET", "/api/cluster/info").ok()
        capabilities = info["worker_protocol"]["server_capabilities"]
        assert capabilities["runtime_external_payload_transport"] is False
        assert "external_payload_storage" not in info["namespace"]
        with wire.nothing_changes():
            post(wire, BLOB).refused(415, "external_payload_unsupported")
        assert fetch(wire, reference).content == BLOB


def test_the_threshold_is_a_setting(tmp_path: Path) -> None:
    with a_wire(tmp_path, external_payload_threshold=1_000) as wire:
        info = wire.call("GET", "/api/cluster/info").ok()
    assert info["namespace"]["external_payload_storage"]["threshold_bytes"] == 1_000
