"""Empty maps as clients write them: `{}`, `[]`, or nothing at all."""

import msgspec
import pytest
from msgspec import Struct

from perdure.core.intake.definition import read_workflow
from perdure.core.maps import (
    EmptyList,
    Map,
    expectation,
    members_of,
    optional_members_of,
    structure_of,
    whole_body,
)
from perdure.core.rejection import InvalidRequest


class Options(Struct):
    size: int = 1


class Body(Struct):
    tags: Map[int] | None = None
    options: Options | EmptyList | None = None


def read(text: str) -> Body:
    return msgspec.json.decode(text.encode(), type=Body)


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b" [ ] ", b"\n[\t]\r\n", b"  "])
def test_nothing_and_an_empty_list_are_an_empty_body(body: bytes) -> None:
    assert msgspec.json.decode(whole_body(body)) == {}


@pytest.mark.parametrize("body", [b"[1]", b"[[]]", b"[", b"]", b"null", b'""', b'{"a":1}', b"[{}]"])
def test_any_other_body_stays_what_it_is(body: bytes) -> None:
    assert whole_body(body) == body


def test_a_map_is_its_members_however_it_was_written() -> None:
    assert members_of(read('{"tags": {"a": 1}}').tags) == {"a": 1}
    assert members_of(read('{"tags": []}').tags) == {}
    assert members_of(read('{"tags": {}}').tags) == {}
    assert members_of(read("{}").tags) == {}


def test_a_map_that_was_not_sent_can_be_told_from_an_empty_one() -> None:
    assert optional_members_of(read('{"tags": []}').tags) == {}
    assert optional_members_of(read('{"tags": null}').tags) is None


def test_a_structure_without_members_is_its_defaults() -> None:
    assert structure_of(read('{"options": []}').options, Options) == Options()
    assert structure_of(read('{"options": {"size": 3}}').options, Options) == Options(3)
    assert structure_of(read("{}").options, Options) is None


@pytest.mark.parametrize("text", ['{"tags": [1]}', '{"tags": "x"}', '{"options": [[]]}'])
def test_anything_else_is_refused_as_no_object(text: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        read(text)
    told = expectation(str(refused.value))
    assert told.startswith("Expected `object")
    assert "array |" not in told
    assert "| array" not in told


POLICIES = (
    *("retry", "concurrency", "throttle", "rateLimit", "debounce", "batch", "priority"),
    *("singleton", "idempotency", "cap", "budget", "tokenThrottle"),
)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_empty_policy_of_a_manifest_means_the_same_in_both_forms(policy: str) -> None:
    def outcome(empty: object) -> object:
        try:
            return read_workflow({"name": "order", policy: empty})
        except InvalidRequest as refused:
            return refused.message

    assert outcome([]) == outcome({})
    with pytest.raises(InvalidRequest):
        read_workflow({"name": "order", policy: [1]})


def test_the_triggers_of_a_manifest_stay_a_list() -> None:
    assert read_workflow({"name": "order", "triggers": []}).triggers == ()
