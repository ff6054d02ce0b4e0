"""Activities that the programs call: small, and able to fail, stall and report on demand."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

from durable_workflow import ActivityCancelled, NonRetryableError, activity

from tests.sdk.programs.beacons import beacon

_CALLS: Counter[str] = Counter()


class NoLuck(Exception):
    """A failure that another attempt may cure."""


class BadCard(Exception):
    """A failure that retry policies list as hopeless."""


@activity.defn(name="greet")
def greet(name: str) -> str:
    return f"hello, {name}"


@activity.defn(name="add-one")
def add_one(number: int) -> int:
    return number + 1


@activity.defn(name="echo")
def echo(value: Any) -> Any:
    return value


@activity.defn(name="repeat")
def repeat(text: str, times: int) -> str:
    return text * times


@activity.defn(name="echo-slowly")
async def echo_slowly(value: Any, seconds: float) -> Any:
    await asyncio.sleep(seconds)
    return value


@activity.defn(name="wait-for-light")
async def wait_for_light(name: str) -> None:
    """Work that lasts until the driver, in the same process, has seen what it wants to see."""
    await beacon(name).wait()


@activity.defn(name="echo-after-light")
async def echo_after_light(value: Any, name: str) -> Any:
    """The same, with an answer."""
    await beacon(name).wait()
    return value


@activity.defn(name="where-am-i")
def where_am_i() -> str:
    """The queue whose worker runs this."""
    return activity.context().info.task_queue


@activity.defn(name="count-calls")
def count_calls(key: str) -> int:
    """How often this process was asked for `key`."""
    _CALLS[key] += 1
    return _CALLS[key]


@activity.defn(name="flaky")
def flaky(failures: int) -> int:
    """Fail the first attempts, then answer with the number of the attempt."""
    attempt_number = activity.context().info.attempt_number
    if attempt_number <= failures:
        raise NoLuck(f"no luck on attempt {attempt_number}")
    return attempt_number


@activity.defn(name="charge")
def charge(card: str) -> str:
    if card == "stolen":
        raise BadCard("the card is stolen")
    if card == "unreadable":
        raise NonRetryableError("the card cannot be read")
    return f"charged {card}"


@activity.defn(name="charge-after-light")
async def charge_after_light(card: str, name: str) -> str:
    """The same, once the driver has seen what it wants to see."""
    await beacon(name).wait()
    return charge(card)


@activity.defn(name="stall")
async def stall(attempts: int, seconds: float) -> str:
    """Take `seconds` on the first attempts, answer at once on the next."""
    attempt_number = activity.context().info.attempt_number
    if attempt_number <= attempts:
        await asyncio.sleep(seconds)
        return f"late on attempt {attempt_number}"
    return f"in time on attempt {attempt_number}"


@activity.defn(name="beat")
async def beat(beats: int, pause: float, silent_attempts: int, light: str = "") -> int:
    """Heartbeat steadily; the first attempts beat once and fall silent until the driver says so."""
    context = activity.context()
    if context.info.attempt_number <= silent_attempts:
        await context.heartbeat({"done": 0})
        await beacon(light).wait()
        return -1
    for done in range(1, beats + 1):
        await context.heartbeat({"done": done, "of": beats})
        await asyncio.sleep(pause)
    return beats


@activity.defn(name="watch")
async def watch(light: str) -> str:
    """Say that one is there, then wait until somebody puts a file."""
    context = activity.context()
    await context.heartbeat({"watching": light})
    while not Path(light).exists():  # noqa: ASYNC110, ASYNC240 (nobody would tell us)
        await asyncio.sleep(0.05)
    return Path(light).name


@activity.defn(name="work-until-cancelled")
async def work_until_cancelled(key: str) -> str:
    """Heartbeat until the server says that the run was cancelled."""
    beacon(f"{key}:working").set()
    try:
        while True:
            await activity.context().heartbeat({"still": "working"})
            await asyncio.sleep(0.05)
    except ActivityCancelled:
        beacon(f"{key}:stopped").set()
        raise


@activity.defn(name="stay")
async def stay(key: str) -> None:
    """Heartbeat until the server says that nobody waits any more, at most for a few seconds."""
    try:
        for _ in range(100):
            await activity.context().heartbeat({"still": "here"})
            await asyncio.sleep(0.1)
    except ActivityCancelled:
        beacon(f"{key}:stopped").set()
        raise


@activity.defn(name="stay-here")
async def stay_here(key: str) -> None:
    """Tell the driver, then heartbeat until the worker is told to stop."""
    beacon(f"{key}:here").set()
    await stay(key)


ACTIVITIES = (
    greet,
    add_one,
    echo,
    repeat,
    echo_slowly,
    wait_for_light,
    echo_after_light,
    where_am_i,
    count_calls,
    flaky,
    charge,
    charge_after_light,
    stall,
    beat,
    work_until_cancelled,
    watch,
    stay,
    stay_here,
)
WORKFLOWS = ()
