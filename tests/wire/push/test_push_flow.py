"""Flow control and schedules over the wire: what starts, when, and what is said of the rest."""

from typing import Any

import pytest

from tests.support.http import Json, Wire
from tests.support.runner import (
    DURATON,
    a_runner,
    dial,
    emit,
    op,
    ran,
    rows,
    settled,
    show,
    workflow,
)

BOOLEANS = ("skipped", "dropped", "debounced", "batched", "deduped")


def outcome(answer: Json) -> str:
    """The one boolean that is set, or `started`."""
    said = [name for name in BOOLEANS if answer[name]]
    [entry] = answer["triggered"]
    assert [name for name in BOOLEANS if entry[name]] == said
    assert entry.get("runId") == answer.get("runId")
    assert len(said) <= 1
    return said[0] if said else "started"


def sent(wire: Wire, count: int, data: Any = None) -> list[str]:
    return [outcome(emit(wire, "order", data)) for _ in range(count)]


def test_what_is_too_much_is_dropped_and_logged_so(wire: Wire) -> None:
    limit = {"limit": 2, "perMs": 10_000, "key": "who"}
    a_runner(wire, workflow("order", rateLimit=limit))
    assert sent(wire, 3, {"who": "a"}) == ["started", "started", "dropped"]
    assert sent(wire, 1, {"who": "b"}) == ["started"]
    wire.advance(seconds=10)
    assert sent(wire, 1, {"who": "a"}) == ["started"]
    assert len(rows(wire, "/runs")) == 4
    newest = rows(wire, "/events")
    assert [event["triggered"][0]["dropped"] for event in newest] == [
        False,
        False,
        True,
        False,
        False,
    ]


def test_one_run_per_key_within_the_window(wire: Wire) -> None:
    a_runner(wire, workflow("order", idempotency={"key": "id", "periodMs": 60_000}))
    assert sent(wire, 2, {"id": 1}) == ["started", "deduped"]
    assert sent(wire, 1, {"id": "1"}) == ["started"]
    wire.advance(seconds=60)
    assert sent(wire, 1, {"id": 1}) == ["started"]


def test_a_singleton_skips_until_its_run_has_ended(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order", singleton={}))
    first = emit(wire, "order")
    assert sent(wire, 2) == ["skipped", "skipped"]
    runner.next().returned()
    settled(wire, first["runId"], "succeeded")
    assert sent(wire, 1) == ["started"]


def test_a_singleton_may_cancel_the_older_run(wire: Wire) -> None:
    a_runner(wire, workflow("order", singleton={"mode": "cancel", "key": "who"}))
    old, other, new = (emit(wire, "order", {"who": who})["runId"] for who in "aba")
    assert show(wire, old)["status"] == "cancelled"
    assert show(wire, other)["status"] != "cancelled"
    newer = emit(wire, "order", {"who": "a"})["runId"]
    assert show(wire, new)["status"] == "cancelled"
    assert show(wire, newer)["status"] != "cancelled"


def test_a_debounce_starts_the_last_event_when_it_is_quiet(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order", debounce={"periodMs": 5_000}))
    for n in range(3):
        answer = emit(wire, "order", {"n": n})
        assert (outcome(answer), answer.get("runId")) == ("debounced", None)
        wire.advance(seconds=4)
    assert rows(wire, "/runs") == []
    wire.advance(seconds=1)
    told = runner.next()
    assert told.body["event"] == {"name": "order", "data": {"n": 2}}
    assert "events" not in told.body
    [run] = rows(wire, "/runs")
    assert run["eventId"] == answer["eventId"]


def test_a_batch_is_one_run_for_many_events(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order", batch={"maxSize": 3, "timeoutMs": 5_000}))
    answers = [emit(wire, "order", {"n": n}) for n in range(4)]
    assert [outcome(answer) for answer in answers] == ["batched"] * 4
    run_ids = [answer.get("runId") for answer in answers]
    assert [run_id is not None for run_id in run_ids] == [False, False, True, False]
    full = runner.next()
    assert full.run_id == run_ids[2]
    assert full.body["event"] == {"name": "order", "data": {"n": 0}}
    assert [event["data"]["n"] for event in full.body["events"]] == [0, 1, 2]
    full.returned()
    wire.advance(seconds=5)
    rest = runner.next()
    assert [event["data"]["n"] for event in rest.body["events"]] == [3]


def test_a_batch_survives_a_restart(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order", batch={"maxSize": 9, "timeoutMs": 5_000}))
    emit(wire, "order", {"n": 0})
    emit(wire, "order", {"n": 1})
    runner.close()
    wire.restart()
    wire.advance(seconds=5)
    runner = a_runner(wire, workflow("order", batch={"maxSize": 9, "timeoutMs": 5_000}))
    assert [event["data"]["n"] for event in runner.next().body["events"]] == [0, 1]


def test_a_throttle_spaces_the_starts(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order", throttle={"limit": 1, "perMs": 10_000}))
    runs = [emit(wire, "order", {"n": n})["runId"] for n in range(3)]
    assert runner.next().run_id == runs[0]
    assert [show(wire, run_id)["status"] for run_id in runs] == ["running", "queued", "queued"]
    wire.advance(seconds=9)
    assert show(wire, runs[1])["status"] == "queued"
    wire.advance(seconds=1)
    assert runner.next().run_id == runs[1]
    wire.advance(seconds=10)
    assert runner.next().run_id == runs[2]


def test_events_of_runs_pass_the_same_gates(wire: Wire) -> None:
    limited = workflow("order", rateLimit={"limit": 1, "perMs": 10_000})
    runner = a_runner(wire, limited, workflow("boss"))
    boss = emit(wire, "boss")["runId"]
    runner.next().found(*(op("Emit", f"e{n}", eventName="order") for n in range(3)))
    settled(wire, boss, "running", stepCount=3)
    seen = [event for event in rows(wire, "/events") if event["name"] == "order"]
    assert sorted(event["triggered"][0]["dropped"] for event in seen) == [False, True, True]


# Concurrency --------------------------------------------------------------------------------------


def in_use(wire: Wire) -> tuple[int, int]:
    told = wire.call("GET", "/flow-state").ok()["concurrency"]
    return told["limit"], told["inUse"]


def test_only_so_many_passes_run_at_once_and_the_others_follow_in_order(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order", concurrency={"limit": 2}))
    runs = [emit(wire, "order", {"n": n})["runId"] for n in range(5)]
    first, second = runner.next(), runner.next()
    assert [first.run_id, second.run_id] == runs[:2]
    assert in_use(wire) == (2, 2)
    assert [show(wire, run_id)["status"] for run_id in runs[2:]] == ["queued"] * 3
    second.returned()
    third = runner.next()
    assert third.run_id == runs[2]
    assert in_use(wire) == (2, 2)
    first.returned()
    fourth = runner.next()
    assert fourth.run_id == runs[3]
    for one in (third, fourth):
        one.returned()
    fifth = runner.next()
    assert fifth.run_id == runs[4]
    fifth.returned()
    settled(wire, runs[4], "succeeded")
    assert in_use(wire) == (2, 0)
    assert not any("slot" in str(row) for row in wire.stored()["record"])


def test_who_sleeps_has_no_slot_and_asks_again_when_it_wakes(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order", concurrency={"limit": 1, "key": "who"}))
    sleeper, other = (emit(wire, "order", {"who": "a"})["runId"] for _ in range(2))
    emit(wire, "order", {"who": "b"})
    passes = {one.run_id: one for one in (runner.next(), runner.next())}
    assert sleeper in passes
    assert other not in passes
    passes[sleeper].found(op("Sleep", "nap", sleepMs=5_000))
    busy = runner.next()
    assert busy.run_id == other
    wire.advance(seconds=5)
    assert show(wire, sleeper)["status"] in ("running", "waiting", "queued")
    busy.returned()
    again = runner.next()
    assert again.run_id == sleeper
    again.returned()
    settled(wire, sleeper, "succeeded")


def test_steps_in_a_row_keep_their_slot(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order", concurrency={"limit": 1}))
    first, second = (emit(wire, "order")["runId"] for _ in range(2))
    for n in range(3):
        told = runner.next()
        assert told.run_id == first
        told.found(ran(f"step-{n}"))
    runner.next().returned()
    assert runner.next().run_id == second


def test_who_is_cancelled_while_it_waits_leaves_the_line(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order", concurrency={"limit": 1}))
    runs = [emit(wire, "order")["runId"] for _ in range(3)]
    first = runner.next()
    wire.call("POST", f"/runs/{runs[1]}/cancel").ok()
    first.returned()
    last = runner.next()
    assert last.run_id == runs[2]
    wire.call("POST", f"/runs/{runs[2]}/cancel").ok()
    assert in_use(wire) == (1, 0)
    emit(wire, "order")
    assert runner.next().run_id not in runs


def test_a_limit_holds_over_a_restart(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order", concurrency={"limit": 1}))
    first, second = (emit(wire, "order")["runId"] for _ in range(2))
    assert runner.next().run_id == first
    runner.close()
    wire.restart()
    runner = a_runner(wire, workflow("order", concurrency={"limit": 1}))
    wire.advance(seconds=1)
    told = runner.next()
    assert in_use(wire) == (1, 1)
    told.returned()
    assert {told.run_id, runner.next().run_id} == {first, second}


# Schedules ----------------------------------------------------------------------------------------


def test_a_tick_starts_a_run_without_an_event(wire: Wire) -> None:
    runner = a_runner(wire, workflow("nightly", triggers=[{"cron": "@every 1m"}]))
    [shown] = rows(wire, "/workflows")
    assert shown["scheduled"] is True
    assert shown["schedules"] == [
        {"cron": "@every 1m", "nextFireAt": "2026-01-01T00:01:00.000000Z"}
    ]
    wire.advance(seconds=60)
    told = runner.next()
    assert told.body["event"] == {
        "name": "cron",
        "data": {"cron": "@every 1m", "scheduledFor": "2026-01-01T00:01:00.000000Z"},
    }
    told.returned()
    wire.advance(seconds=60)
    runner.next().returned()
    runs = rows(wire, "/runs")
    assert [run["triggerKind"] for run in runs] == ["cron", "cron"]
    assert rows(wire, "/events") == []


def test_registering_again_moves_no_schedule(wire: Wire) -> None:
    told = workflow("nightly", triggers=[{"cron": "0 * * * *"}])
    a_runner(wire, told, runner="one")
    wire.advance(seconds=1800)
    a_runner(wire, told, runner="two")
    wire.advance(seconds=1799)
    assert rows(wire, "/runs") == []
    wire.advance(seconds=1)
    assert len(rows(wire, "/runs")) == 1


def test_missed_ticks_are_made_up_for_once_after_a_restart(wire: Wire) -> None:
    a_runner(wire, workflow("nightly", triggers=[{"cron": "@hourly"}])).close()
    wire.close()
    wire.clock.jump(seconds=5 * 3600 + 60)
    wire.open()
    wire.advance(seconds=1)
    [run] = rows(wire, "/runs")
    assert show(wire, run["id"])["input"]["scheduledFor"] == "2026-01-01T05:00:00.000000Z"
    wire.advance(seconds=3600)
    assert len(rows(wire, "/runs")) == 2


def test_a_schedule_that_is_no_longer_told_stops(wire: Wire) -> None:
    a_runner(wire, workflow("nightly", triggers=[{"cron": "@hourly"}]))
    a_runner(wire, workflow("nightly", triggers=[{"cron": "@daily"}]), runner="new")
    wire.advance(seconds=3600)
    wire.advance(seconds=3600)
    assert rows(wire, "/runs") == []
    assert "hourly" not in repr(wire.stored()["record"])


def test_ticks_pass_the_gates(wire: Wire) -> None:
    told = workflow("nightly", triggers=[{"cron": "@every 10s"}], singleton={})
    runner = a_runner(wire, told)
    wire.advance(seconds=10)
    first = runner.next()
    wire.advance(seconds=10)
    assert len(rows(wire, "/runs")) == 1
    first.returned()
    settled(wire, first.run_id, "succeeded")
    wire.advance(seconds=10)
    assert len(rows(wire, "/runs")) == 2


@pytest.mark.parametrize("told", ["@often", "* * * *", "TZ=Nowhere/X @daily"])
def test_a_bad_schedule_refuses_the_registration(wire: Wire, told: str) -> None:
    with wire.nothing_changes():
        runner = dial(wire, DURATON)
        runner.read()
        bad = {"app": "shop", "workflows": [workflow("w", triggers=[{"cron": told}])]}
        runner.send({"type": "runner.register", "payload": bad})
        code, reason = runner.closed_with()
        assert code == 1008
        assert "workflows[0].triggers[0].cron" in reason


# Starting by name ---------------------------------------------------------------------------------


def test_a_workflow_is_started_by_name(wire: Wire) -> None:
    runner = a_runner(wire, workflow("a/b", triggers=[]), workflow("other", triggers=[]))
    path = "/workflows/shop/a%2Fb/trigger"
    body = {"input": {"n": 1}, "eventName": "by hand", "tags": {"who": "me"}}
    answer = wire.call("POST", path, body).ok(202)
    assert (answer["workflow"], answer["app"], answer["eventName"]) == ("a/b", "shop", "by hand")
    told = runner.next()
    assert told.run_id == answer["runId"]
    assert told.body["event"] == {"name": "by hand", "data": {"n": 1}}
    run = show(wire, told.run_id)
    assert (run["triggerKind"], run["tags"]) == ("manual", {"who": "me"})
    assert rows(wire, "/events") == []

    bare = wire.call("POST", "/workflows/shop/other/trigger").ok(202)
    assert bare["eventName"] == "other"
    told.returned()
    assert runner.next().body["event"] == {"name": "other", "data": {}}


def test_starting_by_name_passes_the_gates_and_is_known_by_its_id(wire: Wire) -> None:
    a_runner(wire, workflow("w", triggers=[], singleton={"key": "who"}))
    path = "/workflows/shop/w/trigger"
    first = wire.call("POST", path, {"input": {"who": 1}, "dedupeId": "x"}).ok(202)
    again = wire.call("POST", path, {"input": {"who": 2}, "dedupeId": "x"}).ok(202)
    assert ("runId" in first, again["deduped"], "runId" in again) == (True, True, False)
    skipped = wire.call("POST", path, {"input": {"who": 1}}).ok(202)
    assert skipped["skipped"] is True
    with wire.nothing_changes():
        wire.call("POST", "/workflows/shop/none/trigger").refused(404, "workflow_not_found")
        wire.call("POST", path, {"eventName": "x" * 256}).refused(400, "validation_failed")
        wire.call("POST", path, {"tags": {"a": 1}}).refused(400, "validation_failed")
        big = {"input": "x" * 600_000}
        wire.call("POST", path, big).refused(413, "event_too_large")


def test_what_waits_is_shown(wire: Wire) -> None:
    quiet = workflow("quiet", debounce={"periodMs": 5_000})
    bundle = workflow("bundle", batch={"maxSize": 9, "timeoutMs": 5_000})
    a_runner(wire, quiet, bundle)
    for name in ("quiet", "quiet", "bundle"):
        emit(wire, name)
    state = wire.call("GET", "/flow-state").ok()
    [waits] = state["debounce"]
    assert (waits["workflow"], waits["pending"]) == ("quiet", 2)
    assert waits["nextFireAt"] == "2026-01-01T00:00:05.000000Z"
    [buffered] = state["batch"]
    assert (buffered["workflow"], buffered["buffered"]) == ("bundle", 1)
    narrow = wire.call("GET", "/flow-state?workflow=quiet").ok()
    assert (len(narrow["debounce"]), narrow["batch"]) == (1, [])
    wire.advance(seconds=5)
    assert wire.call("GET", "/flow-state").ok()["debounce"] == []


# What we raise ourselves --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["duraton/run.finished", "durablex/run.finished"])
def test_the_end_of_a_run_starts_who_asked_for_it_and_no_more(wire: Wire, name: str) -> None:
    audit = workflow("audit", triggers=[{"event": name}])
    everything = workflow("everything", triggers=[{"event": "*"}])
    runner = a_runner(wire, workflow("order"), audit, everything, app="shop")
    run_id = emit(wire, "order")["runId"]
    for _ in range(2):
        runner.next().returned({"ok": 1})
    told = [runner.next() for _ in range(2)]
    assert {one.context["workflow"] for one in told} == {"audit"}
    about = {one.body["event"]["data"]["workflow"]: one.body["event"]["data"] for one in told}
    assert set(about) == {"order", "everything"}
    assert about["order"] == {
        "runId": about["order"]["runId"],
        "workflow": "order",
        "app": "shop",
        "status": "succeeded",
        "result": {"ok": 1},
    }
    assert run_id in {one["runId"] for one in about.values()}
    for one in told:
        one.returned()
        settled(wire, one.run_id, "succeeded")
    assert len(rows(wire, "/runs")) == 4
    wire.call("POST", "/events", {"name": name}).refused(400, "validation_failed")
