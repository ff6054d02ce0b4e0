"""`python -m bench`: run the measurements against servers of our own and print a table."""

import argparse
import asyncio
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvloop

from bench import machine
from bench.measures import MEASURES
from bench.report import Figure, render_json, render_table
from bench.setup import Setup

MEASURE_TIMEOUT: Final = 900.0
STORE_VARIABLE: Final = "PERDURE_BENCH_STORE"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; fails only when a measurement could not be taken."""
    options = _parse(arguments)
    machine.raise_file_limit()
    setup = Setup(external_url=options.external_url, quick=options.quick)
    facts = machine.describe(options.store)
    gc.disable()  # A pause of the client would look like one of the server; a bench is short.
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            figures, failed = runner.run(_measure_all(setup, options.only))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted", file=sys.stderr)
        return 130
    print(f"\n{facts}{' (quick)' if options.quick else ''}\n")
    print(render_table(figures))
    if options.json is not None:
        options.json.write_bytes(render_json(facts, figures))
    return 1 if failed else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--store", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--only", type=_letters, default=tuple(MEASURES), metavar="a,c")
    parser.add_argument("--quick", action="store_true", help="small counts: does it run at all?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every sample here")
    options = parser.parse_args(arguments)
    options.external_url = None
    if options.store == "postgresql":
        options.external_url = os.environ.get(STORE_VARIABLE)
        if not options.external_url:
            parser.error(f"--store postgresql needs a URL in {STORE_VARIABLE}")
    return options


def _letters(text: str) -> tuple[str, ...]:
    letters = tuple(text.split(","))
    if unknown := [letter for letter in letters if letter not in MEASURES]:
        raise argparse.ArgumentTypeError(f"no such bench: {', '.join(unknown)}")
    return letters


async def _measure_all(setup: Setup, letters: Sequence[str]) -> tuple[list[Figure], bool]:
    _cancel_on_sigterm()
    figures: list[Figure] = []
    failed = False
    for letter in letters:
        started_at = time.perf_counter()
        try:
            async with asyncio.timeout(MEASURE_TIMEOUT):
                figures += await MEASURES[letter](setup)
        except Exception:
            # One broken measurement must not cost the others; the exit code remembers it.
            failed = True
            print(f"bench {letter} failed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        elapsed = time.perf_counter() - started_at
        print(f"bench {letter}: {elapsed:.1f} s", file=sys.stderr, flush=True)
    return figures, failed


def _cancel_on_sigterm() -> None:
    # Like Ctrl-C: the servers and directories we own are cleaned up on the way out.
    main_task = asyncio.current_task()
    assert main_task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main_task.cancel)


if __name__ == "__main__":
    sys.exit(main())
