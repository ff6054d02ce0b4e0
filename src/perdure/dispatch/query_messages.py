"""What is said about queries, between askers, the desk and workers, and between the desks of nodes.

Every message can be encoded, so that desks on different nodes can talk over anything.
"""

from typing import Any, NamedTuple

from msgspec import Struct


class QueueName(NamedTuple):
    """Where queries wait."""

    namespace: str
    queue: str


class AskedQuery(Struct, frozen=True, kw_only=True):
    """One question to one run. It has arguments in an envelope, or plain ones, or none."""

    namespace: str
    queue: str
    name: str
    """What it is looked for under: the workflow type, pinned to a build or free."""
    workflow_id: str
    run_id: str
    workflow_type: str
    query_name: str
    arguments: bytes | None = None
    plain: bytes | None = None
    # Set by the desk that takes it.
    admitted_at: int = 0
    deadline_at: int = 0

    @property
    def key(self) -> QueueName:
        return QueueName(self.namespace, self.queue)

    @property
    def size(self) -> int:
        return len(self.arguments or b"") + len(self.plain or b"")


class QueryLease(Struct, frozen=True, kw_only=True):
    """A query that one worker may answer until an instant, which is never behind its deadline."""

    query_id: str
    attempt: int
    owner: str
    expires_at: int
    asked: AskedQuery


class QueryAnswer(Struct, frozen=True, tag="answer"):
    """What the worker's code returned: encoded JSON, and an envelope if the worker sent one."""

    result: bytes
    envelope: bytes | None = None


class QueryFailure(Struct, frozen=True, tag="failure"):
    """Why the worker has no answer."""

    reason: str
    message: str
    failure_type: str | None = None
    validation_errors: dict[str, Any] | None = None


class QueryReport(Struct, frozen=True, kw_only=True):
    """A worker's word on a query that it was given."""

    namespace: str
    query_id: str
    owner: str
    attempt: int
    outcome: QueryAnswer | QueryFailure | None = None
    """None only asks whether the lease still stands."""


class QueryView(Struct, frozen=True, kw_only=True):
    """How a query stands for the worker that was given it."""

    state: str
    attempt: int
    owner: str
    lease_expires_at: int
    admitted_at: int
    deadline_at: int


class QueryWanted(Struct, frozen=True, kw_only=True):
    """A parked poll, as another node's desk hears of it."""

    namespace: str
    queue: str
    names: frozenset[str]
    owner: str


def home_of(query_id: str) -> str:
    """The node where a query was asked; its id says so, as task ids name their run."""
    return query_id.partition("-")[2]
