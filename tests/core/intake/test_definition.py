"""What an application registers is taken as a whole or refused by the path of what is wrong."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core import limits
from perdure.core.intake.definition import (
    _KNOWN,
    Concurrency,
    Flow,
    Manifest,
    Retry,
    Singleton,
    Throttle,
    Trigger,
    Workflow,
    read_manifest,
)
from perdure.core.rejection import InvalidRequest

FIXTURES = Path(__file__).parents[2] / "fixtures" / "durablex"


def registered(*workflows: object, **fields: object) -> Manifest:
    body = {"app": "shop", "url": "http://127.0.0.1:1/invoke", "workflows": list(workflows)}
    return read_manifest(body | fields, with_url=True)


def workflow(**fields: object) -> Workflow:
    return registered({"name": "w"} | fields).workflows[0]


def refusal(*workflows: object, **fields: object) -> str:
    with pytest.raises(InvalidRequest) as refused:
        registered(*workflows, **fields)
    return refused.value.message


def test_the_samples_of_the_contract_are_taken() -> None:
    samples = json.loads((FIXTURES / "wire-samples.json").read_text())["register"]
    served = read_manifest(samples["http"], with_url=True)
    assert (served.app, served.runner_id) == ("order-app", "node-7")
    assert served.url == "http://localhost:6773/invoke"
    assert served.runner.language == "python"
    [order] = served.workflows
    assert order.triggers == (Trigger(event="order.created"),)
    assert order.retry == Retry(max_attempts=3)
    assert order.flow == Flow(concurrency=Concurrency(limit=5, key="accountId"))

    connected = read_manifest(samples["connect"]["payload"], with_url=False)
    assert connected.url is None
    assert connected.runner.sdk_name == "perdure"
    assert connected.runner.key_fingerprint is None
    fulfill, plain = connected.workflows
    assert fulfill.on_failure
    assert fulfill.triggers == (
        Trigger(event="order.created", condition="event.data.total > 1"),
        Trigger(cron="TZ=UTC 0 9 * * *"),
    )
    assert fulfill.crons == ["TZ=UTC 0 9 * * *"]
    assert fulfill.flow.throttle == Throttle(limit=1, per_ms=1_000)
    assert plain == Workflow(name="plain", triggers=(Trigger(event="plain"),))


def test_without_triggers_the_name_is_the_trigger_and_with_none_nothing_is() -> None:
    assert workflow().triggers == (Trigger(event="w"),)
    assert workflow(triggers=None).triggers == (Trigger(event="w"),)
    assert workflow(triggers=[]).triggers == ()


def test_unknown_knobs_are_kept_and_nothing_else_follows() -> None:
    taken = workflow(newKnob={"a": [1]}, singleton={"mode": "cancel", "future": 1})
    assert taken.unknown == {"newKnob": {"a": [1]}}
    assert taken.flow.singleton == Singleton(mode="cancel")


def test_a_definition_is_stored_and_read_back_as_it_was() -> None:
    taken = workflow(
        triggers=[{"event": "a.*", "if": "event.data.n > 1"}, {"cron": "@hourly"}],
        rateLimit={"limit": 2, "perMs": 5, "key": "a.b"},
        idempotency={},
        onFailure=True,
        more=1,
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(taken), type=Workflow) == taken
    shown = json.loads(msgspec.json.encode(taken.flow))
    assert shown == {"rateLimit": {"limit": 2, "perMs": 5, "key": "a.b"}, "idempotency": {}}
    assert json.loads(msgspec.json.encode(taken.triggers)) == [
        {"event": "a.*", "if": "event.data.n > 1"},
        {"cron": "@hourly"},
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": " "}, "workflows[0].name must not be blank"),
        ({"name": "x" * 256}, "workflows[0].name must have at most 255 characters"),
        ({"name": 7}, "workflows[0].name is wrong: expected str, got int"),
        ({"triggers": {}}, "workflows[0].triggers is wrong: expected array | null, got object"),
        ({"triggers": [{}]}, "workflows[0].triggers[0] needs either event or cron"),
        (
            {"triggers": [{"event": "a", "cron": "@daily"}]},
            "workflows[0].triggers[0] needs either event or cron",
        ),
        (
            {"triggers": [{"event": "a"}, {"event": "a*b"}]},
            "workflows[0].triggers[1].event may have one * and only at its end",
        ),
        (
            {"triggers": [{"event": "a**"}]},
            "workflows[0].triggers[0].event may have one * and only at its end",
        ),
        ({"triggers": [{"event": ""}]}, "workflows[0].triggers[0].event must not be blank"),
        (
            {"triggers": [{"event": "a", "if": "event."}]},
            "workflows[0].triggers[0].if cannot be compiled, at 1:7: Syntax error: "
            "no viable alternative at input '.'",
        ),
        (
            {"triggers": [{"cron": "@daily", "if": "true"}]},
            "workflows[0].triggers[0].if goes with an event, not with a cron",
        ),
        ({"triggers": [{"cron": "* * * *"}]}, "workflows[0].triggers[0].cron needs five fields"),
        ({"retry": {"maxAttempts": 0}}, "workflows[0].retry.maxAttempts is wrong: expected int >="),
        ({"retry": {"maxAttempts": True}}, "workflows[0].retry.maxAttempts is wrong: expected int"),
        ({"retry": {"backoff": "odd"}}, "workflows[0].retry.backoff is wrong: invalid enum value"),
        ({"concurrency": {}}, "workflows[0].concurrency is wrong: object missing required field"),
        ({"concurrency": {"limit": 0}}, "workflows[0].concurrency.limit is wrong"),
        ({"throttle": {"limit": 1, "perMs": -5}}, "workflows[0].throttle.perMs is wrong"),
        ({"rateLimit": {"limit": 1.5, "perMs": 5}}, "workflows[0].rateLimit.limit is wrong"),
        ({"debounce": {"periodMs": "5"}}, "workflows[0].debounce.periodMs is wrong"),
        ({"batch": {"maxSize": 0, "timeoutMs": 5}}, "workflows[0].batch.maxSize is wrong"),
        ({"singleton": {"mode": "both"}}, "workflows[0].singleton.mode is wrong"),
        ({"idempotency": {"key": ""}}, "workflows[0].idempotency.key must not be blank"),
        (
            {"idempotency": {"key": "a..b"}},
            "workflows[0].idempotency.key must be a dotted path such as user.id",
        ),
        (
            {"debounce": {"periodMs": 5}, "batch": {"maxSize": 2, "timeoutMs": 5}},
            "workflows[0].batch cannot be combined with debounce",
        ),
        ({"onFailure": "yes"}, "workflows[0].onFailure is wrong: expected bool | null, got str"),
        ({"knob": "x" * 20_000}, "workflows[0] has more than 16384 bytes of unknown fields"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(fields: dict[str, object], message: str) -> None:
    assert refusal({"name": "w"} | fields).startswith(message)


def test_the_frame_of_a_manifest_is_checked() -> None:
    assert refusal(app=" ") == "app must not be blank"
    assert refusal(app=None).startswith("app is wrong")
    assert refusal(runner="").startswith("runner must not be blank")
    assert refusal(url=None) == "url is required"
    assert refusal(url="ftp://x") == "url must be an http or https URL"
    assert refusal(language="x" * 256).startswith("language must have at most")
    assert refusal(keyFingerprint="x" * 256).startswith("keyFingerprint must have at most")
    assert refusal("w").startswith("workflows[0] is wrong: expected object, got str")
    assert refusal({"name": "a"}, {"name": "b"}, {"name": "a"}) == "workflows[2].name repeats 'a'"
    with pytest.raises(InvalidRequest) as refused:
        read_manifest([], with_url=True)
    assert refused.value.message == "the body is wrong: expected object, got array"
    many = [{"name": str(n)} for n in range(limits.WORKFLOWS_PER_MANIFEST_MAX + 1)]
    assert refusal(*many) == "workflows holds at most 1000"
    triggers = [{"event": "a"}] * (limits.TRIGGERS_PER_WORKFLOW_MAX + 1)
    assert refusal({"name": "w", "triggers": triggers}) == "workflows[0].triggers holds at most 64"


def test_a_manifest_without_workflows_is_a_manifest() -> None:
    assert registered().workflows == ()


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
KNOBS = st.sampled_from(sorted(_KNOWN))
FIELDS = st.sampled_from(["limit", "perMs", "key", "periodMs", "maxSize", "timeoutMs", "mode"])
ENTRY = st.dictionaries(KNOBS, JSON | st.dictionaries(FIELDS, JSON), max_size=5)


@given(JSON | st.fixed_dictionaries({"app": JSON, "workflows": st.lists(ENTRY, max_size=2)}))
def test_any_json_is_taken_or_refused(body: object) -> None:
    try:
        manifest = read_manifest(body, with_url=False)
    except InvalidRequest:
        return
    assert isinstance(manifest, Manifest)


def test_the_delays_of_the_contract() -> None:
    for case in json.loads((FIXTURES / "retry-backoff.json").read_text())["cases"]:
        retry = msgspec.convert(case["policy"], Retry)
        for attempt, delay in case["delayMsAfterFailedAttempt"].items():
            assert retry.delay_ms(int(attempt)) == delay, case


def test_a_delay_never_overflows() -> None:
    retry = Retry(max_attempts=10_000, backoff="exponential", initial_delay_ms=1)
    assert retry.delay_ms(10_000) == limits.POLICY_MILLISECONDS_MAX
