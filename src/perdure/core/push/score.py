"""Scores: ratings of runs by people, code and models."""

import math
from typing import Literal, TypeAlias

from msgspec import Struct

from perdure.core.limits import (
    NAME_LENGTH_MAX,
    SCORE_NAMES_PER_RUN_MAX,
    SCORE_TEXT_LENGTH_MAX,
    SCORES_PER_RUN_MAX,
)
from perdure.core.rejection import TooManyScores
from perdure.core.run.push import ScoreSummary
from perdure.core.run.state import Run

DataType: TypeAlias = Literal["numeric", "boolean", "categorical"]
Source: TypeAlias = Literal["human", "code", "llm-judge"]


class Judgement(Struct, frozen=True, kw_only=True):
    """The content of a score: a number, a boolean as 1 or 0, or a category."""

    name: str
    data_type: DataType
    source: Source
    value: float | None = None
    text: str | None = None
    comment: str | None = None
    step: str | None = None


class Score(Struct, frozen=True, kw_only=True):
    """A judgement of a run, as it is stored."""

    run_id: str
    judgement: Judgement
    created_at: int
    scorer: str | None = None


def judgement_of(
    *,
    name: str,
    value: float | bool | None,
    text: str | None,
    data_type: DataType | None,
    source: Source,
    comment: str | None = None,
    step: str | None = None,
) -> Judgement:
    """A judgement with its type inferred. Raises `ValueError` for inconsistent members."""
    _require_fitting(name, text, comment, step)
    kind = data_type or _kind_of(value, text)
    number = None if value is None else float(value)
    if number is not None and not math.isfinite(number):
        raise ValueError("the value of a score is a finite number")
    if kind == "categorical":
        if text is None or number is not None:
            raise ValueError("a categorical score has a stringValue and no value")
    elif number is None or text is not None:
        raise ValueError(f"a {kind} score has a value and no stringValue")
    elif kind == "boolean" and number not in (0, 1):
        raise ValueError("the value of a boolean score is 0 or 1")
    return Judgement(
        name=name,
        data_type=kind,
        source=source,
        value=number,
        text=text,
        comment=comment,
        step=step,
    )


def _require_fitting(name: str, text: str | None, comment: str | None, step: str | None) -> None:
    if not name.strip():
        raise ValueError("a score needs a name")
    for what, given, most in (
        ("name", name, NAME_LENGTH_MAX),
        ("stringValue", text, NAME_LENGTH_MAX),
        ("comment", comment, SCORE_TEXT_LENGTH_MAX),
        ("step", step, SCORE_TEXT_LENGTH_MAX),
    ):
        if given is not None and len(given) > most:
            raise ValueError(f"the {what} of a score has more than {most} characters")


def _kind_of(value: float | bool | None, text: str | None) -> DataType:
    if isinstance(value, bool):
        return "boolean"
    if value is None and text is None:
        raise ValueError("a score needs a value or a stringValue")
    return "categorical" if value is None else "numeric"


def judge(run: Run, judgement: Judgement) -> None:
    """Count a score in the row of its run, open or closed; lists of runs read it there."""
    assert run.push is not None
    judged = run.push.judged
    if sum(one.count for one in judged.values()) >= SCORES_PER_RUN_MAX:
        raise _too_many(run, "scores", SCORES_PER_RUN_MAX)
    if judgement.name not in judged and len(judged) >= SCORE_NAMES_PER_RUN_MAX:
        # Names are stored in the row of the run, which every list of runs reads.
        raise _too_many(run, "names of scores", SCORE_NAMES_PER_RUN_MAX)
    one = judged.setdefault(judgement.name, ScoreSummary())
    one.count += 1
    if judgement.value is not None:
        one.numbers += 1
        one.total += judgement.value
        if judgement.value not in one.values:
            one.values.append(judgement.value)


def _too_many(run: Run, what: str, limit: int) -> TooManyScores:
    return TooManyScores(f"run {run.run_id} has {limit} {what}", limit=limit)


def was_judged(
    run: Run, *, name: str | None, least: float | None = None, most: float | None = None
) -> bool:
    """Whether a run has a score, with a given name or any, within the given bounds."""
    assert run.push is not None
    judged = run.push.judged
    found = judged.values() if name is None else [judged[name]] if name in judged else []
    if least is None and most is None:
        return bool(found)
    low, high = -math.inf if least is None else least, math.inf if most is None else most
    return any(low <= value <= high for one in found for value in one.values)
