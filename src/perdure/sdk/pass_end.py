"""Whether a handler waits for nothing but steps, so that its pass is over.

asyncio knows what every task awaits but has no word for it, so this reads what it keeps: the
future a task waits for, and inside compositions (gather, wait, task groups) what those wait for.
Timers around steps do not count: a local timeout measures work of this pass, and a step ends it.
What is not recognised counts as work outside, and the pass goes on. Decision 39 has the reasons.
"""

import asyncio
from asyncio import locks, queues, tasks
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

FREE = 0
"""Not stuck: about to run, or waiting for something outside."""


class StepFuture(asyncio.Future[Any]):
    """A step that this pass cannot finish: it has begun elsewhere, or is reported just now."""

    __slots__ = ("_on_awaited",)

    def __init__(self, *, loop: asyncio.AbstractEventLoop, on_awaited: Callable[[], None]) -> None:
        super().__init__(loop=loop)
        self._on_awaited = on_awaited

    def add_done_callback(self, fn: Callable[[Any], object], *, context: Any = None) -> None:
        """asyncio comes through here whenever somebody begins to wait for it."""
        super().add_done_callback(fn, context=context)
        self._on_awaited()


def stuck_levels(awaited: object, coroutine: object) -> int:
    """How many levels of waits lie between a coroutine and the steps that alone can wake it.

    1 is a step itself. News of a step need some turns of the loop for each level.
    """
    if isinstance(awaited, StepFuture):
        return 1
    if not isinstance(awaited, asyncio.Future) or awaited.done():
        return FREE
    if isinstance(awaited, asyncio.Task):
        levels = stuck_task_levels(awaited)
        return levels and levels + 1
    members = getattr(awaited, "_children", None)  # of a gather
    if members is None:
        members = _waited_for(awaited, coroutine)
    return FREE if members is None else _deepest(members)


def stuck_task_levels(task: "asyncio.Task[Any]") -> int:
    """The same for what a task awaits."""
    return stuck_levels(getattr(task, "_fut_waiter", None), task.get_coro())


def _deepest(members: Iterable[object]) -> int:
    deepest = 0
    for member in members:
        if isinstance(member, asyncio.Future) and not member.done():
            levels = stuck_levels(member, None)
            if not levels:
                return FREE
            deepest = max(deepest, levels)
    return deepest + 1


def _waited_for(awaited: "asyncio.Future[Any]", coroutine: object) -> Iterable[object] | None:
    """What a plain future stands for; None if it is somebody else's."""
    shielded = _shielded(awaited)
    if shielded is not None:
        return [shielded]
    waiting = _innermost(coroutine)
    frame = getattr(waiting, "cr_frame", None)
    if frame is None:
        return None
    names = frame.f_locals
    if frame.f_code is _WAIT:
        return list(names["fs"])
    if frame.f_code is _WAIT_FOR:
        return [names.get("fut")]
    if frame.f_code.co_name in ("__aexit__", "_aexit"):  # a task group, asyncio's or anyio's
        members = getattr(names.get("self"), "_tasks", None)
        return list(members) if isinstance(members, set) else None
    # A lock, an event, a queue: somebody of this pass will set it, or nobody before a step ends.
    return [] if frame.f_globals.get("__name__") in _BETWEEN_FELLOWS else None


def _shielded(awaited: "asyncio.Future[Any]") -> object | None:
    for callback, _ in getattr(awaited, "_callbacks", None) or ():
        if getattr(callback, "__qualname__", "") == "shield.<locals>._outer_done_callback":
            names = callback.__code__.co_freevars
            inner: object = callback.__closure__[names.index("inner")].cell_contents
            return inner
    return None


def _innermost(coroutine: object) -> object:
    """The coroutine at the end of a chain of awaits: the one that met the future."""
    while hasattr(inner := getattr(coroutine, "cr_await", None), "cr_frame"):
        coroutine = inner
    return coroutine


def _code(function: object) -> CodeType | None:
    return getattr(function, "__code__", None)


_WAIT = _code(getattr(tasks, "_wait", None))
_WAIT_FOR = _code(tasks.wait_for)
_BETWEEN_FELLOWS = {locks.__name__, queues.__name__}
