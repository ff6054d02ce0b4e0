"""`python -m bench`: run the measurements against servers of our own and print a table."""

import argparse
import asyncio
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import uvloop

from bench import machine
from bench.measures import MEASURES, NODE_MEASURES, Measure
from bench.report import Figure, render_json, render_table
from bench.setup import Setup
from tests.support.postgres import Cluster

MEASURE_TIMEOUT: Final = 900.0
STORE_VARIABLE: Final = "PERDURE_BENCH_STORE"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; fails only when a measurement could not be taken."""
    options = _parse(arguments)
    machine.raise_file_limit()
    gc.disable()  # A pause of the client would look like one of the server; a bench is short.
    try:
        with _setups(options) as setups:
            facts = machine.describe(options.store, setups[0].cluster)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                figures, failed = runner.run(_measure_all(setups, options.only))
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
    parser.add_argument("--only", type=_letters, metavar="a,c")
    parser.add_argument(
        "--processes",
        type=_numbers,
        default=(1, 2),
        metavar="1,2",
        help="server processes on PostgreSQL: the whole table for each number",
    )
    parser.add_argument("--quick", action="store_true", help="small counts: does it run at all?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every sample here")
    options = parser.parse_args(arguments)
    several = options.store == "postgresql"
    if options.only is None:
        options.only = (*MEASURES, *(NODE_MEASURES if several else ()))
    if not several and (needing := [letter for letter in options.only if letter in NODE_MEASURES]):
        parser.error(f"bench {', '.join(needing)} needs several nodes: --store postgresql")
    return options


def _letters(text: str) -> tuple[str, ...]:
    letters = tuple(text.split(","))
    if unknown := [letter for letter in letters if letter not in {**MEASURES, **NODE_MEASURES}]:
        raise argparse.ArgumentTypeError(f"no such bench: {', '.join(unknown)}")
    return letters


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(int(number) for number in text.split(",") if number.isdecimal())
    if not numbers or 0 in numbers:
        raise argparse.ArgumentTypeError(f"not numbers of processes: {text}")
    return numbers


@contextmanager
def _setups(options: argparse.Namespace) -> Iterator[list[Setup]]:
    """One setup per table, on a database of our own unless the environment names one."""
    if options.store == "sqlite":
        yield [Setup(options.quick)]
    elif url := os.environ.get(STORE_VARIABLE):
        yield [Setup(options.quick, number, external_url=url) for number in options.processes]
    else:
        with Cluster(durable=True) as cluster:
            yield [Setup(options.quick, number, cluster) for number in options.processes]


async def _measure_all(
    setups: Sequence[Setup], letters: Sequence[str]
) -> tuple[list[Figure], bool]:
    _cancel_on_sigterm()
    taken: list[list[Figure] | None] = []
    for setup in setups:
        for letter in letters:
            if letter in MEASURES:
                figures = await _measure(letter, MEASURES[letter], setup)
                taken.append(figures and [_labelled(figure, setup) for figure in figures])
    for letter in letters:
        if letter in NODE_MEASURES:
            taken.append(await _measure(letter, NODE_MEASURES[letter], setups[0]))
    return [figure for figures in taken for figure in figures or ()], None in taken


async def _measure(letter: str, measure: Measure, setup: Setup) -> list[Figure] | None:
    """The figures of one measure; `None` when they could not be taken."""
    started_at = time.perf_counter()
    figures = None
    try:
        async with asyncio.timeout(MEASURE_TIMEOUT):
            figures = await measure(setup)
    except Exception:
        # One broken measurement must not cost the others; the exit code remembers it.
        print(f"bench {letter} failed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
    elapsed = time.perf_counter() - started_at
    print(f"bench {letter}{setup.label}: {elapsed:.1f} s", file=sys.stderr, flush=True)
    return figures


def _labelled(figure: Figure, setup: Setup) -> Figure:
    return replace(figure, name=figure.name + setup.label)


def _cancel_on_sigterm() -> None:
    # Like Ctrl-C: the servers and directories we own are cleaned up on the way out.
    main_task = asyncio.current_task()
    assert main_task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main_task.cancel)


if __name__ == "__main__":
    sys.exit(main())
