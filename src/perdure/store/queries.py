"""Named SQL: files of `-- name:` blocks, loaded once."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType


@cache
def load_queries(package: str) -> Mapping[str, str]:
    """Every named query of a store's `sql` folder."""
    queries: dict[str, str] = {}
    for file in _sql_files(package, "sql"):
        for block in file.read_text("utf-8").split("-- name:")[1:]:
            name, _, text = block.partition("\n")
            body = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
            assert name.strip() not in queries, f"query {name.strip()} is defined twice"
            queries[name.strip()] = body.strip().rstrip(";")
    return MappingProxyType(queries)


def load_migrations(package: str) -> list[tuple[int, str]]:
    """The migrations of a store in their order: version and script."""
    return [
        (int(file.name.split("_", 1)[0]), file.read_text("utf-8"))
        for file in _sql_files(package, "migrations")
    ]


def _sql_files(package: str, folder: str) -> list[Traversable]:
    found = (files(package) / folder).iterdir()
    return sorted((f for f in found if f.name.endswith(".sql")), key=lambda f: f.name)
