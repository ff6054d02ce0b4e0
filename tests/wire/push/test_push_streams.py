"""Live views of push runs, and figures over them."""

import json
import logging

import pytest

from perdure.core.limits import SECOND
from perdure.protocols.durablex.live_streams import _EventTail
from perdure.store.interface import Unavailable
from tests.support.http import Json, Stream, Wire
from tests.support.runner import (
    a_runner,
    broke,
    emit,
    op,
    ran,
    settled,
    start,
    workflow,
)


def listen(wire: Wire, path: str, headers: str = "") -> Stream:
    """A stream whose head has come."""
    stream = wire.stream()
    stream.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode())
    head = stream.read_until(b"\r\n\r\n")
    assert b"200 OK" in head, head
    assert b"text/event-stream" in head
    return stream


def frame(stream: Stream) -> Json:
    """The next event; its kind stands in its data, too."""
    text = stream.read_until(b"\n\n").decode()
    if text.startswith(":"):
        return frame(stream)
    members = dict(line.split(": ", 1) for line in text.strip().split("\n"))
    told: Json = json.loads(members["data"])
    assert told["kind"] == members["event"]
    if "id" in members:
        assert told["seq"] == int(members["id"])
    return told


def brief(told: Json) -> tuple[str, ...]:
    names = ("kind", "name", "status", "message")
    return tuple(str(told[name]) for name in names if name in told)


def test_the_timeline_of_a_run_tells_what_was_and_what_comes(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order", retry={"maxAttempts": 2, "initialDelayMs": 1_000}))
    run_id = start(wire, "order")
    line = {"level": "info", "message": "hi", "scope": "@root", "index": 0}
    runner.next().found(op("Sleep", "nap", sleepMs=1_000), logs=[line])
    settled(wire, run_id, "waiting")

    stream = listen(wire, f"/runs/{run_id}/stream")

    assert [brief(frame(stream)) for _ in range(5)] == [
        ("run_status", "queued"),
        ("run_status", "running"),
        ("log", "hi"),
        ("step_status", "nap", "waiting"),
        ("run_status", "waiting"),
    ]
    wire.advance(seconds=1.1)
    assert [brief(frame(stream)) for _ in range(2)] == [
        ("run_status", "running"),
        ("step_status", "nap", "succeeded"),
    ]
    runner.next().found(broke("charge"))
    failed = frame(stream)
    assert brief(failed) == ("step_status", "charge", "failed")
    assert failed["willRetry"] is True
    assert failed["nextAttemptAt"]
    assert brief(frame(stream)) == ("run_status", "waiting")
    wire.advance(seconds=1.1)
    runner.next().found(ran("charge"))
    assert [brief(frame(stream)) for _ in range(2)] == [
        ("run_status", "running"),
        ("step_status", "charge", "succeeded"),
    ]
    runner.next().returned()
    last = frame(stream)
    assert brief(last) == ("run_status", "succeeded")
    assert stream.read_to_end() == b""

    again = listen(wire, f"/runs/{run_id}/stream?from={last['seq'] - 1}")
    assert brief(frame(again)) == ("run_status", "succeeded")
    assert again.read_to_end() == b""
    resumed = listen(wire, f"/runs/{run_id}/stream", f"Last-Event-ID: {last['seq'] - 1}\r\n")
    assert brief(frame(resumed)) == ("run_status", "succeeded")


def numbered(stream: Stream) -> tuple[str, ...]:
    """The next frame in short, with the number under which its reader may come again."""
    text = stream.read_until(b"\n\n").decode()
    if text.startswith(":"):
        return numbered(stream)
    members = dict(line.split(": ", 1) for line in text.strip().split("\n"))
    return (members.get("id", ""), *brief(json.loads(members["data"])))


def test_whoever_comes_again_anywhere_in_a_timeline_misses_nothing(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    lines = [
        {"level": "info", "message": f"line {n}", "scope": "@root", "index": n} for n in range(3)
    ]
    runner.next().found(op("Sleep", "nap", sleepMs=1_000), logs=lines)
    settled(wire, run_id, "waiting")
    wire.advance(seconds=1.1)
    runner.next().returned(logs=[{**lines[0], "message": "bye"}])
    settled(wire, run_id, "succeeded")

    def told(after: str) -> list[tuple[str, ...]]:
        stream = listen(wire, f"/runs/{run_id}/stream", f"Last-Event-ID: {after}\r\n")
        frames: list[tuple[str, ...]] = []
        while not frames or frames[-1][1:] != ("run_status", "succeeded"):
            frames.append(numbered(stream))
        return frames

    whole = told("0")
    assert ("", "run_status", "running") in whole
    numbers = [number for number, *_ in whole if number]
    assert len(numbers) == len(set(numbers)), "a number stands for one frame"
    for place in range(1, len(whole)):
        # The connection breaks behind this frame; its number is the last that the reader had.
        known = [number for number, *_ in whole[:place] if number]
        rest = told(known[-1] if known else "0")
        assert rest[-len(whole[place:]) :] == whole[place:]


def test_a_timeline_says_that_a_pass_has_begun(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    invoke = runner.next()
    stream = listen(wire, f"/runs/{run_id}/stream")
    assert numbered(stream)[1:] == ("run_status", "queued")
    assert numbered(stream) == ("", "run_status", "running")

    invoke.found(op("Sleep", "nap", sleepMs=1_000))
    assert [numbered(stream)[1:] for _ in range(2)] == [
        ("step_status", "nap", "waiting"),
        ("run_status", "waiting"),
    ]
    wire.advance(seconds=1.1)
    invoke = runner.next()
    assert [numbered(stream)[1:] for _ in range(2)] == [
        ("run_status", "running"),
        ("step_status", "nap", "succeeded"),
    ]
    invoke.found(op("Sleep", "again", sleepMs=1_000))
    for _ in range(2):
        numbered(stream)


def test_what_becomes_of_all_runs_is_told_from_now_on(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    before = start(wire, "order")
    runner.next().returned()
    settled(wire, before, "succeeded")
    stream = listen(wire, "/runs/stream")
    wire.until(lambda: wire.server.streaming.statuses.count > 0)

    run_id = start(wire, "order")
    runner.next().returned()

    told = [frame(stream) for _ in range(2)]
    assert [(one["runId"], one["status"]) for one in told] == [
        (run_id, "running"),
        (run_id, "succeeded"),
    ]


def test_events_are_told_as_they_come(wire: Wire) -> None:
    emit(wire, "before")
    stream = listen(wire, "/events/stream")

    sent = emit(wire, "after", {"n": 1})
    wire.advance(seconds=1)

    told = frame(stream)
    assert (told["id"], told["name"], told["data"]) == (sent["eventId"], "after", {"n": 1})


def test_a_stream_of_nothing_is_refused(wire: Wire) -> None:
    wire.call("GET", "/runs/nobody/stream").refused(404, "run_not_found")
    a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    assert wire.call("GET", f"/runs/{run_id}/stream?from=x").status == 400


def test_figures_count_runs_by_what_they_are(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"), workflow("mail"))
    for name in ("order", "order", "order", "mail"):
        run_id = start(wire, name)
        invoke = runner.next()
        wire.advance(seconds=2)
        if name == "mail":
            invoke.answer(400, {"error": "no"})
            settled(wire, run_id, "failed")
        else:
            invoke.returned()
            settled(wire, run_id, "succeeded")
    start(wire, "order")
    runner.next()

    assert wire.call("GET", "/runs/stats").ok() == {
        "total": 5,
        "active": 1,
        "queued": 0,
        "running": 1,
        "succeeded": 3,
        "failed": 1,
        "successRate": 75,
    }
    assert wire.call("GET", "/runs/stats?workflow=mail").ok()["successRate"] == 0
    assert wire.call("GET", "/runs/stats?app=bank").ok()["total"] == 0
    told = wire.call("GET", "/runs/timeseries?since=2026-01-01T00:00:00Z&bucket=4").ok()
    assert told["bucketSeconds"] == 4
    assert [bucket["total"] for bucket in told["buckets"]] == [2, 2, 1]
    assert told["buckets"][0]["avgMs"] == told["buckets"][0]["maxMs"] == 2_000
    assert told["buckets"][1]["counts"] == {"succeeded": 1, "failed": 1}
    assert "avgMs" not in told["buckets"][2]
    wide = wire.call("GET", "/runs/timeseries").ok()
    assert sum(bucket["total"] for bucket in wide["buckets"]) == 5
    assert len(wide["buckets"]) <= 121


def test_buckets_are_as_asked_or_refused(wire: Wire) -> None:
    wire.advance(seconds=999)
    since = "since=2026-01-01T00:00:00Z"
    for seconds in (1, 7, 60, 86_400):
        told = wire.call("GET", f"/runs/timeseries?{since}&bucket={seconds}").ok()
        assert told["bucketSeconds"] == seconds
        assert 1 <= len(told["buckets"]) <= 1_000
    wire.advance(seconds=2)
    refused = wire.call("GET", f"/runs/timeseries?{since}&bucket=1").refused(
        400, "validation_failed"
    )
    assert "that is more than 1000 buckets; take 2 s or more" in str(refused)
    assert wire.call("GET", f"/runs/timeseries?{since}&bucket=2").ok()["bucketSeconds"] == 2
    wire.call("GET", "/runs/timeseries?bucket=60").refused(400, "validation_failed")


@pytest.mark.parametrize("query", ["since=never", "bucket=0", "bucket=x"])
def test_figures_of_nonsense_are_refused(wire: Wire, query: str) -> None:
    assert wire.call("GET", f"/runs/timeseries?{query}").status == 400


def test_a_stream_ends_when_the_disk_is_away_and_that_is_noted(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    a_runner(wire, workflow("order"))
    run_id = start(wire, "order")

    async def refuse(*_: object) -> list[bytes]:
        raise Unavailable("storage_unavailable", "the disk is away")

    monkeypatch.setattr(wire.server.store, "read_history", refuse)
    with caplog.at_level(logging.INFO):
        stream = listen(wire, f"/runs/{run_id}/stream")
        assert stream.read_to_end() == b""

    assert "closed a live stream: the disk is away" in caplog.messages


def test_an_event_that_was_committed_late_is_told_all_the_same() -> None:
    tail = _EventTail("k0", is_shared=True)
    assert [key for key in ("k1", "k3") if tail.is_new(key, 0)] == ["k1", "k3"]
    tail.move(SECOND)
    assert tail.behind == "k0", "the latest are looked at again"
    assert [key for key in ("k1", "k2", "k3") if tail.is_new(key, SECOND)] == ["k2"]
    tail.move(5 * SECOND)
    assert tail.behind == "k3"

    alone = _EventTail(None, is_shared=False)
    alone.is_new("k1", 0)
    alone.move(0)
    assert alone.behind == "k1"
