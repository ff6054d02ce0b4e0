"""A good call of every route that changes something, and how it may go wrong."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.support.http import (
    CONTROL_VERSION,
    WORKER_VERSION,
    Answer,
    Json,
    Wire,
    avro,
    complete_workflow,
    contract_of,
    fail_workflow,
    schedule_activity,
)

Refusal = tuple[int, str]
Faults = tuple[tuple[Json, Refusal], ...]

INVALID: Refusal = (422, "validation_failed")
NO_INSTANCE: Refusal = (404, "instance_not_found")
NO_RUN: Refusal = (404, "run_not_found")
NO_TASK: Refusal = (404, "task_not_found")
NO_WORKER: Refusal = (412, "worker_not_registered")
OWNER: Refusal = (409, "lease_owner_mismatch")
ATTEMPT: Refusal = (409, "workflow_task_attempt_mismatch")
STALE_VERDICT: Refusal = (409, "stale_update_validation_completion")
NOTHING = "0" * 26

MALFORMED: dict[str, tuple[Any, str]] = {
    "another codec": ({"codec": "xml", "blob": "x"}, ".codec"),
    "no codec at all": ({"codec": None, "blob": "x"}, ".codec"),
    "a blob that is no text": ({"codec": "avro", "blob": 5}, ".blob"),
    "a blob that is an object": ({"codec": "avro", "blob": {}}, ".blob"),
    "a reference that is a text": ({"codec": "avro", "external_payload": "x"}, ".external_payload"),
    "an empty reference": ({"codec": "avro", "external_payload": {}}, ".external_payload"),
    "storage that is a list": ({"codec": "avro", "external_storage": []}, ".external_storage"),
}
"""What looks like an envelope and is none, and the member that is to blame."""


@dataclass(frozen=True)
class Call:
    """A call that would succeed, and what its faults are called."""

    path: str
    body: Json | None
    method: str = "POST"
    required: tuple[str, ...] = ()
    envelopes: tuple[str, ...] = ()
    """Dotted places where a payload may stand."""
    abroad: Refusal | None = None
    """From another namespace; None where the call means nothing that is here."""
    elsewhere: dict[str, Refusal] = field(default_factory=dict)
    """Paths to what is not there."""
    changed: Faults = ()
    """Members that make no sense here, and what they are refused with."""
    ended: Refusal | None = None
    """After the run was terminated."""
    late: Refusal | None = None
    """After the lease has ended, and nobody has noticed yet."""
    lost: Refusal | None = None
    """After everybody has."""
    answers: tuple[int, ...] = (200,)

    def send(self, wire: Wire, **headers: str) -> Answer:
        sent = {CONTROL_VERSION: "2", WORKER_VERSION: "1.20", **headers}
        return wire.call(self.method, f"/api{self.path}", self.body, headers=sent)


# Calls --------------------------------------------------------------------------------------------


def worker_body(worker_id: str) -> Json:
    contract = contract_of("Order", signals={"pay": 1}, updates={"add": 1}, validators=[])
    parameters = [{"name": "least", "position": 0, "required": True}]
    contract["Order"]["queries"] = ["total"]
    contract["Order"]["query_contracts"] = [{"name": "total", "parameters": parameters}]
    return {
        "worker_id": worker_id,
        "task_queue": "q",
        "runtime": "python",
        "supported_workflow_types": ["Order"],
        "supported_activity_types": ["charge"],
        "workflow_command_contracts": contract,
        "capabilities": ["query_tasks", "update_validation_tasks"],
    }


def make_start(wire: Wire) -> Call:
    return Call(
        "/workflows",
        {"workflow_type": "Order", "workflow_id": "new", "task_queue": "q", "input": avro([])},
        required=("workflow_type",),
        envelopes=("input",),
        changed=(
            ({"workflow_id": "order-1"}, (409, "duplicate_not_allowed")),
            ({"workflow_id": "no spaces"}, INVALID),
            ({"workflow_type": ""}, INVALID),
            ({"input": "text"}, INVALID),
            ({"memo": [1]}, INVALID),
            ({"duplicate_policy": "perhaps"}, INVALID),
            ({"search_attributes": {"a": {}}}, INVALID),
            ({"priority": 10}, INVALID),
            ({"retry_policy": {}}, INVALID),
        ),
        answers=(201,),
    )


def make_activity_start(wire: Wire) -> Call:
    return Call(
        "/activities",
        {"activity_type": "charge", "task_queue": "q", "input": avro([])},
        required=("activity_type",),
        envelopes=("input",),
        changed=(({"input": 5}, INVALID), ({"retry_policy": 5}, INVALID)),
        answers=(201,),
    )


def named(kind: str, name: str, status: int, **refusals: Refusal) -> Callable[..., Call]:
    """A signal, update or query: by workflow id, or pinned to its run."""

    def make(wire: Wire, *, pinned: bool) -> Call:
        run_id = wire.describe()["run_id"]
        base = f"/workflows/order-1/runs/{run_id}" if pinned else "/workflows/order-1"
        elsewhere = {
            f"/workflows/nobody/{kind}/{name}": NO_INSTANCE,
            f"/workflows/order-1/runs/{NOTHING}/{kind}/{name}": NO_RUN,
            f"{base}/{kind}/unknown": refusals["unknown"],
            f"{base}/{kind}/{'n' * 257}": INVALID,
            f"{base}/{kind}/line%0Abreak": INVALID,
        }
        if pinned:
            elsewhere[f"/workflows/order-1/runs/{older_run(wire)}/{kind}/{name}"] = NO_RUN
        return Call(
            f"{base}/{kind}/{name}",
            {"input": avro([1])},
            envelopes=("input",),
            abroad=NO_INSTANCE,
            elsewhere=elsewhere,
            changed=(
                ({"input": avro([])}, refusals["arguments"]),
                ({"input": avro([1, 2])}, refusals["arguments"]),
                ({"input": "text"}, INVALID),
                ({"input": 7}, INVALID),
            ),
            ended=refusals["ended"],
            answers=(status,),
        )

    return make


def older_run(wire: Wire) -> str:
    """A run of another workflow id."""
    return str(wire.start("other-order", task_queue="elsewhere")["run_id"])


make_signal = named(
    "signal",
    "pay",
    202,
    unknown=(404, "unknown_signal"),
    arguments=(422, "invalid_signal_arguments"),
    ended=(409, "run_not_active"),
)
make_update = named(
    "update",
    "add",
    202,
    unknown=(409, "update_rejected"),
    arguments=(422, "invalid_update_arguments"),
    ended=(409, "update_rejected"),
)
make_query = named(
    "query",
    "total",
    200,
    unknown=(404, "rejected_unknown_query"),
    arguments=(422, "invalid_query_arguments"),
    ended=(409, "run_not_active"),
)


def stopping(verb: str, status: int = 200) -> Callable[..., Call]:
    def make(wire: Wire, *, pinned: bool) -> Call:
        run_id = wire.describe()["run_id"]
        base = f"/workflows/order-1/runs/{run_id}" if pinned else "/workflows/order-1"
        return Call(
            f"{base}/{verb}",
            {"reason": "enough"},
            abroad=NO_INSTANCE,
            elsewhere={
                f"/workflows/nobody/{verb}": NO_INSTANCE,
                f"/workflows/order-1/runs/{NOTHING}/{verb}": NO_RUN,
            },
            changed=(({"reason": 5}, INVALID), ({"reason": "r" * 1_001}, INVALID)),
            ended=(409, "run_not_active"),
            answers=(status,),
        )

    return make


def make_register(wire: Wire) -> Call:
    return Call(
        "/worker/register",
        worker_body("w9"),
        required=("task_queue", "runtime"),
        changed=(
            ({"task_queue": ""}, INVALID),
            ({"supported_workflow_types": "Order"}, INVALID),
            ({"workflow_command_contracts": [1]}, INVALID),
            ({"capabilities": [5]}, INVALID),
        ),
        answers=(201,),
    )


def make_beat(wire: Wire) -> Call:
    gone: Refusal = (404, "worker_not_registered")
    return Call(
        "/worker/heartbeat",
        {"worker_id": "w1"},
        required=("worker_id",),
        abroad=gone,
        changed=(({"worker_id": "nobody"}, gone), ({"task_slots": 5}, INVALID)),
    )


def make_goodbye(wire: Wire) -> Call:
    gone: Refusal = (404, "worker_not_found")
    elsewhere = {"/worker/registrations/nobody": gone}
    path = "/worker/registrations/w2"
    return Call(path, None, method="DELETE", abroad=gone, elsewhere=elsewhere)


def make_removal(wire: Wire) -> Call:
    gone: Refusal = (404, "worker_not_found")
    elsewhere = dict.fromkeys(("/workers/nobody", "/workers/%00", f"/workers/{'x' * 999}"), gone)
    return Call("/workers/w2", None, method="DELETE", abroad=gone, elsewhere=elsewhere)


def steering(verb: str) -> Callable[[Wire], Call]:
    """What operators want of build `b1` of queue `q`, which has a worker."""

    def make(wire: Wire) -> Call:
        unknown: Refusal = (409, "unknown_deployment")
        changed: list[tuple[Json, Refusal]] = [
            ({"build_id": 5}, INVALID),
            ({"build_id": "x" * 256}, INVALID),
            ({"build_id": ["b1"]}, INVALID),
        ]
        if verb == "promote":
            changed.append(({"build_id": "b2"}, unknown))
        return Call(
            f"/task-queues/q/build-ids/{verb}",
            {"build_id": "b1"},
            abroad=unknown if verb == "promote" else None,
            elsewhere={f"/task-queues/{'x' * 256}/build-ids/{verb}": INVALID},
            changed=tuple(changed),
        )

    return make


def make_fenced_goodbye(wire: Wire) -> Call:
    gone: Refusal = (404, "worker_not_found")
    token = wire.worker("/register", worker_body("w2")).ok(201)["registration_token"]
    return Call(
        "/worker/registrations/w2/deregister",
        {"registration_token": token},
        required=("registration_token",),
        abroad=gone,
        elsewhere={"/worker/registrations/nobody/deregister": gone},
        changed=(({"registration_token": "0" * 32}, (409, "worker_registration_replaced")),),
    )


def polling(kind: str) -> Callable[[Wire], Call]:
    def make(wire: Wire) -> Call:
        body = {"worker_id": "w1", "task_queue": "q", "timeout_seconds": 0}
        changed: list[tuple[Json, Refusal]] = [
            ({"worker_id": "nobody"}, NO_WORKER),
            ({"task_queue": "another"}, (409, "task_queue_mismatch")),
            ({"worker_id": "built", "build_id": "another"}, (409, "build_id_mismatch")),
            ({"timeout_seconds": -1}, INVALID),
            ({"timeout_seconds": "soon"}, INVALID),
        ]
        if kind == "workflow":
            changed += [({"task_kinds": ["dance"]}, INVALID), ({"task_kinds": []}, INVALID)]
        return Call(
            f"/worker/{kind}-tasks/poll",
            body,
            required=("worker_id", "task_queue"),
            abroad=NO_WORKER,
            changed=tuple(changed),
        )

    return make


def on_task(verb: str, **members: Any) -> Callable[[Wire], Call]:
    """A report on a leased workflow task."""

    def make(wire: Wire) -> Call:
        wire.signal("pay", input=avro([1]))
        task = wire.take()
        body = {"lease_owner": "w1", "workflow_task_attempt": 1, **members}
        malformed: Faults = {
            "complete": (
                ({"commands": [{"type": "dance"}]}, INVALID),
                ({"commands": [{}]}, INVALID),
                ({"commands": [5]}, INVALID),
                ({"commands": [{"type": "start_timer", "delay_seconds": -1}]}, INVALID),
                (
                    {"commands": [complete_workflow(), complete_workflow()]},
                    (409, "invalid_commands"),
                ),
            ),
            "fail": (({"failure": 5}, INVALID), ({"failure": {}}, INVALID)),
            "history": (
                ({"next_history_page_token": "nonsense"}, (400, "invalid_page_token")),
                ({"history_page_size": 0}, INVALID),
            ),
        }.get(verb, ())
        return Call(
            f"/worker/workflow-tasks/{task['task_id']}/{verb}",
            body,
            required=tuple(body),
            envelopes=("commands.0.arguments", "commands.1.result") if verb == "complete" else (),
            abroad=NO_TASK,
            elsewhere={
                f"/worker/workflow-tasks/nonsense/{verb}": NO_TASK,
                f"/worker/workflow-tasks/{NOTHING}-w1/{verb}": NO_TASK,
            },
            changed=(
                ({"lease_owner": "w2"}, OWNER),
                ({"workflow_task_attempt": 2}, ATTEMPT),
                ({"workflow_task_attempt": 0}, INVALID),
                ({"workflow_task_attempt": "first"}, INVALID),
                *malformed,
            ),
            ended=(409, "run_closed"),
            late=(409, "lease_expired"),
            lost=(409, "task_not_leased"),
        )

    return make


def on_attempt(verb: str, **members: Any) -> Callable[[Wire], Call]:
    """A report on a leased attempt of an activity."""

    def make(wire: Wire) -> Call:
        wire.signal("pay", input=avro([1]))
        wire.complete(wire.take(), schedule_activity(start_to_close_timeout=30))
        attempt = wire.take("activity")
        lease = {"lease_owner": "w1", "activity_attempt_id": attempt["activity_attempt_id"]}
        told = verb in ("status", "heartbeat")
        malformed: Faults = ()
        if verb == "fail":
            malformed = (({"failure": 5}, INVALID), ({"failure": {"message": 5}}, INVALID))
        elif verb == "heartbeat":
            malformed = (({"message": "m" * 281}, INVALID), ({"details": 5}, INVALID))
        return Call(
            f"/worker/activity-tasks/{attempt['task_id']}/{verb}",
            {**lease, **members},
            required=(*lease, *(name for name in members if name == "failure")),
            envelopes=("result",) if verb == "complete" else (),
            abroad=NO_TASK,
            elsewhere={
                f"/worker/activity-tasks/nonsense/{verb}": NO_TASK,
                f"/worker/activity-tasks/{NOTHING}-a1/{verb}": NO_TASK,
            },
            changed=(
                ({"lease_owner": "w2"}, OWNER),
                ({"activity_attempt_id": "nonsense"}, (404, "attempt_not_found")),
                ({"activity_attempt_id": 5}, INVALID),
                *malformed,
            ),
            ended=None if told else (409, "run_terminated"),
            # A late result is taken while nobody else has the work.
            lost=None if told else (409, "stale_attempt"),
        )

    return make


def on_validation(verb: str, **members: Any) -> Callable[[Wire], Call]:
    """A verdict on an update."""

    def make(wire: Wire) -> Call:
        wire.register_validator("w1")
        wire.update_later("add", input=avro([1]))
        task = wire.take_validation()
        body = {"lease_owner": "w1", "update_validation_attempt": 1, **members}
        gone: Refusal = (404, "update_validation_task_not_found")
        return Call(
            f"/worker/update-validation-tasks/{task['task_id']}/{verb}",
            body,
            required=tuple(body),
            abroad=gone,
            elsewhere={
                f"/worker/update-validation-tasks/nonsense/{verb}": gone,
                f"/worker/update-validation-tasks/{NOTHING}-v1/{verb}": gone,
            },
            changed=(
                ({"lease_owner": "w2"}, STALE_VERDICT),
                ({"update_validation_attempt": 2}, STALE_VERDICT),
                ({"update_validation_attempt": 0}, INVALID),
                *((({"failure": {}}, INVALID),) if verb == "reject" else ()),
            ),
            ended=(409, "update_validation_task_not_leased"),
            late=(409, "update_validation_lease_expired"),
            lost=(409, "update_validation_task_not_leased"),
        )

    return make


def on_query(verb: str, **members: Any) -> Callable[[Wire], Call]:
    """A report on a leased query."""

    def make(wire: Wire) -> Call:
        headers = {CONTROL_VERSION: "2"}
        path = "/api/workflows/order-1/query/total"
        wire.call_later("POST", path, {"input": avro([1])}, headers=headers)
        task = wire.take("query")
        lease = {"lease_owner": "w1", "query_task_attempt": 1}
        gone: Refusal = (404, "query_task_not_found")
        attempt: Refusal = (409, "query_task_attempt_mismatch")
        if verb == "status":
            base = f"/worker/query-tasks/{task['query_task_id']}/status"
            return Call(
                f"{base}?lease_owner=w1&query_task_attempt=1",
                None,
                method="GET",
                abroad=gone,
                elsewhere={
                    "/worker/query-tasks/no/status?lease_owner=w1&query_task_attempt=1": gone,
                    f"{base}?lease_owner=w2&query_task_attempt=1": OWNER,
                    f"{base}?lease_owner=w1&query_task_attempt=2": attempt,
                    f"{base}?lease_owner=w1&query_task_attempt=x": INVALID,
                    base: INVALID,
                },
            )
        return Call(
            f"/worker/query-tasks/{task['query_task_id']}/{verb}",
            {**lease, **members},
            required=(*lease, *(name for name in members if name == "failure")),
            envelopes=("result_envelope",) if verb == "complete" else (),
            abroad=gone,
            elsewhere={f"/worker/query-tasks/nonsense/{verb}": gone},
            changed=(
                ({"lease_owner": "w2"}, OWNER),
                ({"query_task_attempt": 2}, attempt),
                ({"query_task_attempt": 0}, INVALID),
            ),
            late=(409, "query_task_timed_out"),
            lost=(409, "query_task_timed_out"),
        )

    return make


def make_redrive(wire: Wire) -> Call:
    wire.signal("pay", input=avro([1]))
    wire.complete(wire.take(), fail_workflow())
    run_id = wire.describe()["run_id"]
    open_run = older_run(wire)
    return Call(
        f"/workflows/order-1/runs/{run_id}/redrive",
        {"request_id": "once"},
        abroad=NO_INSTANCE,
        elsewhere={
            f"/workflows/nobody/runs/{run_id}/redrive": NO_INSTANCE,
            f"/workflows/order-1/runs/{NOTHING}/redrive": NO_RUN,
            f"/workflows/order-1/runs/{open_run}/redrive": NO_RUN,
            f"/workflows/other-order/runs/{open_run}/redrive": (409, "run_not_failed"),
        },
        changed=(({"request_id": 5}, INVALID), ({"request_id": "r" * 256}, INVALID)),
        answers=(202,),
    )


def make_message(wire: Wire) -> Call:
    base = "/workflows/order-1/message-streams"
    return Call(
        f"{base}/orders/messages",
        {"message_id": "m", "input": avro([1])},
        required=("message_id",),
        envelopes=("input",),
        abroad=NO_INSTANCE,
        elsewhere={
            "/workflows/nobody/message-streams/orders/messages": NO_INSTANCE,
            f"{base}/{'n' * 129}/messages": (400, "invalid_stream_name"),
        },
        changed=(({"input": 5}, INVALID), ({"message_id": ""}, INVALID)),
        ended=(409, "run_not_active"),
        answers=(202,),
    )


def make_session(wire: Wire) -> Call:
    return Call(
        "/worker/sessions",
        {"worker_id": "w1", "session_id": "s", "lease_seconds": 60},
        required=("worker_id", "session_id"),
        abroad=NO_WORKER,
        changed=(
            ({"worker_id": "nobody"}, NO_WORKER),
            ({"queue": "another"}, (409, "session_queue_mismatch")),
            ({"requirements": ["gpu"]}, (409, "session_requirements_not_met")),
            ({"lease_seconds": 0}, INVALID),
            ({"requirements": "gpu"}, INVALID),
        ),
        answers=(201,),
    )


def on_session(method: str, path: str) -> Callable[[Wire], Call]:
    def make(wire: Wire) -> Call:
        gone: Refusal = (404, "session_not_found")
        make_session(wire).send(wire).ok(201)
        return Call(
            f"/worker/sessions/s{path}",
            {"worker_id": "w1"},
            method=method,
            required=("worker_id",),
            abroad=gone,
            elsewhere={f"/worker/sessions/unknown{path}": gone},
            changed=(
                ({"worker_id": "w2"}, (409, "session_owner_mismatch")),
                ({"worker_id": 5}, INVALID),
            ),
        )

    return make


NO_ENTRY: Refusal = (404, "service_entry_not_found")
NO_CALL: Refusal = (404, "service_call_not_found")
REJECTED: Refusal = (409, "service_call_rejected")
HANDLED: Json = {
    "handler_binding_kind": "workflow_run",
    "handler_binding": {"workflow_type": "Order", "task_queue": "elsewhere"},
}


def make_retention_pass(wire: Wire) -> Call:
    changed: list[Json] = [
        {"limit": 0},
        {"limit": 101},
        {"limit": "many"},
        {"run_ids": "all"},
        {"run_ids": [""]},
        {"run_ids": [5]},
        {"run_ids": ["x" * 129]},
        {"run_ids": ["x"] * 101},
    ]
    return Call(
        "/system/retention/pass",
        {"limit": 5, "run_ids": [NOTHING]},
        changed=tuple((members, INVALID) for members in changed),
    )


LEVELS = ("/service-endpoints/e", "/services/s", "/operations/o")


def offering(depth: int) -> Callable[[Wire], Call]:
    """A line of the catalogue; what stands above it is there."""

    def make(wire: Wire) -> Call:
        for upper in range(1, depth):
            wire.control("PUT", "".join(LEVELS[:upper]), {}).ok(201)
        path = "".join(LEVELS[:depth])
        elsewhere = {f"{path}%2F": INVALID, f"{path}%20x": INVALID, f"{path}{'x' * 128}": INVALID}
        if depth > 1:
            elsewhere[path.replace("/e/", "/unknown/")] = NO_ENTRY
        changed: Faults = (({"description": 5}, INVALID), ({"description": "d" * 1_001}, INVALID))
        if depth == 3:
            changed += (
                ({"handler_binding_kind": "dance"}, INVALID),
                ({"handler_binding": {}}, INVALID),
                ({"operation_mode": "later"}, INVALID),
                ({"boundary_policy": {}}, INVALID),
            )
        return Call(
            path,
            HANDLED if depth == 3 else {},
            method="PUT",
            required=tuple(HANDLED) if depth == 3 else (),
            abroad=NO_ENTRY if depth > 1 else None,
            elsewhere=elsewhere,
            changed=changed,
            answers=(201,),
        )

    return make


def withdrawing(depth: int) -> Callable[[Wire], Call]:
    def make(wire: Wire) -> Call:
        offering(depth)(wire).send(wire).ok(201)
        path = "".join(LEVELS[:depth])
        elsewhere = {f"{path}x": NO_ENTRY}
        return Call(path, None, method="DELETE", abroad=NO_ENTRY, elsewhere=elsewhere)

    return make


def make_execute(wire: Wire) -> Call:
    offering(3)(wire).send(wire).ok(201)
    path = "".join(LEVELS)
    return Call(
        f"{path}/execute",
        {"arguments": avro([1]), "wait_for": "accepted"},
        envelopes=("arguments",),
        abroad=REJECTED,
        elsewhere={f"{path}x/execute": REJECTED},
        changed=(
            ({"arguments": 5}, INVALID),
            ({"wait_for": "ever"}, INVALID),
            ({"mode_override": "later"}, INVALID),
            ({"target_workflow_instance_id": "order-1"}, REJECTED),
            ({"memo": [1]}, INVALID),
        ),
    )


def make_call_cancel(wire: Wire) -> Call:
    call_id = make_execute(wire).send(wire).ok()["service_call_id"]
    path = f"{''.join(LEVELS)}/service-calls"
    return Call(
        f"{path}/{call_id}/cancel",
        {"reason": "enough"},
        abroad=NO_CALL,
        elsewhere={f"{path}/{NOTHING}/cancel": NO_CALL},
        changed=(({"reason": 5}, INVALID), ({"reason": "r" * 1_001}, INVALID)),
    )


FAILURE = {"message": "no"}
COMMANDS = [schedule_activity(), complete_workflow()]

FLOW = "/api/workflows/{workflow_id}"
BASES = ((FLOW, False), (FLOW + "/runs/{run_id}", True))
TASK, ATTEMPT_OF = "/api/worker/workflow-tasks/{task_id}", "/api/worker/activity-tasks/{task_id}"
CATALOGUE = ("/service-endpoints/{endpoint}", "/services/{service}", "/operations/{operation}")
VERDICT = "/api/worker/update-validation-tasks/{task_id}"
QUERY = "/api/worker/query-tasks/{query_task_id}"

CALLS: dict[str, Callable[[Wire], Call]] = {
    "POST /api/workflows": make_start,
    "POST /api/activities": make_activity_start,
    **{
        f"POST {base}/{kind}/{{name}}": partial(make, pinned=pinned)
        for base, pinned in BASES
        for kind, make in (("signal", make_signal), ("update", make_update), ("query", make_query))
    },
    **{
        f"POST {base}/{verb}": partial(stopping(verb, status), pinned=pinned)
        for base, pinned in BASES
        for verb, status in (("cancel", 200), ("terminate", 200), ("request-cancellation", 202))
    },
    "POST /api/worker/register": make_register,
    "POST /api/worker/heartbeat": make_beat,
    "DELETE /api/worker/registrations/{worker_id}": make_goodbye,
    "POST /api/worker/registrations/{worker_id}/deregister": make_fenced_goodbye,
    "DELETE /api/workers/{worker_id}": make_removal,
    **{
        f"POST /api/task-queues/{{task_queue}}/build-ids/{verb}": steering(verb)
        for verb in ("drain", "resume", "promote")
    },
    **{
        f"POST /api/worker/{kind}-tasks/poll": polling(kind)
        for kind in ("workflow", "activity", "query", "update-validation")
    },
    f"POST {FLOW}/runs/{{run_id}}/redrive": make_redrive,
    "POST /api/system/retention/pass": make_retention_pass,
    f"POST {FLOW}/message-streams/{{stream_name}}/messages": make_message,
    **{
        f"{method} /api{''.join(CATALOGUE[:depth])}": make(depth)
        for depth in (1, 2, 3)
        for method, make in (("PUT", offering), ("DELETE", withdrawing))
    },
    f"POST /api{''.join(CATALOGUE)}/execute": make_execute,
    f"POST /api{''.join(CATALOGUE)}/service-calls/{{call_id}}/cancel": make_call_cancel,
    "POST /api/worker/sessions": make_session,
    "POST /api/worker/sessions/{session_id}/heartbeat": on_session("POST", "/heartbeat"),
    "DELETE /api/worker/sessions/{session_id}": on_session("DELETE", ""),
    f"POST {TASK}/history": on_task("history", next_history_page_token="MA=="),
    f"POST {TASK}/heartbeat": on_task("heartbeat"),
    f"POST {TASK}/complete": on_task("complete", commands=COMMANDS),
    f"POST {TASK}/fail": on_task("fail", failure=FAILURE),
    f"POST {ATTEMPT_OF}/status": on_attempt("status"),
    f"POST {ATTEMPT_OF}/heartbeat": on_attempt("heartbeat", details={"done": 1}),
    f"POST {ATTEMPT_OF}/renew-lease": on_attempt("renew-lease"),
    f"POST {ATTEMPT_OF}/complete": on_attempt("complete", result=avro("paid")),
    f"POST {ATTEMPT_OF}/fail": on_attempt("fail", failure=FAILURE),
    f"POST {VERDICT}/approve": on_validation("approve"),
    f"POST {VERDICT}/reject": on_validation("reject", failure=FAILURE),
    f"GET {QUERY}/status": on_query("status"),
    f"POST {QUERY}/complete": on_query("complete", result=None, result_envelope=avro(1)),
    f"POST {QUERY}/fail": on_query("fail", failure=FAILURE),
}
