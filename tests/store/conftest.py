"""The stores that every test of this folder runs against."""

from pathlib import Path

import pytest

from tests.store.keeping import Keep


@pytest.fixture(params=["sqlite", "postgres"])
def keep(request: pytest.FixtureRequest, tmp_path: Path) -> Keep:
    """A place for a store of each kind."""
    if request.param == "sqlite":
        return Keep.sqlite(tmp_path / "perdure.db")
    return Keep.postgres(request.getfixturevalue("postgres_url"))
