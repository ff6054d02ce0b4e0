"""What applications have registered, held in memory by edition.

An edition is one record per namespace that changes with every registration that changes anything.
Looking whether it is still the one in memory is all that an event costs; see `registering`.
"""

from collections.abc import Iterable

from msgspec import Struct

from perdure.core.intake.definition import Workflow
from perdure.core.intake.trigger_index import Registered, TriggerIndex


class Definition(Struct, kw_only=True):
    """A workflow as its app registered it."""

    app: str
    workflow: Workflow
    registered_at: int
    updated_at: int


class Book:
    """The definitions of one namespace, of one edition."""

    def __init__(self, edition: int, definitions: Iterable[Definition]) -> None:
        self.edition = edition
        self.definitions = {(one.app, one.workflow.name): one for one in definitions}
        self.triggers = TriggerIndex(
            Registered(one.app, one.workflow) for one in self.definitions.values()
        )

    def find(self, app: str, name: str) -> Definition | None:
        return self.definitions.get((app, name))

    def find_called(self, name: str, *, app: str | None, caller: str) -> Definition | None:
        """The workflow that a run calls: of a named app, else of its own, else of any."""
        if app is not None:
            return self.find(app, name)
        own = self.find(caller, name)
        if own is not None:
            return own
        others = sorted(owner for owner, known in self.definitions if known == name)
        return self.find(others[0], name) if others else None


class Catalogue:
    """One book per namespace."""

    def __init__(self) -> None:
        self._books: dict[str, Book] = {}

    def book(self, namespace: str) -> Book:
        """The book that was looked up last."""
        return self._books.get(namespace) or Book(0, ())

    def put(self, namespace: str, book: Book) -> None:
        self._books[namespace] = book
