"""External payloads: bytes that are uploaded once and then named by a reference.

An uploaded payload is loose: it expires unless a stored document references it in time. From then
on it is kept. The server stores the bytes and never decodes them.
"""

import base64
import enum
import hashlib
import re
from typing import Final

from msgspec import Struct, structs

from perdure.core import limits
from perdure.core.rejection import (
    ExternalPayloadExpired,
    ExternalPayloadIntegrityMismatch,
    ExternalPayloadNotFound,
)

_RENEWAL_MIN: Final = 60 * limits.SECOND
"""A repeated upload that would extend the expiry by less than this writes nothing."""

CODECS: Final = frozenset({"avro"})
"""The codecs of payloads that clients upload and reference."""
JSON: Final = "json"
"""The codec of step results: they belong to one run, and only its runners use them."""

_ALPHABET: Final = str.maketrans(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
)
_ID: Final = re.compile(r"ep_[0-9A-HJKMNP-TV-Z]{26}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class Reference(Struct, frozen=True):
    """The stand-in for a payload in a document."""

    reference_id: str
    codec: str
    size_bytes: int
    sha256: str


class PayloadOwner(enum.StrEnum):
    """Whether a payload is referenced."""

    LOOSE = "loose"
    """Uploaded, and not referenced by anything stored yet."""
    KEPT = "kept"
    GONE = "gone"
    """It expired without being referenced. The record remains for a while."""


class Stored(Struct, frozen=True):
    """The record of a payload, without its bytes."""

    codec: str
    size_bytes: int
    sha256: str
    custody: PayloadOwner
    until: int | None = None
    """When this state expires."""
    home: str | None = None
    """The namespace that stores the bytes, if it is another one."""
    counted: bool = False
    """Whether all runs that reference it are recorded."""


def reference_to(namespace: str, codec: str, size_bytes: int, sha256: str) -> Reference:
    """The reference of some bytes in a namespace; the same for every upload of them."""
    whole = hashlib.sha256("\0".join((namespace, codec, str(size_bytes), sha256)).encode())
    digits = base64.b32encode(whole.digest())[:26].decode().translate(_ALPHABET)
    return Reference(f"ep_{digits}", codec, size_bytes, sha256)


def result_reference(namespace: str, run_id: str, size_bytes: int, sha256: str) -> Reference:
    """The reference of a step's result. It is derived from the run id: no other run can use it."""
    found = reference_to(f"{namespace}\0{run_id}", JSON, size_bytes, sha256)
    assert found.codec == JSON
    return found


def is_reference_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def is_sha256(text: str) -> bool:
    return _SHA256.fullmatch(text) is not None


def uploaded(known: Stored | None, reference: Reference, now: int) -> Stored | None:
    """The record of a payload after its upload; None if nothing changes."""
    if known is not None and known.custody is PayloadOwner.KEPT:
        require_same(known, reference)
        return None
    until = now + limits.LOOSE_PAYLOAD_TIMEOUT
    if known is not None and known.custody is PayloadOwner.LOOSE:
        require_same(known, reference)
        if known.until is not None and until - known.until < _RENEWAL_MIN:
            return None
    return Stored(
        reference.codec, reference.size_bytes, reference.sha256, PayloadOwner.LOOSE, until
    )


def named(known: Stored | None, reference: Reference, now: int) -> Stored | None:
    """The record of a payload that becomes referenced; None if nothing changes."""
    found = require_there(known, reference, now)
    if found.custody is PayloadOwner.KEPT:
        return None
    return Stored(found.codec, found.size_bytes, found.sha256, PayloadOwner.KEPT, counted=True)


def let_go(known: Stored, now: int) -> Stored | None:
    """A payload becomes loose again after its last run was removed; None if that is unknown."""
    if known.custody is not PayloadOwner.KEPT or not known.counted or known.home is not None:
        return None
    until = now + limits.LOOSE_PAYLOAD_TIMEOUT
    return structs.replace(known, custody=PayloadOwner.LOOSE, until=until)


def passed(known: Stored, now: int) -> Stored | None:
    """The record after expiry, if it is due; None if the record itself has expired."""
    if known.until is None or known.until > now:
        return known
    if known.custody is PayloadOwner.GONE:
        return None
    return Stored(
        known.codec,
        known.size_bytes,
        known.sha256,
        PayloadOwner.GONE,
        now + limits.GONE_PAYLOAD_REMEMBERED,
    )


def require_there(known: Stored | None, reference: Reference, now: int) -> Stored:
    """Refuse a reference whose payload is unknown, expired, or different."""
    reference_id = reference.reference_id
    if known is None:
        raise ExternalPayloadNotFound(
            f"there is no external payload {reference_id} in this namespace",
            reference_id=reference_id,
            retryable=False,
        )
    if known.custody is PayloadOwner.GONE or (known.until is not None and known.until <= now):
        raise ExternalPayloadExpired(
            f"external payload {reference_id} was uploaded and not used in time",
            reference_id=reference_id,
            retryable=False,
        )
    require_same(known, reference)
    return known


def require_same(known: Stored, reference: Reference) -> None:
    """Refuse a reference whose codec, size or hash differ from those of the upload."""
    named_as = (reference.codec, reference.size_bytes, reference.sha256)
    if named_as != (known.codec, known.size_bytes, known.sha256):
        raise ExternalPayloadIntegrityMismatch(
            f"external payload {reference.reference_id} has another codec, size or hash",
            reference_id=reference.reference_id,
            retryable=False,
        )


def require_intact(reference: Reference, data: bytes) -> None:
    """Refuse bytes that do not match their reference."""
    if len(data) != reference.size_bytes or hashlib.sha256(data).hexdigest() != reference.sha256:
        raise ExternalPayloadIntegrityMismatch(
            f"the bytes of external payload {reference.reference_id} do not match its hash",
            reference_id=reference.reference_id,
            retryable=False,
        )
