"""The size of regular expressions once their repetitions are written out."""

import re
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.intake.pattern import pattern_size


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("", 0),
        ("abc", 12),
        ("é", 8),
        (".", 12),
        (r"\d\.\x{41}", 36),
        ("[a-z]", 36),
        ("[^]a]", 36),
        (r"[\]a]", 36),
        ("[[:alpha:]x]", 64),
        (r"\pL", 2_000),
        (r"\p{Greek}a", 2_004),
        (r"[^\pL]", 2_000),
        ("[[:^alpha:]]", 2_000),
        ("[à-ÿ]", 2_000),
        ("a|b", 12),
        ("a*b+c?$", 28),
        ("(a)", 8),
        ("(?:a)(?i)b(?P<name>c)", 24),
        ("a{10}", 40),
        ("a{10}b", 44),
        ("a{,5}", 20),
        ("a{2,}", 12),
        ("a{2,5}", 24),
        ("a{0}", 4),
        ("a*{9}", 40),
        ("(ab){10}", 120),
        ("(a{10}){10}", 440),
        ("(a{1000}){1000}", 4_004_000),
        ("((a{10}){10}b){10}", 4_480),
        ("a{10}{10}", 400),
        (r"\Qa{10}\E{2}", 24),
        (r"\Q[(\E", 8),
        (")a", 4),
        ("((a", 12),
        ("[a", 24),
        ("\\", 12),
    ],
)
def test_the_size(pattern: str, size: int) -> None:
    assert pattern_size(pattern) == size


def is_whole(pattern: str) -> bool:
    """Whether Python takes it, too; the library refuses what is cut off before anybody asks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            re.compile(pattern)
        except (re.error, OverflowError):
            return False
    return True


@given(st.text(alphabet="ab.[]()\\{}0123456789,*+?|^$QEpPL:-é", max_size=60), st.integers(2, 9))
def test_a_repeated_pattern_is_as_many_times_as_large(pattern: str, times: int) -> None:
    size = pattern_size(pattern)
    assert size >= 0
    if not is_whole(pattern):
        # What follows a class or an escape that is cut off would become a part of it.
        return
    assert pattern_size(f"(?:{pattern}){{{times}}}") >= size
