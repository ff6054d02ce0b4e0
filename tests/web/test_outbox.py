"""Answers wait for those right behind them, and for nobody else."""

import asyncio
from typing import cast

from perdure.web.limits import PIPELINED_MAX
from perdure.web.write_batch import LARGE_BYTES_MIN, TOGETHER_MAX, WriteBatch
from tests.web.floor import a_floor, request


class _Transport:
    """Notes what is written to it, in a list that it shares with others."""

    def __init__(self, name: str, written: list[tuple[str, bytes]]) -> None:
        self._name = name
        self._written = written
        self.closed = False

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: bytes) -> None:
        self._written.append((self._name, data))


class _Sending:
    def __init__(self) -> None:
        self.outbox = WriteBatch()
        self.written: list[tuple[str, bytes]] = []

    def transport(self, name: str) -> _Transport:
        return _Transport(name, self.written)

    def put(self, transport: _Transport, data: bytes) -> None:
        self.outbox.put(cast(asyncio.Transport, transport), data)


def test_what_is_put_together_leaves_together_with_the_next_turn() -> None:
    sending = _Sending()

    async def story() -> None:
        one, two = sending.transport("one"), sending.transport("two")
        sending.put(one, b"first")
        sending.put(two, b"second")
        sending.put(one, b"third")
        assert not sending.written
        await asyncio.sleep(0)
        assert sending.written == [("one", b"first"), ("two", b"second"), ("one", b"third")]

    asyncio.run(story())


def test_many_do_not_wait_for_the_turn() -> None:
    sending = _Sending()

    async def story() -> None:
        transport = sending.transport("one")
        for number in range(TOGETHER_MAX + 1):
            sending.put(transport, b"%d" % number)
        assert [data for _, data in sending.written] == [b"%d" % n for n in range(TOGETHER_MAX)]
        await asyncio.sleep(0)
        assert sending.written[-1] == ("one", b"%d" % TOGETHER_MAX)
        assert len(sending.written) == TOGETHER_MAX + 1

    asyncio.run(story())


def test_a_large_one_takes_those_before_it_along() -> None:
    sending = _Sending()

    async def story() -> None:
        sending.put(sending.transport("one"), b"small")
        sending.put(sending.transport("two"), bytes(LARGE_BYTES_MIN))
        assert [name for name, _ in sending.written] == ["one", "two"]
        sending.put(sending.transport("three"), b"small")
        await asyncio.sleep(0)
        assert [name for name, _ in sending.written] == ["one", "two", "three"]

    asyncio.run(story())


def test_a_client_that_is_gone_keeps_nobody_from_their_answer() -> None:
    sending = _Sending()

    async def story() -> None:
        gone = sending.transport("gone")
        sending.put(gone, b"first")
        sending.put(sending.transport("two"), b"second")
        gone.closed = True
        sending.outbox.flush()
        assert sending.written == [("two", b"second")]
        await asyncio.sleep(0)
        assert sending.written == [("two", b"second")]

    asyncio.run(story())


class _Hasty(_Transport):
    def get_extra_info(self, name: str) -> None:
        return None

    def abort(self) -> None:
        self._written.append((self._name, b"aborted"))
        self.closed = True


def test_an_answer_leaves_before_its_connection_is_given_up() -> None:
    with a_floor(lean=True) as floor:
        written: list[tuple[str, bytes]] = []

        async def story() -> None:
            protocol = floor.connections.protocol()
            protocol.connection_made(cast(asyncio.Transport, _Hasty("one", written)))
            too_many = request("/wait/first", method="GET") * (PIPELINED_MAX + 2)
            protocol.data_received(request(body=b"1") + too_many)
            protocol.connection_lost(None)

        floor.loop.run(story())
        assert [data[:12] for _, data in written] == [b"HTTP/1.1 200", b"aborted"]
