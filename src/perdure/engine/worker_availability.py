"""Who is there for the task that a run waits for, as far as the fleet is known."""

from perdure.core.fleet.worker_availability import WorkerAvailability, availability_of
from perdure.core.run.cause import awaited_task
from perdure.core.run.state import Run
from perdure.engine.beat import Engine
from perdure.store.interface import QueueKey


async def staffing_for(engine: Engine, run: Run, now: int) -> WorkerAvailability | None:
    """None if the run waits for something else.

    Before anybody is told that somebody is missing, the other nodes' workers are looked up.
    """
    task = awaited_task(run)
    if task is None:
        return None
    found = availability_of(engine.workers.values(), task, engine.rollouts.draining, now)
    if found is not WorkerAvailability.PRESENT and engine.store.is_shared:
        await engine.refresh_workers()
        await engine.refresh_rollouts()
        found = availability_of(engine.workers.values(), task, engine.rollouts.draining, now)
    is_throttled = QueueKey(task.namespace, task.queue, task.kind) in engine.shut
    return (
        WorkerAvailability.THROTTLED
        if is_throttled and found is WorkerAvailability.PRESENT
        else found
    )
