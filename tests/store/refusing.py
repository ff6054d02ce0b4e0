"""A disk that takes everything and then refuses to commit it."""

from collections.abc import Iterator
from contextlib import contextmanager

import apsw

from perdure.store.sqlite.committer import Committer, Transaction
from perdure.store.sqlite.store import SqliteStore


class RefusingCommitter(Committer):
    """Everything is written, and then COMMIT itself fails."""

    def __init__(self, error: apsw.Error) -> None:
        super().__init__()
        self.attempts = 0
        self._error = error

    async def commit(self, transaction: Transaction, *, runs: int) -> None:
        assert isinstance(transaction, apsw.Connection)
        assert transaction.in_transaction
        self.attempts += 1
        raise self._error

    def commit_here(self, transaction: Transaction) -> None:
        raise self._error


@contextmanager
def refusing_commits(store: SqliteStore, error: apsw.Error) -> Iterator[RefusingCommitter]:
    """Nothing can be committed in here; afterwards everything is as before."""
    committer = RefusingCommitter(error)
    real, store._committer = store._committer, committer
    try:
        yield committer
    finally:
        store._committer = real
        committer.stop()
