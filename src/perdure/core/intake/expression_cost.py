"""An upper bound on the cost of evaluating a condition, in about nanoseconds.

The library bounds nesting and iterations, not the cost of one iteration, and it cannot be
interrupted: it holds the interpreter while it evaluates. So the cost is bounded beforehand. The
bound is a polynomial in the sizes of the data, computed once per condition from its syntax tree, by
rules that never underestimate: a function, a loop or a literal that has no rule is refused.

Each node has three polynomials: its cost, the bytes of its value, and the items of all lists and
maps in its value. A loop over a value binds its item to two unknowns. Summed over all iterations,
the items together are no larger than the value, and a polynomial without a constant term is never
larger for the parts than for the sum. So the whole loop costs the constant term once per iteration,
and the rest once, on the whole value. By this rule reading each item once is linear, and reading
everything for each item is quadratic.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from perdure.core import limits
from perdure.core.intake.expression_tree import (
    Call,
    Constant,
    ListOf,
    Loop,
    MapOf,
    Name,
    Node,
    Path,
    Select,
)
from perdure.core.intake.pattern import pattern_size

Unknown = tuple[str, Path]
"""`bytes` or `items`, of a part of the event (by its path) or of the item of a loop."""
Term = tuple[Unknown, ...]

_BYTES, _ITEMS = "bytes", "items"
_NODE, _FUNCTION, _TURN, _APPENDED, _COMPARED = 60.0, 150.0, 100.0, 80.0, 400.0
_NUMBER_BYTES = 32.0
_CALL = 3_000.0
_TERMS_MAX = 200
_ZONE = re.compile(r"UTC|[A-Za-z_]+(?:/[A-Za-z0-9_+-]+){1,2}|[+-]?[0-9]{2}:[0-9]{2}")


class Polynomial:
    """A sum of products of unknown sizes. No factor is ever negative."""

    __slots__ = ("terms",)

    def __init__(self, terms: Mapping[Term, float]) -> None:
        if len(terms) > _TERMS_MAX:
            raise ValueError("must be simpler: its cost cannot be bounded")
        self.terms = terms

    def __add__(self, other: "Polynomial | float") -> "Polynomial":
        terms = dict(self.terms)
        for term, factor in _polynomial(other).terms.items():
            terms[term] = terms.get(term, 0.0) + factor
        return Polynomial(terms)

    def __mul__(self, other: "Polynomial | float") -> "Polynomial":
        terms: dict[Term, float] = {}
        for one, factor in self.terms.items():
            for two, scale in _polynomial(other).terms.items():
                term = tuple(sorted(one + two))
                terms[term] = terms.get(term, 0.0) + factor * scale
        return Polynomial(terms)

    def largest(self, other: "Polynomial") -> "Polynomial":
        """A bound on both."""
        terms = dict(self.terms)
        for term, factor in other.terms.items():
            terms[term] = max(terms.get(term, 0.0), factor)
        return Polynomial(terms)

    def put(self, values: Mapping[Unknown, "Polynomial"]) -> "Polynomial":
        """The polynomial with other polynomials in the place of some unknowns."""
        whole = Polynomial({})
        for term, factor in self.terms.items():
            product = Polynomial({tuple(one for one in term if one not in values): factor})
            for one in term:
                if one in values:
                    product = product * values[one]
            whole = whole + product
        return whole

    def evaluate(self, size: Callable[[Unknown], float]) -> float:
        whole = 0.0
        for term, factor in self.terms.items():
            for one in term:
                factor *= size(one)
            whole += factor
        return whole

    @property
    def unknowns(self) -> frozenset[Unknown]:
        return frozenset(one for term in self.terms for one in term)


def _polynomial(value: Polynomial | float) -> Polynomial:
    return value if isinstance(value, Polynomial) else Polynomial({(): value})


_NONE = Polynomial({})


@dataclass(frozen=True, slots=True)
class Bound:
    """The bounds of a node before evaluation."""

    cost: Polynomial
    bytes: Polynomial = _NONE
    items: Polynomial = _NONE
    path: Path | None = None
    """The path of its value in the event, if it is known beforehand."""


def cost_of(tree: Node, roots: frozenset[str]) -> Polynomial:
    """The highest cost of a condition, by the sizes of parts of its roots.

    Raises ValueError if it cannot be bounded.
    """
    return _Bounds(roots).bound(tree, {}).cost + _CALL


class _Bounds:
    def __init__(self, roots: frozenset[str]) -> None:
        self._roots = roots
        self._loops = 0

    def bound(self, node: Node, scope: Mapping[str, Bound]) -> Bound:
        match node:
            case Constant():
                return Bound(_polynomial(_NODE), _polynomial(float(node.size)))
            case Name(name):
                return self._named(name, scope)
            case Select():
                return self._selected(node, scope)
            case Call():
                return self._called(node, scope)
            case ListOf(items):
                return _gathered([self.bound(item, scope) for item in items])
            case MapOf(entries):
                both = [self.bound(one, scope) for entry in entries for one in entry]
                return _gathered(both)
            case Loop():
                return self._looped(node, scope)

    def _named(self, name: str, scope: Mapping[str, Bound]) -> Bound:
        if name in scope:
            return scope[name]
        if name in self._roots:
            return _part((name,), _polynomial(_NODE))
        return Bound(_polynomial(_NODE), _polynomial(_NUMBER_BYTES))  # The name of a type.

    def _selected(self, node: Select, scope: Mapping[str, Bound]) -> Bound:
        operand = self.bound(node.operand, scope)
        cost = operand.cost + (_FUNCTION + len(node.member))
        if node.tested:
            return Bound(cost, _polynomial(_NUMBER_BYTES))
        if operand.path is not None:
            return _part((*operand.path, node.member), cost)
        return Bound(cost, operand.bytes, operand.items)

    def _called(self, node: Call, scope: Mapping[str, Bound]) -> Bound:
        rule = _RULES.get(node.function)
        if rule is None:
            raise ValueError(f"must not call {node.function}: its cost is not known")
        arguments = [self.bound(one, scope) for one in node.arguments]
        made = rule(node, arguments)
        cost = made.cost + _FUNCTION
        for argument in arguments:
            cost = cost + argument.cost
        return Bound(cost, made.bytes, made.items, made.path)

    def _looped(self, node: Loop, scope: Mapping[str, Bound]) -> Bound:
        over, initial = self.bound(node.range, scope), self.bound(node.initial, scope)
        if node.range == ListOf(()):  # A named value, see expression_arithmetic.py.
            named = Bound(_polynomial(_NODE), initial.bytes, initial.items)
            result = self.bound(node.result, {**scope, node.total: named})
            return Bound(over.cost + initial.cost + result.cost, result.bytes, result.items)
        self._loops += 1
        own: Path = (f"loop {self._loops}",)
        size, count = (_BYTES, own), (_ITEMS, own)
        item = Bound(_polynomial(_NODE), Polynomial({(size,): 1.0}), Polynomial({(count,): 1.0}))
        whole = {size: over.bytes, count: over.items}
        nothing = {size: _NONE, count: _NONE}
        turns = over.items

        def summed(one: Polynomial) -> Polynomial:
            each = one.put(nothing)
            rest = {term: factor for term, factor in one.terms.items() if {size, count} & {*term}}
            return turns * each + Polynomial(rest).put(whole)

        inside = {**scope, node.item: item}
        appended = _appended(node)
        if appended is None:
            if not isinstance(node.initial, Constant):
                raise ValueError("must use the known macros only: the cost of others is not known")
            total = Bound(_polynomial(_NODE), _polynomial(_NUMBER_BYTES))
        else:
            added = self.bound(appended, inside)
            total = Bound(_polynomial(_NODE), summed(added.bytes), summed(added.items))
        # The accumulator is copied per iteration; that is counted apart, below.
        inside[node.total] = Bound(_polynomial(_NODE), _polynomial(_NUMBER_BYTES))
        turn = self.bound(node.condition, inside).cost + self.bound(node.step, inside).cost + _TURN
        cost = over.cost + initial.cost + summed(turn)
        if appended is not None:
            cost = cost + turns * turns * _APPENDED
        result = self.bound(node.result, {**scope, node.total: total})
        return Bound(cost + result.cost, result.bytes, result.items)


def _part(path: Path, cost: Polynomial) -> Bound:
    """A part of the event, whose size can be measured before evaluation."""
    return Bound(
        cost, Polynomial({((_BYTES, path),): 1.0}), Polynomial({((_ITEMS, path),): 1.0}), path
    )


def _gathered(parts: list[Bound]) -> Bound:
    cost, size, items = _polynomial(_NODE), _NONE, _polynomial(float(len(parts)))
    for part in parts:
        cost, size = cost + part.cost + _FUNCTION + part.bytes, size + part.bytes + 8.0
        items = items + part.items
    return Bound(cost, size, items)


def _appended(loop: Loop) -> Node | None:
    """The list that `map` and `filter` append in an iteration."""
    step = loop.step
    if isinstance(step, Call) and step.function == "_?_:_":
        step = step.arguments[1]
    if not isinstance(step, Call) or step.function != "_+_" or not isinstance(loop.initial, ListOf):
        return None
    total, added = step.arguments
    return added if total == Name(loop.total) and isinstance(added, ListOf) else None


# Costs of functions, without their arguments, and sizes of their results -------------------------

_SMALL = _polynomial(_NUMBER_BYTES)


def _simple(_: Call, __: list[Bound]) -> Bound:
    return Bound(_NONE, _SMALL)


def _reads(_: Call, arguments: list[Bound]) -> Bound:
    """Functions that read their arguments once."""
    cost = _polynomial(200.0)
    for one in arguments:
        cost = cost + one.bytes + one.items * _COMPARED
    return Bound(cost, _SMALL)


def _scans(_: Call, arguments: list[Bound]) -> Bound:
    """Functions that read texts once; the length of a list or map is known."""
    cost = _polynomial(200.0)
    for one in arguments:
        cost = cost + one.bytes
    return Bound(cost, _SMALL)


def _converts(node: Call, arguments: list[Bound]) -> Bound:
    """Functions that make a value as large as their argument."""
    return Bound(_reads(node, arguments).cost * 2.0, arguments[0].bytes + _NUMBER_BYTES)


def _compares(node: Call, arguments: list[Bound]) -> Bound:
    """Comparisons: they stop where the smaller operand ends."""
    for one in node.arguments:
        if isinstance(one, Constant):
            return Bound(_polynomial(2.0 * one.size), _SMALL)
    return _reads(node, arguments)


def _joins(_: Call, arguments: list[Bound]) -> Bound:
    cost, size, items = _NONE, _NONE, _NONE
    for one in arguments:
        cost = cost + one.bytes + one.items * _APPENDED
        size, items = size + one.bytes, items + one.items
    return Bound(cost, size + _NUMBER_BYTES, items)


def _picks(node: Call, arguments: list[Bound]) -> Bound:
    """Access of a member by its key or index."""
    whole, key = arguments
    path = None
    index = node.arguments[1]
    if whole.path is not None and isinstance(index, Constant) and index.text is not None:
        path = (*whole.path, index.text)
        part = _part(path, key.bytes)
        return Bound(key.bytes, part.bytes, part.items, path)
    return Bound(key.bytes, whole.bytes, whole.items)


def _chooses(_: Call, arguments: list[Bound]) -> Bound:
    one, other = arguments[1:]
    return Bound(_NONE, one.bytes.largest(other.bytes), one.items.largest(other.items))


def _passes(_: Call, arguments: list[Bound]) -> Bound:
    return Bound(_NONE, arguments[0].bytes, arguments[0].items)


def _contains(_: Call, arguments: list[Bound]) -> Bound:
    text, part = arguments
    # At each position of the text the whole part may be compared, sixteen bytes at a time.
    return Bound(text.bytes * 16.0 + text.bytes * part.bytes * 0.05 + part.bytes, _SMALL)


def _matches(node: Call, arguments: list[Bound]) -> Bound:
    pattern = node.arguments[1]
    if not isinstance(pattern, Constant) or pattern.text is None:
        raise ValueError("must have a literal text as the pattern of matches()")
    size = pattern_size(pattern.text)
    if size > limits.PATTERN_SIZE_MAX:
        raise ValueError("must have a smaller pattern in matches(): its repetitions make it large")
    return Bound(arguments[0].bytes * (3.0 * size) + (5_000.0 + 800.0 * size), _SMALL)


def _in_zone(node: Call, _: list[Bound]) -> Bound:
    """Time zones must be literal: the library opens a file by the name of the zone."""
    for zone in node.arguments[1:]:
        if not isinstance(zone, Constant) or _ZONE.fullmatch(zone.text or "") is None:
            raise ValueError(f"must have a literal time zone such as 'UTC' in {node.function}()")
    return Bound(_polynomial(2_000.0), _SMALL)


_RULES: dict[str, Callable[[Call, list[Bound]], Bound]] = {
    **dict.fromkeys(
        ("_&&_", "_||_", "!_", "@not_strictly_false", "__not_strictly_false__"), _simple
    ),
    **dict.fromkeys(("_-_", "_*_", "_/_", "_%_", "-_", "type"), _simple),
    **dict.fromkeys(("_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_"), _compares),
    **dict.fromkeys(("size", "startsWith", "endsWith"), _scans),
    **dict.fromkeys(("@in", "_in_", "in"), _reads),
    **dict.fromkeys(("int", "uint", "double", "bool", "timestamp", "duration"), _converts),
    **dict.fromkeys(("string", "bytes"), _converts),
    **dict.fromkeys(
        (
            "getDate",
            "getDayOfMonth",
            "getDayOfWeek",
            "getDayOfYear",
            "getFullYear",
            "getHours",
            "getMilliseconds",
            "getMinutes",
            "getMonth",
            "getSeconds",
        ),
        _in_zone,
    ),
    "_+_": _joins,
    "_[_]": _picks,
    "_?_:_": _chooses,
    "dyn": _passes,
    "contains": _contains,
    "matches": _matches,
}
