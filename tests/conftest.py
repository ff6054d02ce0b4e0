"""A PostgreSQL for every test that asks for one: a server per process, a database per test."""

import os
import secrets
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.support import absent, examples  # noqa: F401 (what they do, they do when imported)
from tests.support.postgres import Cluster
from tests.support.tables import migrated_database

# The examples are the same in every run, so that a change is judged by what it changed. Others are
# played once per run by `tests/properties/test_wandering.py`; its seed stands in the head of a run.
settings.load_profile("patient")

# The processes of a run inherit it.
os.environ.setdefault("PERDURE_WANDERING_SEED", str(secrets.randbelow(2**32)))


def pytest_report_header() -> str:
    return f"fresh examples: PERDURE_WANDERING_SEED={os.environ['PERDURE_WANDERING_SEED']}"


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[Cluster]:
    """The server that the tests of this process share. Who stops it starts it again."""
    with Cluster(synchronous_commit="on") as cluster:
        yield cluster


@pytest.fixture
def postgres_url(postgres_cluster: Cluster) -> Iterator[str]:
    """An empty database of the test's own."""
    url = postgres_cluster.fresh_database()
    yield url
    postgres_cluster.drop_database(url)


@pytest.fixture
def migrated_url(postgres_cluster: Cluster) -> Iterator[str]:
    """A database of the test's own with our schema in it."""
    url = migrated_database(postgres_cluster)
    yield url
    postgres_cluster.drop_database(url)
