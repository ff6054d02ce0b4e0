"""The stores that every test of this folder runs against."""

from pathlib import Path

import pytest

from tests.store.keeping import Keep


@pytest.fixture(params=["sqlite"])
def keep(request: pytest.FixtureRequest, tmp_path: Path) -> Keep:
    """A place for a store of each kind. PostgreSQL joins by a second parameter."""
    assert request.param == "sqlite"
    return Keep.sqlite(tmp_path / "perdure.db")
