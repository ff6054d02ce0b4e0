"""Workflow definitions: the manifest that an application registers, validated as a whole.

`read_manifest` takes decoded JSON and either returns a `Manifest` or raises an `InvalidRequest`
that names the wrong field and the reason; a manifest is never accepted in part. Members have Python
names here and are encoded under their wire names (`per_ms` is `perMs`), so that a policy can be
stored and sent as it is.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from perdure.core import limits
from perdure.core.intake import cron, expression, trigger
from perdure.core.rejection import InvalidRequest

T = TypeVar("T")
Backoff = Literal["fixed", "linear", "exponential"]
Milliseconds = Annotated[int, Meta(ge=1, le=limits.POLICY_MILLISECONDS_MAX)]
PassMilliseconds = Annotated[int, Meta(ge=1, le=limits.PASS_TIMEOUT_MAX // (limits.SECOND // 1000))]
Count = Annotated[int, Meta(ge=1, le=limits.POLICY_COUNT_MAX)]
Delay = Annotated[int, Meta(ge=0, le=limits.POLICY_MILLISECONDS_MAX)]
Amount = Annotated[float, Meta(ge=0)]


class Policy(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A policy of a workflow. Unknown members are ignored, wrong ones refused."""


class Retry(Policy, frozen=True):
    """How often a failing step is tried, and the delay in between."""

    max_attempts: Annotated[int, Meta(ge=1, le=limits.STEP_ATTEMPTS_MAX)] = 1
    backoff: Backoff = "fixed"
    initial_delay_ms: Delay = 1_000
    max_delay_ms: Delay | None = None

    def delay_ms(self, failed_attempt: int) -> int:
        """How long to wait after a failed attempt, counted from 1. There is no jitter."""
        if self.backoff == "exponential":
            # The shift is bounded, so that the number stays small after ten thousand attempts.
            delay = self.initial_delay_ms << min(failed_attempt - 1, 64)
        else:
            delay = self.initial_delay_ms * (failed_attempt if self.backoff == "linear" else 1)
        most = limits.POLICY_MILLISECONDS_MAX if self.max_delay_ms is None else self.max_delay_ms
        return min(delay, most)


class Trigger(Policy, frozen=True):
    """A trigger of a workflow: an event or a schedule, never both."""

    event: str | None = None
    """An exact name, or a prefix that ends in `*`."""
    condition: str | None = msgspec.field(default=None, name="if")
    """A CEL expression over the event."""
    cron: str | None = None


class Concurrency(Policy, frozen=True):
    limit: Count
    key: str | None = None


class Throttle(Policy, frozen=True):
    limit: Count
    per_ms: Milliseconds
    key: str | None = None


class RateLimit(Policy, frozen=True):
    limit: Count
    per_ms: Milliseconds
    key: str | None = None


class Debounce(Policy, frozen=True):
    period_ms: Milliseconds
    key: str | None = None


class Batch(Policy, frozen=True):
    max_size: Annotated[int, Meta(ge=1, le=limits.BATCH_EVENTS_MAX)]
    timeout_ms: Milliseconds
    key: str | None = None


class Priority(Policy, frozen=True):
    shift_ms: Annotated[
        int, Meta(ge=-limits.POLICY_MILLISECONDS_MAX, le=limits.POLICY_MILLISECONDS_MAX)
    ]


class Singleton(Policy, frozen=True):
    key: str | None = None
    mode: Literal["skip", "cancel"] = "skip"


class Idempotency(Policy, frozen=True):
    key: str | None = None
    period_ms: Milliseconds = 86_400_000


class Cap(Policy, frozen=True):
    """What the model calls of one run may cost. The runner enforces it."""

    max_cost: Amount | None = None
    max_tokens: Count | None = None


class Budget(Policy, frozen=True):
    """What the model calls of a workflow may cost in a window."""

    window_ms: Milliseconds
    max_cost: Amount | None = None
    max_tokens: Count | None = None
    warn_at_pct: Amount | None = None


class TokenThrottle(Policy, frozen=True):
    tokens: Count
    per_ms: Milliseconds
    key: str | None = None


class Flow(Policy, frozen=True):
    """All flow control of one workflow; what is absent is off."""

    concurrency: Concurrency | None = None
    throttle: Throttle | None = None
    rate_limit: RateLimit | None = None
    debounce: Debounce | None = None
    batch: Batch | None = None
    priority: Priority | None = None
    singleton: Singleton | None = None
    idempotency: Idempotency | None = None
    cap: Cap | None = None
    budget: Budget | None = None
    token_throttle: TokenThrottle | None = None


class Workflow(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One definition, identified by its app and its name."""

    name: str
    triggers: tuple[Trigger, ...] = ()
    retry: Retry = Retry()
    on_failure: bool = False
    flow: Flow = Flow()
    pass_timeout_ms: PassMilliseconds | None = None
    """How long a pass of it may take."""
    unknown: dict[str, Any] = {}
    """Members that this version does not know, stored as sent and without effect."""

    @property
    def crons(self) -> list[str]:
        """Every schedule once, in the order of the manifest."""
        return list({trigger.cron: None for trigger in self.triggers if trigger.cron is not None})


class Runner(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A runner's description of itself. Members that it did not send stay absent."""

    runtime: str | None = None
    language: str | None = None
    version: str | None = None
    sdk_name: str | None = None
    framework: str | None = None
    region: str | None = None
    key_fingerprint: str | None = None
    offload: bool | None = None
    """Whether it uploads large results of steps, and fetches them by reference."""


class Manifest(Struct, frozen=True, kw_only=True):
    """A registration."""

    app: str
    runner_id: str | None
    url: str | None
    runner: Runner
    workflows: tuple[Workflow, ...]
    instance: str = ""
    """The process, if the runner names it: several may share one URL."""


class Departure(Struct, frozen=True, kw_only=True):
    """The notice of a runner with an HTTP endpoint that it stops."""

    app: str
    runner_id: str
    url: str
    instance: str = ""


# The wire ----------------------------------------------------------------------------------------


class _Entry(Struct, rename="camel"):
    name: str
    triggers: list[Trigger] | UnsetType | None = UNSET
    retry: Retry | None = None
    on_failure: bool | None = None
    concurrency: Concurrency | None = None
    throttle: Throttle | None = None
    rate_limit: RateLimit | None = None
    debounce: Debounce | None = None
    batch: Batch | None = None
    priority: Priority | None = None
    singleton: Singleton | None = None
    idempotency: Idempotency | None = None
    cap: Cap | None = None
    budget: Budget | None = None
    token_throttle: TokenThrottle | None = None
    pass_timeout_ms: PassMilliseconds | None = None


class _Registration(Struct, rename="camel"):
    app: str
    workflows: list[dict[str, Any]]
    runner: str | None = None
    url: str | None = None
    runtime: str | None = None
    language: str | None = None
    version: str | None = None
    sdk_name: str | None = None
    framework: str | None = None
    region: str | None = None
    key_fingerprint: str | None = None
    offload: bool | None = None
    instance: str | None = None


class _Departure(Struct):
    app: str
    url: str
    runner: str | None = None
    instance: str | None = None


_KNOWN = frozenset(_Entry.__struct_encode_fields__)
_POLICIES = Flow.__struct_fields__
_MAPS = frozenset({"retry", *Flow.__struct_encode_fields__})
_RUNNER_TEXTS = tuple(name for name in Runner.__struct_fields__ if name != "offload")


def read_manifest(body: object, *, with_url: bool) -> Manifest:
    """The registration in a decoded body. A runner on a socket has no URL.

    The protocol version is checked elsewhere (see `version.py`).
    """
    manifest = _convert(body, _Registration, "")
    _require_name(manifest.app, "app")
    if manifest.runner is not None:
        _require_name(manifest.runner, "runner")
    for field in _RUNNER_TEXTS:
        if (value := getattr(manifest, field)) is not None:
            _require_length(
                value, msgspec.structs.fields(Runner)[_RUNNER_TEXTS.index(field)].encode_name
            )
    if len(manifest.workflows) > limits.WORKFLOWS_PER_MANIFEST_MAX:
        raise wrong("workflows", f"holds at most {limits.WORKFLOWS_PER_MANIFEST_MAX}")
    workflows = tuple(
        _workflow(entry, f"workflows[{place}]") for place, entry in enumerate(manifest.workflows)
    )
    _require_distinct(workflows)
    return Manifest(
        app=manifest.app,
        runner_id=manifest.runner,
        url=_url(manifest.url) if with_url else None,
        runner=Runner(
            **{field: getattr(manifest, field) for field in _RUNNER_TEXTS},
            offload=manifest.offload or None,
        ),
        workflows=workflows,
        instance=_instance(manifest.instance),
    )


def read_departure(body: object) -> Departure:
    """The departure in a decoded body."""
    departure = _convert(body, _Departure, "")
    _require_name(departure.app, "app")
    if departure.runner is not None:
        _require_name(departure.runner, "runner")
    url = _url(departure.url)
    return Departure(
        app=departure.app,
        runner_id=departure.runner or url,
        url=url,
        instance=_instance(departure.instance),
    )


def _instance(sent: str | None) -> str:
    if sent is not None:
        _require_length(sent, "instance")
    return sent or ""


def read_workflow(entry: object, path: str = "workflow") -> Workflow:
    """One definition, in its manifest form."""
    return _workflow(entry, path)


def wrong(path: str, why: str) -> InvalidRequest:
    """The refusal of one field; the message includes its path."""
    return InvalidRequest(path or "body", f"{path or 'the body'} {why}", says_where=True)


def _workflow(entry: object, path: str) -> Workflow:
    if isinstance(entry, dict):
        # An empty policy from a client that encodes empty maps as `[]`.
        entry = {
            knob: {} if value == [] and knob in _MAPS else value for knob, value in entry.items()
        }
    definition = _convert(entry, _Entry, path)
    assert isinstance(entry, dict)
    _require_name(definition.name, f"{path}.name")
    flow = Flow(**{policy: getattr(definition, policy) for policy in _POLICIES})
    _require_flow(flow, path)
    unknown = {knob: value for knob, value in entry.items() if knob not in _KNOWN}
    if len(msgspec.json.encode(unknown)) > limits.UNKNOWN_KNOBS_BYTES_MAX:
        raise wrong(path, f"has more than {limits.UNKNOWN_KNOBS_BYTES_MAX} bytes of unknown fields")
    return Workflow(
        name=definition.name,
        triggers=_triggers(definition, path),
        retry=definition.retry or Retry(),
        on_failure=bool(definition.on_failure),
        flow=flow,
        pass_timeout_ms=definition.pass_timeout_ms,
        unknown=unknown,
    )


def _triggers(definition: _Entry, path: str) -> tuple[Trigger, ...]:
    if definition.triggers is UNSET or definition.triggers is None:
        return (Trigger(event=definition.name),)
    if len(definition.triggers) > limits.TRIGGERS_PER_WORKFLOW_MAX:
        raise wrong(f"{path}.triggers", f"holds at most {limits.TRIGGERS_PER_WORKFLOW_MAX}")
    for place, one in enumerate(definition.triggers):
        _require_trigger(one, f"{path}.triggers[{place}]")
    return tuple(definition.triggers)


def _require_trigger(declared: Trigger, path: str) -> None:
    if (declared.event is None) == (declared.cron is None):
        raise wrong(path, "needs either event or cron")
    if declared.cron is not None:
        if declared.condition is not None:
            raise wrong(f"{path}.if", "goes with an event, not with a cron")
        _require(cron.parse, declared.cron, f"{path}.cron")
    if declared.event is not None:
        _require_name(declared.event, f"{path}.event")
        _require(trigger.require_pattern, declared.event, f"{path}.event")
    if declared.condition is not None:
        _require(expression.compile_filter, declared.condition, f"{path}.if")


def _require_flow(flow: Flow, path: str) -> None:
    if flow.debounce is not None and flow.batch is not None:
        raise wrong(f"{path}.batch", "cannot be combined with debounce")
    for place, policy in zip(Flow.__struct_encode_fields__, _POLICIES, strict=True):
        key = getattr(getattr(flow, policy), "key", None)
        if key is not None:
            _require_key(key, f"{path}.{place}.key")


def _require_key(key: str, path: str) -> None:
    _require_name(key, path)
    if not all(key.split(".")):
        raise wrong(path, "must be a dotted path such as user.id")


def _require_name(name: str, path: str) -> None:
    if not name.strip():
        raise wrong(path, "must not be blank")
    _require_length(name, path)


def _require_length(text: str, path: str) -> None:
    if len(text) > limits.NAME_LENGTH_MAX:
        raise wrong(path, f"must have at most {limits.NAME_LENGTH_MAX} characters")


def _require_distinct(workflows: tuple[Workflow, ...]) -> None:
    seen: set[str] = set()
    for place, workflow in enumerate(workflows):
        if workflow.name in seen:
            raise wrong(f"workflows[{place}].name", f"repeats {workflow.name!r}")
        seen.add(workflow.name)


def _url(url: str | None) -> str:
    if url is None:
        raise wrong("url", "is required")
    if len(url) > limits.URL_LENGTH_MAX:
        raise wrong("url", f"must have at most {limits.URL_LENGTH_MAX} characters")
    if not url.startswith(("http://", "https://")) or any(c <= " " for c in url):
        raise wrong("url", "must be an http or https URL")
    return url


def _require(check: Callable[[str], object], value: str, path: str) -> None:
    try:
        check(value)
    except ValueError as error:
        raise wrong(path, str(error)) from None


def _convert(body: object, kind: type[T], path: str) -> T:
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        why, _, where = str(error).partition(" - at `$")
        raise wrong(_joined(path, where.rstrip("`")), _decoder_message(why)) from None


def _joined(path: str, below: str) -> str:
    return f"{path}{below}".lstrip(".")


def _decoder_message(why: str) -> str:
    """A decoder message in our form: `is wrong: expected int, got str`."""
    why = why.replace("`", "")
    return f"is wrong: {why[:1].lower()}{why[1:]}"
