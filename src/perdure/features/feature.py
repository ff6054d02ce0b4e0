"""What a feature is: rules for the engine, and routes and loops that are built from the kernel.

A feature is a folder with one `FEATURE` value and one line in the parts list of the server. It may
import the kernel, and the `rules` of other features. The kernel imports no feature.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from perdure.clock import Clock
from perdure.dispatch.deadlines import DeadlineLoop
from perdure.dispatch.record_expiry import Rule
from perdure.engine.beat import Engine
from perdure.engine.registry import Extension
from perdure.identity import IdSource
from perdure.protocols.durable_workflow.surfaces import ControlSurface
from perdure.protocols.durablex.runs import Runs
from perdure.protocols.durablex.surface import DurablexSurface
from perdure.web.routing import Route

S_contra = TypeVar("S_contra", contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What features are built from."""

    engine: Engine
    clock: Clock
    ids: IdSource
    deadlines: DeadlineLoop
    namespaces: Collection[str]
    push_surface: DurablexSurface
    push_runs: Runs
    control_surface: ControlSurface


class Loop(Protocol):
    """Work that goes on for as long as the server lives."""

    async def run(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a feature has for the server: routes, loops by their names, and what may expire."""

    routes: list[Route] = field(default_factory=list)
    loops: list[tuple[str, Loop]] = field(default_factory=list)
    expiry: list[Rule] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature(Generic[S_contra]):
    """One feature. `build` is given the kernel and the settings of the server."""

    extension: Extension
    build: Callable[[Kernel, S_contra], Parts]

    @property
    def name(self) -> str:
        return self.extension.name
