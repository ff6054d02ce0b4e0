"""Figures, their targets, and the table and file in which people read them."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec


@dataclass(frozen=True, slots=True)
class Target:
    """What the design hopes for; reported beside a figure, never asserted."""

    relation: Literal["≤", "≥"]
    limit: float

    def is_met_by(self, value: float) -> bool:
        """Whether a median is on the hoped-for side."""
        return value <= self.limit if self.relation == "≤" else value >= self.limit


def at_most(limit: float) -> Target:
    """A target from above."""
    return Target("≤", limit)


def at_least(limit: float) -> Target:
    """A target from below."""
    return Target("≥", limit)


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity over its repetitions; no samples means it could not be read here."""

    bench: str
    name: str
    unit: str
    samples: tuple[float, ...]
    target: Target | None = None
    note: str = ""

    @property
    def median(self) -> float | None:
        """The middle repetition."""
        return statistics.median(self.samples) if self.samples else None

    @property
    def meets_target(self) -> bool | None:
        """Whether the median meets the target; `None` without a target or a median."""
        if self.target is None or self.median is None:
            return None
        return self.target.is_met_by(self.median)


def known(samples: Iterable[float | None]) -> tuple[float, ...]:
    """The samples that could be read on this platform."""
    return tuple(sample for sample in samples if sample is not None)


HEADER = ("bench", "measure", "figure", "spread", "target", "met", "note")


def render_table(figures: Sequence[Figure]) -> str:
    """A Markdown table with one row per figure, padded to be read as plain text too."""
    rows = [HEADER, *(_row(figure) for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def render_json(facts: str, figures: Sequence[Figure]) -> bytes:
    """The same figures with every sample, for comparing one day with another."""
    document = {
        "machine": facts,
        "figures": [
            {
                **msgspec.to_builtins(figure),
                "median": figure.median,
                "met": figure.meets_target,
            }
            for figure in figures
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def _row(figure: Figure) -> tuple[str, ...]:
    met = {True: "yes", False: "no", None: ""}[figure.meets_target]
    target = f"{figure.target.relation} {_number(figure.target.limit)}" if figure.target else ""
    return figure.bench, figure.name, _figure(figure), _spread(figure), target, met, figure.note


def _figure(figure: Figure) -> str:
    if figure.median is None:
        return "n/a"
    return f"{_number(figure.median)} {figure.unit}"


def _spread(figure: Figure) -> str:
    if len(figure.samples) < 2:
        return ""
    return f"{_number(min(figure.samples))}–{_number(max(figure.samples))}"


def _number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
