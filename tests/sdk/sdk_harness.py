"""The stage of one case: a client, a queue of its own, workers, and the runs that it started."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from durable_workflow import Client, Worker, WorkflowHandle

from tests.sdk import programs, replaying
from tests.sdk.release import since
from tests.sdk.replaying import Event, kind, kinds

PATIENCE = 200.0
"""Less than a case has: a case that ends by itself says more about why."""
GLANCE = 0.2

# A stopped 0.4 worker waits for its query poller, which sits in a long poll; do not wait with it.
SHUTDOWN_TIMEOUT = 10.0 if since("2.0.0") else 0.3


class Run:
    """One workflow that the case started, or a child of it."""

    def __init__(self, client: Client, handle: WorkflowHandle) -> None:
        self.client = client
        self.handle = handle
        self.workflow_id: str = handle.workflow_id
        self.run_id: str | None = handle.run_id

    async def result(self, patience: float = PATIENCE) -> Any:
        """Wait for the end of the newest run and return what it returned."""
        newest = self.client.get_workflow_handle(self.workflow_id)
        return await self.client.get_result(newest, poll_interval=GLANCE, timeout=patience)

    async def failure(self, expected: type[Exception]) -> Any:
        """Wait for the end, which must be `expected`, and return it."""
        try:
            result = await self.result()
        except expected as failure:
            return failure
        raise AssertionError(
            f"{self.workflow_id} returned {result!r} instead of {expected.__name__}"
        )

    async def status(self) -> str:
        """The status that describe tells."""
        return str((await self.handle.describe()).status)

    async def closed(self) -> str:
        """Wait until the run is closed; its status."""
        return await until(
            self.status, lambda status: status not in ("pending", "running", "waiting")
        )

    async def history(self, run_id: str | None = None) -> list[Event]:
        """The complete history of one run, by default of the newest."""
        if run_id is None:
            run_id = (await self.client.describe_workflow(self.workflow_id)).run_id
        assert run_id is not None
        return await complete_history(self.client, self.workflow_id, run_id)

    async def kinds(self) -> list[str]:
        """The event types of the newest run."""
        return kinds(await self.history())

    async def event(self, event_type: str, *, times: int = 1, patience: float = PATIENCE) -> Event:
        """Wait until history tells `event_type` that often; its last occurrence."""
        events = await until(
            self.history, lambda events: kinds(events).count(event_type) >= times, patience
        )
        return [event for event in events if kind(event) == event_type][times - 1]

    async def child(self) -> "Run":
        """Wait until the run has started its child; the child."""
        payload = (await self.event("ChildRunStarted"))["payload"]
        child_id = payload["child_workflow_instance_id"]
        return Run(self.client, self.client.get_workflow_handle(child_id))

    async def signal(self, name: str, *arguments: Any) -> None:
        """Signal the newest run."""
        await self.client.signal_workflow(self.workflow_id, name, args=list(arguments))


class Stage:
    """Where one case plays: its own queue, its own ids, workers that know its programs."""

    def __init__(self, case: str, client: Client, known: Sequence[str]) -> None:
        self.client = client
        self.known = known
        self.name = f"{case}-{uuid.uuid4().hex[:8]}"
        self.queue = f"q-{self.name}"
        self.runs: list[Run] = []
        self.types: list[str] = []
        self._ids = 0

    def new_id(self) -> str:
        """A workflow id that nobody used before."""
        self._ids += 1
        return f"{self.name}-{self._ids}"

    async def start(self, workflow_type: str, *arguments: Any, **options: Any) -> Run:
        """Start a workflow on the case's queue; its histories are replayed in the end."""
        options.setdefault("workflow_id", self.new_id())
        options.setdefault("task_queue", self.queue)
        handle = await self.client.start_workflow(
            workflow_type=workflow_type, input=list(arguments), **options
        )
        return self.adopt(Run(self.client, handle))

    def adopt(self, run: Run) -> Run:
        """Replay the histories of this run as well when the case is over."""
        if run.workflow_id not in [known.workflow_id for known in self.runs]:
            self.runs.append(run)
        return run

    @contextlib.asynccontextmanager
    async def worker(self, queue: str | None = None) -> AsyncIterator[Worker]:
        """A worker with the case's programs, polling until the block is left."""
        worker = Worker(
            self.client,
            task_queue=queue or self.queue,
            workflows=[programs.BY_NAME[name] for name in self.known],
            activities=programs.ACTIVITIES,
            shutdown_timeout=SHUTDOWN_TIMEOUT,
        )
        async with working(worker):
            yield worker

    async def replay(self, dump: Path | None = None) -> None:
        """Replay every run of every workflow that the case started, and of their children."""
        for run in self.runs:
            for events in await replay_family(run, dump=dump):
                self.types.extend(kinds(events))


@contextlib.asynccontextmanager
async def working(worker: Worker) -> AsyncIterator[asyncio.Task[None]]:
    """Poll while the block runs; an error of the worker's loop is an error of the block."""
    loop = asyncio.create_task(worker.run())
    try:
        yield loop
    finally:
        if not since("2.0.0"):
            loop.cancel()  # the 0.4 releases know no other way out of a long poll
        await worker.stop()
        with contextlib.suppress(asyncio.CancelledError):
            await loop


async def until(
    look: Callable[[], Any], enough: Callable[[Any], bool], patience: float = PATIENCE
) -> Any:
    """Look again and again, as the SDK itself does, until the answer is enough."""
    deadline = asyncio.get_running_loop().time() + patience
    while not enough(seen := await look()):
        if asyncio.get_running_loop().time() > deadline:
            raise TimeoutError(f"not enough after {patience} s: {str(seen)[-2000:]}")
        await asyncio.sleep(GLANCE)
    return seen


async def complete_history(client: Client, workflow_id: str, run_id: str) -> list[Event]:
    """Every event: in pages where the release knows pages, else in one reply."""
    if not since("2.12.0"):
        return list((await client.get_history(workflow_id, run_id))["events"])
    events: list[Event] = []
    token: str | None = None
    while True:
        page = await client.get_history(workflow_id, run_id, page_size=1000, next_page_token=token)
        events.extend(page["events"])
        token = page.get("next_page_token")
        if not token:
            return events


async def rest(run: Run) -> None:
    """Wait until the run is over, and its children, and theirs."""
    family = [run]
    for member in family:
        await member.closed()
        family += _later_members(family, await _chain(member))


async def replay_family(run: Run, *, dump: Path | None = None) -> list[list[Event]]:
    """Check and replay the run's chain, its children's chains, and so on; all histories."""
    told: list[list[Event]] = []
    family = [run]
    for member in family:
        histories = await replay_chain(member, dump=dump)
        told.extend(histories)
        family += _later_members(family, histories)
    return told


def _later_members(family: list[Run], histories: list[list[Event]]) -> list[Run]:
    """The children that the histories tell of and the family does not know yet."""
    client = family[0].client
    new = _children(histories) - {member.workflow_id for member in family}
    return [Run(client, client.get_workflow_handle(workflow_id)) for workflow_id in sorted(new)]


async def _chain(run: Run) -> list[list[Event]]:
    return [await run.history(run_id) for run_id in await _run_ids(run)]


async def _run_ids(run: Run) -> list[str]:
    listed = await run.client.list_workflow_runs(run.workflow_id)
    return [known.run_id for known in listed.runs]


async def replay_chain(run: Run, *, dump: Path | None = None) -> list[list[Event]]:
    """Check and replay each run of the chain, oldest first; their histories."""
    run_ids = await _run_ids(run)
    histories = [await run.history(run_id) for run_id in run_ids]
    if dump is not None:
        for number, events in enumerate(histories, start=1):
            path = dump / f"{run.workflow_id}-run{number}.json"
            path.write_text(json.dumps(events, indent=1))
    for position, (run_id, events) in enumerate(zip(run_ids, histories, strict=True)):
        following = histories[position + 1] if position + 1 < len(histories) else None
        try:
            replaying.require_sound(events)
            replaying.replay_cold(events, run_id=run_id, following=following)
        except Exception as failure:
            story = "\n".join(json.dumps(event) for event in events)
            raise AssertionError(
                f"{run.workflow_id} (run {position + 1}) does not replay: {failure!r}\n{story}"
            ) from failure
    return histories


def _children(histories: list[list[Event]]) -> set[str]:
    return {
        event["payload"]["child_workflow_instance_id"]
        for events in histories
        for event in events
        if kind(event) == "ChildRunStarted"
    }
