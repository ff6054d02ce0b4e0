"""The socket of a runner: handshake, registration, heartbeat, and how it ends."""

import asyncio

import pytest
from websockets.exceptions import InvalidStatus

from tests.support.http import Json, Wire
from tests.support.runner import (
    DURABLEX,
    DURATON,
    HandRunner,
    a_runner,
    dial,
    ran,
    rows,
    settled,
    show,
    start,
    workflow,
)


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ((DURATON,), DURATON),
        ((DURABLEX,), DURABLEX),
        ((DURABLEX, DURATON), DURATON),
        (("other", DURABLEX), DURABLEX),
        ((), None),
    ],
)
def test_a_known_name_of_the_protocol_is_chosen(
    wire: Wire, offered: tuple[str, ...], chosen: str | None
) -> None:
    runner = dial(wire, *offered)

    assert runner.socket.subprotocol == chosen
    hello = runner.read()
    assert hello == {
        "type": "hello",
        "payload": {
            "protocolVersion": 1,
            "minProtocolVersion": 1,
            "maxProtocolVersion": 1,
            "heartbeatMs": 15_000,
        },
    }


def test_unknown_names_are_refused_before_the_upgrade(wire: Wire) -> None:
    with pytest.raises(InvalidStatus) as refused:
        dial(wire, "soap.v1")
    assert refused.value.response.status_code == 400


def test_a_plain_request_is_told_what_the_path_is_for(wire: Wire) -> None:
    body = wire.call("GET", "/connect").refused(400, "upgrade_required")
    assert body["error"] == body["message"]


def test_a_runner_is_listed_while_it_lives_and_afterwards(wire: Wire) -> None:
    told = {"runtime": "cpython", "language": "python", "sdkName": "perdure", "version": "1.2.3"}
    runner = a_runner(wire, workflow("order"), runner="r1", region="eu-1", **told)
    (row,) = rows(wire, "/runners")
    assert {name: row[name] for name in told} == told
    assert (row["runnerId"], row["app"], row["live"], row["region"]) == (
        "r1",
        "shop",
        True,
        "eu-1",
    )
    assert "framework" not in row
    assert rows(wire, "/runners?app=bank") == []
    assert [app["name"] for app in rows(wire, "/apps")] == ["shop"]

    runner.vanish()

    async def gone() -> None:
        async with asyncio.timeout(10):
            while b'"live":false' not in (await wire.send("GET", "/runners")).content:
                pass

    wire.run(gone())


def test_definitions_are_listed_as_they_were_registered(wire: Wire) -> None:
    entry = workflow(
        "order",
        triggers=[{"event": "order.*", "if": "event.data.total > 1"}, {"cron": "0 9 * * *"}],
        retry={"maxAttempts": 3, "backoff": "linear"},
        concurrency={"limit": 5, "key": "accountId"},
        onFailure=True,
    )
    a_runner(wire, entry, workflow("plain"))

    order, plain = rows(wire, "/workflows")
    assert (order["name"], order["app"], order["maxAttempts"], order["backoff"]) == (
        "order",
        "shop",
        3,
        "linear",
    )
    assert order["triggers"] == entry["triggers"]
    assert order["flowControl"] == {"concurrency": {"limit": 5, "key": "accountId"}}
    assert (order["scheduled"], order["onFailure"]) == (True, True)
    assert plain["triggers"] == [{"event": "plain"}]
    assert (plain["scheduled"], plain["maxAttempts"]) == (False, 1)


@pytest.mark.parametrize(
    "payload",
    [
        {"app": "shop"},
        {"app": " ", "workflows": []},
        {"app": "shop", "workflows": [{"name": "a"}, {"name": "a"}]},
        {"app": "shop", "workflows": [workflow("a", triggers=[{"event": "a*b"}])]},
        {"app": "shop", "workflows": [workflow("a", triggers=[{"cron": "every day"}])]},
        {"app": "shop", "workflows": [workflow("a", triggers=[{"event": "a", "if": "1 +"}])]},
        {"app": "shop", "workflows": [workflow("a", throttle={"limit": 0, "perMs": 1})]},
        {"app": "shop", "workflows": [], "protocolVersion": 2},
        {"app": "shop", "workflows": [], "minProtocolVersion": 2, "maxProtocolVersion": 3},
        ["app"],
        None,
    ],
)
def test_a_registration_that_makes_no_sense_is_refused_as_a_whole(
    wire: Wire, payload: Json
) -> None:
    runner = dial(wire, DURATON)
    runner.read()

    runner.send({"type": "runner.register", "payload": payload})
    code, reason = runner.closed_with()

    assert code == 1008
    assert reason
    assert rows(wire, "/workflows") == []
    assert rows(wire, "/apps") == []


def test_a_socket_is_for_one_app(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    runner.send({"type": "runner.register", "payload": {"app": "bank", "workflows": []}})
    assert runner.closed_with()[0] == 1002


def test_a_ping_is_answered_at_once_also_before_the_registration(wire: Wire) -> None:
    runner = dial(wire, DURATON)
    runner.read()
    runner.send({"type": "ping"})
    assert runner.read() == {"type": "pong"}


@pytest.mark.parametrize(
    "frame",
    ["", "{", "[]", '{"id":"x"}', '{"type":"news","payload":{}}', '{"type":7}', b"\x00\x01"],
)
def test_frames_that_nobody_understands_are_passed_over(wire: Wire, frame: str | bytes) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    invoke = runner.next()

    runner.send_text(frame)
    runner.send({"type": "invoke.result", "id": "nobody's", "payload": {"status": 200}})
    invoke.returned()
    invoke.returned()

    settled(wire, run_id, "succeeded")


def test_a_frame_that_is_too_large_ends_the_socket(wire: Wire) -> None:
    runner: HandRunner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    runner.next().returned("x" * 1_048_576)

    assert runner.closed_with()[0] == 1009
    settled(wire, run_id, "running", errorCount=1)


def test_a_large_frame_in_pieces_is_taken(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))
    run_id = start(wire, "order")
    invoke = runner.next()
    text = '{"type":"invoke.result","id":"%s","payload":{"status":200,"body":{"data":"%s"}}}'
    whole = text % (invoke.id, "y" * 500_000)

    async def send() -> None:
        pieces = (whole[at : at + 70_000] for at in range(0, len(whole), 70_000))
        await runner.socket.send(pieces)

    wire.run(send())

    assert settled(wire, run_id, "succeeded")["result"] == "y" * 500_000


def test_a_stop_says_goodbye_to_runners(wire: Wire) -> None:
    runner = a_runner(wire, workflow("order"))

    wire.close()
    code, _ = runner.closed_with()
    wire.open()

    assert code == 1001


def test_a_registration_at_a_full_engine_ends_the_socket_and_nothing_else(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runner = dial(wire)
    runner.read()
    with monkeypatch.context() as patch:
        patch.setattr("perdure.engine.beat.OPERATIONS_WAITING_MAX", 0)
        payload = {"app": "shop", "protocolVersion": 1, "workflows": []}
        runner.send({"type": "runner.register", "payload": payload})
        assert runner.closed_with() == (1013, "too many operations are waiting")

    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
    a_runner(wire, workflow("order"))
    assert len(rows(wire, "/runners")) == 1


def test_a_runner_that_takes_its_leave_answers_what_it_has(wire: Wire) -> None:
    leaving = a_runner(wire, workflow("order"), runner="r1")
    first = start(wire, "order")
    invoke = leaving.next()
    known = wire.server.runners._count
    leaving.send({"type": "runner.leave"})
    wire.until(lambda: wire.server.runners._count < known)

    second = start(wire, "order")
    assert show(wire, second)["status"] == "queued"
    assert [row["live"] for row in rows(wire, "/runners")] == [False]
    invoke.found(ran("charge", 1))
    settled(wire, first, "running", stepCount=1)
    leaving.close()

    other = a_runner(wire, workflow("order"), runner="r2")
    for _ in range(2):
        other.next().returned()
    assert settled(wire, first, "succeeded")["errorCount"] == 0
    assert settled(wire, second, "succeeded")["errorCount"] == 0


def test_a_pass_that_a_runner_declines_goes_to_another(wire: Wire) -> None:
    full = a_runner(wire, workflow("order"), runner="r1")
    run_id = start(wire, "order")
    invoke = full.next()
    other = a_runner(wire, workflow("order"), runner="r2")

    invoke.answer(503, {"error": "this runner has too many passes waiting"})

    other.next().returned()
    assert settled(wire, run_id, "succeeded")["errorCount"] == 0
