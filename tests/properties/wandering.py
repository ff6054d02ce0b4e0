"""Fresh examples for all property tests: one seed within a bound of CPU time, or many for minutes.

The suite plays the same examples in every run. This plays others, in an order that the seed
decides, and says how to play them again. What it finds becomes a frozen example: an `@example` of
the property, or a test of its own beside a state machine.

    python -m tests.properties.wandering --seed 7
    python -m tests.properties.wandering --minutes 30
"""

import argparse
import random
import secrets
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = ("tests/core", "tests/web", "tests/properties", "tests/sdk_runner", "tests/store")
SEEDS = 2**32


class Order:
    """Shuffles the tests, and begins no further one when the CPU time is used up."""

    def __init__(self, seed: int, cpu_seconds: float | None) -> None:
        self._random = random.Random(seed)
        self._cpu_seconds = cpu_seconds

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: item.nodeid)
        self._random.shuffle(items)

    def pytest_runtest_setup(self) -> None:
        if self._cpu_seconds is not None and time.process_time() > self._cpu_seconds:
            pytest.skip("the time for fresh examples is used up")


def again(seed: int) -> str:
    """How to play the examples of a seed once more."""
    return f"python -m tests.properties.wandering --seed {seed}"


def play(seed: int, *places: str, cpu_seconds: float | None = None) -> int:
    """Play all property tests with the examples of one seed; 0 if they hold."""
    told = [
        *("-q", "-m", "hypothesis", "-k", "not postgres", "-p", "no:cacheprovider"),
        *("-p", "tests.support.examples"),
        *("--hypothesis-profile=wandering", f"--hypothesis-seed={seed}", f"--rootdir={ROOT}"),
        *(str(ROOT / place) for place in places or PLACES),
    ]
    return int(pytest.main(told, plugins=[Order(seed, cpu_seconds)]))


def wander(seed: int, seconds: float) -> int:
    """Play seed after seed until the time is over or one of them fails."""
    until = time.monotonic() + seconds
    while True:
        print(f"seed {seed}: {again(seed)}", flush=True)
        # A process each, so that no round depends on the one before.
        command = [sys.executable, "-m", "tests.properties.wandering", "--seed", str(seed)]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        if code != 0 or time.monotonic() > until:
            return code
        seed = (seed + 1) % SEEDS


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description="fresh examples for all property tests")
    parser.add_argument("--seed", type=int, default=None, help="else chosen at random")
    parser.add_argument("--minutes", type=float, help="go on with the seeds behind it for so long")
    parser.add_argument("--cpu-seconds", type=float, help="begin no test after so much CPU time")
    parser.add_argument("places", nargs="*", help="folders or modules, else all")
    told = parser.parse_args()
    seed = secrets.randbelow(SEEDS) if told.seed is None else told.seed
    if told.minutes is not None:
        return wander(seed, told.minutes * 60)
    code = play(seed, *told.places, cpu_seconds=told.cpu_seconds)
    if code != 0:
        print(f"seed {seed} fails: {again(seed)}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
