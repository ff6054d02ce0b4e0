"""The SDK agrees with the vectors of the contract."""

import json
from pathlib import Path
from typing import Any

import pytest

from perdure.sdk.duration import milliseconds
from perdure.sdk.errors import StepNameError
from perdure.sdk.names import Names, hashed
from perdure.sdk.signature import complaint, sign
from perdure.sdk.versions import common, fits, header_fits, range_of

VECTORS = Path(__file__).parents[1] / "fixtures" / "durablex"


def vectors(name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((VECTORS / f"{name}.json").read_text("utf-8"))
    return told


def test_step_ids_are_hashes_of_the_name_as_it_was_written() -> None:
    cases = vectors("step-id-hash")["cases"]

    assert len(cases) == 37
    for case in cases:
        assert bytes.fromhex(case["utf8Hex"]).decode() == case["stepId"]
        assert hashed(case["stepId"]) == case["hash"], case["stepId"]


@pytest.mark.parametrize("case", vectors("step-id-dedupe")["cases"], ids=lambda c: str(c["calls"]))
def test_a_name_is_given_once_in_a_pass(case: dict[str, Any]) -> None:
    names = Names()
    given = []
    refused = False
    for wanted in case["calls"]:
        try:
            given.append(names.give(wanted))
        except StepNameError:
            refused = True

    assert refused == case["collides"]
    if not refused:
        assert given == case["names"]
        assert [hashed(name) for name in given] == case["hashes"]


def test_durations_are_whole_milliseconds() -> None:
    for case in vectors("duration")["valid"]:
        assert milliseconds(case["input"]) == case["ms"], case
    for text in vectors("duration")["invalid"]:
        with pytest.raises(ValueError, match="is no duration"):
            milliseconds(text)


def test_versions_are_lenient_on_absence_and_strict_on_a_mismatch() -> None:
    told = vectors("protocol-version")
    for case in told["compatible"]:
        assert fits(case["value"]) == case["compatible"], case
    for case in told["httpHeader"]:
        assert header_fits(case["header"]) == case["compatible"], case
    for case in told["peerRange"]:
        assert list(range_of(case["payload"])) == case["range"], case
    for case in told["negotiate"]:
        assert common(tuple(case["self"]), tuple(case["peer"])) == case["version"], case


def test_signatures_are_made_and_judged_as_agreed() -> None:
    told = vectors("webhook-signature")
    for case in told["cases"]:
        signature = sign(case["secret"], case["body"].encode(), case["timestamp"])
        assert signature == case["signature"]
    first = told["cases"][0]
    for case in told["verify"]:
        now = first["timestamp"] + case["nowOffset"]
        wrong = complaint(first["secret"], case["header"], first["body"].encode(), now)
        assert (wrong or "ok") == case["result"], case
