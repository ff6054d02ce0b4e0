"""Fresh examples for all property tests, in every run of the suite, within a bound of CPU time.

The seed stands in the head of the run and in the failure; `PERDURE_WANDERING_SEED` chooses it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.properties.wandering import ROOT, again

CPU_SECONDS = 30
PATIENCE_SECONDS = 900


def wander(*told: str, cwd: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "tests.properties.wandering", *told],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def test_fresh_examples_hold() -> None:
    seed = os.environ["PERDURE_WANDERING_SEED"]

    done = wander("--seed", seed, "--cpu-seconds", str(CPU_SECONDS))

    assert done.returncode == 0, (
        f"{again(int(seed))}\n{done.stdout[-20_000:]}{done.stderr[-2_000:]}"
    )


@pytest.mark.parametrize("seed", [1, 2])
def test_a_property_that_does_not_hold_is_found_and_told_with_its_seed(
    seed: int, tmp_path: Path
) -> None:
    module = tmp_path / "test_wrong.py"
    module.write_text(
        "from hypothesis import given, strategies\n\n"
        "@given(strategies.integers())\n"
        "def test_wrong(number: int) -> None:\n"
        "    assert number < 1_000\n\n"
        "def test_plain() -> None:\n"
        "    raise AssertionError('it is no property')\n"
    )

    done = wander("--seed", str(seed), str(module))

    assert done.returncode == 1
    assert f"--seed {seed}" in done.stdout
    assert "1 failed, 1 deselected" in done.stdout, done.stdout
    assert "reproduce_failure" in done.stdout


def test_nothing_is_begun_when_the_time_is_used_up(tmp_path: Path) -> None:
    module = tmp_path / "test_wrong.py"
    module.write_text(
        "from hypothesis import given, strategies\n\n"
        "@given(strategies.integers())\n"
        "def test_wrong(number: int) -> None:\n"
        "    assert number < 1_000\n"
    )

    done = wander("--seed", "1", "--cpu-seconds", "0", str(module))

    assert done.returncode == 0
    assert "1 skipped" in done.stdout
