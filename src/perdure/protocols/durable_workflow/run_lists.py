"""Pages of runs: read from an index, and filtered run by run where no index has the answer."""

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
"""Statuses and the coarser status by which a list can be filtered."""


class Page(NamedTuple):
    """Some runs, and the token of the next page."""

    runs: list[Run]
    next_page_token: str | None


async def read_workflows(store: Store, namespace: str, query: dict[str, str]) -> Page:
    """A page of runs that match the query parameters, newest first."""
    run_filter = RunFilter(
        namespace=namespace,
        workflow_type=query.get("workflow_type") or None,
        # Standalone activities have their own list; here they appear only if the type is named.
        hidden_type=None if query.get("workflow_type") else HOST_TYPE,
        bucket=status_bucket(query),
    )
    size, after = page_size(query), _cursor(query)
    if not query.get("query"):
        return await _page(store, run_filter, after, size)
    visibility = read_query(query["query"])
    until = visibility.started[1]
    if until is not None:
        behind = ListCursor(until, "")
        after = behind if after is None else min(after, behind)
    return await _filtered_page(
        store, _narrowed(run_filter, visibility), after, size, visibility.fits
    )


async def read_activities(store: Store, namespace: str, query: dict[str, str]) -> Page:
    """The same for standalone activities."""
    run_filter = RunFilter(
        namespace=namespace, workflow_type=HOST_TYPE, bucket=status_bucket(query)
    )
    return await _page(store, run_filter, _cursor(query), page_size(query))


def _narrowed(run_filter: RunFilter, visibility: Visibility) -> RunFilter:
    """The filter with those conditions that the store can check. Each run is checked again."""
    types = visibility.words("WorkflowType") or ()
    workflow_type = run_filter.workflow_type
    if workflow_type is None and len(types) == 1:
        workflow_type = types[0]
    return RunFilter(
        namespace=run_filter.namespace,
        workflow_type=workflow_type,
        hidden_type=None if HOST_TYPE in types else run_filter.hidden_type,
        bucket=run_filter.bucket or visibility.bucket,
        since=visibility.started[0],
        workflow_ids=visibility.words("WorkflowId"),
        run_ids=visibility.words("RunId"),
    )


async def _page(store: Store, run_filter: RunFilter, after: ListCursor | None, size: int) -> Page:
    found = await store.read_list(run_filter, after, size + 1)
    page = found[:size]
    return Page(page, _token(page[-1]) if len(found) > size else None)


async def _filtered_page(
    store: Store,
    run_filter: RunFilter,
    after: ListCursor | None,
    size: int,
    fits: Callable[[Run], bool],
) -> Page:
    """A page of matching runs. It may be short when the bound of runs to check is reached."""
    page: list[Run] = []
    for _ in range(limits.LIST_LOOKS_MAX // limits.LIST_PAGE_SIZE_MAX):
        found = await store.read_list(run_filter, after, limits.LIST_PAGE_SIZE_MAX)
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
    """The requested page size."""
    text = query.get("page_size")
    if text is None or text == "":
        return default
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= most:
        raise InvalidRequest("page_size", f"must be a number from 1 to {most}")
    return int(text[:9])


def status_bucket(query: dict[str, str]) -> str | None:
    """The coarse status of the `status` parameter."""
    status = query.get("status") or None
    if status is not None and status not in set(StatusBucket):
        hint = f"; {status} is part of {_CANONICAL[status]}" if status in _CANONICAL else ""
        raise InvalidRequest("status", f"must be running, completed or failed{hint}")
    return status
