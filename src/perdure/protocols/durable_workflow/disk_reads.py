"""Disk reads in an asyncio task, for handlers that do not run in one."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def read_in_task(reading: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """Start a read in its own task; the caller awaits it at once."""
    return asyncio.get_running_loop().create_task(reading)
