"""Lists of runs: the filter of a request, and the pages that match it."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from typing import cast, get_args

import msgspec
from msgspec import Struct

from perdure.core.limits import LIST_PAGE_SIZE_MAX
from perdure.core.push.step import push_of
from perdure.core.run.state import Run
from perdure.protocols.durablex.requests import bad_request, choice, integer, read_instant
from perdure.protocols.durablex.score_filter import read_score_filter
from perdure.protocols.durablex.views import failure_of, input_of, result_of, status_of
from perdure.store.interface import PushedCursor, PushedFilter, PushedSort, Store
from perdure.store.push_lists import cursor_behind
from perdure.web.message import Request

_PAGE_SIZE = 30
_SCAN_PAGES_MAX = 50
"""Pages read at most in search of runs by a property without an index."""
_SORTED_PAGES_MAX = 5
"""The same in other orders, where each page may sort all open runs anew."""
_DEEP_RUNS_MAX = 500
"""Runs opened at most in search of a text; the next page continues after them."""

_OPEN = ("pending", "running", "waiting", "needs_attention", "paused")
_OVER = ("completed", "failed", "cancelled", "terminated")
_COLUMNS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("queued", "running", "waiting", "paused", "needs_attention"), _OPEN),
    "succeeded": ("completed",),
    "failed": ("failed",),
    "cancelled": ("cancelled", "terminated"),
}
"""The statuses on disk of a status. For open runs it depends on more than one column."""
_MEANT = {"running": frozenset({"running", "waiting"})}
"""Statuses that include others in a filter."""
TRIGGERS = frozenset({"event", "cron", "eval", "manual"})


class Question(Struct, frozen=True, kw_only=True):
    """The filter of a list: the part that the store applies, and the part checked on each run."""

    filters: PushedFilter
    keeps: "Callable[[Run], bool] | None"
    text: str | None = None
    """A text to find in the payloads of runs, too; lower case."""
    after: PushedCursor | None
    limit: int


def read_question(request: Request) -> Question:
    """Parse the query of a list. Raises for values that are not valid."""
    limit = integer(request.query, "limit", 1, LIST_PAGE_SIZE_MAX, _PAGE_SIZE)
    return read_filter(request.namespace, request.query, limit=limit)


def read_filter(namespace: str, query: Mapping[str, str], *, limit: int) -> Question:
    """The filter for some parameters."""
    status = choice(query, "status", _COLUMNS)
    sort = choice(query, "sort", get_args(PushedSort)) or "started"
    text = query.get("q") or None
    deep = choice(query, "deep", {"0", "1", "false", "true"}) in ("1", "true") and text is not None
    filters = PushedFilter(
        namespace=namespace,
        app=query.get("app") or None,
        workflow=query.get("workflow") or None,
        statuses=None if status is None else _COLUMNS[status],
        since=read_instant(query, "since") or 0,
        text=None if deep else text,
        sort=cast(PushedSort, sort),
        ascending=choice(query, "dir", {"asc", "desc"}) == "asc",
    )
    cursor = query.get("cursor")
    return Question(
        filters=filters,
        keeps=_keeps(query, status),
        text=text.casefold() if deep and text else None,
        after=_decoded(cursor, filters) if cursor else None,
        limit=limit,
    )


def finished(question: Question) -> Question:
    """The same filter for closed runs only."""
    asked = question.filters.statuses or _OVER
    statuses = tuple(status for status in asked if status in _OVER)
    filters = msgspec.structs.replace(question.filters, statuses=statuses)
    return msgspec.structs.replace(question, filters=filters)


async def narrowed(store: Store, query: Mapping[str, str], question: Question) -> Question | None:
    """A filter that finds the same runs faster; none if there can be no such run.

    Replays of a run have its app and workflow, and are younger.
    """
    source_id = query.get("replayOf")
    if not source_id:
        return question
    source = await store.read_run(source_id)
    filters = question.filters
    if source is None or source.namespace != filters.namespace:
        return None
    filters = msgspec.structs.replace(
        filters,
        app=filters.app or source.queue,
        workflow=filters.workflow or source.workflow_type,
        since=max(filters.since, source.started_at),
    )
    return msgspec.structs.replace(question, filters=filters)


def _keeps(query: Mapping[str, str], status: str | None) -> Callable[[Run], bool] | None:
    trigger = choice(query, "runType", TRIGGERS)
    named = {
        name: query[parameter]
        for name, parameter in (
            ("event_id", "eventId"),
            ("replay_of", "replayOf"),
            ("session", "session"),
        )
        if query.get(parameter)
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
    """A page of runs, and the cursor of the next one if there may be one."""
    filters, limit, after = question.filters, question.limit, question.after
    sieve = _Sieve(store, question)
    size = LIST_PAGE_SIZE_MAX if sieve.picks else limit + 1
    found: list[Run] = []
    for _ in range(_SCAN_PAGES_MAX if filters.sort == "started" else _SORTED_PAGES_MAX):
        page = await store.read_pushed(filters, after, size)
        for run in page:
            if sieve.is_tired:
                return found, _encoded(after, filters)
            if await sieve.keeps(run):
                if len(found) == limit:
                    return found, _encoded(cursor_behind(found[-1], filters.sort), filters)
                found.append(run)
            after = cursor_behind(run, filters.sort)
        if len(page) < size:
            return found, None
    # There may be more rows after those that were read.
    return found, _encoded(after, filters)


class _Sieve:
    """Applies the part of a filter that the store cannot apply."""

    def __init__(self, store: Store, question: Question) -> None:
        self._store = store
        self._keeps, self._text = question.keeps, question.text
        self._opened = 0

    @property
    def picks(self) -> bool:
        return self._keeps is not None or self._text is not None

    @property
    def is_tired(self) -> bool:
        """Whether the bound of opened runs is reached."""
        return self._opened >= _DEEP_RUNS_MAX

    async def keeps(self, run: Run) -> bool:
        if self._keeps is not None and not self._keeps(run):
            return False
        if self._text is None:
            return True
        self._opened += 1
        return await _mentions(self._store, run, self._text)


async def _mentions(store: Store, run: Run, text: str) -> bool:
    """Whether the names, the input, the result or the error of a run contain a text."""
    if any(text in name.casefold() for name in (run.workflow_type, run.run_id, run.queue)):
        return True
    failure = failure_of(run)
    if failure is not None and text in _readable(failure):
        return True
    first = await store.read_history(run.run_id, 0, 1)
    if not first:
        # It was pruned after it had been found.
        return False
    if text in _readable(input_of(first[0])):
        return True
    if not run.is_closed:
        return False
    result = result_of(await store.read_last_events(run.run_id))
    return result is not None and text in _readable(result)


def _readable(value: object) -> str:
    """The JSON of a value without escapes of letters."""
    decoded = msgspec.json.decode(msgspec.json.encode(value))
    return msgspec.json.encode(decoded).decode().casefold()


class _Cursor(Struct, array_like=True, forbid_unknown_fields=True):
    sort: str
    ascending: bool
    started_at: int
    run_id: str
    place: str | int | None


_cursor_decoder = msgspec.json.Decoder(_Cursor)
_FURTHEST = 2**62


def _encoded(cursor: PushedCursor | None, filters: PushedFilter) -> str | None:
    if cursor is None:
        return None
    packed = msgspec.json.encode(_Cursor(filters.sort, filters.ascending, *cursor))
    return urlsafe_b64encode(packed).decode()


def _decoded(packed: str, filters: PushedFilter) -> PushedCursor:
    try:
        cursor = _cursor_decoder.decode(urlsafe_b64decode(packed.encode()))
    except (ValueError, UnicodeError):
        raise bad_request("the cursor was not issued by this server") from None
    if (cursor.sort, cursor.ascending) != (filters.sort, filters.ascending):
        raise bad_request("the cursor belongs to a list with another sort order")
    kind = {"started": type(None), "duration": int}.get(filters.sort, str)
    numbers = [one for one in (cursor.started_at, cursor.place) if isinstance(one, int)]
    if not isinstance(cursor.place, kind) or any(abs(one) > _FURTHEST for one in numbers):
        raise bad_request("the cursor was not issued by this server")
    return PushedCursor(cursor.started_at, cursor.run_id, cursor.place)
