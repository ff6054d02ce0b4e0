"""A copy whose process is killed in the middle.

    python -m tests.store.dying_copy SOURCE TARGET PAGES

It dies when it is about to write the page after so many.
"""

import asyncio
import os
import signal
import sys
from typing import Any

from perdure.clock import SystemClock
from perdure.server.stores import make_end
from perdure.store.copies import copy


def main(source: str, target: str, pages: int) -> None:
    filled = make_end(target, clock=SystemClock())
    write_page, taken = filled.write_page, 0

    async def write_page_or_die(*page: Any) -> None:
        nonlocal taken
        if taken == pages:
            os.kill(os.getpid(), signal.SIGKILL)
        taken += 1
        await write_page(*page)

    setattr(filled, "write_page", write_page_or_die)  # noqa: B010 (mypy minds the plain way)
    asyncio.run(copy(make_end(source, clock=SystemClock()), filled))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
