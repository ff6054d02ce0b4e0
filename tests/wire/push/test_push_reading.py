"""Events and lists of push runs."""

import json
from typing import Any

import pytest

from tests.support.http import Json, Wire
from tests.support.runner import a_runner, emit, op, ran, rows, settled, show, start, workflow


def test_an_event_starts_every_workflow_that_it_means_once(wire: Wire) -> None:
    a_runner(
        wire,
        workflow("b", triggers=[{"event": "order.created"}, {"event": "order.*"}]),
        workflow("a", triggers=[{"event": "*"}]),
        workflow("order.created", triggers=[]),
        workflow("c", triggers=[{"event": "order.created", "if": "event.data.total > 100"}]),
    )
    a_runner(wire, workflow("z", triggers=[{"event": "order.created"}]), app="bank")

    told = emit(wire, "order.created", {"total": 1})
    assert [(one["workflow"], one["app"]) for one in told["triggered"]] == [
        ("a", "shop"),
        ("b", "shop"),
        ("z", "bank"),
    ]
    assert told["runId"] == told["triggered"][0]["runId"]
    narrowed = emit(wire, "order.created", {"total": 101}, app="shop")
    assert [one["workflow"] for one in narrowed["triggered"]] == ["a", "b", "c"]
    aimed = emit(wire, "order.created", app="shop", targetApp="bank")
    assert [one["workflow"] for one in aimed["triggered"]] == ["z"]


def test_an_event_that_means_nothing_is_remembered_all_the_same(wire: Wire) -> None:
    told = emit(wire, "lonely", {"n": 1}, session="s", tags={"a": "b"})

    assert "runId" not in told
    assert (told["woke"], told["triggered"], told["suspended"]) == (0, [], False)
    event = wire.call("GET", f"/events/{told['eventId']}").ok()
    assert (event["name"], event["source"], event["data"]) == ("lonely", "api", {"n": 1})
    assert (event["triggered"], event["session"], event["tags"]) == ([], "s", {"a": "b"})


def test_an_event_under_a_known_identity_does_nothing_at_all(wire: Wire) -> None:
    a_runner(wire, workflow("order"))
    first = emit(wire, "order", dedupeId="d1")
    assert first["deduped"] is False

    again = emit(wire, "order", dedupeId="d1")
    other_app = emit(wire, "order", dedupeId="d1", app="shop")

    assert again["deduped"] is True
    assert "eventId" not in again
    assert again["triggered"] == []
    assert other_app["deduped"] is False
    assert len(rows(wire, "/events")) == 2
    wire.advance(seconds=86_401)
    assert emit(wire, "order", dedupeId="d1")["deduped"] is False


def test_events_are_listed_newest_first(wire: Wire) -> None:
    for number in range(5):
        emit(wire, f"e{number % 2}", number, app="shop" if number > 2 else "bank")
        wire.advance(seconds=1)

    assert [row["data"] for row in rows(wire, "/events")] == [4, 3, 2, 1, 0]
    assert [row["data"] for row in rows(wire, "/events?name=e1")] == [3, 1]
    assert [row["data"] for row in rows(wire, "/events?app=shop&limit=1")] == [4]
    wire.call("GET", "/events/none").refused(404, "event_not_found")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": ""},
        {"name": "  "},
        {"name": 7},
        {"name": "x" * 256},
        {"name": "x", "app": "a" * 256},
        {"name": "x", "dedupeId": 5},
        {"name": "x", "runner": "r" * 300},
        {"name": "x", "tags": {"a": 1}},
        {"name": "x", "tags": {"a" * 65: ""}},
        {"name": "duraton/run.finished"},
        {"name": "durablex/anything"},
        [],
        "text",
    ],
)
def test_events_that_make_no_sense_are_refused(wire: Wire, body: Any) -> None:
    with wire.nothing_changes():
        answer = wire.call("POST", "/events", body)
    assert answer.status == 400, answer
    assert answer.body["error"]


@pytest.mark.parametrize("content", [b"", b"{", b'{"name":"x","data":}', b'{"name":"\xff"}'])
def test_bodies_that_are_no_json_are_refused(wire: Wire, content: bytes) -> None:
    with wire.nothing_changes():
        answer = wire.call("POST", "/events", content=content)
    assert answer.status == 400, answer
    assert answer.body["error"]


def test_a_body_is_json_whatever_its_media_type_says(wire: Wire) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = wire.call("POST", "/events", content=b'{"name":"x","data":1}', headers=form)
    assert answer.status == 202


def test_data_that_is_too_large_is_refused(wire: Wire) -> None:
    with wire.nothing_changes():
        answer = wire.call("POST", "/events", {"name": "x", "data": "y" * 600_000})
    answer.refused(413, "event_too_large")


def test_runs_are_listed_page_by_page(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"), workflow("mail"))
    started = []
    for number in range(5):
        started.append(start(wire, "order" if number % 2 else "mail", number))
        runner.next().found(ran("a"))
        runner.next().returned()
        settled(wire, started[-1], "succeeded")
        wire.advance(seconds=1)

    first = wire.call("GET", "/runs?limit=2")
    page: list[Json] = json.loads(first.content)
    assert [row["id"] for row in page] == [started[4], started[3]]
    cursor = first.headers["x-next-cursor"]
    second = wire.call("GET", f"/runs?limit=2&cursor={cursor}")
    assert [row["id"] for row in json.loads(second.content)] == [started[2], started[1]]
    cursor = second.headers["x-next-cursor"]
    third = wire.call("GET", f"/runs?limit=2&cursor={cursor}")
    assert [row["id"] for row in json.loads(third.content)] == [started[0]]
    assert "x-next-cursor" not in third.headers
    assert "input" not in page[0]
    oldest = rows(wire, "/runs?dir=asc&limit=1")
    assert [row["id"] for row in oldest] == [started[0]]


def test_runs_are_found_by_what_they_are(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    told = emit(wire, "order", session="s1")
    done = told["runId"]
    runner.next().returned()
    settled(wire, done, "succeeded")
    wire.advance(seconds=10)
    running = start(wire, "order")
    runner.next()

    def found(query: str) -> list[str]:
        return [row["id"] for row in rows(wire, f"/runs?{query}")]

    assert found("") == [running, done]
    assert found("status=succeeded") == [done]
    assert found("status=running") == [running]
    assert found("status=failed") == []
    assert found("workflow=order&app=shop") == [running, done]
    assert found("app=bank") == []
    assert found("session=s1") == [done]
    assert found(f"eventId={told['eventId']}") == [done]
    assert found(f"q={done[5:]}") == [done]
    assert found("runType=cron") == []
    assert found("since=2026-01-01T00:00:05Z") == [running]
    assert found("since=2026-01-01T00:00:05") == [running]
    # Paused while a runner works on it, which the disk still calls running.
    wire.call("POST", f"/runs/{running}/pause").ok()
    assert found("status=paused") == [running]
    assert found("status=running") == []


def test_runs_are_sorted_by_any_of_their_properties_page_by_page(wire: Wire) -> None:
    shop = a_runner(wire, workflow("order"), workflow("mail"))
    bank = a_runner(wire, workflow("pay"), app="bank")
    started: dict[str, str] = {}
    for name, runner, seconds, ends in (
        ("mail", shop, 3, True),
        ("order", shop, 1, False),
        ("pay", bank, 2, True),
        ("order", shop, 4, True),
        ("mail", shop, 0, None),
    ):
        run_id = start(wire, name)
        invoke = runner.next()
        wire.advance(seconds=seconds)
        label = f"{name}{len(started)}"
        started[run_id] = label
        if ends is None:
            continue
        invoke.answer(200 if ends else 400, {"data": 1} if ends else {"error": "no"})
        settled(wire, run_id, "succeeded" if ends else "failed")

    def walked(query: str) -> list[str]:
        """The list, one run per page."""
        found, cursor = [], ""
        while True:
            answer = wire.call("GET", f"/runs?limit=1&{query}{cursor}")
            assert answer.status == 200, answer
            found += [started[row["id"]] for row in json.loads(answer.content)]
            if "x-next-cursor" not in answer.headers:
                return found
            cursor = f"&cursor={answer.headers['x-next-cursor']}"

    expected = {
        "workflow": ["mail0", "mail4", "order1", "order3", "pay2"],
        "app": ["pay2", "mail0", "order1", "order3", "mail4"],
        "status": ["order1", "mail4", "mail0", "pay2", "order3"],
        "duration": ["mail4", "order1", "pay2", "mail0", "order3"],
        "started": ["mail0", "order1", "pay2", "order3", "mail4"],
    }
    for sort, order in expected.items():
        assert walked(f"sort={sort}&dir=asc") == order, sort
        assert walked(f"sort={sort}") == order[::-1], sort
    assert walked("sort=duration&status=succeeded") == ["order3", "mail0", "pay2"]
    assert walked("sort=workflow&app=shop&q=ord&dir=asc") == ["order1", "order3"]
    cursor = wire.call("GET", "/runs?limit=1&sort=workflow").headers["x-next-cursor"]
    for other in ("sort=app", "sort=workflow&dir=asc", ""):
        assert wire.call("GET", f"/runs?{other}&cursor={cursor}").status == 400


def test_a_deep_search_looks_into_what_runs_carry(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    by_input = start(wire, "order", {"customer": 'Zo\u00cb "X"'})
    runner.next().returned({"receipt": "R-77"})
    settled(wire, by_input, "succeeded")
    broken = start(wire, "order", {"n": 1})
    runner.next().answer(400, {"error": "card DECLINED"})
    settled(wire, broken, "failed")

    def found(query: str) -> list[str]:
        return [row["id"] for row in rows(wire, f"/runs?{query}")]

    assert found("q=zo%C3%AB&deep=1") == [by_input]
    assert found("q=r-77&deep=1") == [by_input]
    assert found("q=declined&deep=1") == [broken]
    assert found("q=declined&deep=1&status=succeeded") == []
    assert found("q=ORDER&deep=1&sort=duration&dir=asc") in ([by_input, broken], [broken, by_input])
    assert found("q=declined") == found("q=declined&deep=0") == []
    assert found("deep=1") == [broken, by_input]
    assert found("q=WorkflowStarted&deep=1") == [], "our own words are nobody's content"


def test_a_deep_search_opens_so_many_runs_and_goes_on_behind_them(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.protocols.durablex.run_lists._DEEP_RUNS_MAX", 2)
    a_runner(wire, workflow("order"))
    wanted = start(wire, "order", "needle")
    for number in range(3):
        wire.advance(seconds=1)
        start(wire, "order", number)

    first = wire.call("GET", "/runs?q=needle&deep=1")
    assert json.loads(first.content) == []
    second = rows(wire, f"/runs?q=needle&deep=1&cursor={first.headers['x-next-cursor']}")
    assert [row["id"] for row in second] == [wanted]


def test_what_was_begun_again_is_found_and_counted(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    source, other = start(wire, "order"), start(wire, "order")
    for run_id in (source, other):
        runner.next().returned()
        settled(wire, run_id, "succeeded")
    wire.advance(seconds=1)
    again = wire.call("POST", f"/runs/{source}/replay").ok()["id"]
    runner.next().answer(400, {"error": "no"})
    settled(wire, again, "failed")
    wire.advance(seconds=1)
    third = wire.call("POST", f"/runs/{source}/replay").ok()["id"]

    assert [row["id"] for row in rows(wire, f"/runs?replayOf={source}")] == [third, again]
    assert rows(wire, f"/runs?replayOf={source}&status=failed")[0]["id"] == again
    assert rows(wire, f"/runs?replayOf={other}") == rows(wire, "/runs?replayOf=nobody") == []
    told = wire.call("GET", f"/runs/stats?replayOf={source}").ok()
    assert (told["total"], told["failed"], told["active"]) == (2, 1, 1)
    assert wire.call("GET", "/runs/stats?replayOf=nobody").ok()["total"] == 0


@pytest.mark.parametrize(
    "query",
    [
        "status=done",
        "limit=0",
        "limit=201",
        "limit=ten",
        "dir=up",
        "runType=x",
        "since=noon",
        "cursor=%21",
        "cursor=W10=",
        "sort=input",
        "deep=perhaps&q=x",
    ],
)
def test_questions_that_make_no_sense_are_refused(wire: Wire, query: str) -> None:
    answer = wire.call("GET", f"/runs?{query}")
    assert answer.status == 400
    assert answer.body["error"]


def test_runs_of_the_other_protocol_are_not_shown(wire: Wire) -> None:
    run = wire.start()
    assert rows(wire, "/runs") == []
    wire.call("GET", f"/runs/{run['run_id']}").refused(404, "run_not_found")


def test_whether_the_engine_is_well_is_told_to_everybody(wire: Wire) -> None:
    assert wire.call("GET", "/healthz").ok() == {"status": "ok"}
    assert wire.call("GET", "/readyz").ok() == {"status": "ready", "checks": {"store": "ok"}}


def test_a_duration_is_the_time_between_start_and_end_in_milliseconds(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    invoke = runner.next()
    wire.advance(seconds=2.5)
    invoke.returned()

    run = settled(wire, run_id, "succeeded")
    assert run["durationMs"] == 2_500
    assert "durationMs" not in show(wire, start(wire, "order"))


def test_a_run_is_queued_before_its_first_pass_and_running_while_one_is_ready(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    runner.next().found(op("Sleep", "nap", sleepMs=1_000))
    settled(wire, run_id, "waiting")
    runner.vanish()
    wire.until(lambda: wire.server.runners._count == 0)
    wire.advance(seconds=2)

    settled(wire, run_id, "running")
    assert show(wire, start(wire, "order"))["status"] == "queued"
