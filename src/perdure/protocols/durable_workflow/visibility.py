"""The query language of workflow lists.

    expression := term (OR term)*          term := factor (AND factor)*
    factor     := NOT factor | ( expression ) | Field | Field op literal | Field IN (literal, …)
    op         := = | != | > | >= | < | <=

A test is true, false or unknown: a run without a value matches neither a predicate about it nor its
negation. Predicates that hold for every match narrow what is read from the store.
"""

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Final, NamedTuple

from perdure.core import limits
from perdure.core.rejection import InvalidRequest
from perdure.core.run.state import Run
from perdure.core.run.status import RunStatus, StatusBucket, bucket

Literal = str | int | float | bool
Fitting = Callable[[Run], bool | None]

_RECOGNISED = re.compile(
    r"\b[A-Za-z]\w*\s*(?:[=<>]|!=|\b[Ii][Nn]\s*\()|\bNOT\s+\(*[A-Za-z]", re.ASCII
)
"""Tokens that make a query an expression. A single word is a text to search for."""
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<mark>!=|>=|<=|[=<>(),])
    | (?P<number>[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.:+-]))
    | (?P<word>[\w.:-]+)
    )""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_FIELD = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_SPACE = re.compile(r"\s*")
_KEYWORDS = frozenset({"AND", "OR", "NOT", "IN"})
_ORDERS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_COMPARES: Final = frozenset({"=", "!=", *_ORDERS})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CONTINUED = "continued"

_WORDS: Mapping[str, Callable[[Run], str | None]] = {
    "WorkflowType": lambda run: run.workflow_type,
    "WorkflowId": lambda run: run.workflow_id,
    "RunId": lambda run: run.run_id,
    "TaskQueue": lambda run: run.queue,
    "BuildId": lambda run: run.build_id,
    "BuildIds": lambda run: run.build_id,
    "BusinessKey": lambda run: run.business_key,
}
_TIMES: Mapping[str, Callable[[Run], int | None]] = {
    "StartTime": lambda run: run.started_at,
    "ExecutionTime": lambda run: run.started_at,
    "CloseTime": lambda run: run.closed_at,
}
_STATUS = frozenset({"Status", "ExecutionStatus"})


class Predicate(NamedTuple):
    """One comparison: its test, and the field and values for the store."""

    test: Fitting
    field: str
    operator: str
    literals: tuple[Literal, ...]


class Visibility(NamedTuple):
    """The filter of a list."""

    fits: Callable[[Run], bool]
    demands: tuple[Predicate, ...] = ()
    """Predicates that hold for every matching run."""

    def words(self, field: str) -> tuple[str, ...] | None:
        """The possible values of a system field, if the expression limits them."""
        for each in self.demands:
            if each.field == field and each.operator in ("=", "IN"):
                return tuple(str(value) for value in each.literals)
        return None

    @property
    def bucket(self) -> str | None:
        for each in self.demands:
            if each.field in _STATUS and each.operator == "=" and each.literals[0] in _BUCKETS:
                return str(each.literals[0])
        return None

    @property
    def started(self) -> tuple[int, int | None]:
        """The range of start times that can match: first instant in it, first after it."""
        since, until = 0, None
        for each in self.demands:
            if each.field not in ("StartTime", "ExecutionTime"):
                continue
            instant = _instant(str(each.literals[0]))
            assert instant is not None
            if each.operator in ("=", ">", ">="):
                since = max(since, instant)
            if each.operator in ("=", "<", "<="):
                until = instant + 1 if until is None else min(until, instant + 1)
        return since, until


_BUCKETS = frozenset(each.value for each in StatusBucket)
_STATUSES = frozenset(each.value for each in RunStatus) | _BUCKETS | {_CONTINUED}


def read_query(query: str) -> Visibility:
    """Parse a `query`: an expression, or a text to find in workflow ids and business keys."""
    if len(query) > limits.LIST_QUERY_LENGTH_MAX:
        raise InvalidRequest("query", f"at most {limits.LIST_QUERY_LENGTH_MAX} characters")
    if _RECOGNISED.search(query) is None:
        return Visibility(lambda run: query in run.workflow_id or query in (run.business_key or ""))
    reader = _Reader(query)
    test, demands = reader.expression()
    reader.require_end()
    return Visibility(lambda run: test(run) is True, tuple(demands))


Read = tuple[Fitting, list[Predicate]]
"""A test, and predicates that hold whenever it is true."""


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _Reader:
    """A recursive-descent parser of one expression."""

    def __init__(self, query: str) -> None:
        self._query = query
        self._at = 0
        self._depth = 0
        self._token = self._scan()

    def _scan(self) -> _Token:
        start = _spaced(self._query, self._at)
        if start == len(self._query):
            return _Token("end", "", start)
        found = _TOKEN.match(self._query, self._at)
        if found is None:
            unclosed = self._query[start] in "\"'"
            raise _syntax_error(
                start, "the text has no closing quote" if unclosed else "is not expected here"
            )
        self._at = found.end()
        kind = found.lastgroup or ""
        text = found[kind]
        if kind == "word" and text.upper() in _KEYWORDS:
            kind, text = "keyword", text.upper()
        return _Token(kind, text, start)

    def _take(self) -> _Token:
        taken, self._token = self._token, self._scan()
        return taken

    def _is(self, text: str) -> bool:
        return self._token.kind in ("mark", "keyword") and self._token.text == text

    def _require(self, mark: str) -> None:
        if not self._is(mark):
            raise _syntax_error(self._token.at, f"expected {mark}")
        self._take()

    def require_end(self) -> None:
        if self._token.kind != "end":
            raise _syntax_error(self._token.at, "expected AND, OR or the end")

    @contextmanager
    def _nested(self) -> Iterator[None]:
        self._depth += 1
        if self._depth > limits.LIST_QUERY_NESTING_MAX:
            raise _syntax_error(
                self._token.at, f"nested more than {limits.LIST_QUERY_NESTING_MAX} deep"
            )
        yield
        self._depth -= 1

    def expression(self) -> Read:
        parts = [self._term()]
        while self._is("OR"):
            self._take()
            parts.append(self._term())
        if len(parts) == 1:
            return parts[0]
        return _any_of([test for test, _ in parts]), []

    def _term(self) -> Read:
        parts = [self._factor()]
        while self._is("AND"):
            self._take()
            parts.append(self._factor())
        demands = [each for _, those in parts for each in those]
        return _all_of([test for test, _ in parts]), demands

    def _factor(self) -> Read:
        if self._is("NOT"):
            self._take()
            with self._nested():
                test, _ = self._factor()
            return _opposite(test), []
        if self._is("("):
            self._take()
            with self._nested():
                inner = self.expression()
            self._require(")")
            return inner
        predicate = self._predicate()
        return predicate.test, [predicate]

    def _predicate(self) -> Predicate:
        name = self._take()
        if name.kind != "word" or _FIELD.fullmatch(name.text) is None:
            raise _syntax_error(name.at, "expected the name of a field")
        if self._is("IN"):
            self._take()
            return self._membership(name)
        if self._token.kind == "mark" and self._token.text in _COMPARES:
            mark, at = self._take().text, self._token.at
            literal = self._literal()
            return _comparison(name, mark, literal, at)
        return _bare(name)

    def _membership(self, name: _Token) -> Predicate:
        if name.text in _STATUS or name.text in _TIMES:
            raise _syntax_error(name.at, f"{name.text} cannot be used with IN")
        self._require("(")
        expected: list[Literal] = []
        while True:
            at = self._token.at
            expected.append(self._literal())
            _require_word(name.text, expected[-1], at)
            if not self._is(","):
                break
            self._take()
        self._require(")")
        value_of, literals = _value_of(name.text), tuple(expected)
        return Predicate(lambda run: _within(value_of(run), literals), name.text, "IN", literals)

    def _literal(self) -> Literal:
        taken = self._take()
        match taken.kind:
            case "text":
                return re.sub(r"\\(.)", r"\1", taken.text[1:-1], flags=re.DOTALL)
            case "number":
                return _number(taken)
            case "word":
                return {"true": True, "false": False}.get(taken.text.lower(), taken.text)
            case _:
                raise _syntax_error(taken.at, "expected a value")


def _spaced(query: str, at: int) -> int:
    found = _SPACE.match(query, at)
    assert found is not None
    return found.end()


def _number(token: _Token) -> int | float:
    if token.text.lstrip("+-").isdigit():
        return int(token.text)
    value = float(token.text)
    if not isfinite(value):
        raise _syntax_error(token.at, "the number is too large")
    return value


def _syntax_error(at: int, problem: str) -> InvalidRequest:
    return InvalidRequest("query", f"at character {at + 1}: {problem}")


# What fields are, and how they compare -----------------------------------------------------------


def _comparison(name: _Token, mark: str, literal: Literal, at: int) -> Predicate:
    field = name.text
    if field in _STATUS:
        literal = _lower(literal)
        return Predicate(_status_test(name, mark, literal, at), field, mark, (literal,))
    demand = (field, mark, (literal,))
    if field in _TIMES:
        return Predicate(_time_test(field, mark, literal, at), *demand)
    if mark in _ORDERS:
        if field in _WORDS:
            raise _syntax_error(name.at, f"{field} has no order; compare it with =, != or IN")
        return Predicate(_order_test(field, mark, literal, at), *demand)
    _require_word(field, literal, at)
    value_of = _value_of(field)
    if mark == "=":
        return Predicate(lambda run: _within(value_of(run), (literal,)), *demand)

    def differs(run: Run) -> bool | None:
        value = value_of(run)
        return None if isinstance(value, list) else _not(_within(value, (literal,)))

    return Predicate(differs, *demand)


def _bare(name: _Token) -> Predicate:
    field = name.text
    if field in _WORDS or field in _TIMES or field in _STATUS:
        raise _syntax_error(name.at, f"{field} needs a value to be compared with")

    def holds(run: Run) -> bool | None:
        value = run.search_attributes.get(field)
        return value if isinstance(value, bool) else None

    return Predicate(holds, field, "", ())


def _require_word(field: str, literal: Literal, at: int) -> None:
    if field in _WORDS and not isinstance(literal, str):
        raise _syntax_error(at, f"{field} is a text; put the value in quotes")


def _value_of(field: str) -> Callable[[Run], object]:
    return _WORDS.get(field) or (lambda run: run.search_attributes.get(field))


def _within(value: object, literals: tuple[Literal, ...]) -> bool | None:
    """Whether a value, or a member of a list value, is one of the literals."""
    if isinstance(value, list):
        return any(_within(member, literals) for member in value)
    comparable = [each for each in literals if _kind(each) == _kind(value)]
    return value in comparable if comparable else None


def _kind(value: object) -> str | None:
    """The kind of a value; only equal kinds compare. A boolean is not a number."""
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else None


def _status_test(name: _Token, mark: str, expected: str, at: int) -> Fitting:
    if mark in _ORDERS:
        raise _syntax_error(name.at, f"{name.text} has no order; compare it with = or !=")
    if expected not in _STATUSES:
        raise _syntax_error(at, f"a status is one of {', '.join(sorted(_STATUSES))}")

    def has(run: Run) -> bool:
        if expected == _CONTINUED:
            return run.closed_reason == _CONTINUED
        return expected == (bucket(run.status).value if expected in _BUCKETS else run.status.value)

    return has if mark == "=" else lambda run: not has(run)


def _lower(literal: Literal) -> str:
    return literal.lower() if isinstance(literal, str) else str(literal)


def _time_test(field: str, mark: str, literal: Literal, at: int) -> Fitting:
    expected = _instant(literal) if isinstance(literal, str) else None
    if expected is None:
        raise _syntax_error(at, f"{field} is a time, such as '2026-01-31T12:00:00Z'")
    compare = _ORDERS.get(mark) or (operator.eq if mark == "=" else operator.ne)
    value_of = _TIMES[field]

    def holds(run: Run) -> bool | None:
        value = value_of(run)
        return None if value is None else compare(value, expected)

    return holds


def _order_test(field: str, mark: str, literal: Literal, at: int) -> Fitting:
    """Compare a number or time with the value of the run, which must be of the same kind."""
    expected = _instant(literal) if isinstance(literal, str) else literal
    if expected is None or isinstance(literal, bool):
        raise _syntax_error(at, "only numbers and times have an order")
    is_time, compare = isinstance(literal, str), _ORDERS[mark]

    def holds(run: Run) -> bool | None:
        value = run.search_attributes.get(field)
        if is_time:
            value = _instant(value) if isinstance(value, str) else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return compare(value, expected)

    return holds


def _instant(written: str) -> int | None:
    """The instant of an ISO-8601 text; without a zone it is UTC."""
    try:
        when = datetime.fromisoformat(written)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return (when - _EPOCH) // timedelta(microseconds=1)


# Three-valued logic -------------------------------------------------------------------------------


def _not(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


def _opposite(test: Fitting) -> Fitting:
    return lambda run: _not(test(run))


def _all_of(tests: list[Fitting]) -> Fitting:
    if len(tests) == 1:
        return tests[0]

    def every(run: Run) -> bool | None:
        truths = {test(run) for test in tests}
        return False if False in truths else None if None in truths else True

    return every


def _any_of(tests: list[Fitting]) -> Fitting:
    def some(run: Run) -> bool | None:
        truths = {test(run) for test in tests}
        return True if True in truths else None if None in truths else False

    return some
