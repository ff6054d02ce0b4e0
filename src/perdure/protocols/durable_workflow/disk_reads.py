"""Reading the disk in a task, as handlers without one must."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def apart(reading: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """A reading in a task of its own, to be awaited at once."""
    return asyncio.get_running_loop().create_task(reading)
