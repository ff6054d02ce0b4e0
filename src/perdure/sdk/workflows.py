"""Workflows and the app that they belong to."""

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from perdure.sdk.ai import Price
from perdure.sdk.context import Context
from perdure.sdk.duration import Duration, milliseconds
from perdure.sdk.limits import STEP_THREADS_DEFAULT
from perdure.sdk.policies import (
    Batch,
    Budget,
    Cap,
    Concurrency,
    Cron,
    Debounce,
    Event,
    Idempotency,
    Priority,
    RateLimit,
    Retry,
    Singleton,
    Throttle,
    TokenThrottle,
    Trigger,
    Wire,
)
from perdure.sdk.settings import resolve_count
from perdure.sdk.step_threads import StepThreads

Handler = Callable[[Context], Awaitable[object]]


@dataclass(slots=True)
class Workflow:
    """One workflow: its name, its handler and what it asks of the engine."""

    name: str
    handler: Handler
    registration: Wire = field(default_factory=dict)
    failure_handler: Handler | None = None

    def on_failure(self, handler: Handler) -> Handler:
        """Decorate the handler of a run of its own that follows a failed one; see `ctx.error`."""
        self.failure_handler = _checked(handler)
        return handler

    def wire(self) -> Wire:
        """The entry of a registration."""
        handled = {"onFailure": True} if self.failure_handler is not None else {}
        return {"name": self.name, **self.registration, **handled}

    def __call__(self, ctx: Context) -> Awaitable[object]:
        return self.handler(ctx)


def workflow(
    name: str,
    *,
    on: str | Trigger | Sequence[str | Trigger] | None = None,
    retry: Retry | None = None,
    concurrency: Concurrency | None = None,
    throttle: Throttle | None = None,
    rate_limit: RateLimit | None = None,
    debounce: Debounce | None = None,
    batch: Batch | None = None,
    priority: Priority | None = None,
    singleton: Singleton | None = None,
    idempotency: Idempotency | None = None,
    cap: Cap | None = None,
    budget: Budget | None = None,
    token_throttle: TokenThrottle | None = None,
    pass_timeout: Duration | None = None,
    on_failure: Handler | None = None,
    more: Mapping[str, object] | None = None,
) -> Callable[[Handler], Workflow]:
    """Decorate a handler as a workflow.

    `on` says what starts it: names of events, `Event`s and `Cron`s. Left out, it is the event of
    the workflow's own name; an empty list, nothing but a call. `pass_timeout` is how long a pass
    may take, with the bodies of its steps; a connected runner needs none. `more` is added to the
    registration as it is, for what the engine knows and this SDK does not.
    """
    if not name.strip():
        raise ValueError("a workflow needs a name")
    policies = {
        "retry": retry,
        "concurrency": concurrency,
        "throttle": throttle,
        "rateLimit": rate_limit,
        "debounce": debounce,
        "batch": batch,
        "priority": priority,
        "singleton": singleton,
        "idempotency": idempotency,
        "cap": cap,
        "budget": budget,
        "tokenThrottle": token_throttle,
    }
    registration: Wire = {} if on is None else {"triggers": [t.wire() for t in _triggers(on)]}
    registration |= {name: policy.wire() for name, policy in policies.items() if policy is not None}
    if pass_timeout is not None:
        registration["passTimeoutMs"] = milliseconds(pass_timeout)
    registration |= more or {}

    def decorate(handler: Handler) -> Workflow:
        failing = None if on_failure is None else _checked(on_failure)
        return Workflow(name, _checked(handler), registration, failing)

    return decorate


class App:
    """A named set of workflows: what a runner serves. `price` says what model calls cost.

    `threads` is how many plain functions of steps run at once.
    """

    def __init__(
        self,
        name: str | None = None,
        workflows: Sequence[Workflow] = (),
        *,
        price: Price | None = None,
        threads: int | None = None,
    ) -> None:
        self.name = name
        self.price = price
        self.threads = StepThreads(
            resolve_count(threads, "DURABLEX_STEP_THREADS", STEP_THREADS_DEFAULT)
        )
        self._workflows: dict[str, Workflow] = {}
        for each in workflows:
            self.add(each)

    def add(self, workflow: Workflow) -> Self:
        """Take in a workflow that was defined elsewhere."""
        if workflow.name in self._workflows:
            raise ValueError(f"there are two workflows named {workflow.name!r}")
        self._workflows[workflow.name] = workflow
        return self

    def workflow(
        self,
        name: str,
        *,
        on: str | Trigger | Sequence[str | Trigger] | None = None,
        retry: Retry | None = None,
        concurrency: Concurrency | None = None,
        throttle: Throttle | None = None,
        rate_limit: RateLimit | None = None,
        debounce: Debounce | None = None,
        batch: Batch | None = None,
        priority: Priority | None = None,
        singleton: Singleton | None = None,
        idempotency: Idempotency | None = None,
        cap: Cap | None = None,
        budget: Budget | None = None,
        token_throttle: TokenThrottle | None = None,
        pass_timeout: Duration | None = None,
        on_failure: Handler | None = None,
        more: Mapping[str, object] | None = None,
    ) -> Callable[[Handler], Workflow]:
        """Decorate a handler as a workflow of this app; options as for `workflow`."""
        make = workflow(
            name,
            on=on,
            retry=retry,
            concurrency=concurrency,
            throttle=throttle,
            rate_limit=rate_limit,
            debounce=debounce,
            batch=batch,
            priority=priority,
            singleton=singleton,
            idempotency=idempotency,
            cap=cap,
            budget=budget,
            token_throttle=token_throttle,
            pass_timeout=pass_timeout,
            on_failure=on_failure,
            more=more,
        )

        def decorate(handler: Handler) -> Workflow:
            made = make(handler)
            self.add(made)
            return made

        return decorate

    def find(self, name: str) -> Workflow | None:
        """The workflow of this name, if there is one."""
        return self._workflows.get(name)

    def __iter__(self) -> Iterator[Workflow]:
        return iter(self._workflows.values())


def _triggers(on: str | Trigger | Sequence[str | Trigger]) -> list[Trigger]:
    each = [on] if isinstance(on, str | Event | Cron) else on
    return [Event(trigger) if isinstance(trigger, str) else trigger for trigger in each]


def _checked(handler: Handler) -> Handler:
    if not inspect.iscoroutinefunction(handler) and not inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - an object may be a handler
    ):
        raise TypeError(f"{handler!r} must be an async function that takes the context")
    return handler
