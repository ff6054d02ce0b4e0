"""Operations that only look: what a question needs to know of the run that it is meant for."""

from collections.abc import Callable

from perdure.core.run.state import Run
from perdure.engine.operation import Operation
from perdure.engine.world import World
from perdure.store.interface import Instance


class ShowTarget(Operation):
    """Copy something of the newest run of an id, which a given run id must name."""

    __slots__ = ("_copy", "_instance", "_run_id")
    name = "show_target"

    def __init__(
        self, instance: Instance, run_id: str | None, copy: Callable[[Run], object]
    ) -> None:
        self._instance = instance
        self._run_id = run_id
        self._copy = copy

    def instances(self) -> tuple[Instance, ...]:
        return (self._instance,)

    def run_ids(self) -> tuple[str, ...]:
        return () if self._run_id is None else (self._run_id,)

    def decide(self, world: World) -> object:
        return self._copy(world.require_target(self._instance, self._run_id))
