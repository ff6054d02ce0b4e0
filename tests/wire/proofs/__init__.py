"""Proofs of what the server says about itself.

`tests/wire/pull/test_capabilities.py` plays them all.

An entry has one of these names:

- `server.<name>`: a member of `worker_protocol.server_capabilities`
- `command.<type>`: one of its `supported_workflow_task_commands`
- `cluster.<name>`: a member of `capabilities` in cluster info

To add one, write a module in this folder (or a function in one of its modules): nothing needs to be
listed anywhere. A proof uses the entry over the wire and asserts what came of it:

    @proves("server.sticky_execution")
    def the_next_task_goes_to_the_worker_that_holds_the_run(wire: Wire) -> None: ...

A known entry that is not advertised has a refusal instead, in `absent.py`: using it anyway is
answered with a status and a reason. When the entry begins to be advertised, its refusal goes.
"""

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from tests.support.http import Wire

Proof: TypeAlias = Callable[[Wire], None]
Play = TypeVar("Play", bound=Proof)

PROOFS: dict[str, Proof] = {}
REFUSALS: dict[str, Proof] = {}


def proves(*names: str) -> Callable[[Play], Play]:
    """What these entries promise is done here, over the wire."""
    return lambda play: _note(PROOFS, names, play)


def refuses(*names: str) -> Callable[[Play], Play]:
    """These are not advertised, and whoever uses them anyway is told so."""
    return lambda play: _note(REFUSALS, names, play)


def _note(table: dict[str, Proof], names: tuple[str, ...], play: Play) -> Play:
    for name in names:
        assert name not in table, f"{name} is proved twice"
        table[name] = play
    return play
