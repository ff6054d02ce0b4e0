"""How a case is declared: a name from the catalogue and a coroutine that plays it on a stage."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.sdk.sdk_harness import Stage

Play = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True)
class Declared:
    """A case, the programs that its workers know, and whether one is polling when it starts."""

    play: Play
    programs: tuple[str, ...]
    worker: bool


DECLARED: dict[str, Declared] = {}


def case(name: str, *programs: str, worker: bool = True) -> Callable[[Play], Play]:
    """Declare the case of that name, played by `programs`; `worker=False` if it starts workers."""

    def declare(play: Play) -> Play:
        assert name not in DECLARED, f"{name} is declared twice"
        DECLARED[name] = Declared(play, programs, worker)
        return play

    return declare
