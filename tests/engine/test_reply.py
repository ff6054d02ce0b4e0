"""A reply tells one listener at once, and everybody else as futures do."""

import asyncio
import logging
from typing import Any

import pytest

from perdure.engine.reply import Reply


def test_a_listener_is_told_before_the_loop_turns() -> None:
    async def story() -> list[Any]:
        told: list[Any] = []
        good, bad = Reply(), Reply()
        good.tell(lambda reply: told.append(reply.result()))
        bad.tell(lambda reply: told.append(str(reply.exception())))

        good.set_result("yes")
        bad.set_exception(ValueError("no"))
        return list(told)

    assert asyncio.run(story()) == ["yes", "no"]


def test_a_cancelled_reply_is_told_in_the_next_turn() -> None:
    """Who cancels may be anybody, in the middle of anything."""

    async def story() -> tuple[list[bool], list[bool]]:
        told: list[bool] = []
        reply = Reply()
        reply.tell(lambda reply: told.append(reply.cancelled()))
        assert reply.cancel()
        assert not reply.cancel(), "once is enough"
        at_once = list(told)
        await asyncio.sleep(0)
        return at_once, told

    assert asyncio.run(story()) == ([], [True])


def test_a_listener_that_breaks_does_not_reach_whoever_replies(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def listener(reply: Reply) -> None:
        raise ValueError("broken listener")

    async def story() -> str:
        reply = Reply()
        reply.tell(listener)
        reply.set_result("kept")
        return str(await reply)

    with caplog.at_level(logging.ERROR):
        assert asyncio.run(story()) == "kept"
    assert "broken listener" in caplog.text


def test_a_task_awaits_a_reply_like_any_future() -> None:
    async def story() -> list[Any]:
        replies = [Reply() for _ in range(3)]
        waiting = asyncio.gather(*replies, return_exceptions=True)
        await asyncio.sleep(0)
        replies[0].set_result(1)
        replies[1].set_exception(KeyError("two"))
        replies[2].cancel()
        return [type(found).__name__ for found in await waiting]

    assert asyncio.run(story()) == ["int", "KeyError", "CancelledError"]
