"""Settings whose sense is not in one number: tokens with names, and variables set in vain."""

import json

import pytest

from perdure.core.fleet.worker import Cadence
from perdure.core.limits import SECOND
from perdure.server.credentials import PrincipalToken
from perdure.server.foreign import FIXED, IGNORED
from perdure.server.settings import Settings, SettingsError, load_settings

ANN = {"subject": "ann", "roles": ["operator", "admin"]}


def test_principals_are_a_list_or_stand_behind_their_tokens() -> None:
    expected = (PrincipalToken("s3cret", "ann", frozenset({"operator", "admin"})),)
    for told in ([{"token": "s3cret", **ANN}], {"s3cret": {**ANN, "label": "Ann"}}):
        assert load_settings({"DW_PRINCIPAL_TOKENS": json.dumps(told)}).principals == expected


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ("s3cret", "in JSON"),
        ('"s3cret"', "in JSON"),
        ('[{"token":"s3cret"', "in JSON"),
        ([{"token": "s3cret"}], "subject"),
        ([{"token": "s3cret", **ANN, "roles": "admin"}], "roles"),
        ([ANN], "entry 1: it has no token"),
        ([{"token": "s3cret\n", **ANN}], "entry 1: it has no token"),
        ({"": ANN}, "entry 1: it has no token"),
        ({"s3cret": {**ANN, "roles": []}}, "entry 1: roles are some of"),
        ({"s3cret": {**ANN, "roles": ["s3cret"]}}, "entry 1: roles are some of"),
        ({"s3cret": {**ANN, "subject": " "}}, "entry 1: a subject"),
        ([{"token": "s3cret", **ANN}] * 2, "the same token twice"),
        ({f"s3cret-{number}": ANN for number in range(257)}, "at most 256"),
    ],
)
def test_principals_that_make_no_sense_are_refused_without_being_shown(
    told: object, problem: str
) -> None:
    text = told if isinstance(told, str) else json.dumps(told)
    with pytest.raises(SettingsError, match=problem) as refused:
        load_settings({"DW_PRINCIPAL_TOKENS": text})
    assert "DW_PRINCIPAL_TOKENS" in str(refused.value)
    assert "s3cret" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_every_variable_without_effect_is_told_and_its_value_is_not() -> None:
    vain = dict.fromkeys((*FIXED, *IGNORED, "DW_NOSUCH"), "s3cret")

    told = load_settings({**vain, "DW_SERVER_ID": "blue", "HOME": "/"}).without_effect

    assert sorted(sentence.split(" ")[0] for sentence in told) == sorted(vain)
    assert "s3cret" not in "".join(told)
    with pytest.raises(SettingsError, match="DW_NOSUCH has no effect"):
        load_settings({"DW_NOSUCH": "1", "DW_ENV_AUDIT_STRICT": "true"})


def test_asking_for_what_is_so_anyway_is_no_fault() -> None:
    same = {name: str(value) for name, value in FIXED.items()}
    same |= {"DW_MODE": "service", "DW_SERIALIZER": "avro", "DW_TASK_DISPATCH_MODE": "poll"}
    assert load_settings({**same, "DW_ENV_AUDIT_STRICT": "on"}) == Settings()


def test_a_worker_may_be_silent_for_two_polls_unless_it_is_said() -> None:
    assert Settings().cadence == Cadence(30, 60 * SECOND)
    assert Settings(poll_timeout=45 * SECOND).cadence.stale_after == 90 * SECOND
    told = {"DW_WORKER_STALE_AFTER_SECONDS": "20", "DW_WORKER_HEARTBEAT_INTERVAL_SECONDS": "5"}
    assert load_settings(told).cadence == Cadence(5, 20 * SECOND)
