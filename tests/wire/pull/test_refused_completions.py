"""A run whose worker's completions are refused says so, and not that nobody came."""

from tests.support.http import Json, Wire, complete_workflow, schedule_activity

UNKNOWN: Json = schedule_activity(retry_policy={"tries": 3})


def test_the_cause_names_what_was_refused_and_how_often(wire: Wire) -> None:
    wire.register()
    wire.start()
    for _ in range(3):
        task = wire.take()
        wire.report(task, "complete", commands=[UNKNOWN]).refused(422, "validation_failed")
        # It does not even say that it failed: its lease ends, and the task is ready again.
        wire.advance(seconds=301)
    wire.register()
    told = wire.describe()
    cause = told["next_cause"]
    assert cause["kind"] == "workflow_task_ready"
    assert cause["refusals"] == {
        "reason": "validation_failed",
        "message": "commands.0.retry_policy.tries: is unknown",
        "count": 3,
        "last_at": "2026-01-01T00:10:02.000000Z",
    }
    assert "3 completions of it were refused" in told["wait_reason"]
    assert "commands.0.retry_policy.tries" in told["wait_reason"]
    assert "has taken it" not in told["wait_reason"]
    by_run = wire.control("GET", f"/workflows/order-1/runs/{told['run_id']}").ok()
    assert by_run["next_cause"] == cause


def test_the_rule_that_refused_last_counts(wire: Wire) -> None:
    wire.register()
    wire.start()
    task = wire.take()
    wire.report(task, "complete", commands=[UNKNOWN]).refused(422, "validation_failed")
    two = [complete_workflow(), complete_workflow()]
    wire.report(task, "complete", commands=two).refused(409, "invalid_commands")
    refusals = wire.describe()["next_cause"]["refusals"]
    assert (refusals["reason"], refusals["count"]) == ("invalid_commands", 1)


def test_a_task_that_went_through_leaves_nothing_behind(wire: Wire) -> None:
    wire.register()
    wire.start()
    task = wire.take()
    wire.report(task, "complete", commands=[UNKNOWN]).refused(422, "validation_failed")
    wire.complete(task, schedule_activity())
    wire.report_attempt(wire.take("activity"), "complete", result=None).ok()
    assert "refusals" not in wire.describe()["next_cause"]


def test_whoever_came_too_late_is_not_counted(wire: Wire) -> None:
    wire.register()
    wire.start()
    task = wire.take()
    stranger = {"lease_owner": "w2"}
    wire.report(task, "complete", commands=[], **stranger).refused(409, "lease_owner_mismatch")
    assert "refusals" not in wire.describe()["next_cause"]
