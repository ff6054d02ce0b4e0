"""Operations of applications: runners introduce themselves and their workflows, live and leave."""

from msgspec import Struct, field

from perdure.core.intake.definition import Departure, Manifest, Runner
from perdure.core.limits import (
    RUNNER_FORGOTTEN_AFTER,
    RUNNER_INSTANCES_MAX,
    RUNNER_LINKS_MAX,
    RUNNER_MISSED_AFTER,
    RUNNER_STALE_AFTER,
    WORKFLOWS_MAX,
)
from perdure.core.rejection import StructuralLimitExceeded
from perdure.engine.catalogue import Book, Definition
from perdure.engine.operation import Operation
from perdure.engine.records import RecordKind
from perdure.engine.schedules import SCHEDULE, arm_schedules, schedule_key
from perdure.engine.world import World
from perdure.store.interface import RecordKey, RecordRange, Store

SEPARATOR = "\x1e"
"""Between the parts of a key; names may contain anything that people type."""


class App(Struct):
    """An application, which exists since its first runner registered."""

    created_at: int


class Edition(Struct):
    """How often the definitions of a namespace have changed."""

    number: int


class RunnerLink(Struct, kw_only=True):
    """One way to reach a runner: a socket that it opened, or a URL that it serves."""

    app: str
    runner_id: str
    link_id: str
    url: str
    told: Runner
    workflows: list[str] = field(default_factory=list)
    registered_at: int
    seen_at: int
    is_live: bool = True
    instances: dict[str, int] = field(default_factory=dict)
    """The processes behind it that told which they are, and when each was last seen."""


APP = RecordKind("app", App)
DEFINITION = RecordKind("definition", Definition)
EDITION = RecordKind("catalogue", Edition)
RUNNER = RecordKind("runner", RunnerLink)


def link_key(app: str, runner_id: str, link_id: str) -> str:
    return SEPARATOR.join((app, runner_id, link_id))


async def open_book(store: Store, world: World, namespace: str) -> Book:
    """The definitions of a namespace as they are now. Costs one look per beat while it stands."""
    key = EDITION.key(namespace, "")
    if key not in world.records:
        world.records[key] = (await store.find_records([key])).get(key)
    record = world.records[key]
    edition = 0 if record is None else EDITION.decode(record).number
    book = world.catalogue.book(namespace)
    if book.edition != edition:
        wanted = RecordRange(kind=DEFINITION.name, namespace=namespace, limit=WORKFLOWS_MAX)
        found = await store.find_records(await store.find_record_keys(wanted))
        book = Book(edition, (DEFINITION.decode(one) for one in found.values()))
        world.catalogue.put(namespace, book)
    return book


class RegisterRunner(Operation):
    """A runner says what it is and what it can do. Said again, it is a sign of life."""

    __slots__ = ("_link_id", "_manifest", "_namespace", "_runner_id", "_url")
    name = "register_runner"
    reads_before_load = True

    def __init__(
        self, namespace: str, manifest: Manifest, *, runner_id: str, link_id: str, url: str
    ) -> None:
        self._namespace = namespace
        self._manifest = manifest
        self._runner_id = runner_id
        self._link_id = link_id
        self._url = url

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        await open_book(store, world, self._namespace)
        return ()

    def records(self) -> tuple[RecordKey, ...]:
        app, namespace = self._manifest.app, self._namespace
        return (
            APP.key(namespace, app),
            EDITION.key(namespace, ""),
            RUNNER.key(namespace, self._key()),
            *(
                DEFINITION.key(namespace, app + SEPARATOR + workflow.name)
                for workflow in self._manifest.workflows
            ),
            *(
                SCHEDULE.key(namespace, schedule_key(app, workflow.name, told))
                for workflow in self._manifest.workflows
                for told in workflow.crons
            ),
        )

    def decide(self, world: World) -> RunnerLink:
        manifest, namespace, now = self._manifest, self._namespace, world.ctx.now
        app = APP.find(world, namespace, manifest.app)
        if self._put_definitions(world):
            next_edition(world, namespace)
        names = [workflow.name for workflow in manifest.workflows]
        known = RUNNER.find(world, namespace, self._key())
        if app is None or known is None or not known.is_live or known.workflows != names:
            # Whoever drops a workflow for want of runners writes this as well, so neither can
            # overlook the other.
            APP.put(world, namespace, manifest.app, app or App(now))
            known_here = {(manifest.app, name) for name in names}
            registered = world.catalogue.book(namespace).definitions
            if any(one[0] == manifest.app and one not in known_here for one in registered):
                drop_missing(world, namespace, manifest.app)
        link = RunnerLink(
            app=manifest.app,
            runner_id=self._runner_id,
            link_id=self._link_id,
            url=self._url,
            told=manifest.runner,
            workflows=names,
            registered_at=now,
            seen_at=now,
            instances=_instances(known, manifest.instance, now),
        )
        RUNNER.put(world, namespace, self._key(), link, due_at=now + RUNNER_STALE_AFTER)
        return link

    def _put_definitions(self, world: World) -> bool:
        """Whether anything changed."""
        manifest, namespace, now = self._manifest, self._namespace, world.ctx.now
        for workflow in manifest.workflows:
            arm_schedules(world, namespace, manifest.app, workflow)
        count = len(world.catalogue.book(namespace).definitions)
        changed = False
        for workflow in manifest.workflows:
            key = manifest.app + SEPARATOR + workflow.name
            known = DEFINITION.find(world, namespace, key)
            if known is not None and known.workflow == workflow:
                continue
            if known is None and count >= WORKFLOWS_MAX:
                raise StructuralLimitExceeded(
                    f"{WORKFLOWS_MAX} workflows are registered",
                    limit_kind="workflow_definition_count",
                    configured_limit=WORKFLOWS_MAX,
                )
            count += known is None
            changed = True
            definition = Definition(
                app=manifest.app,
                workflow=workflow,
                registered_at=now if known is None else known.registered_at,
                updated_at=now,
            )
            DEFINITION.put(world, namespace, key, definition)
        return changed

    def _key(self) -> str:
        return link_key(self._manifest.app, self._runner_id, self._link_id)


def _instances(known: RunnerLink | None, instance: str, now: int) -> dict[str, int]:
    """Who is behind a link by now: who was heard of lately, and the one that registers."""
    before = known.instances if known is not None and known.is_live else {}
    kept = {name: at for name, at in before.items() if now - at < RUNNER_STALE_AFTER}
    kept.pop(instance, None)
    if not instance:
        return kept
    while len(kept) >= RUNNER_INSTANCES_MAX:
        del kept[next(iter(kept))]
    return {**kept, instance: now}


class LeaveRunner(Operation):
    """A process says that it stops. Its link stays while others are behind the same URL."""

    __slots__ = ("_departure", "_key", "_namespace")
    name = "leave_runner"

    def __init__(self, namespace: str, departure: Departure) -> None:
        self._namespace = namespace
        self._departure = departure
        self._key = link_key(departure.app, departure.runner_id, departure.url)

    def records(self) -> tuple[RecordKey, ...]:
        return (RUNNER.key(self._namespace, self._key),)

    def decide(self, world: World) -> bool:
        """Whether nobody is behind the link any more."""
        link = RUNNER.find(world, self._namespace, self._key)
        if link is None or not link.is_live:
            return True
        now = world.ctx.now
        told = self._departure.instance
        others = {
            name: at
            for name, at in link.instances.items()
            if name != told and now - at < RUNNER_STALE_AFTER
        }
        if told and others:
            link.instances = others
            RUNNER.put(
                world, self._namespace, self._key, link, due_at=link.seen_at + RUNNER_STALE_AFTER
            )
            return False
        link.seen_at, link.is_live, link.instances = now, False, {}
        RUNNER.put(world, self._namespace, self._key, link, due_at=now + RUNNER_MISSED_AFTER)
        return True


class RenewRunner(Operation):
    """A link to a runner lives, or is no more."""

    __slots__ = ("_is_live", "_key", "_namespace")
    name = "see_runner"

    def __init__(self, namespace: str, key: str, *, is_live: bool) -> None:
        self._namespace = namespace
        self._key = key
        self._is_live = is_live

    def records(self) -> tuple[RecordKey, ...]:
        return (RUNNER.key(self._namespace, self._key),)

    def decide(self, world: World) -> None:
        link = RUNNER.find(world, self._namespace, self._key)
        if link is None:
            return
        now = world.ctx.now
        link.seen_at, link.is_live = now, self._is_live
        wait = RUNNER_STALE_AFTER if self._is_live else RUNNER_MISSED_AFTER
        RUNNER.put(world, self._namespace, self._key, link, due_at=now + wait)


class RunnerDue(Operation):
    """A link was not heard of for long: it is stale, then missed, and in the end forgotten."""

    __slots__ = ("_record",)
    name = "runner_due"

    def __init__(self, record: RecordKey) -> None:
        self._record = record

    def records(self) -> tuple[RecordKey, ...]:
        return (self._record,)

    def decide(self, world: World) -> bool:
        _, namespace, key = self._record
        link = RUNNER.find(world, namespace, key)
        now = world.ctx.now
        if link is None:
            return True
        silence = now - link.seen_at
        if not link.is_live and silence >= RUNNER_FORGOTTEN_AFTER:
            RUNNER.remove(world, namespace, key)
            return True
        if link.is_live and silence >= RUNNER_STALE_AFTER:
            link.is_live = False
        wait = RUNNER_STALE_AFTER
        if not link.is_live:
            is_missed = silence >= RUNNER_MISSED_AFTER
            wait = RUNNER_FORGOTTEN_AFTER if is_missed else RUNNER_MISSED_AFTER
            if is_missed:
                drop_missing(world, namespace, link.app)
        RUNNER.put(world, namespace, key, link, due_at=link.seen_at + wait)
        return True


class DropMissing(Operation):
    """Forget the workflows of an app that no runner of it knows any more.

    The newest manifest of a runner counts, and for a while after it left, too. While no runner is
    live everything stays: an app that is being restarted loses nothing.
    """

    __slots__ = ("_app", "_links", "_namespace")
    name = "drop_missing"
    reads_before_load = True
    reads_after_load = True

    def __init__(self, namespace: str, app: str) -> None:
        self._namespace = namespace
        self._app = app
        self._links: tuple[RecordKey, ...] = ()

    def is_about(self, namespace: str, app: str) -> bool:
        return (self._namespace, self._app) == (namespace, app)

    async def prepare(self, store: Store, world: World) -> tuple[str, ...]:
        await open_book(store, world, self._namespace)
        prefix = self._app + SEPARATOR
        wanted = RecordRange(
            kind=RUNNER.name, namespace=self._namespace, prefix=prefix, limit=RUNNER_LINKS_MAX
        )
        found = dict.fromkeys(await store.find_record_keys(wanted))
        # Those of this beat are not on disk yet.
        for key in world.changes.records:
            if key[:2] == (RUNNER.name, self._namespace) and key.key.startswith(prefix):
                found[key] = None
        self._links = tuple(found)
        return ()

    def records(self) -> tuple[RecordKey, ...]:
        namespace = self._namespace
        return (APP.key(namespace, self._app), EDITION.key(namespace, ""), *self._links)

    def closer_records(self, world: World) -> tuple[RecordKey, ...]:
        return tuple(DEFINITION.key(self._namespace, key) for key in self._missing(world))

    def decide(self, world: World) -> None:
        app = APP.find(world, self._namespace, self._app)
        missing = [
            key
            for key in self._missing(world)
            if DEFINITION.find(world, self._namespace, key) is not None
        ]
        if app is None or not missing:
            return
        for key in missing:
            DEFINITION.remove(world, self._namespace, key)
        next_edition(world, self._namespace)
        APP.put(world, self._namespace, self._app, app)

    def _missing(self, world: World) -> list[str]:
        """The keys of definitions that nobody knows any more."""
        now = world.ctx.now
        newest: dict[str, RunnerLink] = {}
        is_live = False
        for key in self._links:
            link = RUNNER.find(world, self._namespace, key.key)
            if link is None:
                continue
            is_live |= link.is_live
            known = newest.get(link.runner_id)
            if known is None or known.registered_at <= link.registered_at:
                newest[link.runner_id] = link
        if not is_live:
            return []
        told: set[str] = set()
        for link in newest.values():
            if link.is_live or now - link.seen_at < RUNNER_MISSED_AFTER:
                told.update(link.workflows)
        return [
            app + SEPARATOR + name
            for app, name in world.catalogue.book(self._namespace).definitions
            if app == self._app and name not in told
        ]


def drop_missing(world: World, namespace: str, app: str) -> None:
    """See, once in this beat, whether the runners of an app still know its workflows."""
    dropping = (one for one in world.follow_ups if isinstance(one, DropMissing))
    if not any(one.is_about(namespace, app) for one in dropping):
        world.follow_ups.append(DropMissing(namespace, app))


def next_edition(world: World, namespace: str) -> None:
    """The definitions of a namespace have changed."""
    edition = EDITION.find(world, namespace, "")
    EDITION.put(world, namespace, "", Edition(1 if edition is None else edition.number + 1))
