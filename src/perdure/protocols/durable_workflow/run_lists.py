"""Pages of runs: along an index, and with a look at each where no index knows the answer."""

from collections.abc import Callable
from typing import NamedTuple

from perdure.core import limits
from perdure.core.rejection import InvalidRequest
from perdure.core.run.standalone import HOST_TYPE
from perdure.core.run.state import Run
from perdure.core.run.status import StatusBucket
from perdure.protocols.durable_workflow import tokens
from perdure.protocols.durable_workflow.visibility import Visibility, read_query
from perdure.store.interface import ListCursor, RunFilter, Store

_CANONICAL = {
    "pending": "running",
    "waiting": "running",
    "cancelled": "failed",
    "terminated": "failed",
}
"""Statuses that a list knows by a coarser word."""


class Page(NamedTuple):
    """Some runs, and where the next page begins."""

    runs: list[Run]
    next_page_token: str | None


async def read_workflows(store: Store, namespace: str, query: dict[str, str]) -> Page:
    """A page of runs, newest first, as a client asks for them."""
    wanted = RunFilter(
        namespace=namespace,
        workflow_type=query.get("workflow_type") or None,
        # Standalone activities have a list of their own; who names their type sees them here.
        hidden_type=None if query.get("workflow_type") else HOST_TYPE,
        bucket=status_bucket(query),
    )
    size, after = page_size(query), _cursor(query)
    if not query.get("query"):
        return await _page(store, wanted, after, size)
    told = read_query(query["query"])
    until = told.started[1]
    if until is not None:
        behind = ListCursor(until, "")
        after = behind if after is None else min(after, behind)
    return await _looked_through(store, _narrowed(wanted, told), after, size, told.fits)


async def read_activities(store: Store, namespace: str, query: dict[str, str]) -> Page:
    """The same for standalone activities."""
    wanted = RunFilter(namespace=namespace, workflow_type=HOST_TYPE, bucket=status_bucket(query))
    return await _page(store, wanted, _cursor(query), page_size(query))


def _narrowed(wanted: RunFilter, told: Visibility) -> RunFilter:
    """What an index or a column can answer is asked of the disk. All of it is looked at again."""
    types = told.words("WorkflowType") or ()
    workflow_type = wanted.workflow_type
    if workflow_type is None and len(types) == 1:
        workflow_type = types[0]
    return RunFilter(
        namespace=wanted.namespace,
        workflow_type=workflow_type,
        hidden_type=None if HOST_TYPE in types else wanted.hidden_type,
        bucket=wanted.bucket or told.bucket,
        since=told.started[0],
        workflow_ids=told.words("WorkflowId"),
        run_ids=told.words("RunId"),
    )


async def _page(store: Store, wanted: RunFilter, after: ListCursor | None, size: int) -> Page:
    found = await store.read_list(wanted, after, size + 1)
    page = found[:size]
    return Page(page, _token(page[-1]) if len(found) > size else None)


async def _looked_through(
    store: Store,
    wanted: RunFilter,
    after: ListCursor | None,
    size: int,
    fits: Callable[[Run], bool],
) -> Page:
    """A page of runs that fit. It may end early, where enough runs were looked at for one page."""
    page: list[Run] = []
    for _ in range(limits.LIST_LOOKS_MAX // limits.LIST_PAGE_SIZE_MAX):
        found = await store.read_list(wanted, after, limits.LIST_PAGE_SIZE_MAX)
        for run in found:
            if not fits(run):
                continue
            if len(page) == size:
                return Page(page, _token(page[-1]))
            page.append(run)
        if len(found) < limits.LIST_PAGE_SIZE_MAX:
            return Page(page, None)
        after = ListCursor(found[-1].started_at, found[-1].run_id)
    return Page(page, _token(found[-1]))


def _token(run: Run) -> str:
    return tokens.list_token(ListCursor(run.started_at, run.run_id))


def _cursor(query: dict[str, str]) -> ListCursor | None:
    token = query.get("next_page_token")
    return tokens.parse_list_token(token) if token else None


def page_size(
    query: dict[str, str],
    default: int = limits.LIST_PAGE_SIZE_DEFAULT,
    most: int = limits.LIST_PAGE_SIZE_MAX,
) -> int:
    """How much of a list somebody wants to see at once."""
    text = query.get("page_size")
    if text is None or text == "":
        return default
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= most:
        raise InvalidRequest("page_size", f"must be a number from 1 to {most}")
    return int(text[:9])


def status_bucket(query: dict[str, str]) -> str | None:
    """The coarse status that a list is to be limited to."""
    status = query.get("status") or None
    if status is not None and status not in set(StatusBucket):
        hint = f"; {status} is part of {_CANONICAL[status]}" if status in _CANONICAL else ""
        raise InvalidRequest("status", f"must be running, completed or failed{hint}")
    return status
