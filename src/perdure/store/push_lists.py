"""Lists of push runs: which query answers what is asked, and where the next page begins."""

from collections.abc import Mapping
from typing import Any, assert_never

from perdure.core.limits import NAME_LENGTH_MAX
from perdure.core.run.state import Run
from perdure.store.interface import PushedCursor, PushedFilter, PushedSort
from perdure.store.queries import backwards

SHOWN_STATUSES = {"pending": "queued", "completed": "succeeded", "terminated": "cancelled"}
"""What readers of push runs call statuses, where that differs. The queries sort by it, too."""
_QUERIES: Mapping[PushedSort, str] = {
    "started": "read_pushed",
    "workflow": "read_pushed_by_workflow",
    "app": "read_pushed_by_app",
    "status": "read_pushed_by_status",
    "duration": "read_pushed_by_duration",
}
_END_OF_TIME = 2**62
_END_OF_WORDS = "\U0010ffff" * (NAME_LENGTH_MAX + 1)
"""Behind every name that a run may have."""


def question(
    wanted: PushedFilter, statuses: object, after: PushedCursor | None, limit: int
) -> tuple[str, tuple[Any, ...]]:
    """The query of a page and its values. Lists of statuses look different to each store."""
    query = _QUERIES[wanted.sort]
    started_at, run_id, place = after or _first(wanted)
    return query if wanted.ascending else backwards(query), (
        wanted.namespace,
        wanted.since,
        wanted.app,
        wanted.workflow,
        statuses,
        wanted.text,
        *(() if place is None else (place,)),
        started_at,
        run_id,
        limit,
    )


def _first(wanted: PushedFilter) -> PushedCursor:
    """Where a list begins: before everything in its order."""
    instant = wanted.since - 1 if wanted.ascending else _END_OF_TIME
    if wanted.sort == "started":
        return PushedCursor(instant, "")
    if wanted.sort == "duration":
        return PushedCursor(instant, "", -_END_OF_TIME if wanted.ascending else _END_OF_TIME)
    return PushedCursor(instant, "", "" if wanted.ascending else _END_OF_WORDS)


def cursor_behind(run: Run, sort: PushedSort) -> PushedCursor:
    """Where a list goes on behind a run."""
    place: str | int | None = None
    match sort:
        case "workflow":
            place = run.workflow_type
        case "app":
            place = run.queue
        case "status":
            place = SHOWN_STATUSES.get(run.status, str(run.status))
        case "duration":
            # A run that is not over has no duration, which is less than any.
            place = -1 if run.closed_at is None else run.closed_at - run.started_at
        case "started":
            pass
        case _:
            assert_never(sort)
    return PushedCursor(run.started_at, run.run_id, place)
