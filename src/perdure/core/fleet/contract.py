"""Contracts of workers: the signals and updates that their code declares, and their arguments.

Contracts are declared by the SDKs; members of an unexpected shape are ignored. Workers of 0.4
declare none, so for them every name and every argument is accepted.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from perdure.core.fleet.routing import (
    cooperative_name,
    prepared_name,
    routing_name,
    routing_names,
    validation_name,
)
from perdure.core.fleet.worker import Worker
from perdure.core.rejection import (
    UpdateValidationUnsupported,
    UpdateValidatorIncompatible,
    UpdateValidatorUnavailable,
)

VALIDATION_TASKS = "update_validation_tasks"
"""The capability of a worker that can be asked to validate an update."""

COOPERATIVE_CANCELLATION = "cooperative_cancellation"
"""The capability of a worker whose code can be asked to cancel itself."""

PREPARED_LOCAL_ACTIVITIES = "prepared_local_activities"
"""The capability of a worker that asks before it runs local activities."""


class Place(Struct, frozen=True):
    """Where the tasks of a run are queued, and which workers can take them."""

    namespace: str
    queue: str
    workflow_type: str
    build_id: str | None


def live_workers(workers: Iterable[Worker], place: Place, now: int) -> list[Worker]:
    """The workers with a recent heartbeat that can work on a run."""
    name = routing_name(place.workflow_type, place.build_id)
    return [
        worker
        for worker in workers
        if (worker.namespace, worker.queue) == (place.namespace, place.queue)
        and place.workflow_type in worker.workflow_types
        and worker.is_active(now)
        and name in routing_names((place.workflow_type,), worker.build_id)
    ]


def is_unknown(workers: list[Worker], workflow_type: str, kind: str, name: str) -> bool:
    """Whether all workers declare their names of a kind, and none declares this one.

    Kinds are the plural names in contracts, such as `signals`.
    """
    declared = [_names(worker, workflow_type, kind) for worker in workers]
    if not declared:
        return False
    return all(names is not None and name not in names for names in declared)


def argument_errors(
    workers: list[Worker], workflow_type: str, kind: str, name: str, count: int
) -> dict[str, list[str]]:
    """The errors in a number of arguments, if the contracts of all workers refuse it."""
    faults: dict[str, list[str]] = {}
    for worker in workers:
        parameters = _parameters(worker, workflow_type, kind, name)
        if parameters is None:
            return {}
        faults = _faults(parameters, count)
        if not faults:
            return {}
    return faults


def declared_validators(worker: Worker, workflow_type: str) -> list[str] | None:
    """The updates that a worker's code validates, or None if it does not declare them."""
    return _names(worker, workflow_type, "update_validators")


def needs_validation(
    live: list[Worker], place: Place, name: str, *, last_validators: list[str], others: bool
) -> bool | None:
    """Whether a worker must approve an update before it is accepted; None if no worker declares it.

    Declarations of live workers count. Without any, those of the run's last worker do: an update
    that it validated is refused, because no live worker can validate it now. `others` says whether
    live workers of the type exist that cannot take this run.
    """
    declared = [(worker, declared_validators(worker, place.workflow_type)) for worker in live]
    if any(names is not None for _, names in declared):
        declaring = [worker for worker, names in declared if name in (names or ())]
        if declaring and not any(VALIDATION_TASKS in w.capabilities for w in declaring):
            raise UpdateValidationUnsupported(
                f"no worker that validates update {name} takes validation tasks", retryable=False
            )
        return bool(declaring)
    if name not in last_validators:
        return None
    if live or others:
        raise UpdateValidatorIncompatible(
            f"no live worker of queue {place.queue} can validate update {name} for this run",
            retryable=True,
        )
    raise UpdateValidatorUnavailable(
        f"queue {place.queue} has no live worker to validate update {name}", retryable=True
    )


STICKY_EXECUTION = "sticky_execution"
"""The capability of a worker that caches the histories of runs it worked on."""


def keeps_histories(worker: Worker) -> bool:
    return STICKY_EXECUTION in worker.capabilities


def workflow_names(worker: Worker) -> frozenset[str]:
    """The workflow tasks that a worker can take."""
    return _with_cooperative(worker, tuple(worker.workflow_types))


def validation_names(worker: Worker) -> frozenset[str]:
    """The validations that a worker can take."""
    if VALIDATION_TASKS not in worker.capabilities:
        return frozenset()
    names = [
        validation_name(workflow_type, update_name)
        for workflow_type in worker.workflow_types
        for update_name in declared_validators(worker, workflow_type) or ()
    ]
    return _with_cooperative(worker, tuple(names))


def is_cooperative(worker: Worker) -> bool:
    """Whether the worker's code can be asked to cancel itself."""
    return COOPERATIVE_CANCELLATION in worker.capabilities


def prepares_local_activities(worker: Worker) -> bool:
    """Whether the worker asks before it runs local activities; it must support cancellation."""
    return PREPARED_LOCAL_ACTIVITIES in worker.capabilities and is_cooperative(worker)


def _with_cooperative(worker: Worker, names: tuple[str, ...]) -> frozenset[str]:
    tasks = names
    if is_cooperative(worker):
        tasks += tuple(cooperative_name(name) for name in names)
    if prepares_local_activities(worker):
        tasks += tuple(prepared_name(name) for name in names)
    return routing_names(tasks, worker.build_id)


def takeable(worker: Worker, kind: str, *, progress: bool, validations: bool) -> frozenset[str]:
    """The names of the tasks that a poll of a worker can receive."""
    if kind == "activity":
        return routing_names(tuple(worker.activity_types), worker.build_id)
    names = workflow_names(worker) if progress else frozenset()
    return names | validation_names(worker) if validations else names


def _names(worker: Worker, workflow_type: str, kind: str) -> list[str] | None:
    contract = worker.contracts.get(workflow_type)
    names = contract.get(kind) if isinstance(contract, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    return names


def _parameters(
    worker: Worker, workflow_type: str, kind: str, name: str
) -> list[dict[str, Any]] | None:
    contract = worker.contracts.get(workflow_type)
    entries = contract.get(f"{kind}_contracts") if isinstance(contract, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("name") == name:
            parameters = entry.get("parameters")
            if isinstance(parameters, list) and all(isinstance(p, dict) for p in parameters):
                return parameters
    return None


def _faults(parameters: list[dict[str, Any]], count: int) -> dict[str, list[str]]:
    faults = {
        str(parameter.get("name", position)): ["is required"]
        for position, parameter in enumerate(parameters)
        if position >= count and parameter.get("required") is True
    }
    variadic = any(parameter.get("variadic") is True for parameter in parameters)
    if count > len(parameters) and not variadic:
        faults["arguments"] = [f"takes at most {len(parameters)}, not {count}"]
    return faults
