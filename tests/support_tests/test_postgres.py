"""The servers that the tests start: real, apart from each other, and gone when their owner is."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.support import postgres
from tests.support.postgres import Cluster
from tests.support.postgres_binaries import (
    CHOICE_VARIABLE,
    NoPostgres,
    find_binaries,
    is_usable,
    wheel_binaries,
)

ROOT = Path(__file__).parents[2]
GONE_TIMEOUT = 90

ABANDONED = """
import signal
from tests.support.postgres import Cluster
cluster = Cluster().open()
print(cluster._guard.pid, cluster.pid, cluster.folder, flush=True)
signal.pause()
"""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


def ask(url: str, *statements: str) -> object:
    """The one value of the last statement, over a connection of its own."""

    async def asking() -> object:
        connection = await asyncpg.connect(url)
        try:
            for statement in statements[:-1]:
                await connection.execute(statement)
            return await connection.fetchval(statements[-1])
        finally:
            await connection.close()

    return asyncio.run(asking())


def test_every_test_gets_an_empty_database_of_its_own(postgres_cluster: Cluster) -> None:
    first, second = postgres_cluster.fresh_database(), postgres_cluster.fresh_database()

    ask(first, "create schema perdure", "select 1")
    assert ask(second, "select to_regnamespace('perdure')::text") is None

    postgres_cluster.drop_database(first)
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        ask(first, "select 1")
    assert ask(second, "select 1") == 1


def test_a_database_is_dropped_under_the_feet_of_who_uses_it(postgres_cluster: Cluster) -> None:
    async def story() -> None:
        url = postgres_cluster.fresh_database()
        connection = await asyncpg.connect(url)
        postgres_cluster.drop_database(url)
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
            await connection.fetchval("select 1")
        connection.terminate()

    asyncio.run(story())


def test_the_role_of_the_tests_is_not_a_superuser(postgres_url: str) -> None:
    assert ask(postgres_url, "show is_superuser") == "off"


def test_a_template_is_prepared_once(postgres_cluster: Cluster) -> None:
    prepared = []

    def prepare(url: str) -> None:
        prepared.append(url)
        ask(url, "create table kept (number int)", "insert into kept values (7) returning 1")

    for _ in range(2):
        url = postgres_cluster.fresh_database(postgres_cluster.template("prepared", prepare))
        assert ask(url, "select number from kept") == 7
    assert len(prepared) == 1


@pytest.mark.parametrize("hard", [False, True])
def test_a_restart_keeps_port_and_data(cluster: Cluster, hard: bool) -> None:
    url = cluster.fresh_database()
    ask(url, "set synchronous_commit = on", "create table kept (number int)", "select 1")
    before = cluster.pid

    cluster.restart(hard=hard)

    assert cluster.pid != before
    assert ask(url, "select count(*) from kept") == 0
    assert ("was not properly shut down" in cluster.log()) == hard


def test_a_stopped_server_refuses_connections(cluster: Cluster) -> None:
    url = cluster.fresh_database()
    cluster.kill()
    with pytest.raises(ConnectionRefusedError):
        ask(url, "select 1")
    cluster.start()
    assert ask(url, "select 1") == 1


def test_a_taken_port_is_not_fought_over(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both servers are told the same port, as two processes might find it at the same moment."""
    told = iter([cluster.port, cluster.port])
    find = postgres._free_port
    monkeypatch.setattr(postgres, "_free_port", lambda: next(told, None) or find())
    with Cluster() as other:
        assert other.port != cluster.port
        assert ask(other.admin_url, "select 1") == ask(cluster.admin_url, "select 1")


def test_durable_is_what_an_operator_would_run() -> None:
    with Cluster(durable=True, settings={"deadlock_timeout": "250ms"}) as cluster:
        for setting in ("fsync", "full_page_writes", "synchronous_commit"):
            assert ask(cluster.admin_url, f"show {setting}") == "on"
        assert ask(cluster.admin_url, "show deadlock_timeout") == "250ms"


def test_a_broken_setting_is_told_in_the_words_of_the_server() -> None:
    with (
        pytest.raises(postgres.ServerFailed, match="no_such_setting"),
        Cluster(settings={"no_such_setting": "1"}),
    ):
        pass


def test_nothing_is_left_after_the_end() -> None:
    with Cluster() as cluster:
        folder, pid = cluster.folder, cluster.pid
        assert (folder / f".s.PGSQL.{cluster.port}").exists()
    assert not folder.exists()
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_server_dies_with_a_killed_owner() -> None:
    """The guard holds the other end of our pipe, so it learns of every kind of death."""
    owner = subprocess.Popen(
        [sys.executable, "-c", ABANDONED], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout is not None
        guard, pid, folder = owner.stdout.readline().split()
        owner.send_signal(signal.SIGKILL)
    _wait_until_gone(int(guard))
    _wait_until_gone(int(pid))
    assert not Path(folder).exists()


def test_the_wheel_carries_a_whole_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from a place that the account of the server cannot enter."""
    binaries = wheel_binaries()
    assert binaries is not None
    assert is_usable(binaries)
    monkeypatch.setattr(postgres, "_is_open_to_all", lambda folder: folder == Path("/tmp"))
    with Cluster(binaries=binaries) as cluster:
        assert "PostgreSQL" in str(ask(cluster.admin_url, "select version()"))


def test_a_chosen_folder_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = wheel_binaries()
    monkeypatch.setenv(CHOICE_VARIABLE, str(chosen))
    assert find_binaries() == chosen


def test_without_a_server_one_sentence_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(CHOICE_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("tests.support.postgres_binaries.PACKAGED", ())
    monkeypatch.setattr("tests.support.postgres_binaries.WHEEL", "no_such_wheel")
    with pytest.raises(NoPostgres, match=r"^These tests need [^.]*\.$"):
        find_binaries()

    monkeypatch.setenv(CHOICE_VARIABLE, str(tmp_path))
    with pytest.raises(NoPostgres, match=str(tmp_path)):
        find_binaries()


def _wait_until_gone(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with open(descriptor, "rb", buffering=0):
        ready, _, _ = select.select([descriptor], [], [], GONE_TIMEOUT)
        assert ready, f"process {pid} is still there"
