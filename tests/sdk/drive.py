"""Play cases of the catalogue against a server, then replay every finished history cold.

    <sdk python> tests/sdk/drive.py --server URL --case NAME[,NAME…]|all [--dump DIR]

Prints one JSON line for each case and exits with 0 if all of them held. Cases run at the same time,
each on its own queue with its own worker; this process may be slow for seconds, so no case depends
on being quick.
"""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found"

import argparse
import asyncio
import contextlib
import contextvars
import json
import logging
import os
import sys
import time
import traceback
from collections import deque
from pathlib import Path
from typing import Any

from durable_workflow import Client

from tests.sdk import cases
from tests.sdk.catalogue import ALONE, BOUNDED, CASES, cases_of
from tests.sdk.parsing import take_turns
from tests.sdk.release import RELEASE
from tests.sdk.sdk_harness import Stage

CASE_TIMEOUT = 240.0
LOG_LINES_MAX = 60

_playing: contextvars.ContextVar[deque[str] | None] = contextvars.ContextVar(
    "playing", default=None
)


class CaseLog(logging.Handler):
    """Keeps the SDK's log lines with the case whose task wrote them."""

    def emit(self, record: logging.LogRecord) -> None:
        lines = _playing.get()
        if lines is not None:
            lines.append(self.format(record))


async def play(name: str, client: Client, dump: Path | None, patience: float) -> dict[str, Any]:
    """Play one case and replay its runs; the verdict."""
    log: deque[str] = deque(maxlen=LOG_LINES_MAX)
    _playing.set(log)
    declared = cases.DECLARED[name]
    stage = Stage(name, client, declared.programs)
    began = time.monotonic()
    verdict: dict[str, Any] = {"case": name, "ok": True}
    try:
        async with asyncio.timeout(patience):
            async with stage.worker() if declared.worker else contextlib.nullcontext():
                await declared.play(stage)
            await stage.replay(dump)
    except Exception:
        verdict |= {"ok": False, "error": traceback.format_exc(), "log": list(log)}
        verdict["histories"] = await last_words(stage)
    return verdict | {"seconds": round(time.monotonic() - began, 2), "events": stage.types}


async def last_words(stage: Stage) -> dict[str, list[str]]:
    """What the histories of a failed case told, as far as the server still answers."""
    told: dict[str, list[str]] = {}
    for run in stage.runs:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(5.0):
                told[run.workflow_id] = await run.kinds()
    return told


async def drive(
    names: list[str], server: str, dump: Path | None, at_once: int, patience: float
) -> bool:
    """Play the cases, at most `at_once` at a time; whether all of them held."""
    turn = asyncio.Semaphore(at_once)

    async def take_turn(name: str) -> bool:
        async with turn:
            verdict = await play(name, client, dump, patience)
        print(json.dumps(verdict), flush=True)
        return bool(verdict["ok"])

    async with Client(server, token="perdure") as client:
        # A task for each case: what the SDK logs is kept by the context that its task inherits.
        return all(await asyncio.gather(*(asyncio.create_task(take_turn(it)) for it in names)))


def main() -> int:
    take_turns()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True)
    parser.add_argument("--case", required=True, help="names joined by commas, or all")
    parser.add_argument("--dump", type=Path, help="a folder for the histories, as JSON")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--timeout", type=float, default=CASE_TIMEOUT, help="of each case")
    options = parser.parse_args()
    if options.at_once == 1:
        # Cases that are played alone have to be quick; where one may not say so, it stays as it is.
        with contextlib.suppress(PermissionError):
            os.nice(-10)

    catalogue = {case.name for case in (*CASES, *ALONE, *BOUNDED)}
    assert set(cases.DECLARED) == catalogue, "cases and catalogue differ"
    known = [case.name for case in cases_of(RELEASE)]
    names = known if options.case == "all" else options.case.split(",")
    unknown = set(names) - {*known, *(case.name for case in (*ALONE, *BOUNDED))}
    if unknown:
        parser.error(f"release {RELEASE} has no case {', '.join(sorted(unknown))}")
    if options.dump is not None:
        options.dump.mkdir(parents=True, exist_ok=True)

    handler = CaseLog()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    held = asyncio.run(drive(names, options.server, options.dump, options.at_once, options.timeout))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
