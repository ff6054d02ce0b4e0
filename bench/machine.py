"""The facts about a machine without which its figures mean little."""

import os
import platform
import resource
import statistics
import tempfile
import time
from importlib import metadata
from typing import Final

from tests.support.postgres import Cluster

FILES_WANTED: Final = 16_384
FSYNC_SAMPLES: Final = 50


def describe(store: str, cluster: Cluster | None) -> str:
    """One line: processors, interpreter, database, the cost of an fsync, other load."""
    return ", ".join(
        (
            f"{os.cpu_count()} cores",
            f"{platform.system()} {platform.machine()}",
            f"Python {platform.python_version()}",
            f"store {store}",
            *_database_version(cluster),
            _driver_version(store),
            f"fsync {_fsync_milliseconds():.2f} ms",
            f"load {os.getloadavg()[0]:.1f} before the first bench",
        )
    )


def raise_file_limit() -> None:
    """Allow thousands of sockets here and, by inheritance, in the servers started from here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _database_version(cluster: Cluster | None) -> list[str]:
    if cluster is None:
        return []
    [[version]] = cluster.execute("show server_version")
    return [f"PostgreSQL {str(version).split()[0]}"]


def _driver_version(store: str) -> str:
    package, label = ("apsw", "SQLite (apsw)") if store == "sqlite" else ("asyncpg", "asyncpg")
    try:
        return f"{label} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return f"{label} n/a"


def _fsync_milliseconds() -> float:
    samples = []
    with tempfile.TemporaryFile() as file:
        for _ in range(FSYNC_SAMPLES):
            file.write(bytes(4096))
            file.flush()
            started_at = time.perf_counter()
            os.fsync(file.fileno())
            samples.append(1e3 * (time.perf_counter() - started_at))
    return statistics.median(samples)
