"""Round after round of faults over several nodes, until the time is up; prints a scoreboard.

A node is killed every few seconds, and PostgreSQL restarted every 5 to 20, for up to two.

    python -m tests.faults.torture [--minutes 10] [--seed N] [--release 2.12.0]

Ends with 1 at the first broken promise, and leaves the logs of that round where it says.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.chaos_round import Score, play_round
from tests.sdk.catalogue import RELEASES
from tests.support.postgres import Cluster


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None, help="of the first round")
    parser.add_argument("--release", default=RELEASES[-1], choices=RELEASES)
    parser.add_argument("--runs", type=int, default=120, help="workflows in each round")
    parser.add_argument("--faults", type=int, default=16, help="faults in each round")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    folder = Path(tempfile.mkdtemp(prefix="perdure-torture-"))
    total = Score()
    end = time.monotonic() + options.minutes * 60
    with Cluster(synchronous_commit="on") as cluster:
        while total.is_good and (time.monotonic() < end or not total.rounds):
            nodes = 2 + seed % 2
            print(f"round {total.rounds + 1}: seed {seed}, {nodes} nodes", flush=True)
            score = play_round(
                cluster,
                folder / str(seed),
                seed=seed,
                nodes=nodes,
                runs=options.runs,
                faults=options.faults,
                release=options.release,
            )
            print(
                f"  {score.kills} kills, {score.restarts} restarts, {score.finished} of "
                f"{score.acknowledged} finished, longest stall {score.longest_stall:.1f} s",
                flush=True,
            )
            total.add(score)
            seed += 1
    print(total)
    if not total.is_good:
        print(f"logs are in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
