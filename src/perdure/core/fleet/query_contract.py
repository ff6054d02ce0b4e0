"""Queries: which workers can answer one, and the query contracts that workers declare."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from perdure.core.fleet.contract import workflow_names
from perdure.core.fleet.worker import Worker
from perdure.core.rejection import (
    InvalidQueryArguments,
    QueryWorkerIncompatible,
    QueryWorkerUnavailable,
    UnknownQuery,
)

QUERY_TASKS = "query_tasks"
"""The capability of a worker that polls for queries."""


class Target(Struct, frozen=True):
    """The queried run, as far as it determines which workers can answer."""

    namespace: str
    queue: str
    workflow_type: str
    name: str
    """The routing name of its tasks: the type, and the build if it is pinned to one."""


def find_answerers(
    workers: Iterable[Worker], target: Target, is_live: Callable[[Worker], bool]
) -> tuple[list[Worker], bool]:
    """The live workers that can answer; and whether others know the type in another build."""
    able: list[Worker] = []
    others = False
    for worker in workers:
        if (worker.namespace, worker.queue) != (target.namespace, target.queue):
            continue
        if target.workflow_type not in worker.workflow_types or not is_live(worker):
            continue
        if target.name in workflow_names(worker):
            able.append(worker)
        else:
            others = True
    return able, others


def require_answerers(
    workers: Iterable[Worker], target: Target, is_live: Callable[[Worker], bool]
) -> list[Worker]:
    """The live workers that can answer. Refuses a query that none can answer."""
    able, others = find_answerers(workers, target, is_live)
    if able:
        return able
    if others:
        raise QueryWorkerIncompatible(
            f"no live worker of queue {target.queue} has the build of {target.name}"
        )
    raise QueryWorkerUnavailable(
        f"no live worker of queue {target.queue} answers queries of {target.workflow_type}"
    )


class Contract(Struct, frozen=True):
    """The parameters of one query."""

    parameters: tuple[Mapping[str, Any], ...]

    @property
    def is_variadic(self) -> bool:
        return any(parameter.get("variadic") is True for parameter in self.parameters)


def require_known(
    answerers: Sequence[Worker], workflow_type: str, query_name: str
) -> Contract | None:
    """The contract of a query, if all workers that can answer declare the same one.

    A query is unknown only if all of them declare their queries and none declares this one.
    """
    declared = [worker.contracts.get(workflow_type) for worker in answerers]
    contracts = [_find_contract(contract, query_name) for contract in declared]
    if all(_names_queries(contract) for contract in declared) and not any(
        query_name in contract["queries"] for contract in declared if contract is not None
    ):
        raise UnknownQuery(
            f"workflow type {workflow_type} has no query {query_name}", query_name=query_name
        )
    first = contracts[0]
    return first if first is not None and all(other == first for other in contracts) else None


def match_arguments(contract: Contract, given: object) -> list[Any]:
    """Arguments by position, or by name, as the list that the worker's code takes."""
    parameters = contract.parameters
    if isinstance(given, dict):
        return _by_name(parameters, given)
    arguments = given if isinstance(given, list) else [] if given is None else [given]
    errors: dict[str, list[str]] = {}
    for parameter in parameters[len(arguments) :]:
        if parameter.get("required") is True:
            errors[str(parameter["name"])] = ["is required"]
    if len(arguments) > len(parameters) and not contract.is_variadic:
        errors["arguments"] = [f"takes at most {len(parameters)}, not {len(arguments)}"]
    if errors:
        raise _invalid(errors)
    return arguments


def _by_name(parameters: Sequence[Mapping[str, Any]], given: dict[str, Any]) -> list[Any]:
    names = [str(parameter["name"]) for parameter in parameters]
    errors = {name: ["is no parameter"] for name in given if name not in names}
    arguments: list[Any] = []
    for parameter in parameters:
        name = str(parameter["name"])
        if name in given:
            arguments.append(given[name])
        elif parameter.get("default_available") is True:
            arguments.append(parameter.get("default"))
        elif parameter.get("required") is True:
            errors[name] = ["is required"]
    if errors:
        raise _invalid(errors)
    return arguments


def _invalid(errors: dict[str, list[str]]) -> InvalidQueryArguments:
    named = ", ".join(f"{name} {texts[0]}" for name, texts in errors.items())
    return InvalidQueryArguments(f"the arguments do not fit: {named}", validation_errors=errors)


def _names_queries(contract: Any) -> bool:
    return isinstance(contract, dict) and isinstance(contract.get("queries"), list)


def _find_contract(contract: Any, query_name: str) -> Contract | None:
    """The declared contract of a query, if it has the expected shape."""
    entries = contract.get("query_contracts") if isinstance(contract, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("name") == query_name:
            parameters = entry.get("parameters")
            if not isinstance(parameters, list):
                return None
            if all(isinstance(each, dict) and "name" in each for each in parameters):
                return Contract(tuple(parameters))
    return None
