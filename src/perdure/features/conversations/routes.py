"""HTTP routes of conversations, which the push protocol calls sessions: sums over their runs."""

from collections import Counter
from typing import Any

from perdure.core import instant
from perdure.core.limits import (
    CONVERSATION_APPS_MAX,
    CONVERSATION_OPEN_RUNS_MAX,
    LIST_PAGE_SIZE_DEFAULT,
    LIST_PAGE_SIZE_MAX,
)
from perdure.core.push.step import push_of
from perdure.core.run.push import Spent
from perdure.core.run.status import RunStatus
from perdure.engine.beat import Engine
from perdure.engine.registration import SEPARATOR
from perdure.features.conversations.operations import (
    CONVERSATION,
    OPEN_RUN,
    RECENT,
    conversation_key,
)
from perdure.features.conversations.rules import Conversation, merged, sum_spent
from perdure.protocols.durablex.requests import integer, read_instant
from perdure.protocols.durablex.surface import DurablexSurface
from perdure.protocols.durablex.views import closed_status, spent_view, status_of
from perdure.web.message import Request, Response

_SCAN_PAGES_MAX = 20
"""Pages read at most in search of conversations of one app."""


class Conversations:
    """The route /sessions."""

    def __init__(self, engine: Engine, surface: DurablexSurface) -> None:
        self._store = engine.store
        self._surface = surface

    async def find(self, request: Request) -> Response:
        """GET /sessions, those with the newest runs first."""
        query = request.query
        limit = integer(query, "limit", 1, LIST_PAGE_SIZE_MAX, LIST_PAGE_SIZE_DEFAULT)
        app, since = query.get("app") or None, read_instant(query, "since") or 0
        found = await self._recent(request.namespace, app, since, limit)
        rows = [await self._view(request.namespace, parts) for parts in found.values()]
        return self._surface.answer(200, rows)

    async def _recent(
        self, namespace: str, app: str | None, since: int, limit: int
    ) -> dict[str, list[Conversation]]:
        """The parts of each conversation: of the requested app, or of every app."""
        found: dict[str, list[Conversation]] = {}
        after = None
        for _ in range(_SCAN_PAGES_MAX):
            page = await RECENT.read_page(
                self._store, namespace, limit=LIST_PAGE_SIZE_MAX, after=after, newest_first=True
            )
            for _, entry in page:
                if entry.last_started_at < since or len(found) == limit:
                    return found
                if app is None and entry.session not in found:
                    found[entry.session] = await self._parts(namespace, entry)
                elif app == entry.app:
                    found[entry.session] = [entry]
            if len(page) < LIST_PAGE_SIZE_MAX:
                break
            after = page[-1][0]
        return found

    async def _parts(self, namespace: str, newest: Conversation) -> list[Conversation]:
        page = await CONVERSATION.read_page(
            self._store,
            namespace,
            prefix=conversation_key(newest.session, ""),
            limit=CONVERSATION_APPS_MAX,
        )
        # A label may itself begin with this one.
        return [entry for _, entry in page if entry.session == newest.session] or [newest]

    async def _view(self, namespace: str, parts: list[Conversation]) -> dict[str, Any]:
        whole = merged(parts)
        counts = Counter({closed_status(RunStatus(status)): n for status, n in whole.ended.items()})
        spent = [whole.spent]
        for part in parts:
            statuses, used = await self._open(namespace, part)
            counts.update(statuses)
            spent.append(used)
        return {
            "session": whole.session,
            "runCount": whole.runs,
            "statusCounts": dict(counts),
            "firstStartedAt": instant.text(whole.first_started_at),
            "lastStartedAt": instant.text(whole.last_started_at),
            **{k: v for k, v in spent_view(sum_spent(spent)).items() if v is not None},
        }

    async def _open(self, namespace: str, part: Conversation) -> tuple[Counter[str], Spent | None]:
        """Counts by status of the open runs, and what they have used so far."""
        prefix = conversation_key(part.session, part.app) + SEPARATOR
        page = await OPEN_RUN.read_page(
            self._store,
            namespace,
            prefix=prefix,
            limit=CONVERSATION_OPEN_RUNS_MAX,
            newest_first=True,
        )
        counts: Counter[str] = Counter()
        spent: Spent | None = None
        for key, _ in page:
            run = await self._store.read_run(key.removeprefix(prefix))
            # A run that ended since the list was read is counted with its final status.
            if run is not None:
                counts[status_of(run)] += 1
                spent = sum_spent([spent, push_of(run).spent])
        return counts, spent
