"""Prepared local activities: a worker asks before it runs one."""

from typing import Any

from tests.support.http import Json, Wire, avro, complete_workflow, local_call
from tests.wire.proofs import proves

ABLE = [
    "cooperative_cancellation",
    "prepared_local_activities",
    "prepared_local_activity_groups",
    "prepared_local_activity_cancellation_policies",
]
DONE = {"outcome": "completed", "result": avro("done"), "payload_codec": "avro"}


def begin(wire: Wire) -> Json:
    wire.register(capabilities=ABLE)
    wire.start()
    return wire.take()


def prepare(wire: Wire, task: Json, sequence: int = 1, **members: Any) -> str:
    asked = {"sequence": sequence, "worker_attempt_id": "n", "descriptor": local_call(**members)}
    begun = wire.report(task, "local-activities/prepare", **asked).ok()
    assert begun["prepared"] is True
    return str(begun["activity_attempt_id"])


@proves("server.prepared_local_activities")
def a_worker_asks_before_it_runs_local_work(wire: Wire) -> None:
    task = begin(wire)
    attempt_id = prepare(wire, task)
    assert wire.report(task, f"local-activities/{attempt_id}/control").ok()["active"] is True
    wire.report(task, f"local-activities/{attempt_id}/outcome", report=DONE).ok()
    wire.complete(task, complete_workflow("done"))
    assert wire.describe()["output"] == "done"


@proves("server.prepared_local_activity_groups")
def a_list_of_local_work_is_opened_at_once(wire: Wire) -> None:
    task = begin(wire)
    paths = [
        {
            "parallel_group_id": "parallel-activities:1:2",
            "parallel_group_kind": "activity",
            "parallel_group_base_sequence": 1,
            "parallel_group_size": 2,
            "parallel_group_index": index,
        }
        for index in range(2)
    ]
    members = [
        local_call(type="prepare_local_activity", parallel_group_path=[path]) for path in paths
    ]
    base = {"checkpoint_id": "g", "start_sequence": 1, "commands": members}
    opened = wire.report(task, "local-activities/checkpoint-group", **base).ok()
    assert [local["sequence"] for local in opened["local_activities"]] == [1, 2]
    for sequence in (2, 1):
        attempt_id = prepare(wire, task, sequence)
        wire.report(task, f"local-activities/{attempt_id}/outcome", report=DONE).ok()
    wire.complete(task, complete_workflow())


@proves("server.prepared_local_activity_cancellation_policies")
def local_work_stops_by_its_policy(wire: Wire) -> None:
    for workflow_id, policy in (("order-1", "try_cancel"), ("b", "wait_cancellation_completed")):
        wire.register(capabilities=ABLE)
        wire.start(workflow_id)
        task = wire.take()
        attempt_id = prepare(wire, task, cancellation_policy=policy)
        path = f"/workflows/{workflow_id}/request-cancellation"
        asked = wire.control("POST", path, {}).ok(202)
        request_id = asked["cancellation_request"]["request_id"]
        attempt = f"local-activities/{attempt_id}"
        assert wire.report(task, f"{attempt}/control").ok()["fenced"] is True
        wire.report(task, f"{attempt}/acknowledge-cancellation", request_id=request_id).ok()
        call = {"request_id": request_id, "sequence": 1, "call_kind": "local_activity"}
        assert wire.report(task, "deliver-cancellation", **call).ok()["delivered"] is True
        wire.complete(task, complete_workflow())
