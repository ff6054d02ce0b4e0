"""Matches: typed equality with members of an event, and the index that agrees with it."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.intake.expression import Event, compile_filter
from perdure.core.intake.match import digest_in, equalities, holds, index_of, read_match
from perdure.core.limits import MATCH_BYTES_MAX, MATCH_MEMBERS_MAX

EVENT = Event(
    "paid",
    b'{"id":"O\'Hara","n":1,"f":1.0,"half":0.5,"yes":true,"none":null,"list":[1],"zero":0,'
    b'"in":{"id":"A1","deep":{"er":7}},"big":18446744073709551617}',
)


def a_match(**members: object) -> bytes:
    return json.dumps({f"data.{path}": value for path, value in members.items()}).encode()


@pytest.mark.parametrize(
    ("path", "value", "is_equal"),
    [
        ("data.id", "O'Hara", True),
        ("data.id", "o'hara", False),
        ("data.id", "x' || 'a' == 'a", False),
        ("data.n", 1, True),
        ("data.n", 1.0, True),
        ("data.f", 1, True),
        ("data.n", "1", False),
        ("data.n", True, False),
        ("data.zero", False, False),
        ("data.zero", -0.0, True),
        ("data.half", 0.5, True),
        ("data.half", 0, False),
        ("data.yes", True, True),
        ("data.yes", 1, False),
        ("data.yes", "true", False),
        ("data.none", None, True),
        ("data.none", "null", False),
        ("data.missing", None, False),
        ("data.missing", "", False),
        ("data.list", 1, False),
        ("data.in", None, False),
        ("data.in.id", "A1", True),
        ("data.in.deep.er", 7.0, True),
        ("data.in.deep.er.more", 7, False),
        ("data.big", 2**64 + 1, True),
        ("data.big", 2**64, False),
        ("data.big", float(2**64), False),
    ],
)
def test_equality_is_typed_and_the_index_agrees(path: str, value: object, is_equal: bool) -> None:
    match = read_match(json.dumps({path: value}).encode())
    assert holds(match, EVENT) is is_equal
    index = index_of(match)
    assert index is not None
    digest = digest_in(index.paths, EVENT)
    assert (index.key == f"{index.shape}:{digest}") is is_equal


def test_the_data_itself_may_be_compared() -> None:
    assert holds(read_match(b'{"data":"A1"}'), Event("paid", b'"A1"'))
    assert not holds(read_match(b'{"data":"A1"}'), EVENT)
    assert digest_in(("data",), EVENT) is None


def test_every_member_must_be_equal() -> None:
    assert holds(read_match(a_match(id="O'Hara", n=1)), EVENT)
    assert not holds(read_match(a_match(id="O'Hara", n=2)), EVENT)


def test_the_order_of_members_makes_no_difference() -> None:
    assert index_of({"data.a": 1, "data.b": 2}) == index_of({"data.b": 2.0, "data.a": 1})
    assert index_of({"data.a": 1, "data.b": 2}) != index_of({"data.a": 2, "data.b": 1})
    ab, abc = {"data.a": "b", "data.c": ""}, {"data.a": "", "data.c": "b"}
    assert index_of(ab) != index_of(abc)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'"data"', b"1e400"])
def test_data_that_has_no_members_matches_nothing(data: bytes) -> None:
    event = Event("paid", data)
    assert not holds({"data.id": None}, event)
    assert digest_in(("data.id",), event) is None


@pytest.mark.parametrize(
    ("told", "complaint"),
    [
        (b"{}", "at least one"),
        (b"[]", "at least one"),
        (b'"data.id"', "at least one"),
        (b"{", "no JSON"),
        (b'{"data.id":1e400}', "no JSON"),
        (b'{"id":1}', "not a path"),
        (b'{"data.":1}', "not a path"),
        (b'{"data..id":1}', "not a path"),
        (b'{"event.data.id":1}', "not a path"),
        (b'{"":1}', "not a path"),
        (b'{"data.id":[]}', "a list or an object"),
        (b'{"data.id":{"a":1}}', "a list or an object"),
        (a_match(**{f"m{n}": n for n in range(MATCH_MEMBERS_MAX + 1)}), "more than"),
        (a_match(id="x" * MATCH_BYTES_MAX), "more than"),
    ],
)
def test_a_match_that_makes_no_sense_is_refused(told: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read_match(told)


TRIGGER = Event("order", b'{"id":"O\'Hara","n":7,"in":{"id":1.5},"list":[],"big":9007199254740992}')


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("event.data.id == 'A1'", {"data.id": "A1"}),
        ("'A1' == event.data.id", {"data.id": "A1"}),
        ('event.data.id == "it\'s"', {"data.id": "it's"}),
        ("event.data.a.b == -7", {"data.a.b": -7}),
        ("event.data.a == 1.50", {"data.a": 1.5}),
        ("event.data.a == true && event.data.b == null", {"data.a": True, "data.b": None}),
        ("event.data == 'A1'", {"data": "A1"}),
        ("event . data . a==1&&event.data.b>2", {"data.a": 1}),
        ("event.data.id == trigger.data.id", {"data.id": "O'Hara"}),
        ("trigger.data.in.id == event.data.id && true", {"data.id": 1.5}),
        ("event.data.a == 1 && event.data.a == 2", {"data.a": 1}),
        ("event.data.l.exists(x, x == 1 || x == 2) && event.data.a == 1", {"data.a": 1}),
        ("event.data.text == 'a && b || c ? d : e'", {"data.text": "a && b || c ? d : e"}),
        ("event.data.text == 'x == y'", {"data.text": "x == y"}),
        # Not needed for the filter to hold, or not understood.
        ("event.data.id == 'A1' || true", {}),
        ("event.data.id == 'A1' && true || true", {}),
        ("event.data.id == 'A1' ? true : false", {}),
        ("!(event.data.id == 'A1')", {}),
        ("(event.data.id == 'A1')", {}),
        ("[event.data.id == 'A1'].size() == 1", {}),
        ("event.data.id == 'A1' == false", {}),
        ("event.data.id == 'A' + '1'", {}),
        ("'A1' != event.data.id", {}),
        ("event.data.id == 'A\\\\x31'", {}),
        ("event.data.id == '''A1'''", {}),
        ("event.data.id == r'A1'", {}),
        ("event.data.id == b'A1'", {}),
        ("event.data.id == 'A1' // || true", {}),
        ("event.data.a == 1u", {}),
        ("event.data.a == 0x10", {}),
        ("event.data.a == 1e3", {}),
        ("event.data.a == 9007199254740992", {}),
        ("event.data.a == trigger.data.big", {}),
        ("event.data.a == trigger.data.list", {}),
        ("event.data.a == trigger.data.missing", {}),
        ("event.data.a == trigger.name", {}),
        ("event.data.a == event.data.b", {}),
        ("event.data['id'] == 'A1'", {}),
        ("event.name == 'paid'", {}),
        ("trigger.data.id == 'A1'", {}),
        ("event.data.a == 1 &&& true", {}),
        ("", {}),
    ],
)
def test_equalities_that_a_filter_cannot_do_without(source: str, found: dict[str, object]) -> None:
    assert equalities(source, TRIGGER) == found


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False)
)
DATA = st.dictionaries(st.sampled_from("abc"), SCALARS | st.text() | st.lists(SCALARS))


@given(DATA, DATA)
def test_an_index_finds_exactly_what_matches(
    wanted: dict[str, object], data: dict[str, object]
) -> None:
    scalars = {f"data.{key}": one for key, one in wanted.items() if not isinstance(one, list)}
    event = Event("paid", msgspec.json.encode(data))
    index = index_of(scalars)  # type: ignore[arg-type]
    if index is not None:
        found = index.key == f"{index.shape}:{digest_in(index.paths, event)}"
        assert found is holds(scalars, event)  # type: ignore[arg-type]


PARTS = st.sampled_from(
    [
        "event.data.a == 1",
        "event.data.b == 'x'",
        "event.data.a == trigger.data.a",
        "'x' == event.data.a",
        "true",
        "false",
        "event.data.a != 1",
        "(event.data.b == 1 || true)",
        "event.data.a == '\"' ",
        '"\'" == event.data.b',
    ]
)


@given(
    st.lists(st.tuples(PARTS, st.sampled_from(["&&", "||", "? true :", "=="])), max_size=4),
    PARTS,
    st.dictionaries(st.sampled_from("ab"), st.sampled_from([1, 1.0, "x", '"', "'", None])),
    st.dictionaries(st.sampled_from("ab"), st.sampled_from([1, 1.0, "x", '"', "'", None])),
)
def test_a_filter_never_holds_where_its_equalities_do_not(
    parts: list[tuple[str, str]], last: str, data: dict[str, object], begun: dict[str, object]
) -> None:
    source = " ".join(f"{part} {mark}" for part, mark in parts) + " " + last
    event, trigger = (Event("x", msgspec.json.encode(one)) for one in (data, begun))
    try:
        wanted = compile_filter(source, of_wait=True)
    except ValueError:
        return
    if wanted.holds(event, trigger):
        assert holds(equalities(source, trigger), event)
