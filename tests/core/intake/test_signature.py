"""Signatures, as the vectors of the contract have them."""

import json
from pathlib import Path
from typing import Any

import pytest

from perdure.core.intake.signature import (
    fingerprint,
    header_of,
    sign,
    signed_second,
    verify,
)

VECTORS = json.loads(
    (Path(__file__).parents[2] / "fixtures/durablex/webhook-signature.json").read_text()
)
FIRST = VECTORS["cases"][0]


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["secret"][:8])
def test_bodies_are_signed_as_agreed(case: dict[str, Any]) -> None:
    signed = sign(case["secret"], case["body"].encode(), case["timestamp"])
    assert signed == case["signature"]
    assert signed_second(signed) == str(case["timestamp"])
    assert (
        verify(
            signed,
            case["body"].encode(),
            secrets=["older", case["secret"]],
            seconds=case["timestamp"],
        )
        is None
    )


@pytest.mark.parametrize("case", VECTORS["verify"], ids=lambda case: case["case"])
def test_signatures_are_checked_as_agreed(case: dict[str, Any]) -> None:
    found = verify(
        case["header"],
        FIRST["body"].encode(),
        secrets=[FIRST["secret"]],
        seconds=FIRST["timestamp"] + case["nowOffset"],
    )
    assert (found or "ok") == case["result"]


@pytest.mark.parametrize(
    ("header", "fault"),
    [
        ("", "missing_signature"),
        ("  ", "missing_signature"),
        ("rubbish", "malformed_signature"),
        ("t=1,t=2,v1=aa", "malformed_signature"),
        ("t=,v1=aa", "malformed_signature"),
        ("t=-5,v1=aa", "malformed_signature"),
        ("t=٣,v1=aa", "malformed_signature"),
        ("t=99999999999999999999,v1=aa", "malformed_signature"),
        ("t=1718900000,v1=", "malformed_signature"),
        ("t=1718900000,v1=é", "signature_mismatch"),
        ("v1=00,t=1718900000", "signature_mismatch"),
        (FIRST["signature"] + ",v0=x", None),
        (FIRST["signature"].replace(",", " , "), None),
        (FIRST["signature"].upper().replace("T=", "t=").replace("V1", "v1"), None),
    ],
)
def test_strange_headers(header: str, fault: str | None) -> None:
    body = FIRST["body"].encode()
    assert verify(header, body, secrets=[FIRST["secret"]], seconds=1718900000) == fault


def test_another_body_or_secret_does_not_match() -> None:
    header, body = FIRST["signature"], FIRST["body"].encode()
    for changed, secret in ((body + b" ", FIRST["secret"]), (body, "other")):
        found = verify(header, changed, secrets=[secret], seconds=1718900000)
        assert found == "signature_mismatch"
    assert verify(header, body, secrets=[], seconds=1718900000) == "signature_mismatch"


def test_each_scheme_has_its_header() -> None:
    headers = {"x-duraton-signature": "a", "stripe-signature": "b"}
    assert header_of("hmac_sha256", headers) == "a"
    assert header_of("stripe", headers) == "b"
    assert header_of("hmac_sha256", headers | {"x-durablex-signature": "c"}) == "c"
    assert header_of("stripe", {}) is None


def test_a_fingerprint_is_short_and_steady() -> None:
    assert fingerprint("key") == "2c70e12b7a0646f9"
