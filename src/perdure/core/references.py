"""References to external payloads as they stand in documents, wherever they stand."""

from collections.abc import Collection
from typing import Any

import msgspec
from msgspec import Struct

from perdure.core import limits
from perdure.core.external import CODECS, JSON, Reference, is_reference_id, is_sha256
from perdure.core.rejection import InvalidRequest

REFERENCE_SCHEMA = "durable-workflow.v2.runtime-external-payload-reference.v1"
MARK = b'"external_payload"'
"""How the member is spelled that holds a reference. No other spelling of it is taken."""
_RECORDED = CODECS | {JSON}
"""Codecs of references in histories: results of steps are stored by the engine, too."""


class _Wire(Struct, forbid_unknown_fields=True):
    schema: str
    reference_id: str
    codec: str
    size_bytes: int
    sha256: str


def shown_reference(reference: Reference) -> dict[str, Any]:
    """A reference as it stands in documents."""
    return {
        "schema": REFERENCE_SCHEMA,
        "reference_id": reference.reference_id,
        "codec": reference.codec,
        "size_bytes": reference.size_bytes,
        "sha256": reference.sha256,
    }


def find_flaw(members: Any, codecs: Collection[str] = CODECS) -> str | None:
    """What is wrong with something that should be a reference."""
    try:
        told = msgspec.convert(members, _Wire)
    except msgspec.ValidationError as error:
        return str(error)
    if told.schema != REFERENCE_SCHEMA:
        return f"schema must be {REFERENCE_SCHEMA}"
    if not is_reference_id(told.reference_id):
        return "reference_id must be ep_ and 26 characters"
    if told.codec not in codecs:
        return f"codec must be {' or '.join(sorted(codecs))}"
    if not 0 <= told.size_bytes <= limits.EXTERNAL_PAYLOAD_BYTES_MAX:
        return f"size_bytes must be from 0 to {limits.EXTERNAL_PAYLOAD_BYTES_MAX}"
    if not is_sha256(told.sha256):
        return "sha256 must be 64 lower-case hexadecimal digits"
    return None


def read_reference(members: dict[str, Any]) -> Reference:
    """A reference without a flaw."""
    return Reference(
        members["reference_id"], members["codec"], members["size_bytes"], members["sha256"]
    )


def find_references(body: bytes) -> tuple[Reference, ...]:
    """Every reference in a JSON document, each once. What only resembles one is data."""
    if body.find(MARK) < 0:
        return ()
    try:
        found = _references_in(body, CODECS)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequest("external_payload", "stands in what is no JSON") from None
    if len(found) > limits.EXTERNAL_PAYLOADS_PER_REQUEST_MAX:
        most = limits.EXTERNAL_PAYLOADS_PER_REQUEST_MAX
        raise InvalidRequest("external_payload", f"at most {most} in one request")
    return tuple(found)


def references_in(document: bytes) -> dict[Reference, None]:
    """The same of a document that was taken in."""
    return _references_in(document, _RECORDED)


def _references_in(document: bytes, codecs: Collection[str]) -> dict[Reference, None]:
    pending: list[Any] = [msgspec.json.decode(document)]
    found: dict[Reference, None] = {}
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, dict):
            if item.keys() == {"codec", "external_payload"}:
                members = item["external_payload"]
                if find_flaw(members, codecs) is None:
                    found[read_reference(members)] = None
                    continue
            pending.extend(item.values())
    return found
