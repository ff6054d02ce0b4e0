"""External payloads as a client sends them."""

import hashlib
from typing import Any

from perdure.core import limits
from perdure.core.limits import SECOND
from tests.support.http import Answer, Json, Wire, avro

UPLOAD = "/api/external-payloads/v1"
BLOB = avro(["large" * 100])["blob"].encode()
HOUR = limits.LOOSE_PAYLOAD_TIMEOUT / SECOND
"""How many seconds are left to name what was uploaded."""


def headers_of(data: bytes, **changed: str) -> dict[str, str]:
    """What an upload or a fetch says of the bytes."""
    told = {
        "codec": "avro",
        "size": str(len(data)),
        "sha256": hashlib.sha256(data).hexdigest(),
        **changed,
    }
    return {f"X-Durable-Workflow-Payload-{name}": value for name, value in told.items()}


def post(wire: Wire, data: bytes, **headers: str) -> Answer:
    sent = {"Content-Type": "application/octet-stream", **headers_of(data), **headers}
    return wire.call("POST", UPLOAD, content=data, headers=sent)


def upload(wire: Wire, data: bytes, **headers: str) -> Json:
    """The reference of some bytes that were taken in."""
    reference = post(wire, data, **headers).ok(201)["reference"]
    assert isinstance(reference, dict)
    return reference


def outside(wire: Wire, value: Any) -> Json:
    """An envelope around a value that was uploaded."""
    return {"codec": "avro", "external_payload": upload(wire, avro(value)["blob"].encode())}


def fetch(wire: Wire, reference: Json, **headers: str) -> Answer:
    return wire.call("GET", f"{UPLOAD}/{reference['reference_id']}", headers=headers)


def unknown(wire: Wire, **changed: Any) -> Json:
    """An envelope with a reference that nobody was given."""
    reference = {
        "schema": "durable-workflow.v2.runtime-external-payload-reference.v1",
        "reference_id": "ep_" + "0" * 26,
        "codec": "avro",
        "size_bytes": 5,
        "sha256": "0" * 64,
        **changed,
    }
    return {"codec": "avro", "external_payload": reference}
