"""`ctx.asserts`: checks of a run by its own code, kept as scores of yes or no."""

import json
from collections.abc import Sequence

from perdure.sdk.steps import ABSENT, Board, Future, judged, judged_step
from perdure.sdk.wire import Json, encode


class Asserts:
    """Each says whether it holds, and the code goes on either way."""

    __slots__ = ("_board", "_eval")

    def __init__(self, board: Board, eval: Json) -> None:
        self._board = board
        self._eval = eval

    def used_step(
        self, step: str, *, name: str | None = None, comment: str | None = None
    ) -> Future[bool]:
        """Whether the code has come to a step."""
        holds = step in self._board.called
        missed = None if holds else f"step {step!r} did not run"
        return self._judge(name or f"used:{step}", holds, comment or missed)

    def sequence(
        self, steps: Sequence[str], *, name: str | None = None, comment: str | None = None
    ) -> Future[bool]:
        """Whether the code has come to these steps in this order, others between them or not."""
        passed = iter(self._board.called)
        return self._judge(name or "sequence", all(step in passed for step in steps), comment)

    def equals(
        self,
        actual: object,
        expected: object = ABSENT,
        *,
        name: str | None = None,
        comment: str | None = None,
    ) -> Future[bool]:
        """Whether two values are the same as JSON; in an eval, what its item expects."""
        if expected is ABSENT:
            expected = self._eval.get("expected") if isinstance(self._eval, dict) else None
        return self._judge(name or "match", _plain(actual) == _plain(expected), comment)

    def _judge(self, name: str, holds: bool, comment: str | None) -> Future[bool]:
        told = {"name": name, **judged(holds), "source": "code"}
        if comment is not None:
            told["comment"] = comment
        return judged_step(self._board, told, holds)


def _plain(value: object) -> str:
    """A value as text that is the same for the same JSON: true is not 1."""
    return json.dumps(json.loads(encode(value)), sort_keys=True)
