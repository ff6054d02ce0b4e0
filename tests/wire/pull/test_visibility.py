"""Asking lists of workflows: expressions, texts, and pages of what is found."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest

from perdure.core import limits
from perdure.core.rejection import InvalidRequest
from perdure.core.run.standalone import HOST_TYPE
from perdure.core.run.state import Run
from perdure.core.run.status import RunStatus
from perdure.protocols.durable_workflow.visibility import read_query
from tests.store.building import NOW, a_run
from tests.support.http import Json, Wire, complete_workflow, continue_as_new, fail_workflow

STARTED = datetime.fromtimestamp(NOW / 1_000_000, UTC)
EARLIER, LATER = STARTED - timedelta(hours=1), STARTED + timedelta(hours=1)


def an_order() -> Run:
    run = a_run(
        "order-42",
        workflow_type="Order",
        queue="tills",
        business_key="customer 7 = vip",
        build_id="b1",
        search_attributes={
            "CustomerId": "42",
            "Quote": 'it\'s "so"',
            "Amount": 12,
            "Weight": 1.5,
            "Urgent": True,
            "Late": False,
            "Tags": ["red", "blue"],
            "Due": "2026-03-01T10:00:00Z",
            "Nothing": None,
        },
    )
    run.status = RunStatus.WAITING
    return run


FITTING = [
    'CustomerId="42"',
    "CustomerId = '42'",
    "CustomerId != '43'",
    "CustomerId IN ('41', '42')",
    "NOT CustomerId IN ('41')",
    r"Quote = 'it\'s \"so\"'",
    "Amount = 12 AND Weight = 1.5",
    "Amount > 11 and Amount >= 12 AND Amount < 12.5 AND Amount <= 12",
    "Amount = 12.0",
    "Amount > -3",
    "Weight < 2e0",
    "Urgent = true",
    "Urgent = TRUE AND NOT Late",
    "NOT Late AND Urgent",
    "Late != true",
    "Tags = red",
    "Tags IN ('green', 'blue')",
    "NOT Tags = 'green'",
    "Due > '2026-03-01T11:00:00+02:00'",
    "Due < 2026-03-02",
    "WorkflowType = Order AND TaskQueue = tills AND WorkflowId = 'order-42'",
    "WorkflowType IN (Order, Refund)",
    "BuildId = b1 AND BuildIds != b2",
    "BusinessKey = 'customer 7 = vip'",
    "Status = running",
    "ExecutionStatus = 'waiting' AND Status != completed",
    "NOT Status = cancelled",
    f"StartTime = '{STARTED.isoformat()}'",
    f"StartTime > '{EARLIER.isoformat()}' AND ExecutionTime < '{LATER.isoformat()}'",
    f"StartTime >= '{STARTED.isoformat()}' AND StartTime <= '{STARTED.isoformat()}'",
    "Amount = 1 OR Amount = 12",
    "Amount = 12 OR Amount = 1 AND CustomerId = '1'",
    "(Amount = 1 OR Amount = 12) AND CustomerId = '42'",
    "NOT (Amount = 1 OR Amount = 2)",
    "Missing = 1 OR Amount = 12",
    # Texts: no field is compared with anything.
    "order",
    "er-4",
    "customer 7",
    "7 = vip",
]
NOT_FITTING = [
    'CustomerId="4"',
    "CustomerId = 42",
    "CustomerId != 42",
    "CustomerId > 41",
    "Amount = '12'",
    "Amount = 12 AND Weight = 2",
    "Amount = 12 AND (Amount = 1 OR Amount = 2)",
    "Urgent = 1",
    "Amount = true",
    "NOT Urgent",
    "Amount = 12 AND Amount",
    "Tags != 'green'",
    "Tags > 3",
    "Tags = re",
    # Who has no value fits neither way.
    "Missing = 1",
    "Missing != 1",
    "NOT Missing = 1",
    "NOT (Missing = 1 AND Amount = 12)",
    "Nothing != 1",
    "NOT Missing",
    "NOT Amount",
    "Due > '2026-03-01T10:00:00Z'",
    "CloseTime > '2020-01-01'",
    "NOT CloseTime > '2020-01-01'",
    "WorkflowType = order",
    "Status = completed",
    "Status = pending",
    "Status = continued",
    "ExecutionStatus != running",
    f"StartTime != '{STARTED.isoformat()}'",
    "Order",
    "tills",
    "42-",
]


@pytest.mark.parametrize("query", FITTING)
def test_a_run_fits(query: str) -> None:
    assert read_query(query).fits(an_order())


@pytest.mark.parametrize("query", NOT_FITTING)
def test_a_run_does_not_fit(query: str) -> None:
    assert not read_query(query).fits(an_order())


@pytest.mark.parametrize(
    ("query", "at", "problem"),
    [
        ("Amount =", 9, "expected a value"),
        ("Amount = AND", 10, "expected a value"),
        ("Amount = 1 Weight = 2", 12, "expected AND, OR or the end"),
        ("Amount = 1 AND", 15, "expected the name of a field"),
        ("Amount == 1", 9, "expected a value"),
        ("= 1 AND Amount = 1", 1, "expected the name of a field"),
        ("'Amount' = 1 AND Amount = 1", 1, "expected the name of a field"),
        ("Amount = 1 AND a.b = 2", 16, "expected the name of a field"),
        ("Amount = 'open", 10, "the text has no closing quote"),
        ("Amount = 1; drop table run", 11, "is not expected here"),
        ("Amount = 1e999", 10, "the number is too large"),
        ("(Amount = 1", 12, "expected )"),
        ("Amount IN ()", 12, "expected a value"),
        ("Amount IN (1, 2", 16, "expected )"),
        ("Amount > 'much'", 10, "only numbers and times have an order"),
        ("Urgent > true", 10, "only numbers and times have an order"),
        ("WorkflowId = 42", 14, "is a text"),
        ("RunId IN ('a', 42)", 16, "is a text"),
        ("WorkflowType > 'a'", 1, "has no order"),
        ("Status >= failed", 1, "has no order"),
        ("Status IN (failed)", 1, "cannot be used with IN"),
        ("Status = lost", 10, "a status is one of"),
        ("Status = true", 10, "a status is one of"),
        ("StartTime > soon", 13, "is a time"),
        ("StartTime > 5", 13, "is a time"),
        ("NOT WorkflowId", 5, "needs a value"),
        ("A = 1 AND " + "(" * 40, 44, "nested more than"),
        ("NOT " * 40 + "A", 133, "nested more than"),
        ("A = 1 " + "x" * 3000, None, "at most"),
    ],
)
def test_a_fault_is_told_with_its_place(query: str, at: int | None, problem: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_query(query)

    (told,) = refused.value.details["errors"]["query"]  # type: ignore[index]
    assert problem in told
    assert at is None or told.startswith(f"at character {at}:"), told


def asked(wire: Wire, query: str, rest: str = "") -> Json:
    return wire.control("GET", f"/workflows?query={quote(query)}{rest}").ok()


def found(wire: Wire, query: str) -> set[str]:
    return {run["workflow_id"] for run in asked(wire, query)["workflows"]}


def test_lists_are_asked_by_expression_and_text(wire: Wire) -> None:
    wire.register(supported_workflow_types=["Order"])
    wire.run_to(complete_workflow(), workflow_id="done")
    wire.run_to(fail_workflow(), workflow_id="bad", search_attributes={"CustomerId": "42"})
    wire.run_to(continue_as_new(), workflow_id="long", business_key="key done")
    wire.start("other", workflow_type="Other", search_attributes={"CustomerId": "42", "N": 3})
    wire.control("POST", "/activities", {"activity_type": "a", "task_queue": "q"}).ok(201)
    run_id = wire.describe("bad")["run_id"]

    assert found(wire, 'CustomerId="42"') == {"bad", "other"}
    assert found(wire, 'CustomerId="42" AND Status = failed') == {"bad"}
    assert found(wire, "WorkflowType = Order AND Status = running") == {"long"}
    assert found(wire, "WorkflowType IN (Order, Other) AND Status != running") == {
        "done",
        "bad",
        "long",
    }
    assert found(wire, "Status = continued") == {"long"}
    assert found(wire, "WorkflowId IN (done, other, nobody)") == {"done", "other"}
    assert found(wire, "WorkflowId = other AND N = 4") == set()
    assert found(wire, f"RunId = {run_id}") == {"bad"}
    assert found(wire, "CloseTime > '2020-01-01'") == {"done", "bad", "long"}
    assert found(wire, "StartTime > '2100-01-01'") == set()
    assert found(wire, "StartTime < '2020-01-01'") == set()
    assert found(wire, "done") == {"done", "long"}
    assert found(wire, "NOT Missing = 1") == set()
    assert len(found(wire, f"WorkflowType = '{HOST_TYPE}'")) == 1
    assert len(found(wire, f"WorkflowType IN (Other, '{HOST_TYPE}')")) == 2
    refused = wire.control("GET", f"/workflows?query={quote('Status = lost')}").invalid("query")
    assert refused["control_plane"]["operation"] == "list"
    alias = wire.control("GET", "/workflows?status=cancelled").invalid("status")
    assert "part of failed" in alias["message"]


def pages_of(wire: Wire, query: str, rest: str) -> Iterator[list[str]]:
    token = ""
    while True:
        page = asked(wire, query, f"{rest}{token and '&next_page_token='}{token}")
        yield [run["workflow_id"] for run in page["workflows"]]
        token = page["next_page_token"]
        if token is None:
            return


@pytest.mark.parametrize("looks", [4, 1_000])
def test_pages_of_an_expression_put_together_are_all_that_fit(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """Enough looks for one page end it early; its token says that there is more."""
    monkeypatch.setattr(limits, "LIST_PAGE_SIZE_MAX", 2)
    monkeypatch.setattr(limits, "LIST_LOOKS_MAX", looks)
    expected = []
    for number in range(13):
        wire.start(f"order-{number}", search_attributes={"N": number % 6})
        if number % 6 == 0:
            expected.append(f"order-{number}")
            wire.advance(seconds=1)

    pages = list(pages_of(wire, "N = 0", "&page_size=1"))

    assert [name for page in pages for name in page] == expected[::-1]
    assert any(not page for page in pages) == (looks == 4)
    assert len(pages) <= 13
