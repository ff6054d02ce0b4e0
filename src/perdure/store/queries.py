"""Named SQL: files of `-- name:` blocks, loaded once.

A `-- part:` block is not a query: it replaces its name in braces wherever that occurs. A query with
`{way}` is loaded twice, in ascending and in descending order.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType

_HEAD = re.compile(r"^-- (name|part): (\w+)$", re.MULTILINE)
_PARAMETER = re.compile(r":\w+")
_FORWARDS = {"way": "asc", "beyond": ">"}
_BACKWARDS = {"way": "desc", "beyond": "<"}


@cache
def load_queries(package: str) -> Mapping[str, str]:
    """Every named query of a store's `sql` folder."""
    blocks: dict[str, dict[str, str]] = {"name": {}, "part": {}}
    for file in _sql_files(package, "sql"):
        _, *pieces = _HEAD.split(file.read_text("utf-8"))
        for kind, name, text in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
            body = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
            assert name not in blocks[kind], f"{kind} {name} is defined twice"
            blocks[kind][name] = body.strip().rstrip(";")
    queries: dict[str, str] = {}
    for name, text in blocks["name"].items():
        whole = _filled(text, blocks["part"])
        queries[name] = _filled(whole, _FORWARDS)
        if "{way}" in whole:
            queries[backwards(name)] = _filled(whole, _BACKWARDS)
    return MappingProxyType(queries)


def backwards(name: str) -> str:
    """The name of the same query in descending order."""
    return f"{name}_backwards"


def shortened(query: str) -> str:
    """The same query in fewer characters, with numbers as parameter names.

    APSW looks up a prepared statement by its whole text, for every row.
    """
    numbers: dict[str, int] = {}
    line = " ".join(query.split())
    return _PARAMETER.sub(lambda name: f"?{numbers.setdefault(name[0], len(numbers) + 1)}", line)


@cache
def load_shortened(package: str) -> Mapping[str, str]:
    """Every named query of a store, shortened."""
    queries = load_queries(package)
    return MappingProxyType({name: shortened(query) for name, query in queries.items()})


@cache
def load_migrations(package: str) -> Sequence[tuple[int, str]]:
    """The migrations of a store, in order: version and script."""
    return [
        (int(file.name.split("_", 1)[0]), file.read_text("utf-8"))
        for file in _sql_files(package, "migrations")
    ]


def _filled(text: str, parts: Mapping[str, str]) -> str:
    """A text with part names replaced, recursively. Other braces stay as they are."""
    pattern = re.compile(r"\{(" + "|".join(parts) + r")\}")
    while parts and pattern.search(text):
        text = pattern.sub(lambda found: parts[found.group(1)], text)
    return text


def _sql_files(package: str, folder: str) -> list[Traversable]:
    found = (files(package) / folder).iterdir()
    return sorted((f for f in found if f.name.endswith(".sql")), key=lambda f: f.name)
