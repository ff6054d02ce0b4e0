"""The history of a leased task, page by page, plain or compressed."""

import base64
import gzip
import json
import zlib
from typing import Any

import pytest

from tests.support.http import Json, Wire, start_timer


def a_task_with(wire: Wire, events: int, **poll: Any) -> Json:
    """A leased task whose history has so many events."""
    wire.register()
    wire.start()
    markers = [
        {"type": "record_side_effect", "result": f"blob-{number}"} for number in range(events - 4)
    ]
    wire.complete(wire.take(), *markers, start_timer(1))
    wire.advance(seconds=1)
    task = wire.take(**poll)
    assert task["total_history_events"] == task["last_history_sequence"] == events
    return task


def page(wire: Wire, task: Json, token: str, **members: Any) -> Json:
    answer = wire.report(task, "history", next_history_page_token=token, **members)
    body = answer.ok()
    assert (body["task_id"], body["workflow_task_attempt"]) == (task["task_id"], 1)
    assert body["total_history_events"] == task["total_history_events"]
    return body


def unpacked(document: Json) -> list[Json]:
    if "history_events_encoding" not in document:
        return list(document["history_events"])
    assert document["history_events"] == []
    packed = base64.b64decode(document["history_events_compressed"])
    match document["history_events_encoding"]:
        case "gzip":
            content = gzip.decompress(packed)
        case "deflate":
            content = zlib.decompress(packed, -15)
        case other:
            raise AssertionError(other)
    return list(json.loads(content))


def test_a_short_history_comes_with_its_task(wire: Wire) -> None:
    task = a_task_with(wire, 500)
    assert len(task["history_events"]) == 500
    assert task["next_history_page_token"] is None


def test_a_long_history_comes_in_pages_of_five_hundred(wire: Wire) -> None:
    task = a_task_with(wire, 1_201)
    events, token = list(task["history_events"]), task["next_history_page_token"]
    assert len(events) == 500

    sizes = []
    while token is not None:
        further = page(wire, task, token)
        sizes.append(len(further["history_events"]))
        events += further["history_events"]
        token = further["next_history_page_token"]

    assert sizes == [500, 201]
    assert events == wire.events()


@pytest.mark.parametrize("size", [1, 7, 59, 60, 61, 1000])
def test_a_worker_may_choose_the_size_of_its_pages(wire: Wire, size: int) -> None:
    task = a_task_with(wire, 60, history_page_size=size)
    events, token = list(task["history_events"]), task["next_history_page_token"]
    assert len(events) == min(size, 60)
    seen: set[str] = set()

    while token is not None:
        assert token not in seen
        seen.add(token)
        further = page(wire, task, token, history_page_size=size)
        assert 1 <= len(further["history_events"]) <= size
        events += further["history_events"]
        token = further["next_history_page_token"]

    assert [event["sequence"] for event in events] == list(range(1, 61))


def test_the_token_of_nothing_means_from_the_beginning(wire: Wire) -> None:
    task = a_task_with(wire, 20)
    assert page(wire, task, "MA==")["history_events"] == task["history_events"]


def test_a_page_behind_the_last_event_is_empty(wire: Wire) -> None:
    task = a_task_with(wire, 20)
    last = base64.b64encode(b"20").decode()
    body = page(wire, task, last)
    assert (body["history_events"], body["next_history_page_token"]) == ([], None)


@pytest.mark.parametrize(
    "token",
    ["", "nonsense", "eA==", "LTE=", "MS4w", "MjE=", "OTk5OTk5OTk5OTk5OTk=", "M A==", "٣"],
)
def test_a_token_that_is_not_ours_is_400(wire: Wire, token: str) -> None:
    task = a_task_with(wire, 20)
    with wire.nothing_changes():
        answer = wire.report(task, "history", next_history_page_token=token)
    assert answer.refused(400, "invalid_page_token")["task_id"] == task["task_id"]


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({}, "next_history_page_token"),
        ({"next_history_page_token": 5}, "next_history_page_token"),
        ({"next_history_page_token": "MA==", "history_page_size": 0}, "history_page_size"),
        ({"next_history_page_token": "MA==", "history_page_size": 1001}, "history_page_size"),
    ],
)
def test_a_page_that_makes_no_sense_is_refused(wire: Wire, members: Json, field: str) -> None:
    task = a_task_with(wire, 20)
    with wire.nothing_changes():
        wire.report(task, "history", **members).invalid(field)


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("deflate, gzip", "gzip"),
        ("DEFLATE", "deflate"),
        ("br", None),
        ("", None),
    ],
)
def test_pages_of_fifty_events_are_compressed_when_asked(
    wire: Wire, accepted: str, encoding: str | None
) -> None:
    task = a_task_with(wire, 50, accept_history_encoding=accepted)
    again = page(wire, task, "MA==", accept_history_encoding=accepted)

    for document in (task, again):
        assert document.get("history_events_encoding") == encoding
        assert unpacked(document) == wire.events()


def test_smaller_pages_are_never_compressed(wire: Wire) -> None:
    task = a_task_with(wire, 49, accept_history_encoding="gzip")
    assert "history_events_compressed" not in task
    assert len(task["history_events"]) == 49


def test_the_history_of_a_lease_is_frozen(wire: Wire) -> None:
    task = a_task_with(wire, 20)
    wire.signal("late")

    assert page(wire, task, "MA==")["history_events"] == task["history_events"]
    assert len(wire.events()) == 20


def test_a_long_history_is_read_again_from_disk_after_a_restart(wire: Wire) -> None:
    task = a_task_with(wire, 1_201)
    wire.restart()

    events = page(wire, task, "MA==", history_page_size=1000)
    rest = page(wire, task, events["next_history_page_token"], history_page_size=1000)

    assert [*events["history_events"], *rest["history_events"]] == wire.events()
