"""References to external payloads inside JSON documents: finding, checking and writing them."""

from collections.abc import Collection
from typing import Any

import msgspec
from msgspec import Struct

from perdure.core import limits
from perdure.core.external import CODECS, JSON, Reference, is_reference_id, is_sha256
from perdure.core.rejection import InvalidRequest

REFERENCE_SCHEMA = "durable-workflow.v2.runtime-external-payload-reference.v1"
MARK = b'"external_payload"'
"""The member that holds a reference. Other spellings, such as escaped ones, are not recognised."""
_RECORDED = CODECS | {JSON}
"""Codecs of references in histories: results of steps are stored by the engine, too."""


class _Wire(Struct, forbid_unknown_fields=True):
    schema: str
    reference_id: str
    codec: str
    size_bytes: int
    sha256: str


def shown_reference(reference: Reference) -> dict[str, Any]:
    """The JSON form of a reference."""
    return {
        "schema": REFERENCE_SCHEMA,
        "reference_id": reference.reference_id,
        "codec": reference.codec,
        "size_bytes": reference.size_bytes,
        "sha256": reference.sha256,
    }


def find_flaw(members: Any, codecs: Collection[str] = CODECS) -> str | None:
    """What is wrong with the members of a reference; None if nothing is."""
    try:
        reference = msgspec.convert(members, _Wire)
    except msgspec.ValidationError as error:
        return str(error)
    if reference.schema != REFERENCE_SCHEMA:
        return f"schema must be {REFERENCE_SCHEMA}"
    if not is_reference_id(reference.reference_id):
        return "reference_id must be ep_ and 26 characters"
    if reference.codec not in codecs:
        return f"codec must be {' or '.join(sorted(codecs))}"
    if not 0 <= reference.size_bytes <= limits.EXTERNAL_PAYLOAD_BYTES_MAX:
        return f"size_bytes must be from 0 to {limits.EXTERNAL_PAYLOAD_BYTES_MAX}"
    if not is_sha256(reference.sha256):
        return "sha256 must be 64 lower-case hexadecimal digits"
    return None


def read_reference(members: dict[str, Any]) -> Reference:
    """A reference from members in which `find_flaw` found nothing."""
    return Reference(
        members["reference_id"], members["codec"], members["size_bytes"], members["sha256"]
    )


def find_references(body: bytes) -> tuple[Reference, ...]:
    """Every reference in a JSON document, each once. Anything that only resembles one is data."""
    if body.find(MARK) < 0:
        return ()
    try:
        found = _references_in(body, CODECS)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequest("external_payload", "the document is not valid JSON") from None
    if len(found) > limits.EXTERNAL_PAYLOADS_PER_REQUEST_MAX:
        most = limits.EXTERNAL_PAYLOADS_PER_REQUEST_MAX
        raise InvalidRequest("external_payload", f"at most {most} in one request")
    return tuple(found)


def references_in(document: bytes) -> dict[Reference, None]:
    """Every reference in a stored document, those of step results included."""
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
