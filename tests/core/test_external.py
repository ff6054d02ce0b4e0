"""External payloads: what becomes of them, and when."""

import pytest
from msgspec import structs

from perdure.core import external, limits
from perdure.core.external import PayloadOwner, Reference, Stored, reference_to
from perdure.core.rejection import (
    ExternalPayloadExpired,
    ExternalPayloadIntegrityMismatch,
    ExternalPayloadNotFound,
)

NOW = 1_000 * limits.SECOND
SHA = "ab" * 32
REFERENCE = reference_to("default", "avro", 5, SHA)
LOOSE = Stored("avro", 5, SHA, PayloadOwner.LOOSE, NOW + limits.LOOSE_PAYLOAD_TIMEOUT)
KEPT = Stored("avro", 5, SHA, PayloadOwner.KEPT, counted=True)
GONE = Stored("avro", 5, SHA, PayloadOwner.GONE, NOW + limits.GONE_PAYLOAD_REMEMBERED)
LATE = NOW + limits.LOOSE_PAYLOAD_TIMEOUT


def test_the_same_content_of_a_namespace_has_one_reference() -> None:
    assert reference_to("default", "avro", 5, SHA) == REFERENCE
    others = {
        reference_to("other", "avro", 5, SHA).reference_id,
        reference_to("default", "avro", 6, SHA).reference_id,
        reference_to("default", "avro", 5, "cd" * 32).reference_id,
    }
    assert len(others - {REFERENCE.reference_id}) == 3
    assert all(map(external.is_reference_id, others))


@pytest.mark.parametrize(
    "text", ["", "ep_", "ep_" + "0" * 25, "ep_" + "0" * 27, "ep_" + "i" * 26, "xx_" + "0" * 26]
)
def test_other_texts_are_no_reference_ids(text: str) -> None:
    assert not external.is_reference_id(text)


@pytest.mark.parametrize(
    ("known", "expected"),
    [(None, LOOSE), (GONE, LOOSE), (KEPT, None), (LOOSE, None)],
    ids=["unknown", "gone", "kept", "just uploaded"],
)
def test_an_upload(known: Stored | None, expected: Stored | None) -> None:
    assert external.uploaded(known, REFERENCE, NOW) == expected


def test_a_later_upload_gives_time_anew() -> None:
    again = external.uploaded(LOOSE, REFERENCE, NOW + 600 * limits.SECOND)
    assert again is not None
    assert again.until == NOW + 600 * limits.SECOND + limits.LOOSE_PAYLOAD_TIMEOUT


def test_what_is_named_is_kept_and_naming_it_again_changes_nothing() -> None:
    assert external.named(LOOSE, REFERENCE, LATE - 1) == KEPT
    assert external.named(KEPT, REFERENCE, 10 * LATE) is None


@pytest.mark.parametrize(
    ("known", "now", "refusal"),
    [
        (None, NOW, ExternalPayloadNotFound),
        (GONE, NOW, ExternalPayloadExpired),
        (LOOSE, LATE, ExternalPayloadExpired),
    ],
)
def test_what_is_not_there_cannot_be_named(
    known: Stored | None, now: int, refusal: type[Exception]
) -> None:
    with pytest.raises(refusal):
        external.named(known, REFERENCE, now)


@pytest.mark.parametrize(
    "told",
    [
        Reference(REFERENCE.reference_id, "json", 5, SHA),
        Reference(REFERENCE.reference_id, "avro", 6, SHA),
        Reference(REFERENCE.reference_id, "avro", 5, "cd" * 32),
    ],
)
@pytest.mark.parametrize("known", [LOOSE, KEPT], ids=["loose", "kept"])
def test_a_reference_must_tell_the_truth(known: Stored, told: Reference) -> None:
    with pytest.raises(ExternalPayloadIntegrityMismatch):
        external.named(known, told, NOW)
    with pytest.raises(ExternalPayloadIntegrityMismatch):
        external.uploaded(known, told, NOW)


def test_time_passes_for_what_is_loose_and_for_the_memory_of_it() -> None:
    assert external.passed(LOOSE, LATE - 1) is LOOSE
    gone = external.passed(LOOSE, LATE)
    assert gone is not None
    assert (gone.custody, gone.until) == (PayloadOwner.GONE, LATE + limits.GONE_PAYLOAD_REMEMBERED)
    assert external.passed(gone, LATE) is gone
    assert external.passed(gone, LATE + limits.GONE_PAYLOAD_REMEMBERED) is None
    assert external.passed(KEPT, 100 * LATE) is KEPT


def test_a_payload_without_runs_is_loose_again_if_all_of_them_were_counted() -> None:
    loose = external.let_go(KEPT, NOW)
    assert loose is not None
    assert (loose.custody, loose.until) == (PayloadOwner.LOOSE, LATE)
    assert external.named(loose, REFERENCE, LATE - 1) == KEPT
    for stays in (
        structs.replace(KEPT, counted=False),
        structs.replace(KEPT, home="abroad"),
        LOOSE,
        GONE,
    ):
        assert external.let_go(stays, NOW) is None
