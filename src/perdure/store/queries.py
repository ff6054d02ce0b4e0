"""Named SQL: files of `-- name:` blocks, loaded once.

A `-- part:` block is no query: it is put in wherever its name stands in braces. A query with
`{way}` is loaded twice, forwards and backwards.
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
    """The query that reads the same from the other end."""
    return f"{name}_backwards"


def shortened(query: str) -> str:
    """The same in fewer characters, with numbers for names of parameters.

    APSW finds a statement that it has prepared by all of its text, anew for every row.
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
    """The migrations of a store in their order: version and script."""
    return [
        (int(file.name.split("_", 1)[0]), file.read_text("utf-8"))
        for file in _sql_files(package, "migrations")
    ]


def _filled(text: str, parts: Mapping[str, str]) -> str:
    """A text with parts in their places, and parts in theirs. Other braces stay as they are."""
    pattern = re.compile(r"\{(" + "|".join(parts) + r")\}")
    while parts and pattern.search(text):
        text = pattern.sub(lambda found: parts[found.group(1)], text)
    return text


def _sql_files(package: str, folder: str) -> list[Traversable]:
    found = (files(package) / folder).iterdir()
    return sorted((f for f in found if f.name.endswith(".sql")), key=lambda f: f.name)
