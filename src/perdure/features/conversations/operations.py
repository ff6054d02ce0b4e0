"""Conversations as records, ordered by their newest run, with the runs that are still open.

They change when a run with a label begins or ends. Runs without a label cost nothing.
"""

from perdure.core.push.effect import Ended, Joined
from perdure.core.push.step import push_of
from perdure.core.run.state import Run
from perdure.engine.operation import Operation
from perdure.engine.records import Listed, RecordKind
from perdure.engine.registration import SEPARATOR
from perdure.engine.world import World
from perdure.features.conversations.rules import Conversation, joined, left, without
from perdure.store.interface import RecordKey, Store

CONVERSATION = RecordKind("conversation", Conversation)
RECENT = RecordKind("conversation_recent", Conversation)
"""A copy ordered by the newest run, so that a list is one read."""
OPEN_RUN = RecordKind("conversation_run", Listed)


def conversation_key(session: str, app: str) -> str:
    return session + SEPARATOR + app


def recent_key(at: int, key: str) -> str:
    return f"{at:020}{SEPARATOR}{key}"


class _Conversing(Operation):
    """A change of the conversation of a run."""

    __slots__ = ("_run", "_was_at")
    reads_before_load = True

    def __init__(self, run: Run) -> None:
        self._run = run
        self._was_at: str | None = None

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        key = CONVERSATION.key(self._run.namespace, self.key)
        if key not in world.records:
            world.records[key] = (await store.find_records([key])).get(key)
        before = CONVERSATION.find(world, self._run.namespace, self.key)
        self._was_at = None if before is None else recent_key(before.last_started_at, self.key)
        return ()

    @property
    def key(self) -> str:
        return conversation_key(push_of(self._run).session or "", self._run.queue)

    @property
    def open_key(self) -> str:
        return self.key + SEPARATOR + self._run.run_id

    def records(self) -> tuple[RecordKey, ...]:
        namespace = self._run.namespace
        recent = () if self._was_at is None else (RECENT.key(namespace, self._was_at),)
        return (CONVERSATION.key(namespace, self.key), *recent)

    def put(self, world: World, before: Conversation | None, after: Conversation) -> None:
        """Write the conversation, and move it to its place in the ordered list."""
        namespace = self._run.namespace
        if before is not None and before.last_started_at != after.last_started_at:
            RECENT.remove(world, namespace, recent_key(before.last_started_at, self.key))
        CONVERSATION.put(world, namespace, self.key, after)
        RECENT.add(world, namespace, recent_key(after.last_started_at, self.key), after)


class JoinConversation(_Conversing):
    """Adds a new run to its conversation."""

    __slots__ = ()
    name = "join_conversation"

    def __init__(self, effect: Joined) -> None:
        super().__init__(effect.run)

    def decide(self, world: World) -> None:
        before = CONVERSATION.find(world, self._run.namespace, self.key)
        self.put(world, before, joined(before, self._run))
        OPEN_RUN.add(world, self._run.namespace, self.open_key, Listed())


class LeaveConversation(_Conversing):
    """Counts a run of a conversation as ended."""

    __slots__ = ()
    name = "leave_conversation"

    def records(self) -> tuple[RecordKey, ...]:
        return (*super().records(), OPEN_RUN.key(self._run.namespace, self.open_key))

    def decide(self, world: World) -> None:
        namespace = self._run.namespace
        before = CONVERSATION.find(world, namespace, self.key)
        if before is None or OPEN_RUN.find(world, namespace, self.open_key) is None:
            # The run began before conversations were stored.
            return
        self.put(world, before, left(before, self._run))
        OPEN_RUN.remove(world, namespace, self.open_key)


class QuitConversation(_Conversing):
    """Takes a removed run out of its conversation, which is removed with its last run."""

    __slots__ = ()
    name = "quit_conversation"

    def decide(self, world: World) -> None:
        namespace = self._run.namespace
        before = CONVERSATION.find(world, namespace, self.key)
        if before is None:
            return
        after = without(before, self._run)
        if after is None:
            CONVERSATION.remove(world, namespace, self.key)
            RECENT.remove(world, namespace, recent_key(before.last_started_at, self.key))
        elif after is not before:
            self.put(world, before, after)


def leave_conversation(ended: Ended) -> LeaveConversation | None:
    """The follow-up of the end of a run, if it has a conversation."""
    return LeaveConversation(ended.run) if push_of(ended.run).session else None


def quit_conversation(run: Run) -> QuitConversation | None:
    """The follow-up of the removal of a run, if it has a conversation."""
    return QuitConversation(run) if run.push is not None and run.push.session else None
