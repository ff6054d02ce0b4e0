"""Finding runs: what a list was asked for, and the pages that answer it."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping

from msgspec import Struct

from perdure.core.limits import LIST_PAGE_SIZE_MAX
from perdure.core.push.step import push_of
from perdure.core.run.state import Run
from perdure.protocols.durablex.requests import bad_request, choice, integer, moment
from perdure.protocols.durablex.score_filter import read_score_filter
from perdure.protocols.durablex.views import status_of
from perdure.store.interface import ListCursor, PushedFilter, Store
from perdure.web.message import Request

_PAGE_SIZE = 30
_SCAN_PAGES_MAX = 50
"""How many pages are looked through for runs of a property that has no index."""

_COLUMNS: dict[str, tuple[str, ...]] = {
    "queued": ("pending",),
    "running": ("running", "waiting"),
    "waiting": ("waiting",),
    "paused": ("paused",),
    "needs_attention": ("needs_attention",),
    "succeeded": ("completed",),
    "failed": ("failed",),
    "cancelled": ("cancelled", "terminated"),
}
"""Which statuses on disk a status may be."""
_MEANT = {"running": frozenset({"running", "waiting"})}
"""Statuses that mean more than themselves in a filter."""
TRIGGERS = frozenset({"event", "cron", "eval", "manual"})


class Question(Struct, frozen=True, kw_only=True):
    """What a list shall show: what the disk can find, and what is told from each run."""

    wanted: PushedFilter
    keeps: "Callable[[Run], bool] | None"
    after: ListCursor | None
    limit: int


def read_question(request: Request) -> Question:
    """What the query of a list asks for. Raises for what makes no sense."""
    limit = integer(request.query, "limit", 1, LIST_PAGE_SIZE_MAX, _PAGE_SIZE)
    return read_filter(request.namespace, request.query, limit=limit)


def read_filter(namespace: str, query: Mapping[str, str], *, limit: int) -> Question:
    """What some words ask for."""
    status = choice(query, "status", _COLUMNS)
    choice(query, "sort", {"started"})
    direction = choice(query, "dir", {"asc", "desc"})
    wanted = PushedFilter(
        namespace=namespace,
        app=query.get("app") or None,
        workflow=query.get("workflow") or None,
        statuses=None if status is None else _COLUMNS[status],
        since=moment(query, "since") or 0,
        text=query.get("q") or None,
        oldest_first=direction == "asc",
    )
    cursor = query.get("cursor")
    return Question(
        wanted=wanted,
        keeps=_keeps(query, status),
        after=_cursor_of(cursor) if cursor else None,
        limit=limit,
    )


def _keeps(query: Mapping[str, str], status: str | None) -> Callable[[Run], bool] | None:
    trigger = choice(query, "runType", TRIGGERS)
    named = {
        name: query[told]
        for name, told in (
            ("event_id", "eventId"),
            ("replay_of", "replayOf"),
            ("session", "session"),
        )
        if query.get(told)
    }
    if trigger is not None:
        named["trigger"] = trigger
    judged = read_score_filter(query)
    if not named and status is None and judged is None:
        return None
    statuses = None if status is None else _MEANT.get(status, frozenset({status}))

    def keeps(run: Run) -> bool:
        push = push_of(run)
        if statuses is not None and status_of(run) not in statuses:
            return False
        if judged is not None and not judged(run):
            return False
        return all(getattr(push, name) == value for name, value in named.items())

    return keeps


async def find_runs(store: Store, question: Question) -> tuple[list[Run], str | None]:
    """A page of runs, and where the next one begins if there may be one."""
    keeps, limit = question.keeps, question.limit
    size = limit + 1 if keeps is None else LIST_PAGE_SIZE_MAX
    found: list[Run] = []
    after = question.after
    for _ in range(_SCAN_PAGES_MAX):
        page = await store.read_pushed(question.wanted, after, size)
        for run in page:
            if keeps is None or keeps(run):
                found.append(run)
                if len(found) > limit:
                    return found[:limit], _cursor(found[limit - 1])
        if len(page) < size:
            return found, None
        after = ListCursor(page[-1].started_at, page[-1].run_id)
    # There may be more behind what was looked through.
    return found, None if after is None else _encoded(after)


def _cursor(run: Run) -> str:
    return _encoded(ListCursor(run.started_at, run.run_id))


def _encoded(cursor: ListCursor) -> str:
    return urlsafe_b64encode(f"{cursor.started_at}.{cursor.run_id}".encode()).decode()


def _cursor_of(told: str) -> ListCursor:
    try:
        started_at, _, run_id = urlsafe_b64decode(told.encode()).decode().partition(".")
        return ListCursor(int(started_at), run_id)
    except (ValueError, UnicodeError):
        raise bad_request("the cursor is none of ours") from None
