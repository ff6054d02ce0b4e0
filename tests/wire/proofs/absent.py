"""What the protocol knows and this server does not offer: whoever uses it anyway is told so."""

from collections.abc import Callable
from typing import Any

from tests.support.http import Json, Wire, complete_workflow
from tests.wire.proofs import Proof, refuses


def no_route(method: str, path: str, body: Json | None = None) -> Proof:
    """A route of the control plane that is not there."""

    def play(wire: Wire) -> None:
        with wire.nothing_changes():
            wire.control(method, path, body).refused(404, "not_found")

    return play


def no_worker_route(path: str, body: Json | None = None) -> Proof:
    """A route of the worker plane that is not there."""

    def play(wire: Wire) -> None:
        with wire.nothing_changes():
            wire.worker(path, body or {}).refused(404, "not_found")

    return play


def no_command(kind: str, **members: Any) -> Proof:
    """A command of a name that is not understood."""

    def play(wire: Wire) -> None:
        wire.register()
        wire.start()
        task = wire.take()
        with wire.nothing_changes():
            answer = wire.report(task, "complete", commands=[{"type": kind, **members}])
            answer.refused(422, "validation_failed")
        wire.complete(task, complete_workflow())

    return play


def each(*plays: Proof) -> Proof:
    def play(wire: Wire) -> None:
        for one in plays:
            one(wire)

    return play


TABLE: dict[tuple[str, ...], Callable[[Wire], None]] = {
    ("cluster.schedules", "cluster.schedule_jitter", "cluster.schedule_max_runs"): each(
        no_route("GET", "/schedules"), no_route("POST", "/schedules", {"schedule_id": "s"})
    ),
    ("cluster.history_export",): no_route("GET", "/workflows/o/runs/r/history/export"),
    ("cluster.bridge_adapter_outcome_contract",): no_route(
        "POST", "/bridge-adapters/webhook/shop", {"action": "start_workflow"}
    ),
    (
        "cluster.external_executor_config_contract",
        "cluster.invocable_carrier_contract",
        "cluster.payload_codecs_engine_specific",
        "server.external_execution_surface",
        "server.external_executor_config",
        "server.external_task_input",
        "server.external_task_result",
        "server.invocable_carrier",
    ): no_route("POST", "/external-tasks", {}),
    (
        "server.nexus_cooperative_cancellation",
        "server.nexus_cooperative_cancellation_binding_kinds",
    ): no_worker_route("/service-calls/c/acknowledge-cancellation"),
}


for names, play in TABLE.items():
    refuses(*names)(play)
