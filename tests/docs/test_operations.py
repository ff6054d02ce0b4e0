"""What docs/operations.md tells people to type is what they can type."""

import asyncio
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from perdure.cli.main import _parser
from perdure.server.settings import ENVIRONMENT, load_settings, require_store
from tests.store.building import a_run
from tests.store.copying import Place, copied, digests
from tests.store.nodes import session
from tests.support.postgres import Cluster

OPERATIONS = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
SQL_BLOCKS = re.findall(r"```sql\n(.*?)```", OPERATIONS, re.DOTALL)
BLOCKS = re.findall(r"```sh\n(.*?)```", OPERATIONS, re.DOTALL)


def commands(program: str) -> list[tuple[dict[str, str], list[str]]]:
    """The settings and words of every command of a program that the page shows."""
    found = []
    for block in BLOCKS:
        words = shlex.split(block.replace("\\\n", " "))
        settings = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
        rest = words[len(settings) :]
        if rest[0] == program:
            found.append((settings, rest[1:]))
    return found


def test_every_block_is_one_command_that_is_looked_at_here() -> None:
    programs = ("perdure", "sqlite3", "pg_dump", "pg_restore")
    assert sum(len(commands(program)) for program in programs) == len(BLOCKS)


def test_every_perdure_command_of_the_page_is_understood() -> None:
    shown = commands("perdure")
    assert {words[0] for _, words in shown} == {"serve", "migrate", "copy"}
    for settings, words in shown:
        parsed = _parser().parse_args(words)
        assert set(settings) <= set(ENVIRONMENT)
        given = {} if parsed.command == "copy" else {"store": parsed.store}
        require_store(load_settings(settings, **given))


def test_every_setting_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`((?:DW|PERDURE)_[A-Z_]+)`", OPERATIONS))
    assert named <= set(ENVIRONMENT)


def test_the_backup_of_a_file_that_is_in_use_can_be_served(tmp_path: Path) -> None:
    if shutil.which("sqlite3") is None:
        pytest.skip("there is no sqlite3 on this machine")
    ((_, (_, statement)),) = commands("sqlite3")
    place, backup = Place(f"sqlite://{tmp_path}/a.db"), Place(f"sqlite://{tmp_path}/b.db")
    assert backup.path is not None
    with place.keep.opened() as store:
        place.keep.commit(store, a_run())
        words = [
            "sqlite3",
            str(place.path),
            statement.replace("/backup/perdure.db", str(backup.path)),
        ]
        subprocess.run(words, check=True, timeout=60)

    with backup.keep.opened():
        assert backup.ask("select count(*) from run") == [(1,)]


def test_a_dump_that_is_taken_while_nodes_run_can_be_restored(
    postgres_cluster: Cluster, postgres_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if not (postgres_cluster.binaries / "pg_dump").exists():
        pytest.skip("this PostgreSQL comes without pg_dump")
    restored = postgres_cluster.fresh_database()
    request.addfinalizer(lambda: postgres_cluster.drop_database(restored))
    ((_, dump),), ((_, restore),) = commands("pg_dump"), commands("pg_restore")
    place = Place(postgres_url)
    with place.keep.opened() as store:
        place.keep.commit(store, *(a_run(str(number)) for number in range(10)))
        for program, words in (("pg_dump", dump), ("pg_restore", restore)):
            words = [word.replace("perdure.dump", str(tmp_path / "dump")) for word in words]
            words = [re.sub(r"postgresql://\S+/perdure", postgres_url, word) for word in words]
            words = [re.sub(r"postgresql://\S+/restored", restored, word) for word in words]
            subprocess.run([postgres_cluster.binaries / program, *words], check=True, timeout=60)
    Place(restored).ask("delete from node")  # As if it were restored tomorrow.

    there = digests(copied(Place(restored), Place(f"sqlite://{tmp_path}/restored.db")))
    assert there == digests(copied(place, Place(f"sqlite://{tmp_path}/first.db")))


def test_indexes_that_are_made_beforehand_are_those_that_a_migration_would_make(
    migrated_url: str,
) -> None:
    (block,) = (found for found in SQL_BLOCKS if "concurrently" in found)
    names = re.findall(r"create index concurrently (\w+)", block)
    defined = "select indexname, indexdef from pg_indexes where indexname = any($1) order by 1"

    async def story() -> None:
        async with session(migrated_url) as connection:
            made = await connection.fetch(defined, names)
            for name in names:
                await connection.execute(f"drop index perdure.{name}")
            for statement in filter(str.strip, block.split(";")):
                await connection.execute(statement)

            assert await connection.fetch(defined, names) == made
            assert len(made) == len(names) == 7

    asyncio.run(story())
