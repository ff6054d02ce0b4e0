"""Schedules of push workflows: a record per cron expression, due at its next tick.

It is armed by the first registration that names it and lives on by itself; when it is due and its
workflow no longer has it, it goes. Which ticks there are is said by `core/intake/cron.py`.
"""

from msgspec import Struct

from perdure.core.intake import cron
from perdure.core.intake.definition import Workflow
from perdure.core.intake.flow_state import part_of
from perdure.engine.records import RecordKind
from perdure.engine.world import World


class Schedule(Struct, frozen=True, kw_only=True):
    """One cron trigger of one workflow."""

    app: str
    workflow: str
    cron: str
    next_at: int
    last_tick_at: int | None = None


SCHEDULE = RecordKind("schedule", Schedule)


def schedule_key(app: str, workflow: str, told: str) -> str:
    """Where a schedule stands."""
    return "/".join(map(part_of, (app, workflow, told)))


def arm_schedules(world: World, namespace: str, app: str, workflow: Workflow) -> None:
    """Have the ticks of a workflow come. What is armed already is left as it is."""
    for told in workflow.crons:
        key = schedule_key(app, workflow.name, told)
        next_at = cron.parse(told).next_after(world.ctx.now)
        if next_at is None or SCHEDULE.find(world, namespace, key) is not None:
            continue
        armed = Schedule(app=app, workflow=workflow.name, cron=told, next_at=next_at)
        SCHEDULE.put(world, namespace, key, armed, due_at=next_at)
