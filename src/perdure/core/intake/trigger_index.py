"""The index of all event triggers of a namespace: which workflows an event starts."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from perdure.core.intake.definition import Workflow
from perdure.core.intake.expression import Event, judge
from perdure.core.intake.failures import FailedCondition, FailedConditions
from perdure.core.intake.trigger import canonical, is_reserved


class Registered(NamedTuple):
    """A workflow and the app that it belongs to."""

    app: str
    workflow: Workflow


class Matched(NamedTuple):
    """The workflows that an event starts, by name and then app, and the conditions that failed."""

    workflows: list[Registered]
    failed: FailedConditions


class TriggerIndex:
    """Every event trigger of one namespace, indexed by name.

    Immutable: it is rebuilt when a registration changes. An event costs one lookup per length of
    registered prefixes, however many workflows there are.
    """

    def __init__(self, registered: Iterable[Registered]) -> None:
        self._exact: dict[str, list[tuple[Registered, str | None]]] = {}
        self._prefixes: dict[str, list[tuple[Registered, str | None]]] = {}
        for one in registered:
            for trigger in one.workflow.triggers:
                if trigger.event is None:
                    continue
                if trigger.event.endswith("*"):
                    named = self._prefixes.setdefault(trigger.event[:-1], [])
                else:
                    named = self._exact.setdefault(canonical(trigger.event), [])
                named.append((one, trigger.condition))
        self._lengths = sorted({len(prefix) for prefix in self._prefixes})

    def find(self, event: Event, app: str | None) -> Matched:
        """The workflows that an event starts, each once; `app` narrows them, none is all.

        A condition that cannot be evaluated counts as false and is reported in `failed`.
        """
        chosen: dict[tuple[str, str], Registered] = {}
        failed = FailedConditions()
        for one, condition in self._named(event.name):
            identity = (one.workflow.name, one.app)
            if identity in chosen or app not in (None, one.app):
                continue
            if condition is not None:
                verdict = judge(condition, event)
                if verdict.failure:
                    name, app_name = identity
                    failed.add(
                        FailedCondition(
                            workflow=name,
                            app=app_name,
                            condition=condition,
                            reason=verdict.failure,
                        )
                    )
                if not verdict.holds:
                    continue
            chosen[identity] = one
        return Matched([chosen[identity] for identity in sorted(chosen)], failed)

    def _named(self, name: str) -> Iterator[tuple[Registered, str | None]]:
        yield from self._exact.get(canonical(name), ())
        if not is_reserved(name):
            for length in self._lengths:
                if length > len(name):
                    break
                yield from self._prefixes.get(name[:length], ())
