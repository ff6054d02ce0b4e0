"""The server that queries are asked at."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http import (
    Wire,
    a_wire,
    wait_for_condition,
)
from tests.wire.queries.asking import QUERIES


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    """A server with one worker that answers queries, and one run that waits."""
    with a_wire(tmp_path) as wire:
        wire.register(capabilities=QUERIES)
        wire.run_to(wait_for_condition())
        yield wire
