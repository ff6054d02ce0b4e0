"""A floor for every test."""

from collections.abc import Iterator

import pytest

from tests.web.floor import Floor, a_floor


@pytest.fixture(params=[False, True], ids=["tasks", "lean"])
def floor(request: pytest.FixtureRequest) -> Iterator[Floor]:
    """Once with a task for every handler, once with handlers that are driven without one."""
    with a_floor(lean=request.param) as floor:
        yield floor
