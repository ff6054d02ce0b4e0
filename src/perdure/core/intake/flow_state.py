"""Stored states of flow control: one small record per workflow, policy and scope.

`record_key` is the key of the record, `encode_state` its content, and `due_at` the instant at which
the engine must process it.
"""

import hashlib
from typing import Literal, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from perdure.core import limits
from perdure.core.intake.definition import Flow

Policy = Literal[
    "concurrency",
    "throttle",
    "rateLimit",
    "debounce",
    "batch",
    "singleton",
    "idempotency",
    "budget",
    "tokenThrottle",
]
_ADMISSION: tuple[tuple[Policy, str], ...] = (
    ("idempotency", "idempotency"),
    ("rateLimit", "rate_limit"),
    ("singleton", "singleton"),
    ("debounce", "debounce"),
    ("batch", "batch"),
    ("throttle", "throttle"),
)
_CREATION: tuple[Policy, ...] = ("singleton", "throttle")


class Arrival(Struct, frozen=True):
    """A trigger as its run receives it."""

    name: str
    data: bytes
    """JSON; empty for null."""
    event_id: str | None = None
    """The logged event; None for manual starts and ticks of schedules."""
    trigger: str = "event"
    pin: str = ""
    session: str | None = None
    tags: dict[str, str] = {}


class Gate(NamedTuple):
    """A policy and the scope in which it counts; the empty scope is the whole workflow."""

    policy: Policy
    scope: str


class Seen(Struct, frozen=True, tag="seen"):
    """An idempotency key that was used."""

    until: int


class RateLog(Struct, frozen=True, tag="rate"):
    """When triggers were admitted: instants and how many, oldest first."""

    entries: tuple[tuple[int, int], ...]
    until: int


class SingletonHolder(Struct, frozen=True, tag="holder"):
    """The open run of a singleton."""

    run_id: str


class Buffer(Struct, frozen=True, tag="buffer"):
    """Triggers that wait together: the last one of a debounce, all of a batch."""

    arrivals: tuple[Arrival, ...]
    opened_at: int
    fire_at: int
    count: int
    """How many triggers arrived, including those that a debounce discarded."""

    @property
    def size(self) -> int:
        return sum(len(arrival.data) for arrival in self.arrivals)


class Pace(Struct, frozen=True, tag="pace"):
    """The earliest free slot of a throttle."""

    free_at: int


class Slots(Struct, frozen=True, tag="slots"):
    """How many slots of a workflow are in use, and how many runs wait for one."""

    in_use: int = 0
    waiting: int = 0


State = Seen | RateLog | SingletonHolder | Buffer | Pace | Slots


class States(Protocol):
    """The states of a workflow. A missing state is None."""

    def get(self, gate: Gate, /) -> State | None: ...


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[State] = msgspec.msgpack.Decoder(State)
encode_state = _encoder.encode
decode_state = _decoder.decode


def due_at(state: State | None) -> int | None:
    """When a state must be processed: to flush a buffer, or to remove an expired state."""
    match state:
        case Seen(until) | RateLog(_, until):
            return until
        case Buffer(fire_at=at) | Pace(at):
            return at
        case SingletonHolder() | Slots() | None:
            return None


def scope_of(key: str | None, data: object) -> str:
    """The scope of a dotted path into decoded data: the JSON text of the value there.

    Without a path, or without a scalar at the path, it is the whole workflow.
    """
    if key is None:
        return ""
    for part in key.split("."):
        if not isinstance(data, dict) or part not in data:
            return ""
        data = data[part]
    if data is None or not isinstance(data, str | int | float):
        return ""
    return msgspec.json.encode(data).decode()


def record_key(app: str, workflow: str, gate: Gate) -> str:
    """The key of a state among those of its namespace."""
    return f"{record_prefix(app, workflow)}{gate.policy}/{part_of(gate.scope)}"


def record_prefix(app: str, workflow: str) -> str:
    """The common prefix of the keys of all states of a workflow."""
    return f"{part_of(app)}/{part_of(workflow)}/"


def part_of(text: str) -> str:
    """A text as one part of a key. Long ones become a digest, as index keys are bounded."""
    if len(text.encode("utf-8", "surrogatepass")) > limits.RECORD_KEY_PART_BYTES_MAX:
        return "~" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return text.replace("%", "%25").replace("/", "%2F").replace("~", "%7E")


def gates_of(flow: Flow, data: object) -> list[Gate]:
    """The gates whose states decide on a trigger with this decoded data."""
    return [
        Gate(policy, scope_of(setting.key, data))
        for policy, field in _ADMISSION
        if (setting := getattr(flow, field)) is not None
    ]


def buffer_gates(flow: Flow, buffer: Buffer | None) -> list[Gate]:
    """The gates whose states decide on the run of a buffer."""
    if buffer is None:
        return []
    data = _decoded(buffer.arrivals[0])
    return [gate for gate in gates_of(flow, data) if gate.policy in _CREATION]


def _decoded(arrival: Arrival) -> object:
    data: object = msgspec.json.decode(arrival.data) if arrival.data else None
    return data
