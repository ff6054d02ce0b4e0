"""A PostgreSQL for every test that asks for one: a server per process, a database per test."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support import absent  # noqa: F401 (what it does, it does when imported)
from tests.support.postgres import Cluster
from tests.support.tables import migrated_database

# How long an example takes says how busy the machine is, and nothing about the code. The examples
# are the same in every run, so that a change is judged by what it changed; who wants others says
# `--hypothesis-profile=wandering`.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("wandering", patient)
settings.register_profile("patient", patient, derandomize=True)
settings.load_profile("patient")


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
