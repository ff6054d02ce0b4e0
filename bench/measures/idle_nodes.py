"""(j) how many queries two nodes send when ten thousand polls wait and nothing happens.

The nodes reach their database through a proxy that counts what they send, so that nothing which the
database does for itself is counted, and nothing is estimated.
"""

import asyncio
import time
from dataclasses import replace
from typing import Final

from bench.measures.parked import parking, polls_allowed, settle
from bench.report import Figure, at_most
from bench.setup import Setup
from tests.support.pgwire import EXECUTE, QUERY
from tests.support.proxy import Proxy

POLLS: Final = 10_000
NODES: Final = 2


async def measure(setup: Setup) -> list[Figure]:
    """Statements per second over both nodes, with half of the polls parked on each."""
    polls = polls_allowed(setup.pick(POLLS, 1000))
    seconds, windows = setup.pick(10, 5), setup.pick(3, 2)
    async with setup.store() as store:
        with Proxy(store.url) as proxy:
            async with (
                setup.nodes(replace(store, url=proxy.url), NODES) as (first, second),
                parking(first, polls // NODES) as one,
                parking(second, polls // NODES) as two,
            ):
                await settle(first)
                await settle(second)
                rates = [await _rate(proxy, seconds) for _ in range(windows)]
                early = one.answered + two.answered
    note = f"{early:,} polls answered early" if early else f"{windows} × {seconds} s"
    label = f"{polls:,} parked polls over {NODES} nodes, statements"
    return [Figure("j", label, "per s", tuple(rates), at_most(2), note)]


async def _rate(proxy: Proxy, seconds: float) -> float:
    started_at, before = time.perf_counter(), _statements(proxy)
    await asyncio.sleep(seconds)
    return (_statements(proxy) - before) / (time.perf_counter() - started_at)


def _statements(proxy: Proxy) -> int:
    return proxy.counts[QUERY] + proxy.counts[EXECUTE]
