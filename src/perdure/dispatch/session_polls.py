"""Activities of worker sessions that wait: not everybody who knows their type may have them.

They stand in queues of their own kind. A look is made when such a task is offered, when a worker
who knows its type parks a poll, when its session changes, and when a run that is in its way does.
A task that nobody may have now is not looked at again before one of these.
"""

import asyncio
import logging
from functools import partial

from perdure.core.fleet.routing import plain_of_name, session_of_name
from perdure.core.limits import SESSION_NAMES_MAX
from perdure.dispatch.parked_polls import ParkedPoller, ParkedPolls
from perdure.engine.beat import Engine
from perdure.engine.leasing import Leasing
from perdure.engine.matching import Poller
from perdure.engine.reply import Reply
from perdure.engine.sessions import Blocked, ClaimSessionTasks, ExpireSession, SessionsClaimed
from perdure.store.interface import QueueKey, RecordKey, queue_key

log = logging.getLogger(__name__)

_SICK_SECONDS = 1.0


class SessionPolls:
    """Knows which tasks of sessions are ready, and brings them together with parked polls."""

    def __init__(self, engine: Engine, parked_polls: ParkedPolls, leasing: Leasing) -> None:
        self._engine = engine
        self._parked_polls = parked_polls
        self._leasing = leasing
        # Names of ready tasks by queue; whether it is worth looking at them now.
        self._ready: dict[QueueKey, dict[str, bool]] = {}
        self._count = 0
        # Runs whose change may free a task of a session, and that session's namespace and id.
        self.behind: dict[str, set[tuple[QueueKey, str]]] = {}
        self._looking: set[QueueKey] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        parked_polls.connect_sessions(self)

    # What happens --------------------------------------------------------------------------------

    def offered(self, key: QueueKey, name: str) -> None:
        """A ready task is on disk."""
        names = self._ready.setdefault(key, {})
        if name not in names:
            if self._count >= SESSION_NAMES_MAX:
                # Found again when everything is offered anew.
                return
            self._count += 1
        names[name] = True
        self._look(key)

    def parked(self, poller: ParkedPoller) -> bool:
        """A worker waits for activities; whether something is looked at because of it."""
        if not self._ready:
            return False
        key = _session_queue(poller.key)
        names = self._ready.get(key)
        if names is None or not poller.takes_sessions:
            return False
        fitting = [name for name in names if plain_of_name(name) in poller.names]
        for name in fitting:
            names[name] = True
        if fitting:
            self._look(key)
        return bool(fitting)

    def session_changed(self, namespace: str, session_id: str) -> None:
        """A session was taken, left or lost."""
        for key, names in list(self._ready.items()):
            if key.namespace == namespace:
                for name in names:
                    if session_of_name(name) == session_id:
                        names[name] = True
                        self._look(key)

    def quotas_renewed(self, namespace: str) -> None:
        """More may be leased from the queues of a namespace than before."""
        for key, names in list(self._ready.items()):
            if key.namespace == namespace:
                names.update(dict.fromkeys(names, True))
                self._look(key)

    def changed(self, run_id: str) -> None:
        """A run has changed; it may have been in somebody's way."""
        for key, name in self.behind.pop(run_id, ()):
            if name in self._ready.get(key, {}):
                self._ready[key][name] = True
                self._look(key)

    def on_due(self, key: RecordKey) -> ExpireSession:
        """What happens when the time of a session has come."""
        look = asyncio.get_running_loop().call_soon
        look(self.session_changed, key.namespace, key.key)
        return ExpireSession(key.namespace, key.key)

    # For the engine ------------------------------------------------------------------------------

    def candidates(self, key: QueueKey) -> list[Poller]:
        return [
            poller
            for poller in self._parked_polls.parked_at(_activity_queue(key))
            if poller.takes_sessions
        ]

    def can_take(self, poller: Poller, name: str) -> bool:
        assert isinstance(poller, ParkedPoller)
        return plain_of_name(name) in poller.names

    def take(self, poller: Poller) -> bool:
        assert isinstance(poller, ParkedPoller)
        return self._parked_polls.take(poller)

    # Looking -------------------------------------------------------------------------------------

    def _look(self, key: QueueKey) -> None:
        if key in self._looking or not self._wanted(key):
            return
        self._looking.add(key)
        task = asyncio.get_running_loop().create_task(self._claim(key), name=f"claim {key.queue}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _wanted(self, key: QueueKey) -> list[str]:
        crew = self.candidates(key)
        return [
            name
            for name, is_open in self._ready.get(key, {}).items()
            if is_open and any(self.can_take(poller, name) for poller in crew)
        ]

    async def _claim(self, key: QueueKey) -> None:
        names = self._wanted(key)
        for name in names:
            # What is offered while we look is looked at again.
            self._ready[key][name] = False
        try:
            reply = self._engine.submit(ClaimSessionTasks(key, names, self, self._leasing))
            # At once: a run that changed in the same beat shall find out who waits for it.
            reply.tell(partial(self._stand_behind, key))
            claimed: SessionsClaimed = await reply
        except Exception as error:
            log.warning(
                "claiming session activities of queue %s failed, retrying in 1 s: %s",
                key.queue,
                error,
            )
            await asyncio.sleep(_SICK_SECONDS)
            for name in names:
                self._ready.setdefault(key, {})[name] = True
        else:
            self._learn(key, names, claimed)
        self._looking.discard(key)
        self._parked_polls.hurry(_activity_queue(key))
        self._look(key)

    def _learn(self, key: QueueKey, names: list[str], claimed: SessionsClaimed) -> None:
        blocked = {each.name: each for each in claimed.blocked}
        ready = self._ready.get(key, {})
        for name in names:
            if name in blocked:
                continue
            if not claimed.is_all:
                ready[name] = True
            elif ready.get(name) is False:
                del ready[name]
                self._count -= 1
        if not ready:
            self._ready.pop(key, None)

    def _stand_behind(self, key: QueueKey, reply: Reply) -> None:
        if not reply.cancelled() and reply.exception() is None:
            claimed: SessionsClaimed = reply.result()
            for blocked in claimed.blocked:
                self._wait_behind(blocked, key)

    def _wait_behind(self, blocked: Blocked, key: QueueKey) -> None:
        if len(self.behind) >= SESSION_NAMES_MAX:
            # Whoever is forgotten here is found when everything is offered anew.
            self.behind.clear()
        for run_id in blocked.behind:
            self.behind.setdefault(run_id, set()).add((key, blocked.name))


def _session_queue(key: QueueKey) -> QueueKey:
    return queue_key(key.namespace, key.queue, "session")


def _activity_queue(key: QueueKey) -> QueueKey:
    return QueueKey(key.namespace, key.queue, "activity")
