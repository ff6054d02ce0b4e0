"""Two and three nodes with real workers, while nodes and database are killed: the short form.

`make torture` plays the same for as long as one likes.
"""

from pathlib import Path

import pytest

from tests.faults.chaos_round import play_round
from tests.sdk.catalogue import RELEASES
from tests.support.postgres import Cluster


@pytest.mark.parametrize("nodes", [2, 3])
def test_nothing_is_lost_however_nodes_and_database_die(
    nodes: int, postgres_cluster: Cluster, tmp_path: Path
) -> None:
    score = play_round(
        postgres_cluster,
        tmp_path,
        seed=nodes,
        nodes=nodes,
        runs=24,
        faults=5,
        release=RELEASES[-1],
    )

    assert score.is_good, f"{score}\n{logs(tmp_path)}"
    assert score.finished == score.acknowledged == 24
    assert score.kills > 0
    assert score.restarts > 0


def logs(folder: Path) -> str:
    return "\n".join(f"{path.name}:\n{path.read_text()[-3000:]}" for path in folder.glob("*.log"))
