"""Every capability that the server advertises is used, and every other known one is refused.

The proofs live in `tests/wire/proofs`, one function each; its docstring says how to add one. This
module finds them and fails when an entry is advertised without a proof, when a proof has no
entry, and when an entry that the protocol knows is neither proved nor refused.
"""

import importlib
import pkgutil
from pathlib import Path

import pytest

from tests.support.http import Json, Wire, a_wire
from tests.wire import proofs

for module in pkgutil.iter_modules(proofs.__path__):
    importlib.import_module(f"{proofs.__name__}.{module.name}")

KNOWN_TO_WORKERS = (
    "activity_lease_renewal",
    "activity_retry_policy",
    "activity_timeouts",
    "child_workflow_retry_policy",
    "child_workflow_timeouts",
    "cooperative_cancellation",
    "external_execution_surface",
    "external_executor_config",
    "external_task_input",
    "external_task_result",
    "history_compression",
    "history_page_size_default",
    "history_page_size_max",
    "invocable_carrier",
    "local_activities",
    "long_poll_timeout",
    "nexus_cooperative_cancellation",
    "nexus_cooperative_cancellation_binding_kinds",
    "non_retryable_failures",
    "observability_context",
    "parent_close_policy",
    "poll_status",
    "prepared_local_activities",
    "prepared_local_activity_cancellation_policies",
    "prepared_local_activity_groups",
    "query_task_authority",
    "query_tasks",
    "response_compression",
    "runtime_external_payload_transport",
    "sticky_execution",
    "synchronous_update_validation",
    "update_validation_tasks",
    "worker_deregistration_fencing",
    "worker_session_verbs",
    "worker_sessions",
    "worker_status",
    "workflow_memo_updates",
    "workflow_task_poll_request_idempotency",
)
KNOWN_COMMANDS = (
    "cancel_selection_operation",
    "complete_update",
    "complete_workflow",
    "continue_as_new",
    "fail_update",
    "fail_workflow",
    "open_condition_wait",
    "open_signal_wait",
    "record_local_activity",
    "record_side_effect",
    "record_version_marker",
    "schedule_activity",
    "start_child_workflow",
    "start_service_operation",
    "start_timer",
    "upsert_memo",
    "upsert_search_attributes",
)
KNOWN_TO_CLIENTS = (
    "activity_retry_policy",
    "activity_tasks",
    "activity_timeouts",
    "avro_value_protocol",
    "bridge_adapter_outcome_contract",
    "child_workflow_retry_policy",
    "child_workflow_timeouts",
    "child_workflows",
    "continue_as_new",
    "external_executor_config_contract",
    "history_export",
    "history_retention",
    "invocable_carrier_contract",
    "non_retryable_failures",
    "parent_close_policy",
    "payload_codec_envelope",
    "payload_codec_envelope_responses",
    "payload_codecs",
    "payload_codecs_engine_specific",
    "queries",
    "response_compression",
    "schedule_jitter",
    "schedule_max_runs",
    "schedules",
    "search_attributes",
    "signals",
    "updates",
    "worker_sessions",
    "workflow_tasks",
)
KNOWN = {
    *(f"server.{name}" for name in KNOWN_TO_WORKERS),
    *(f"command.{name}" for name in KNOWN_COMMANDS),
    *(f"cluster.{name}" for name in KNOWN_TO_CLIENTS),
}
"""What the documents of the protocol name."""


def advertised(info: Json) -> set[str]:
    """The names of everything that cluster info promises."""
    server = dict(info["worker_protocol"]["server_capabilities"])
    commands = server.pop("supported_workflow_task_commands")
    return {
        *(f"server.{name}" for name, value in server.items() if is_promise(value)),
        *(f"command.{name}" for name in commands),
        *(f"cluster.{name}" for name, value in info["capabilities"].items() if is_promise(value)),
    }


def is_promise(value: object) -> bool:
    if isinstance(value, dict):
        return bool(value.get("supported", True))
    return bool(value)


@pytest.fixture(scope="module")
def promised(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    with a_wire(tmp_path_factory.mktemp("promised")) as wire:
        return advertised(wire.call("GET", "/api/cluster/info").ok())


def test_everything_advertised_is_proved_and_nothing_else(promised: set[str]) -> None:
    assert promised - set(proofs.PROOFS) == set(), "advertised without a proof"
    assert set(proofs.PROOFS) - promised == set(), "proved and not advertised"


def test_everything_known_is_proved_or_refused(promised: set[str]) -> None:
    assert KNOWN - set(proofs.PROOFS) - set(proofs.REFUSALS) == set()
    assert promised & set(proofs.REFUSALS) == set(), "advertised and refused"


def test_an_entry_without_a_proof_would_be_seen() -> None:
    info = {
        "worker_protocol": {
            "server_capabilities": {
                "supported_workflow_task_commands": ["fly"],
                "wings": {"supported": True},
                "gills": {"supported": False},
                "scales": [],
                "claws": True,
            }
        },
        "capabilities": {"songs": ["one"], "teeth": False},
    }
    assert advertised(info) == {"command.fly", "server.wings", "server.claws", "cluster.songs"}


@pytest.mark.parametrize("entry", sorted(proofs.PROOFS))
def test_what_is_advertised_works(wire: Wire, entry: str) -> None:
    proofs.PROOFS[entry](wire)


@pytest.mark.parametrize("entry", sorted(proofs.REFUSALS))
def test_what_is_not_advertised_is_refused_by_name(wire: Wire, entry: str) -> None:
    proofs.REFUSALS[entry](wire)


def test_every_answer_to_a_worker_tells_the_same_as_cluster_info(wire: Wire) -> None:
    told = wire.call("GET", "/api/cluster/info").ok()["worker_protocol"]["server_capabilities"]
    assert wire.register()["server_capabilities"] == told
    assert wire.poll()["server_capabilities"] == told


def test_proofs_are_found_wherever_they_stand() -> None:
    folder = Path(proofs.__path__[0])
    played = {Path(play.__code__.co_filename).name for play in _plays()}
    assert {path.name for path in folder.glob("*.py")} - played == {"__init__.py"}


def _plays() -> list[proofs.Proof]:
    return [*proofs.PROOFS.values(), *proofs.REFUSALS.values()]
