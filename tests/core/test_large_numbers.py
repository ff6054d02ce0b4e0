"""Numbers that no double holds are found in JSON, and nothing else is."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.large_numbers import find_large_number

LARGE = ["1e400", "-1e309", "1.8E308", "2.5e+0400", "9" * 309, "1" + "0" * 5_000, "9" * 250 + "e99"]


@pytest.mark.parametrize("number", LARGE)
@pytest.mark.parametrize("around", ["%s", "[1, %s]", '{"a": {"b": [%s]}}', '["\\"1", %s, "x"]'])
def test_a_large_number_is_found_wherever_it_stands(number: str, around: str) -> None:
    assert find_large_number((around % number).encode()) == number[:40]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1e308",
        "-1.7e+308",
        "1e-400",
        "9" * 308,
        "0." + "1" * 5_000,
        "0e999",
        '"1e400"',
        '{"1e400": "' + "9" * 400 + '"}',
        r'["\\\"1e400", "e999"]',
        "1e400e1",
        "not JSON e400",
    ],
)
def test_what_fits_is_left_alone(text: str) -> None:
    assert find_large_number(text.encode()) is None


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-(10**300), 10**300)
    | st.text(alphabet='e1"\\0+E9-.', max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
)


@given(json_values, st.sampled_from(LARGE))
def test_a_document_has_one_only_if_it_was_put_there(value: object, number: str) -> None:
    text = json.dumps(value)
    assert find_large_number(text.encode()) is None
    assert find_large_number(f"[{text}, {number}]".encode()) == number[:40]
