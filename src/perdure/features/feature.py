"""The form of a feature: rules for the engine, and routes and loops built from the kernel.

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
    """The parts of the kernel that features are built from."""

    engine: Engine
    clock: Clock
    ids: IdSource
    deadlines: DeadlineLoop
    namespaces: Collection[str]
    push_surface: DurablexSurface
    push_runs: Runs
    control_surface: ControlSurface


class Loop(Protocol):
    """Background work that runs for as long as the server lives."""

    async def run(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a feature adds to the server: routes, loops by name, and rules for expiring records."""

    routes: list[Route] = field(default_factory=list)
    loops: list[tuple[str, Loop]] = field(default_factory=list)
    expiry: list[Rule] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature(Generic[S_contra]):
    """One feature. `build` receives the kernel and the settings of the server."""

    extension: Extension
    build: Callable[[Kernel, S_contra], Parts]

    @property
    def name(self) -> str:
        return self.extension.name
