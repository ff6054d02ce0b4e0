"""Lists of push runs: the query for a filter, and the cursor of the next page."""

from collections.abc import Mapping
from typing import Any, assert_never

from perdure.core.limits import NAME_LENGTH_MAX
from perdure.core.run.state import Run
from perdure.store.interface import PushedCursor, PushedFilter, PushedSort
from perdure.store.queries import backwards

SHOWN_STATUSES = {"pending": "queued", "completed": "succeeded", "terminated": "cancelled"}
"""Status names in lists of push runs, where they differ. The queries sort by them, too."""
_QUERIES: Mapping[PushedSort, str] = {
    "started": "read_pushed",
    "workflow": "read_pushed_by_workflow",
    "app": "read_pushed_by_app",
    "status": "read_pushed_by_status",
    "duration": "read_pushed_by_duration",
}
_END_OF_TIME = 2**62
_END_OF_WORDS = "\U0010ffff" * (NAME_LENGTH_MAX + 1)
"""Sorts after every possible name."""


def question(
    selection: PushedFilter, statuses: object, after: PushedCursor | None, limit: int
) -> tuple[str, tuple[Any, ...]]:
    """The query of a page and its values. The stores encode lists of statuses differently."""
    query = _QUERIES[selection.sort]
    started_at, run_id, place = after or _first(selection)
    return query if selection.ascending else backwards(query), (
        selection.namespace,
        selection.since,
        selection.app,
        selection.workflow,
        statuses,
        selection.text,
        *(() if place is None else (place,)),
        started_at,
        run_id,
        limit,
    )


def _first(selection: PushedFilter) -> PushedCursor:
    """The cursor before the first row of a list."""
    instant = selection.since - 1 if selection.ascending else _END_OF_TIME
    if selection.sort == "started":
        return PushedCursor(instant, "")
    if selection.sort == "duration":
        return PushedCursor(instant, "", -_END_OF_TIME if selection.ascending else _END_OF_TIME)
    return PushedCursor(instant, "", "" if selection.ascending else _END_OF_WORDS)


def cursor_behind(run: Run, sort: PushedSort) -> PushedCursor:
    """The cursor after a run."""
    place: str | int | None = None
    match sort:
        case "workflow":
            place = run.workflow_type
        case "app":
            place = run.queue
        case "status":
            place = SHOWN_STATUSES.get(run.status, str(run.status))
        case "duration":
            # An open run has no duration, which sorts before all others.
            place = -1 if run.closed_at is None else run.closed_at - run.started_at
        case "started":
            pass
        case _:
            assert_never(sort)
    return PushedCursor(run.started_at, run.run_id, place)
