"""Any story of runs, in any order of events, keeps the promises of the design.

Hypothesis starts, polls, completes, repeats, fails, signals, updates, judges, stops, skips time and
crashes. After
every step the runs are held against an independent fold of their histories. At the end of each
story everybody does what the runs say they wait for, and every run must come to its end.

`PERDURE_PROPERTY_EXAMPLES=2000` looks longer, with fresh chance every time.
"""

import os
from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from perdure.core.limits import SECOND
from perdure.core.rejection import Rejection
from perdure.core.run.activity import Reported
from perdure.core.run.cancellation import is_unseen
from perdure.core.run.cause import Cause, next_cause
from perdure.core.run.command import (
    CancelSelectionOperation,
    Command,
    StartChild,
)
from perdure.core.run.completion import WAITING_FOR_HISTORY, TaskReport
from perdure.core.run.deadline import next_due
from perdure.core.run.lease import TaskState
from perdure.core.run.operation import Activity, ConditionWait
from perdure.core.run.state import WORKFLOW_TASK, Run, TaskKind, activity_task_id
from perdure.core.run.status import TRANSITIONS, RunStatus
from perdure.engine.activity_tasks import AttemptRef
from tests.properties.answers import batches, outcomes
from tests.properties.fold import Fold
from tests.properties.standing import (
    KINDS,
    asked_again,
    calls_of,
    is_asked,
    is_delayed,
    is_judged,
    is_leased,
    open_updates,
    overdue,
    ready_places,
)
from tests.support.commands import (
    Member,
    activity,
    cancel_member,
    complete_run,
    complete_update,
    condition,
    fail_update,
    in_selection,
)
from tests.support.rule_harness import (
    SDK_0_4,
    Story,
    event_of,
    picture,
    ref_of,
    report_of,
    validator,
)

T = TypeVar("T")
RUNS_MAX = 12

UPDATE_OUTCOMES: list[Callable[[Run], Command]] = [complete_update, complete_update, fail_update]

owners = st.sampled_from(["w1", "w2"])


class RunMachine(RuleBasedStateMachine):
    """Clients, workers, time and a murderer."""

    def __init__(self) -> None:
        super().__init__()
        self.story = Story(seed=7)
        self.folds: dict[str, Fold] = {}
        self.statuses: dict[str, RunStatus] = {}
        self.reports: list[tuple[str, TaskReport, list[Command]]] = []
        self.attempts: list[AttemptRef] = []
        self.unseen: set[str] = set()
        """Attempts that came back before any worker saw them."""
        self.signals: list[tuple[str, str]] = []
        self.updates: list[tuple[str, str]] = []
        self.refused: set[str] = set()
        self.verdicts: list[tuple[str, TaskReport, bool]] = []
        self.outcomes: list[tuple[AttemptRef, bool]] = []
        self.asked: dict[str, str] = {}
        self.started = 0
        self.stopped = 0

    # Who is there --------------------------------------------------------------------------------

    @property
    def runs(self) -> dict[str, Run]:
        return self.story.known

    def open_runs(self) -> list[str]:
        return [run_id for run_id, run in self.runs.items() if not run.is_closed]

    def ready(self) -> list[tuple[str, int]]:
        return [(i, place) for i, run in self.runs.items() for place in ready_places(run)]

    def leased(self) -> list[str]:
        return [i for i, run in self.runs.items() if is_leased(run) and not is_judged(run)]

    def judged(self) -> list[str]:
        """Runs with a validation that somebody has or may take."""
        return sorted(
            run_id
            for run_id, run in self.runs.items()
            if is_judged(run) and (is_leased(run) or WORKFLOW_TASK in ready_places(run))
        )

    def leased_activities(self) -> list[tuple[str, int]]:
        return [
            (run_id, sequence)
            for run_id, run in self.runs.items()
            for sequence, operation in run.operations.items()
            if isinstance(operation, Activity) and operation.lease is not None
        ]

    def ask(self, act: Callable[[], T]) -> T | None:
        """Do something that may be refused; a refusal changes nothing at all."""
        before = self.story.pictures()
        try:
            return act()
        except Rejection:
            assert self.story.pictures() == before
            return None

    # Clients -------------------------------------------------------------------------------------

    @initialize(plain=st.booleans())
    def begin(self, plain: bool) -> None:
        self.start(0, None, plain)

    @precondition(lambda self: self.started < 3)
    @rule(
        delay=st.sampled_from([0, 0, 5]),
        timeout=st.sampled_from([None, None, 100]),
        plain=st.booleans(),
        late=st.sampled_from([None, None, 2]),
        together=st.sampled_from([None, None, 3]),
    )
    def start(
        self,
        delay: int,
        timeout: int | None,
        plain: bool,
        late: int | None = None,
        together: int | None = None,
    ) -> None:
        self.started += 1
        wanted: dict[str, Any] = {"plain": b'["a"]'} if plain else {}
        self.story.start(
            f"order-{self.started}",
            start_delay_seconds=delay,
            run_timeout_seconds=timeout,
            memo={"from": "shop"},
            late_signal_tasks_max=late,
            signals_per_task_max=together,
            **wanted,
        )

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), name=st.sampled_from(["approve", "reject"]))
    def signal(self, data: st.DataObject, name: str) -> None:
        run = self.runs[data.draw(st.sampled_from(sorted(self.runs)))]
        busy, before = run.task is not None, list(run.events)
        sent = self.ask(lambda: self.story.signal(run, name))
        if sent is not None:
            self.signals.append((run.run_id, sent.command_id))
            busy = busy and (is_leased(run) or run.signals_per_task_max is None)
            assert not busy or run.events == before, "a signal waits for its turn"

    @precondition(lambda self: self.runs)
    @rule(
        data=st.data(),
        name=st.sampled_from(["add", "close"]),
        validated=st.booleans(),
        request_id=st.sampled_from([None, None, "r1", "r2"]),
    )
    def update(
        self, data: st.DataObject, name: str, validated: bool, request_id: str | None
    ) -> None:
        run = self.runs[data.draw(st.sampled_from(sorted(self.runs)))]
        busy, before = run.task is not None, list(run.events)
        workers = [validator()] if validated else []
        sent = self.ask(
            lambda: self.story.update(
                run, name, workers=workers, request_id=request_id, digest=f"d-{name}"
            )
        )
        if sent is None:
            return
        known = (sent.run_id, sent.update_id) in self.updates
        assert known == sent.retained, "a repeat finds the first one"
        if not known:
            self.updates.append((sent.run_id, sent.update_id))
            assert not busy or run.events == before, "an update waits for its turn"

    @precondition(lambda self: len(self.reports) > 4 * self.stopped + 3)
    @rule(data=st.data(), verb=st.sampled_from(["cancel", "terminate"]))
    def stop(self, data: st.DataObject, verb: str) -> None:
        """Not too often, or most stories would be over before they begin."""
        self.stopped += 1
        run = self.runs[data.draw(st.sampled_from(sorted(self.runs)))]
        self.ask(lambda: self.story.cancel(run) if verb == "cancel" else self.story.terminate(run))

    @precondition(lambda self: len(self.reports) > 2 * len(self.asked) + 1)
    @rule(data=st.data(), seconds=st.sampled_from([20, 300]))
    def ask_to_cancel(self, data: st.DataObject, seconds: int) -> None:
        """Somebody asks the code of a run to cancel itself; asking again finds the first one."""
        run = self.runs[data.draw(st.sampled_from(sorted(self.runs)))]
        known = run.cancellation
        told = self.ask(lambda: self.story.request_cancellation(run, seconds=seconds))
        if told is None:
            return
        assert told.duplicate == (known is not None)
        self.asked.setdefault(run.run_id, told.observation.request_id)
        assert run.cancellation is not None
        assert run.cancellation.request_id == told.observation.request_id

    # Workers on cancellations --------------------------------------------------------------------

    def interruptible(self) -> list[str]:
        """Runs whose code was asked to cancel and whose worker knows of such requests."""
        return sorted(
            run_id
            for run_id, run in self.runs.items()
            if run.cancellation is not None
            and run.cancellation.delivered is None
            and run.task is not None
            and run.task.kind is TaskKind.PROGRESS
            and (WORKFLOW_TASK in ready_places(run) or (is_leased(run) and run.task.cooperative))
        )

    @precondition(lambda self: self.interruptible())
    @rule(data=st.data(), again=st.booleans())
    def deliver_a_cancellation(self, data: st.DataObject, again: bool) -> None:
        """The worker names a call; where the code can stand, it is interrupted."""
        run = self.runs[data.draw(st.sampled_from(self.interruptible()))]
        if not is_leased(run):
            self.take(run.run_id, WORKFLOW_TASK, "w1")
        assert run.cancellation is not None
        call = data.draw(st.sampled_from(calls_of(run)))
        report, before = report_of(run), run.history_count
        told = self.ask(lambda: self.story.deliver_cancellation(run, **call, report=report))
        if told is None:
            return
        assert (told.waiting is None) == (run.cancellation.delivered is not None)
        if told.waiting is None:
            kind = event_of(run.events[-1]).event_type
            assert kind == "CooperativeCancellationDelivered"
            assert run.history_count > before
            assert is_leased(run), "the worker goes on with the clean-up"
        if again:
            with self.story.unchanged():
                repeat = self.story.deliver_cancellation(run, **call, report=report)
            assert repeat == told

    @precondition(lambda self: self.stopping())
    @rule(data=st.data(), again=st.booleans())
    def acknowledge_a_stop(self, data: st.DataObject, again: bool) -> None:
        """The worker of a cancelled activity has ended it."""
        ref = data.draw(st.sampled_from(self.stopping()))
        run = self.runs[ref.run_id]
        assert not self.story.ask_activity(ref).can_continue
        told = self.ask(lambda: self.story.acknowledge_stop(run, ref))
        assert told is not None
        if again and not run.is_closed:
            with self.story.unchanged():
                assert self.story.acknowledge_stop(run, ref).duplicate

    def stopping(self) -> list[AttemptRef]:
        """Attempts that were running when their activities were cancelled."""
        found = []
        for ref in self.attempts:
            run = self.runs[ref.run_id]
            operation = run.operations.get(ref.sequence)
            waited_for = (
                isinstance(operation, Activity)
                and operation.cancel_requested
                and operation.lease is not None
                and operation.attempt_id == ref.attempt_id
            )
            told = [] if run.cancellation is None else run.cancellation.stopped
            if waited_for or ref.attempt_id in {stopped.attempt_id for stopped in told}:
                found.append(ref)
        return found

    # Workers on workflow tasks -------------------------------------------------------------------

    @precondition(lambda self: self.ready())
    @rule(data=st.data(), owner=owners)
    def poll(self, data: st.DataObject, owner: str) -> None:
        self.take(*data.draw(st.sampled_from(sorted(self.ready()))), owner)

    def take(self, run_id: str, place: int, owner: str) -> None:
        run = self.runs[run_id]
        if place == WORKFLOW_TASK:
            # One kind of worker tells what it validates, and can be asked to cancel; the other
            # does neither.
            if owner == "w1" or is_judged(run) or is_asked(run):
                self.story.lease_validation(run, owner)
            else:
                self.story.lease(run, owner, sdk_version=SDK_0_4)
        else:
            activity, ref = self.story.lease_activity(run, place, owner), ref_of(run, place)
            earlier = [a for a in self.attempts if (a.run_id, a.sequence) == (run_id, place)]
            assert ref.attempt_id not in {a.attempt_id for a in earlier}, "it had this id before"
            seen = [a for a in earlier if a.attempt_id not in self.unseen]
            if activity.timeouts.schedule_to_start is None:
                assert activity.attempt == len(seen) + 1, "attempts count what workers saw"
            else:
                # What nobody took in time counts as well.
                assert activity.attempt > len(seen)
            self.attempts.append(ref)

    @precondition(lambda self: self.workable())
    @rule(data=st.data(), commands=batches(), again=st.booleans(), cancel=st.booleans())
    def work(self, data: st.DataObject, commands: list[Command], again: bool, cancel: bool) -> None:
        """A worker answers; it takes the task first if it does not have it yet."""
        run = self.runs[data.draw(st.sampled_from(self.workable()))]
        if not is_leased(run):
            self.take(run.run_id, WORKFLOW_TASK, "w1")
        self.complete(data, run, commands, again=again, cancel=cancel)

    @precondition(lambda self: self.workable())
    @rule(data=st.data(), commands=batches(), again=st.booleans(), failure=outcomes)
    def work_while_something_happens(
        self, data: st.DataObject, commands: list[Command], again: bool, failure: Reported | None
    ) -> None:
        """The same, but an activity of the run ends before the worker answers."""
        run = self.runs[data.draw(st.sampled_from(self.workable()))]
        if not is_leased(run):
            self.take(run.run_id, WORKFLOW_TASK, "w1")
        for run_id, sequence in self.doable():
            if run_id == run.run_id:
                self.end(run, sequence, failure)
        self.complete(data, run, commands, again=again, cancel=True)

    def workable(self) -> list[str]:
        ready = [
            run_id
            for run_id, place in self.ready()
            if place == WORKFLOW_TASK and not is_judged(self.runs[run_id])
        ]
        return sorted([*ready, *self.leased()])

    def complete(
        self, data: st.DataObject, run: Run, commands: list[Command], *, again: bool, cancel: bool
    ) -> None:
        wait = None if run.wait is None else run.operations.get(run.wait)
        if again and isinstance(wait, ConditionWait):
            commands = [asked_again(wait)]
        if cancel:
            commands = [*self.cancels(data, run), *commands]
        if len(self.runs) > RUNS_MAX:
            commands = [c for c in commands if not isinstance(c, StartChild)]
        report = report_of(run)
        if run.task is not None and run.task.kind is TaskKind.UPDATE:
            outcome = data.draw(st.sampled_from(UPDATE_OUTCOMES))
            beside = data.draw(st.sampled_from([False, False, False, True]))
            commands = [outcome(run), *(commands if beside else [])]
        if self.ask(lambda: self.story.complete(run, *commands, report=report)) is not None:
            self.reports.append((run.run_id, report, commands))

    def cancels(self, data: st.DataObject, run: Run) -> list[CancelSelectionOperation]:
        keys = [m.key for g in run.groups.values() if g.winner is not None for m in g.members]
        if not keys:
            return []
        return [cancel_member(run, data.draw(st.sampled_from(keys)))]

    @precondition(lambda self: self.reports)
    @rule(data=st.data())
    def repeat_a_completion(self, data: st.DataObject) -> None:
        """A repeated report gets the recorded answer or a refusal, never a second effect."""
        run_id, report, commands = data.draw(st.sampled_from(self.reports))
        run = self.runs[run_id]
        with self.story.unchanged():
            self.ask(lambda: self.story.complete(run, *commands, report=report))

    # Workers on validations ----------------------------------------------------------------------

    @precondition(lambda self: self.judged())
    @rule(data=st.data(), approved=st.booleans(), owner=owners)
    def judge(self, data: st.DataObject, approved: bool, owner: str) -> None:
        """A validator says its word; it takes the task first if it does not have it yet."""
        run = self.runs[data.draw(st.sampled_from(self.judged()))]
        if not is_leased(run):
            self.take(run.run_id, WORKFLOW_TASK, owner)
        report, before = report_of(run), run.history_count
        if self.ask(lambda: self.tell(run, report, approved)) is None:
            return
        self.verdicts.append((run.run_id, report, approved))
        if approved:
            assert event_of(run.events[before - run.history_count]).event_type == "UpdateAccepted"

    def tell(self, run: Run, report: TaskReport, approved: bool) -> object:
        if approved:
            return self.story.approve(run, report)
        return self.story.reject(run, "update_validator_rejected", report)

    @precondition(lambda self: self.verdicts)
    @rule(data=st.data(), other=st.booleans())
    def repeat_a_verdict(self, data: st.DataObject, other: bool) -> None:
        """A repeated word gets its answer or a refusal, the opposite one only a refusal."""
        run_id, report, approved = data.draw(st.sampled_from(self.verdicts))
        with self.story.unchanged():
            answer = self.ask(lambda: self.tell(self.runs[run_id], report, approved != other))
        assert answer is None or not other

    @precondition(lambda self: self.judged())
    @rule(data=st.data())
    def complete_a_validation(self, data: st.DataObject) -> None:
        """It is no workflow task, and nobody can end it as one."""
        run = self.runs[data.draw(st.sampled_from(self.judged()))]
        with self.story.unchanged():
            assert self.ask(lambda: self.story.complete(run, complete_run())) is None

    @precondition(lambda self: self.leased())
    @rule(
        data=st.data(),
        wrong=st.sampled_from(
            [{"owner": "w9"}, {"attempt": 0}, {"attempt": 99}, {"number": 0}, {"number": 99}]
        ),
        verb=st.sampled_from(["complete", "fail", "renew"]),
    )
    def report_with_a_stale_lease(
        self, data: st.DataObject, wrong: dict[str, Any], verb: str
    ) -> None:
        run = self.runs[data.draw(st.sampled_from(sorted(self.leased())))]
        right = report_of(run)
        told = {"number": right.number, "owner": right.owner, "attempt": right.attempt, **wrong}
        report = TaskReport(**told)
        with self.story.unchanged():
            if verb == "complete":
                answer: object = self.ask(
                    lambda: self.story.complete(run, complete_run(), report=report)
                )
            elif verb == "fail":
                answer = self.ask(lambda: self.story.fail_task(run, report=report))
            else:
                answer = self.ask(lambda: self.story.renew_task(run, report=report))
        assert answer is None

    @precondition(lambda self: self.idle())
    @rule(data=st.data())
    def wake_for_nothing(self, data: st.DataObject) -> None:
        """A server that wakes too often does no harm; what is sent again is dropped."""
        self.story.wake(self.runs[data.draw(st.sampled_from(self.idle()))])

    def idle(self) -> list[str]:
        return sorted(run_id for run_id in self.open_runs() if self.runs[run_id].task is None)

    @precondition(lambda self: self.leased())
    @rule(data=st.data(), kind=st.sampled_from([None, "ImportError", WAITING_FOR_HISTORY]))
    def fail_task(self, data: st.DataObject, kind: str | None) -> None:
        run = self.runs[data.draw(st.sampled_from(sorted(self.leased())))]
        self.ask(lambda: self.story.fail_task(run, failure_type=kind))

    @precondition(lambda self: self.leased())
    @rule(data=st.data())
    def renew_task(self, data: st.DataObject) -> None:
        run = self.runs[data.draw(st.sampled_from(sorted(self.leased())))]
        self.ask(lambda: self.story.renew_task(run))

    # Workers on activities -----------------------------------------------------------------------

    @precondition(lambda self: self.doable())
    @rule(data=st.data(), failure=outcomes)
    def end_an_attempt(self, data: st.DataObject, failure: Reported | None) -> None:
        """A worker reports on an activity; it takes the task first if it does not have it yet."""
        run_id, sequence = data.draw(st.sampled_from(self.doable()))
        self.end(self.runs[run_id], sequence, failure)

    def end(self, run: Run, sequence: int, failure: Reported | None) -> None:
        if self.story.activity(run, sequence).state is TaskState.READY:
            self.take(run.run_id, sequence, "w1")
        ref = ref_of(run, sequence)
        task_id = activity_task_id(run, self.story.activity(run, sequence))
        if failure is None:
            recorded = self.ask(lambda: self.story.complete_activity(run, sequence, ref=ref))
        else:
            recorded = self.ask(lambda: self.story.fail_activity(run, sequence, failure, ref=ref))
        assert recorded is not None, "the owner of a lease is heard"
        self.outcomes.append((ref, recorded.next_task_id == task_id))

    def doable(self) -> list[tuple[str, int]]:
        ready = [(run_id, place) for run_id, place in self.ready() if place != WORKFLOW_TASK]
        return sorted([*ready, *self.leased_activities()])

    @precondition(lambda self: self.leased_activities())
    @rule(data=st.data(), beat=st.booleans())
    def keep_an_attempt(self, data: st.DataObject, beat: bool) -> None:
        run_id, sequence = data.draw(st.sampled_from(sorted(self.leased_activities())))
        run = self.runs[run_id]
        keep = self.story.heartbeat if beat else self.story.renew_activity
        view = self.ask(lambda: keep(run, sequence))
        assert view is not None
        stopping = self.story.activity(run, sequence).cancel_requested
        assert view.can_continue != (stopping and beat)

    @precondition(lambda self: self.leased_activities())
    @rule(data=st.data(), was_seen=st.sampled_from([False, False, True]))
    def give_an_attempt_back(self, data: st.DataObject, was_seen: bool) -> None:
        """The poll is gone that was to get it; said again, it means nothing."""
        run_id, sequence = data.draw(st.sampled_from(sorted(self.leased_activities())))
        ref = ref_of(self.runs[run_id], sequence)
        self.story.release_activity(ref, was_seen=was_seen)
        self.unseen |= set() if was_seen else {ref.attempt_id}
        for again in (False, True):
            with self.story.unchanged():
                self.story.release_activity(ref, was_seen=again)

    @precondition(lambda self: self.attempts)
    @rule(data=st.data(), verb=st.sampled_from(["complete", "fail", "heartbeat", "renew"]))
    def report_on_an_old_attempt(self, data: st.DataObject, verb: str) -> None:
        ref = data.draw(st.sampled_from(self.attempts))
        run = self.runs[ref.run_id]
        operation = run.operations.get(ref.sequence)
        if (
            isinstance(operation, Activity)
            and operation.lease is not None
            and operation.attempt_id == ref.attempt_id
        ):
            return
        report: dict[str, Callable[[], object]] = {
            "complete": lambda: self.story.complete_activity(run, ref.sequence, ref=ref),
            "fail": lambda: self.story.fail_activity(run, ref.sequence, ref=ref),
            "renew": lambda: self.story.renew_activity(run, ref.sequence, ref=ref),
            "heartbeat": lambda: self.story.heartbeat(run, ref.sequence, ref=ref),
        }
        with self.story.unchanged():
            answer = self.ask(report[verb])
        assert verb == "heartbeat" or answer is None

    # Time, beats and crashes ---------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1, 5, 31, 61, 301]), late=st.booleans())
    def time_passes(self, seconds: int, late: bool) -> None:
        """Everything fires on time, or, after a pause of the whole machine, late."""
        self.story.commit()
        if late:
            self.story.clock.jump(seconds=seconds)
            self.story.fire()
        else:
            self.story.later(seconds=seconds)
        for run in self.runs.values():
            assert late or not overdue(run, self.story.clock.now())

    @rule(what=st.sampled_from(["begin a beat", "end the beat", "crash"]))
    def beat(self, what: str) -> None:
        """Operations share a transaction from here, or up to here, or everybody forgets."""
        if what == "begin a beat":
            self.story.hold()
            return
        self.end_the_beat()
        if what == "crash":
            self.crash()

    def end_the_beat(self) -> None:
        self.story.commit()
        for run_id, run in self.runs.items():
            shown = self.story.disk.ready[run_id]
            assert shown == set(ready_places(run)), "pollers see what they may take"
            assert self.story.disk.due_at.get(run_id) == run.due_at
        self.read_histories()
        for fold in self.folds.values():
            for run_id in fold.closed_children:
                assert self.newest(run_id).is_closed, "the policy reached the child"
            for run_id in fold.asked_children:
                child = self.newest(run_id)
                assert child.is_closed or child.cancellation or self.was_delivered(run_id)

    def was_delivered(self, run_id: str) -> bool:
        """Whether some run of the chain was cancelled, after which its code went on."""
        run: Run | None = self.runs[run_id]
        while run is not None:
            if run.cancellation is not None and run.cancellation.delivered is not None:
                return True
            run = self.runs[run.continued_to_run_id] if run.continued_to_run_id else None
        return False

    def newest(self, run_id: str) -> Run:
        run = self.runs[run_id]
        while run.continued_to_run_id is not None:
            run = self.runs[run.continued_to_run_id]
        return run

    def crash(self) -> None:
        """The disk has the same runs, and their histories read the same."""
        before = {run_id: picture(run) for run_id, run in self.runs.items()}
        self.story.crash()
        assert {run_id: picture(run) for run_id, run in self.runs.items()} == before
        self.folds.clear()

    # Promises ------------------------------------------------------------------------------------

    def read_histories(self) -> None:
        for run_id, run in self.runs.items():
            fold = self.folds.setdefault(run_id, Fold())
            for encoded in run.events[fold.count :]:
                fold.take(event_of(encoded))

    @invariant()
    def histories_are_sound_and_runs_equal_their_folds(self) -> None:
        self.read_histories()
        for run_id, run in self.runs.items():
            fold = self.folds[run_id]
            assert fold.count == run.history_count
            assert fold.open == {s: KINDS[type(o)] for s, o in run.operations.items()}
            assert fold.wait == run.wait
            assert fold.next_sequence == run.next_sequence
            assert fold.memo == run.memo
            assert fold.search_attributes == run.search_attributes
            assert fold.update == (None if run.update is None else run.update.update_id)
            assert fold.closed == ((run.status, run.closed_reason) if run.is_closed else None)
            asked = run.cancellation
            assert (asked is not None and asked.event_id is not None) == (
                fold.requested is not None
            )
            if asked is not None and asked.delivered is not None:
                assert fold.delivered == asked.delivered.sequence
            elif fold.requested is None:
                assert not fold.undecided, "a member ended and nobody won"

    @invariant()
    def statuses_move_along_the_table(self) -> None:
        for run_id, run in self.runs.items():
            before = self.statuses.get(run_id, RunStatus.PENDING)
            assert run.status is before or run.status in TRANSITIONS[before]
            self.statuses[run_id] = run.status

    @invariant()
    def a_task_has_at_most_one_lease_and_freezes_what_its_worker_reads(self) -> None:
        for run in self.runs.values():
            task = run.task
            if task is not None:
                assert (task.state is TaskState.LEASED) == (task.lease is not None)
                assert task.number == run.task_count
                if task.lease is not None:
                    assert run.history_count == task.snapshot, "the history is frozen"
            for operation in run.operations.values():
                if isinstance(operation, Activity) and operation.outcome is None:
                    leased = operation.state is TaskState.LEASED
                    assert leased == (operation.lease is not None)
                    assert operation.held == [] or is_leased(run) or is_unseen(run)

    @invariant()
    def every_open_run_has_a_cause_and_its_deadline_is_armed_in_time(self) -> None:
        for run in self.runs.values():
            cause = next_cause(run)
            assert (cause is None) == run.is_closed
            due_at = next_due(run)
            if due_at is not None:
                assert run.due_at is not None
                assert run.due_at <= due_at
            if cause is not None:
                self.check_cause(run, cause)

    def check_cause(self, run: Run, cause: Cause) -> None:
        if cause.until is not None:
            assert run.due_at is not None
            assert run.due_at <= cause.until
        if cause.kind == "timer":
            assert cause.until is not None, "nobody else wakes a sleeper"
        if cause.kind == "child":
            assert cause.run_id in self.runs
        if cause.kind == "signal" and cause.sequence is None:
            assert all(operation.detached for operation in run.operations.values())
        if run.cancellation is not None:
            assert cause.until is not None, "the deadline of its clean-up ends it"
            assert cause.until <= run.cancellation.deadline_at
        assert run.task is not None or not (run.inbox or run.update), "messages are handed over"
        if cause.update_id is not None:
            assert cause.update_id in {update.update_id for update in open_updates(run)}
            assert (cause.kind == "update_validation") == is_judged(run)
        if cause.sequence is not None:
            assert run.operations[cause.sequence].outcome is None

    @invariant()
    def no_accepted_signal_is_lost(self) -> None:
        self.read_histories()
        for run_id, command_id in self.signals:
            run = self.runs[run_id]
            while not self.knows_signal(run, command_id):
                assert run.continued_to_run_id, f"signal {command_id} is lost"
                run = self.runs[run.continued_to_run_id]

    def knows_signal(self, run: Run, command_id: str) -> bool:
        """It waits, or history says that it was received or that the close rejected it."""
        fold = self.folds[run.run_id]
        waiting = {signal.command_id for signal in run.inbox.values()}
        return command_id in waiting | fold.received | fold.rejected

    @invariant()
    def no_update_is_lost(self) -> None:
        """It is open, or its run has told its end, or its callers were told why it was refused."""
        self.read_histories()
        for run in self.runs.values():
            assert run.updates_open == len(open_updates(run))
            self.refused |= {e.update_id for e in run.updates_ended if e.refusal is not None}
        for run_id, update_id in self.updates:
            run, ended = self.runs[run_id], self.folds[run_id].ended_updates
            is_open = update_id in {update.update_id for update in open_updates(run)}
            ends = is_open + (update_id in ended) + (update_id in self.refused)
            assert ends == 1, f"update {update_id} is {'lost' if ends == 0 else 'there twice'}"

    @invariant()
    def no_accepted_outcome_is_lost(self) -> None:
        self.read_histories()
        for ref, retried in self.outcomes:
            run, fold = self.runs[ref.run_id], self.folds[ref.run_id]
            recorded = fold.attempts.get(ref.attempt_id, set())
            ended = {"ActivityCompleted", "ActivityFailed"}
            if recorded & ({"ActivityRetryScheduled"} if retried else ended) or run.is_closed:
                continue
            operation = run.operations.get(ref.sequence)
            if operation is None:
                assert retried
                assert ref.sequence in fold.let_go, f"the outcome of {ref.attempt_id} is lost"
            elif retried:
                assert "ActivityRetryScheduled" in {event.event_type for event in operation.held}
            else:
                assert operation.outcome is not None

    # The end of every story ----------------------------------------------------------------------

    def teardown(self) -> None:
        """Do what the runs say they wait for, until all of them have ended."""
        self.end_the_beat()
        for _ in range(40):
            for run_id in self.open_runs():
                self.act_on_cause(self.runs[run_id])
            if not self.open_runs():
                break
        stuck = [next_cause(self.runs[run_id]) for run_id in self.open_runs()]
        assert not stuck, f"runs that nothing moves: {stuck}"
        self.histories_are_sound_and_runs_equal_their_folds()
        self.no_accepted_signal_is_lost()
        self.no_update_is_lost()
        self.no_accepted_outcome_is_lost()

    def act_on_cause(self, run: Run) -> None:
        cause = next_cause(run)
        if cause is None:
            return
        if cause.kind == "workflow_task_ready":
            self.take(run.run_id, WORKFLOW_TASK, "w1")
            self.story.complete(run, complete_run())
        elif cause.kind == "workflow_task_leased":
            self.story.complete(run, complete_run())
        elif cause.update_id is not None and not is_delayed(run):
            self.act_on_update(run)
        elif cause.kind == "activity" and cause.sequence is not None:
            self.act_on_activity(run, cause.sequence)
        elif cause.until is not None:
            self.story.later(seconds=(cause.until - self.story.clock.now()) / SECOND)
        elif cause.kind in ("condition", "signal"):
            self.story.signal(run, cause.name if cause.kind == "signal" and cause.name else "go")
        else:
            assert cause.kind == "child", f"nobody knows how to act on {cause}"

    def act_on_update(self, run: Run) -> None:
        if not is_leased(run):
            self.take(run.run_id, WORKFLOW_TASK, "w1")
        if is_judged(run):
            self.story.approve(run)
        else:
            self.story.complete(run, complete_update(run))

    def act_on_activity(self, run: Run, sequence: int) -> None:
        state = self.story.activity(run, sequence).state
        if state is TaskState.READY:
            self.story.lease_activity(run, sequence)
        if state is TaskState.DELAYED:
            available_at = self.story.activity(run, sequence).available_at
            self.story.later(seconds=(available_at - self.story.clock.now()) / SECOND)
        else:
            self.story.complete_activity(run, sequence)


_EXAMPLES = os.environ.get("PERDURE_PROPERTY_EXAMPLES")

TestRunMachine = RunMachine.TestCase
TestRunMachine.settings = settings(
    max_examples=int(_EXAMPLES or 100),
    stateful_step_count=50,
    deadline=None,
    derandomize=_EXAMPLES is None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def test_a_selection_of_activities_and_a_condition_that_is_over_at_once() -> None:
    """History tells of the condition first; a fresh random story found that the fold did not."""
    machine = RunMachine()
    machine.begin(plain=False)
    (run,) = machine.runs.values()
    machine.take(run.run_id, WORKFLOW_TASK, "w1")

    members: dict[str | int, Member] = {"a": activity(), "b": activity(), 0: condition(timeout=0)}
    machine.story.complete(run, *in_selection(members))
    machine.histories_are_sound_and_runs_equal_their_folds()

    opened = [(kind, at) for kind, at in machine.story.numbered(run) if at is not None]
    assert opened[0] == ("ConditionWaitOpened", 3)
    assert [it for it in opened if it[0] == "ActivityScheduled"] == [
        ("ActivityScheduled", 1),
        ("ActivityScheduled", 2),
    ]
    machine.teardown()
