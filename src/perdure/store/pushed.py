"""Lists of push runs: which query answers what is asked, and where the next page begins."""

from typing import Any, assert_never

from perdure.core.run.state import Run
from perdure.store.interface import PushedCursor, PushedFilter, PushedSort

SHOWN_STATUSES = {"pending": "queued", "completed": "succeeded", "terminated": "cancelled"}
"""What readers of push runs call statuses, where that differs. The queries sort by it, too."""
_END_OF_TIME = 2**62


def question(
    wanted: PushedFilter, statuses: object, after: PushedCursor | None, limit: int
) -> tuple[str, tuple[Any, ...]]:
    """The query of a page and its values. Lists of statuses look different to each store."""
    scope = (wanted.namespace, wanted.since)
    values = (wanted.app, wanted.workflow, statuses, wanted.text)
    if wanted.sort == "started":
        query = "read_pushed_oldest" if wanted.ascending else "read_pushed"
        behind = after or PushedCursor(-1 if wanted.ascending else _END_OF_TIME, "")
        return query, (*scope, behind.started_at, behind.run_id, *values, limit)
    behind = after or PushedCursor(0, "")
    place = (behind.place, behind.started_at, behind.run_id)
    if wanted.sort == "duration":
        query = "read_pushed_by_duration" if wanted.ascending else "read_pushed_by_duration_down"
        return query, (*scope, *values, *place, limit)
    query = "read_pushed_by_word" if wanted.ascending else "read_pushed_by_word_down"
    return query, (wanted.sort, *scope, *values, *place, limit)


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
