"""Settings whose sense is not in one number: named tokens, bounds, and variables set in vain."""

import json

import pytest

from perdure.core.bounds import Bounds
from perdure.core.fleet.worker import Cadence
from perdure.core.limits import SECOND
from perdure.server.credentials import PrincipalToken
from perdure.server.ignored_settings import FIXED, IGNORED
from perdure.server.limit_settings import BOUNDS
from perdure.server.settings import Settings, SettingsError, load_settings

ANN = {"subject": "ann", "roles": ["operator", "admin"]}


def test_principals_are_a_list_or_stand_behind_their_tokens() -> None:
    expected = (PrincipalToken("s3cret", "ann", frozenset({"operator", "admin"})),)
    for told in ([{"token": "s3cret", **ANN}], {"s3cret": {**ANN, "label": "Ann"}}):
        assert load_settings({"DW_PRINCIPAL_TOKENS": json.dumps(told)}).principals == expected


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ("s3cret", "in JSON"),
        ('"s3cret"', "in JSON"),
        ('[{"token":"s3cret"', "in JSON"),
        ([{"token": "s3cret"}], "subject"),
        ([{"token": "s3cret", **ANN, "roles": "admin"}], "roles"),
        ([ANN], "entry 1: it has no token"),
        ([{"token": "s3cret\n", **ANN}], "entry 1: it has no token"),
        ({"": ANN}, "entry 1: it has no token"),
        ({"s3cret": {**ANN, "roles": []}}, "entry 1: roles are some of"),
        ({"s3cret": {**ANN, "roles": ["s3cret"]}}, "entry 1: roles are some of"),
        ({"s3cret": {**ANN, "subject": " "}}, "entry 1: a subject"),
        ([{"token": "s3cret", **ANN}] * 2, "the same token twice"),
        ({f"s3cret-{number}": ANN for number in range(257)}, "at most 256"),
    ],
)
def test_principals_that_make_no_sense_are_refused_without_being_shown(
    told: object, problem: str
) -> None:
    text = told if isinstance(told, str) else json.dumps(told)
    with pytest.raises(SettingsError, match=problem) as refused:
        load_settings({"DW_PRINCIPAL_TOKENS": text})
    assert "DW_PRINCIPAL_TOKENS" in str(refused.value)
    assert "s3cret" not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("name", ["a b", "a/b", "x" * 129, "ä", "a\nb"])
def test_a_default_namespace_that_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="DW_DEFAULT_NAMESPACE is not a valid namespace name"):
        load_settings({"DW_DEFAULT_NAMESPACE": name})


def test_the_default_namespace_is_named_as_requests_name_it() -> None:
    assert load_settings({"DW_DEFAULT_NAMESPACE": " Shop.1 "}).default_namespace == "shop.1"
    assert load_settings({"DW_DEFAULT_NAMESPACE": " "}).default_namespace == "default"


def test_every_variable_without_effect_is_told_and_its_value_is_not() -> None:
    vain = dict.fromkeys((*FIXED, *IGNORED, "DW_NOSUCH"), "s3cret")

    told = load_settings({**vain, "DW_SERVER_ID": "blue", "HOME": "/"}).without_effect

    assert sorted(sentence.split(" ")[0] for sentence in told) == sorted(vain)
    assert "s3cret" not in "".join(told)
    with pytest.raises(SettingsError, match="DW_NOSUCH has no effect"):
        load_settings({"DW_NOSUCH": "1", "DW_ENV_AUDIT_STRICT": "true"})


def test_asking_for_what_is_so_anyway_is_no_fault() -> None:
    same = {name: str(value) for name, value in FIXED.items()}
    same |= {"DW_MODE": "service", "DW_SERIALIZER": "avro", "DW_TASK_DISPATCH_MODE": "poll"}
    assert load_settings({**same, "DW_ENV_AUDIT_STRICT": "on"}) == Settings()


# Bounds -----------------------------------------------------------------------------------------


def test_every_bound_that_can_be_chosen_has_a_variable() -> None:
    worked_out = {"steps_least"}
    assert {choice.bound for choice in BOUNDS.values()} == {*Bounds.__struct_fields__} - worked_out


@pytest.mark.parametrize("name", BOUNDS)
def test_a_bound_is_moved_within_its_range_and_no_further(name: str) -> None:
    bound, least, most, _ = BOUNDS[name]
    default = getattr(Bounds(), bound)
    assert least <= default <= most

    for value in (least, most):
        assert getattr(load_settings({name: str(value)}).bounds, bound) in (value, _page_max(name))
    for wrong in (str(most + 1), "-1", "1.5", "many", "1" * 30):
        with pytest.raises(SettingsError, match=f"{name} is a number from {least} to {most}"):
            load_settings({name: wrong})


def _page_max(name: str) -> int | None:
    """What a page without a size has at most, unless that is chosen too."""
    return Bounds().history_page_size_max if name == "DW_HISTORY_PAGE_SIZE_DEFAULT" else None


@pytest.mark.parametrize("name", BOUNDS)
def test_what_is_switched_off_elsewhere_is_as_high_as_it_can_be(name: str) -> None:
    bound, least, most, _ = BOUNDS[name]
    if name.startswith("DW_V2_"):
        assert getattr(load_settings({name: "0"}).bounds, bound) == most
    elif least == 0:
        assert getattr(load_settings({name: "0"}).bounds, bound) == 0
    else:
        with pytest.raises(SettingsError, match=name):
            load_settings({name: "0"})


SHARED = [
    ("DW_MAX_PENDING_ACTIVITIES", "DW_V2_LIMIT_PENDING_ACTIVITIES", "pending_activities_max"),
    ("DW_MAX_PENDING_CHILDREN", "DW_V2_LIMIT_PENDING_CHILDREN", "pending_children_max"),
    ("DW_MAX_MEMO_BYTES", "DW_V2_LIMIT_MEMO_SIZE_BYTES", "memo_bytes_max"),
]


@pytest.mark.parametrize(("one", "other", "bound"), SHARED)
def test_of_two_variables_of_one_bound_the_lower_wins(one: str, other: str, bound: str) -> None:
    for first, second in (("300", "400"), ("400", "300")):
        assert getattr(load_settings({one: first, other: second}).bounds, bound) == 300
    for alone in (one, other):
        assert getattr(load_settings({alone: "3000"}).bounds, bound) == 3000
    assert getattr(load_settings({one: "300", other: "0"}).bounds, bound) == 300


def test_a_page_is_never_larger_than_the_largest_one() -> None:
    for told, sizes in (
        ({"DW_HISTORY_PAGE_SIZE_MAX": "100"}, (100, 100)),
        ({"DW_HISTORY_PAGE_SIZE_DEFAULT": "2000"}, (1000, 1000)),
        (
            {"DW_HISTORY_PAGE_SIZE_DEFAULT": "2000", "DW_HISTORY_PAGE_SIZE_MAX": "3000"},
            (2000, 3000),
        ),
    ):
        bounds = load_settings(told).bounds
        assert (bounds.history_page_size_default, bounds.history_page_size_max) == sizes


def test_a_worker_may_be_silent_for_two_polls_unless_it_is_said() -> None:
    assert Settings().cadence == Cadence(30, 60 * SECOND)
    assert Settings(poll_timeout=45 * SECOND).cadence.stale_after == 90 * SECOND
    told = {"DW_WORKER_STALE_AFTER_SECONDS": "20", "DW_WORKER_HEARTBEAT_INTERVAL_SECONDS": "5"}
    assert load_settings(told).cadence == Cadence(5, 20 * SECOND)


def test_limits_of_queues_are_said_for_all_or_for_some() -> None:
    told = load_settings(
        {
            "DW_ACTIVITY_TASK_MAX_ACTIVE_LEASES_PER_QUEUE": "5",
            "DW_ACTIVITY_TASK_MAX_DISPATCHES_PER_MINUTE_PER_NAMESPACE": "600",
            "DW_WORKFLOW_TASK_MAX_ACTIVE_LEASES_PER_NAMESPACE": "70",
            "DW_WORKFLOW_TASK_MAX_DISPATCHES_PER_MINUTE": "0",
            "DW_TASK_QUEUE_ADMISSION_OVERRIDES": json.dumps(
                {
                    "bank": {
                        "activity_tasks": {
                            "max_active_leases": "2",
                            "budget_group": "money",
                            "max_dispatches_per_minute_per_budget_group": 30,
                            "max_dispatches_per_minute_per_namespace": -1,
                        }
                    }
                }
            ),
        }
    ).allowances
    assert told is not None
    found = {
        (queue, kind): [(g.name, g.leases_max, g.dispatches_max) for g in quotas]
        for queue in ("q", "bank")
        for kind in ("workflow", "activity")
        if (quotas := told.quotas("n", queue, kind))
    }
    everywhere = ("namespace n", 70, None)
    assert found == {
        ("q", "workflow"): [everywhere],
        ("q", "activity"): [("queue q", 5, None), ("namespace n", None, 600)],
        ("bank", "workflow"): [everywhere],
        ("bank", "activity"): [("queue bank", 2, None), ("group money", None, 30)],
    }


@pytest.mark.parametrize("empty", ["", "{}", "[]"])
def test_without_limits_of_queues_there_is_nothing_to_ask(empty: str) -> None:
    assert load_settings({"DW_TASK_QUEUE_ADMISSION_OVERRIDES": empty}).allowances is None


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ("{", "OVERRIDES is not JSON"),
        ("[" * 100_000, "OVERRIDES is not JSON"),
        ("3", "OVERRIDES is an object"),
        ({"q": []}, "OVERRIDES.q is an object"),
        ({"q": {"tasks": {}}}, "workflow_tasks and activity_tasks, not tasks"),
        ({"q": {"activity_tasks": 3}}, "q.activity_tasks is an object"),
        ({"q": {"activity_tasks": {"max": 3}}}, "not max"),
        ({"q": {"activity_tasks": {"max_active_leases": "many"}}}, "a number up to 1000"),
        ({"q": {"activity_tasks": {"max_active_leases": 1001}}}, "a number up to 1000"),
        ({"q": {"activity_tasks": {"max_active_leases": True}}}, "a number up to 1000"),
        ({"q": {"activity_tasks": {"max_active_leases": 1.5}}}, "a number up to 1000"),
        ({"q": {"activity_tasks": {"max_dispatches_per_minute": 10**10}}}, "a number up to"),
        ({"q": {"activity_tasks": {"budget_group": ""}}}, "a name of at most 255"),
        ({"q": {"activity_tasks": {"budget_group": "x" * 256}}}, "a name of at most 255"),
        (
            {"q": {"activity_tasks": {"budget_group": "a", "dispatch_budget_group": "b"}}},
            "sets the same quota twice",
        ),
        ({f"q{number}": {} for number in range(1001)}, "at most 1000 queues"),
    ],
)
def test_limits_of_queues_that_make_no_sense_are_refused(told: object, problem: str) -> None:
    text = told if isinstance(told, str) else json.dumps(told)
    with pytest.raises(SettingsError, match=problem):
        load_settings({"DW_TASK_QUEUE_ADMISSION_OVERRIDES": text})


def test_a_limit_of_leases_is_a_number() -> None:
    for text in ("many", "1001", "1.5"):
        with pytest.raises(SettingsError, match="LEASES_PER_QUEUE is a number up to 1000"):
            load_settings({"DW_ACTIVITY_TASK_MAX_ACTIVE_LEASES_PER_QUEUE": text})
