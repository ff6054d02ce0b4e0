"""A load balancer in front of several nodes: every connection goes to one that answers."""

import asyncio
import contextlib
import random
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tests.support.pgwire import HOST, LoopbackServer

PIECE = 65_536


class Balancer:
    """One address for nodes that come and go. It knows nothing of HTTP."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = list(ports)
        self._server = LoopbackServer(self._serve, name="balancer")
        self._die = random.Random(0)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._server.port}"

    def __enter__(self) -> Self:
        self._server.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for port in self._die.sample(self._ports, len(self._ports)):
            with contextlib.suppress(OSError):
                node_reader, node_writer = await asyncio.open_connection(HOST, port)
                break
        else:
            return
        pumps = {
            asyncio.create_task(_pump(reader, node_writer)),
            asyncio.create_task(_pump(node_reader, writer)),
        }
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            node_writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(PIECE):
            writer.write(piece)
            await writer.drain()
