"""The filter of lists of runs by scores."""

from collections.abc import Callable, Mapping

from perdure.core.push.score import was_judged
from perdure.core.run.state import Run
from perdure.protocols.durablex.requests import bad_request


def read_score_filter(query: Mapping[str, str]) -> Callable[[Run], bool] | None:
    """The filter by scores of a query; none if it has none."""
    name = query.get("scoreName") or None
    least, most = _number(query, "minScore"), _number(query, "maxScore")
    if name is None and least is None and most is None:
        return None
    return lambda run: was_judged(run, name=name, least=least, most=most)


def _number(query: Mapping[str, str], name: str) -> float | None:
    raw = query.get(name)
    if not raw:
        return None
    try:
        value = float(raw) if len(raw) <= 64 else float("nan")
    except ValueError:
        value = float("nan")
    if value != value:
        raise bad_request(f"{name} is a number")
    return value
