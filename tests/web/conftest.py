"""A floor for every test."""

from collections.abc import Iterator

import pytest

from tests.web.floor import Floor, a_floor


@pytest.fixture
def floor() -> Iterator[Floor]:
    with a_floor() as floor:
        yield floor
