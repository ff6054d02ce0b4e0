"""For what might never end: a loop that turns for ever would take the whole suite with it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def must_end(*, seconds: float) -> Iterator[None]:
    """Fail where the code stands when the time is up, even in a loop that never waits."""

    def give_up(number: int, frame: FrameType | None) -> None:
        where = "" if frame is None else f" in {frame.f_code.co_qualname}"
        raise AssertionError(f"still turning after {seconds} s{where}")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
