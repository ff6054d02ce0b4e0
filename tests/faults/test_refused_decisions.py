"""People and a disk that refuses: what was not acknowledged did not happen."""

from pathlib import Path

import apsw

from perdure.store.sqlite.store import SqliteStore
from tests.store.refusing import refusing_commits
from tests.support.http import a_wire
from tests.support.runner import a_runner, op, rows, settled, start, workflow


def test_what_the_disk_refuses_is_neither_decided_nor_judged(tmp_path: Path) -> None:
    with a_wire(tmp_path) as wire:
        runner = a_runner(wire, workflow("order"))
        run_id = start(wire, "order", session="s")
        runner.next().found(op("Approval", "ok", tool="pay"))
        settled(wire, run_id, "needs_attention")
        (asked,) = rows(wire, "/approvals")
        decision = (f"/approvals/{asked['id']}/decision", {"status": "approved"})
        score = (f"/runs/{run_id}/scores", {"name": "q", "value": 1})
        store = wire.server.store
        assert isinstance(store, SqliteStore)

        with refusing_commits(store, apsw.FullError("database or disk is full")):
            for path, body in (decision, score):
                wire.call("POST", path, body).refused(503, "storage_full")

        assert rows(wire, "/approvals?status=pending") == [asked]
        assert rows(wire, f"/runs/{run_id}/scores") == []
        assert runner.has_nothing()
        for path, body in (score, decision):
            wire.call("POST", path, body).ok()
        invoke = runner.next()
        assert invoke.memo("ok") == {
            "data": {"status": "approved", "args": None, "decidedBy": "anonymous"}
        }
        invoke.returned()
        settled(wire, run_id, "succeeded", scoreCount=1)
        (talk,) = rows(wire, "/sessions")
        assert (talk["runCount"], talk["statusCounts"]) == (1, {"succeeded": 1})
