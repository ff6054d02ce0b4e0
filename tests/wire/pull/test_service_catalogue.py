"""The catalogue of service operations."""

import pytest

from tests.support.http import (
    Json,
    Wire,
)
from tests.support.services import BINDING, BY_ACTIVITY, ENDPOINT, OPERATION, SERVICE, offer


def test_an_operation_is_offered_described_listed_and_removed(wire: Wire) -> None:
    wire.control("PUT", "/service-endpoints/Billing", {"description": "money"}).ok(201)
    wire.control("PUT", SERVICE, {}).ok(201)
    made = wire.control("PUT", OPERATION, {**BINDING, "operation_mode": "async"}).ok(201)
    assert (made["endpoint_name"], made["service_name"], made["operation_name"]) == (
        "billing",
        "cards",
        "charge",
    )
    assert made["handler_binding"] == {"workflow_type": "Child", "task_queue": "q"}
    assert (made["handler_binding_kind"], made["operation_mode"]) == ("workflow_run", "async")
    assert wire.control("GET", OPERATION).ok() == made
    assert wire.control("GET", ENDPOINT).ok()["description"] == "money"

    wire.control("PUT", "/service-endpoints/archive", {}).ok(201)
    listed = wire.control("GET", "/service-endpoints").ok()
    assert [it["name"] for it in listed["endpoints"]] == ["archive", "billing"]
    assert [it["name"] for it in wire.control("GET", f"{ENDPOINT}/services").ok()["services"]] == [
        "cards"
    ]
    operations = wire.control("GET", f"{SERVICE}/operations").ok()["operations"]
    assert [it["name"] for it in operations] == ["charge"]

    with wire.nothing_changes():
        wire.control("DELETE", ENDPOINT).refused(409, "endpoint_has_services")
        wire.control("DELETE", SERVICE).refused(409, "service_has_operations")
    for path in (OPERATION, SERVICE, ENDPOINT):
        wire.control("DELETE", path).ok()
        wire.control("GET", path).refused(404, "service_entry_not_found")
        wire.control("DELETE", path).refused(404, "service_entry_not_found")


def test_a_list_comes_in_pages(wire: Wire) -> None:
    for number in range(3):
        endpoint = f"/service-endpoints/e{number}"
        wire.control("PUT", endpoint, {}).ok(201)
        wire.control("PUT", f"{endpoint}/services/s", {}).ok(201)
    first = wire.control("GET", "/service-endpoints?page_size=2").ok()
    assert [it["name"] for it in first["endpoints"]] == ["e0", "e1"]
    token = first["next_page_token"]
    rest = wire.control("GET", f"/service-endpoints?page_size=2&next_page_token={token}").ok()
    assert [it["name"] for it in rest["endpoints"]] == ["e2"]
    assert rest["next_page_token"] is None


def test_what_stands_further_down_is_passed_over(wire: Wire) -> None:
    for endpoint in ("a", "a-b", "a.b", "a0", "b"):
        wire.control("PUT", f"/service-endpoints/{endpoint}", {}).ok(201)
        for service in ("s", "t"):
            wire.control("PUT", f"/service-endpoints/{endpoint}/services/{service}", {}).ok(201)

    for size in (1, 2, 3, 50):
        seen: list[str] = []
        token = ""
        while token is not None:
            query = f"?page_size={size}&next_page_token={token}"
            page = wire.control("GET", f"/service-endpoints{query}").ok()
            seen += [it["name"] for it in page["endpoints"]]
            token = page["next_page_token"]
        assert seen == ["a", "a-b", "a.b", "a0", "b"], size


def test_putting_the_same_twice_changes_nothing_and_something_else_does(wire: Wire) -> None:
    offer(wire)
    with wire.nothing_changes():
        wire.control("PUT", OPERATION, BINDING).ok(200)
        wire.control("PUT", ENDPOINT, {}).ok(200)

    wire.advance(seconds=1)
    changed = wire.control("PUT", OPERATION, BY_ACTIVITY).ok(200)

    assert changed["handler_binding"] == {"activity_type": "charge", "task_queue": "q"}
    assert changed["updated_at"] > changed["created_at"]


@pytest.mark.parametrize(
    ("field", "members"),
    [
        ("handler_binding_kind", {"handler_binding_kind": None}),
        ("handler_binding_kind", {"handler_binding_kind": "invocable_http"}),
        ("handler_binding", {"handler_binding": None}),
        ("handler_binding.workflow_type", {"handler_binding": {"activity_type": "charge"}}),
        (
            "handler_binding.workflow_type",
            {"handler_binding": {"workflow_type": "dw.standalone_activity"}},
        ),
        (
            "handler_binding.run_timeout_seconds",
            {
                "handler_binding": {
                    "workflow_type": "Child",
                    "run_timeout_seconds": 2,
                    "execution_timeout_seconds": 1,
                }
            },
        ),
        *(
            (
                f"handler_binding.{shorter}_timeout_seconds",
                {
                    "handler_binding_kind": "activity_execution",
                    "handler_binding": {
                        "activity_type": "charge",
                        f"{shorter}_timeout_seconds": 3,
                        f"{longer}_timeout_seconds": 2,
                    },
                },
            )
            for shorter, longer in (
                ("heartbeat", "start_to_close"),
                ("start_to_close", "schedule_to_close"),
                ("schedule_to_start", "schedule_to_close"),
            )
        ),
        ("operation_mode", {"operation_mode": "sync_with_durable_reference"}),
        ("cancellation_policy", {"cancellation_policy": {}}),
        ("retry_policy", {"retry_policy": None}),
        ("description", {"description": "x" * 1001}),
    ],
)
def test_a_binding_that_makes_no_sense_is_refused(
    shared_wire: Wire, field: str, members: Json
) -> None:
    shared_wire.control("PUT", ENDPOINT, {})
    shared_wire.control("PUT", SERVICE, {})
    with shared_wire.nothing_changes():
        shared_wire.control("PUT", OPERATION, {**BINDING, **members}).invalid(field)


def test_names_and_parents_are_checked(wire: Wire) -> None:
    with wire.nothing_changes():
        wire.control("PUT", "/service-endpoints/a%20b", {}).invalid("endpoint")
        wire.control("PUT", "/service-endpoints/a%2Fb", {}).invalid("endpoint")
        wire.control("PUT", f"/service-endpoints/{'x' * 129}", {}).invalid("endpoint")
        wire.control("PUT", SERVICE, {}).refused(404, "service_entry_not_found")
        wire.control("PUT", OPERATION, BINDING).refused(404, "service_entry_not_found")
        wire.control("GET", f"{ENDPOINT}/services").refused(404, "service_entry_not_found")
        wire.control("GET", f"{SERVICE}/operations").refused(404, "service_entry_not_found")
