"""What the server says about itself, as the published SDKs check it before they register."""

from pathlib import Path

import msgspec
import pytest

from perdure.protocols.durable_workflow.commands import WireCommand
from tests.support.http import CONTROL_VERSION, WORKER_VERSION, Json, Wire, a_wire, contract_of


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> Json:
    with a_wire(tmp_path_factory.mktemp("info")) as wire:
        return wire.call("GET", "/api/cluster/info").ok()


def test_the_protocols_are_those_that_every_release_accepts(info: Json) -> None:
    control, worker = info["control_plane"], info["worker_protocol"]
    assert control["version"] == "2"
    assert control["request_contract"]["schema"] == (
        "durable-workflow.v2.control-plane-request.contract"
    )
    assert control["request_contract"]["version"] == 1
    assert worker["version"] == "1.20"
    policies = control["request_contract"]["operations"]["start"]["fields"]["duplicate_policy"]
    assert policies["canonical_values"] == ["fail", "use-existing"]


def test_every_answer_about_workflows_keeps_the_published_contract(wire: Wire, info: Json) -> None:
    contract = info["control_plane"]["response_contract"]
    assert contract["contract"]["schema"] == "durable-workflow.v2.control-plane-response.contract"
    wire.register(
        workflow_command_contracts=contract_of("Order", signals={"pay": 0}, updates={"add": 0})
    )
    started = wire.start()
    run = f"/workflows/order-1/runs/{started['run_id']}"
    answers = [
        wire.control("POST", "/workflows", {"workflow_type": "Order"}).ok(201),
        wire.control("GET", "/workflows").ok(),
        wire.describe(),
        wire.control("GET", "/workflows/order-1/runs").ok(),
        wire.control("GET", run).ok(),
        wire.control("GET", f"{run}/history").ok(),
        wire.signal("pay"),
        wire.update("add").ok(202),
        wire.control("POST", "/workflows/order-1/cancel", {}).ok(),
        wire.control("POST", f"/workflows/{wire.start('other')['workflow_id']}/terminate").ok(),
        wire.update("add").refused(409, "update_rejected"),
        wire.control("POST", "/workflows/nobody/query/total").refused(404, "instance_not_found"),
    ]
    seen = set()
    for answer in answers:
        block = answer["control_plane"]
        terms = contract["operations"][block["operation"]]
        seen.add(block["operation"])
        assert block["schema"] == contract["schema"]
        assert {**contract["contract"], **terms}.items() <= {
            **block["contract"],
            "operation_name_field": block.get("operation_name_field"),
        }.items()
        assert set(terms["required_fields"]) <= block.keys()
        if "reason" not in answer or answer["reason"] is None:
            assert set(terms["success_fields"]) <= block.keys()
        for name in contract["projected_fields"]:
            assert block.get(name, ...) == answer.get(name, ...)
    assert seen == contract["operations"].keys()


def test_the_contract_of_credentials_is_the_one_that_every_release_requires(info: Json) -> None:
    contract = info["auth_composition_contract"]
    assert contract["schema"] == "durable-workflow.v2.auth-composition.contract"
    assert contract["version"] == 1
    for name in ("connection_values", "profile_selection"):
        assert all(isinstance(entry, str) for entry in contract["precedence"][name])
    environment = {
        "server_url": "DURABLE_WORKFLOW_SERVER_URL",
        "namespace": "DURABLE_WORKFLOW_NAMESPACE",
        "auth_token": "DURABLE_WORKFLOW_AUTH_TOKEN",
        "tls_verify": "DURABLE_WORKFLOW_TLS_VERIFY",
        "profile": "DW_ENV",
    }
    assert contract["canonical_environment"] == environment
    material = contract["auth_material"]
    assert material["token"]["status"] == "supported"
    assert material["token"]["effective_config_value"] == "redacted"
    assert {material[name]["status"] for name in ("mtls", "signed_headers")} == {"reserved"}
    required = {"server_url", "namespace", "profile", "auth", "tls", "identity"}
    assert required <= set(contract["effective_config"]["required_fields"])
    hidden = {"bearer_tokens", "private_keys", "raw_authorization_headers"}
    assert hidden <= set(contract["redaction"]["never_echo"])


def test_exactly_the_commands_that_are_understood_are_advertised(info: Json) -> None:
    understood = {
        str(msgspec.inspect.type_info(kind).tag)  # type: ignore[attr-defined]  # structs have tags
        for kind in WireCommand.__args__
    }
    advertised = info["worker_protocol"]["server_capabilities"]["supported_workflow_task_commands"]
    assert set(advertised) == understood
    assert len(advertised) == len(understood)


def test_nothing_is_advertised_that_does_not_work(info: Json) -> None:
    """Some flags switch workers to behaviour that needs routes this server does not have."""
    capabilities = info["worker_protocol"]["server_capabilities"]
    assert not capabilities.get("nexus_cooperative_cancellation")


def test_queries_are_advertised_with_the_authority_that_workers_may_insist_on(info: Json) -> None:
    capabilities = info["worker_protocol"]["server_capabilities"]
    assert capabilities["query_tasks"] is True
    assert capabilities["query_task_authority"] is True
    assert info["capabilities"]["queries"] is True


def test_updates_are_advertised_in_the_form_that_clients_and_workers_check(info: Json) -> None:
    update = info["control_plane"]["request_contract"]["operations"]["update"]
    assert update["fields"]["wait_for"]["canonical_values"] == ["accepted", "completed"]
    capabilities = info["worker_protocol"]["server_capabilities"]
    assert capabilities["update_validation_tasks"] is True
    assert capabilities["synchronous_update_validation"] == {
        "supported": True,
        "acceptance_boundary": "validator_approved",
        "worker_capability": "update_validation_tasks",
        "workflow_contract_field": "update_validators",
        "task_poll": {
            "strategy": "multiplexed",
            "endpoint": "/worker/workflow-tasks/poll",
            "request_field": "task_kinds",
            "task_kinds": ["workflow", "update_validation"],
            "response_discriminator": "task.task_kind",
        },
    }


def test_a_fenced_goodbye_is_advertised_in_the_form_that_workers_check(info: Json) -> None:
    fencing = info["worker_protocol"]["server_capabilities"]["worker_deregistration_fencing"]
    assert fencing["supported"] is True
    assert fencing["schema"] == "durable-workflow.v2.worker-deregistration.v1"
    assert fencing["endpoint"] == "/worker/registrations/{workerId}/deregister"
    assert fencing["receipt_retention_seconds"] > 0


@pytest.mark.parametrize(
    "headers",
    [{}, {CONTROL_VERSION: "2"}, {WORKER_VERSION: "1.19"}, {"X-Namespace": "nowhere"}],
    ids=["none", "control", "worker", "unknown namespace"],
)
def test_discovery_needs_no_version_and_no_namespace(
    shared_wire: Wire, headers: dict[str, str]
) -> None:
    info = shared_wire.call("GET", "/api/cluster/info", headers=headers).ok()
    name = headers.get("X-Namespace", "default")
    told = info["namespace"]
    assert (told["name"], told["exists"]) == (name, name == "default")
    for path in ("/api/health", "/api/ready"):
        shared_wire.call("GET", path, headers=headers).ok()


def test_the_names_of_a_server_are_its_own(tmp_path: Path) -> None:
    with a_wire(tmp_path, server_id="blue", poll_timeout=7_000_000) as wire:
        info = wire.call("GET", "/api/cluster/info").ok()
    assert (info["server_id"], info["default_namespace"]) == ("blue", "default")
    assert info["worker_protocol"]["server_capabilities"]["long_poll_timeout"] == 7


def test_the_told_limit_of_bodies_is_the_one_that_is_kept(tmp_path: Path) -> None:
    with a_wire(tmp_path, body_bytes_max=5_000) as wire:
        info = wire.call("GET", "/api/cluster/info").ok()
    assert info["limits"]["max_payload_bytes"] == 5_000


def test_ready_and_cluster_info_say_whose_time_the_server_goes_by(shared_wire: Wire) -> None:
    shown = {"source": "process", "ahead_seconds": 0.0}
    assert shared_wire.call("GET", "/api/ready").ok()["checks"]["clock"] == {
        "status": "ok",
        **shown,
    }
    assert shared_wire.call("GET", "/api/cluster/info").ok()["clock"] == shown


def test_the_default_namespace_is_created(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'shop.db'}"
    with a_wire(tmp_path, default_namespace="shop", store=store) as wire:
        checks = wire.call("GET", "/api/ready").ok()["checks"]
        assert checks["default_namespace"] == {"status": "ok", "namespace": "shop"}
        assert wire.start()["namespace"] == "shop"
        wire.register()
        assert wire.take()["namespace"] == "shop"
        assert wire.call("POST", "/events", {"name": "paid"}).status == 202
        wire.restart()
        assert wire.describe()["namespace"] == "shop"
    # Another default later leaves what there was where it is.
    with a_wire(tmp_path, default_namespace="depot", store=store) as wire:
        wire.call("GET", "/api/ready").ok()
        wire.control("GET", "/workflows/order-1").refused(404, "instance_not_found")
        wire.control("GET", "/workflows/order-1", headers={"X-Namespace": "shop"}).ok()
        wire.control("GET", "/workflows", headers={"X-Namespace": "default"}).ok()
        nowhere = {"X-Namespace": "nowhere"}
        wire.control("GET", "/workflows", headers=nowhere).refused(404, "namespace_not_found")
