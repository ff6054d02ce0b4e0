"""The bench still runs: what it drives changes often, and nobody waits ten minutes for it."""

import re
import subprocess
import sys
from pathlib import Path

from bench.measures import MEASURES, NODE_MEASURES

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| ([a-z]) +\| ([^|]+?) +\|", re.MULTILINE)


def test_the_page_of_figures_shows_the_bench_and_all_that_were_promised() -> None:
    shown = {letter for letter, _ in ROW.findall((ROOT / "docs" / "performance.md").read_text())}

    assert shown <= {*MEASURES, *NODE_MEASURES}
    assert shown >= set("abcdefg")


def test_the_bench_prints_its_table() -> None:
    command = [sys.executable, "-m", "bench", "--quick", "--only", "c"]

    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stderr
    page = {name for _, name in ROW.findall((ROOT / "docs" / "performance.md").read_text())}
    printed = {name for _, name in ROW.findall(ran.stdout)}
    assert printed == {"1 in flight, p50", "1 in flight, p99"} <= page
