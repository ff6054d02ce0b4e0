"""Our own source, as text and as syntax trees."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import perdure

ROOT = Path(perdure.__path__[0])
REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Module:
    """One module of the server."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def place(self) -> str:
        """Where it stands, as `core/run/state.py`."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def room(self) -> str:
        """The first folder; the modules that stand in none are their own."""
        parts = self.path.relative_to(ROOT).parts
        return parts[0] if len(parts) > 1 else parts[0].removesuffix(".py")

    def imports(self) -> Iterator[tuple[str, int]]:
        """Every imported module, with its line; also those only imported for types."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name, node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.place}:{node.lineno} imports relatively"
                assert node.module is not None
                yield node.module, node.lineno
                # `from perdure import clock` imports a module, too.
                if node.module == "perdure":
                    yield from ((f"perdure.{alias.name}", node.lineno) for alias in node.names)


def modules() -> list[Module]:
    return [
        Module(path, text := path.read_text("utf-8"), ast.parse(text))
        for path in sorted(ROOT.rglob("*.py"))
    ]


MODULES = modules()
