"""Live servers for the wire tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http import Wire, a_wire


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    """A server of its own for one test."""
    with a_wire(tmp_path) as wire:
        yield wire


@pytest.fixture(scope="module")
def shared_wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """One server for a module of tests that leave nothing behind, or only runs of their own."""
    with a_wire(tmp_path_factory.mktemp("shared")) as wire:
        yield wire
