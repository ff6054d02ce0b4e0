"""Polls of one length share a timer, and each ends at its own time."""

import asyncio

from perdure.dispatch.poll_timeouts import TimeoutQueue


class _Patient:
    def __init__(self, name: str, told: list[str]) -> None:
        self.name = name
        self.ends_at = 0.0
        self.over = asyncio.Event()
        self._told = told

    def time_is_up(self) -> None:
        self._told.append(self.name)
        self.over.set()


def test_the_time_of_each_is_up_in_the_order_of_their_coming() -> None:
    async def story() -> None:
        told: list[str] = []
        patience = TimeoutQueue(0.01)
        first, second, third = (_Patient(name, told) for name in ("first", "second", "third"))
        patience.begin(first)
        patience.begin(second)
        await first.over.wait()
        patience.begin(third)
        await third.over.wait()
        assert told == ["first", "second", "third"]
        assert asyncio.get_running_loop().time() >= third.ends_at >= first.ends_at + 0.01

    asyncio.run(story())


def test_who_waits_no_longer_is_not_told() -> None:
    async def story() -> None:
        told: list[str] = []
        patience = TimeoutQueue(0.01)
        gone, staying = _Patient("gone", told), _Patient("staying", told)
        patience.begin(gone)
        patience.begin(staying)
        patience.end(gone)
        patience.end(gone)
        await staying.over.wait()
        assert told == ["staying"]

    asyncio.run(story())


def test_somebody_who_comes_when_all_are_gone_is_told_too() -> None:
    async def story() -> None:
        told: list[str] = []
        patience = TimeoutQueue(0.01)
        gone, late = _Patient("gone", told), _Patient("late", told)
        patience.begin(gone)
        patience.end(gone)
        # The timer of the one that left finds nobody, or the one that came meanwhile.
        patience.begin(late)
        await late.over.wait()
        later = _Patient("later", told)
        patience.begin(later)
        await later.over.wait()
        assert told == ["late", "later"]

    asyncio.run(story())
