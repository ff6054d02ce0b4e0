"""A claim finds the lease that it was made of, and a poll what it was granted; nothing later."""

from dataclasses import dataclass
from typing import Any

import pytest

from perdure.core.run.state import WORKFLOW_TASK, Run
from perdure.dispatch.delivery import (
    Claim,
    ValidationDelivery,
    claim_of,
    deliver_again,
    deliver_to_poll,
    find_claim,
    find_lease,
)
from perdure.dispatch.polls import Poll
from tests.support.commands import activity, complete_run, condition, retries
from tests.support.rule_harness import NAMESPACE, QUEUE, WORKER, Story, ref_of, validator

PAGE = 50
OTHERS = {"run_id": "another run", "number": 7, "owner": "w2"}
"""What is wrong with a claim, member by member."""


@dataclass
class Held:
    """A run with a lease in it, and what names that."""

    story: Story
    run: Run
    claim: Claim

    def found(self, **members: Any) -> object:
        """What a claim finds that differs in some members."""
        return deliver_again(self.run, self.claim._replace(**members), PAGE)


def held(story: Story, run: Run, place: int) -> Held:
    claim = find_claim(run, place)
    assert claim is not None
    return Held(story, run, claim)


def a_task() -> Held:
    """The second task of a run."""
    story = Story()
    run = story.start()
    story.work(run, activity())
    story.do_activity(run, 1)
    story.lease(run)
    return held(story, run, WORKFLOW_TASK)


def a_validation() -> Held:
    story = Story()
    run = story.start()
    story.work(run, condition())
    story.update(run, "add", workers=[validator()])
    story.lease_validation(run)
    return held(story, run, WORKFLOW_TASK)


def an_attempt() -> Held:
    story = Story()
    run = story.start()
    story.work(run, activity(retry=retries(3)))
    story.lease_activity(run, 1)
    return held(story, run, 1)


@pytest.mark.parametrize("make", [a_task, a_validation, an_attempt])
def test_a_lease_that_stands_is_found_by_its_claim(make: Any) -> None:
    lease = make()
    found = lease.found()
    assert found is not None
    assert claim_of(found) == lease.claim
    assert isinstance(found, ValidationDelivery) == (make is a_validation)


@pytest.mark.parametrize("member", OTHERS)
@pytest.mark.parametrize("make", [a_task, a_validation, an_attempt])
def test_every_member_of_a_claim_counts(make: Any, member: str) -> None:
    assert make().found(**{member: OTHERS[member]}) is None


@pytest.mark.parametrize("place", [2, 99])
def test_a_claim_to_what_is_no_activity_finds_nothing(place: int) -> None:
    assert an_attempt().found(place=place) is None


@pytest.mark.parametrize("make", [a_task, a_validation])
def test_a_claim_to_another_task_of_the_run_finds_nothing(make: Any) -> None:
    lease = make()
    for task in (lease.claim.task - 1, lease.claim.task + 1):
        assert lease.found(task=task) is None


def test_the_next_task_is_not_found_by_a_claim_to_the_one_before() -> None:
    """Worker and attempt are the same: tasks count their leases anew."""
    story = Story()
    run = story.start()
    story.lease(run)
    first = held(story, run, WORKFLOW_TASK)
    story.complete(run, activity())
    story.do_activity(run, 1)
    assert first.found() is None, "nobody holds the next one"
    story.lease(run)
    second = held(story, run, WORKFLOW_TASK)
    assert (first.claim.number, first.claim.owner) == (second.claim.number, second.claim.owner)
    assert first.found() is None
    assert second.found() is not None
    story.complete(run, complete_run())
    assert second.found() is None


def test_a_task_is_not_found_by_a_claim_to_the_validation_before_it() -> None:
    lease = a_validation()
    lease.story.approve(lease.run)
    lease.story.lease(lease.run)
    task = lease.run.task
    assert task is not None
    assert task.attempt == lease.claim.number
    assert lease.found() is None


def test_a_lease_that_came_back_is_another_one_when_it_is_given_again() -> None:
    lease = a_task()
    lease.story.later(seconds=61)
    lease.story.lease(lease.run)
    assert lease.found() is None


@pytest.mark.parametrize("was_seen", [True, False], ids=["seen", "unseen"])
def test_the_next_lease_of_an_activity_is_not_found_by_a_claim_to_the_one_before(
    *, was_seen: bool
) -> None:
    """A lease that nobody saw uses up no attempt: the next one has the same number as a try."""
    lease = an_attempt()
    ref = ref_of(lease.run, 1)
    lease.story.release_activity(ref, was_seen=was_seen)
    assert lease.found() is None, "nobody holds it"
    again = lease.story.lease_activity(lease.run, 1, WORKER)
    assert again.attempt == (2 if was_seen else 1)
    assert lease.found() is None


def test_a_retry_is_not_found_by_a_claim_to_the_attempt_before() -> None:
    lease = an_attempt()
    lease.story.fail_activity(lease.run, 1)
    lease.story.lease_activity(lease.run, 1, WORKER)
    assert lease.found() is None


def test_a_claim_that_says_no_task_finds_any_of_that_attempt() -> None:
    """Nodes of the release before send such ones; who takes them sees that they are not late."""
    lease = a_task()
    assert not lease.claim.is_vague
    assert lease.claim._replace(task=None).is_vague
    assert lease.found(task=None) is not None
    for member, other in OTHERS.items():
        assert lease.found(task=None, **{member: other}) is None
    assert not an_attempt().claim.is_vague, "an activity is known by its place"


# Leases and the polls that they were granted to --------------------------------------------------


def granted(make: Any, **members: Any) -> object:
    """What a poll finds, which is the one that a lease was granted to but for some members."""
    lease = make()
    place = lease.claim.place
    found = find_lease(lease.run, place)
    assert found is not None
    found.poll_id = "p1"
    told: dict[str, Any] = {
        "namespace": NAMESPACE,
        "worker_id": WORKER,
        "queue": QUEUE,
        "kind": "workflow" if place == WORKFLOW_TASK else "activity",
        "timeout": 0,
        "request_id": "p1",
        "page_size": PAGE,
        "validations": True,
    }
    return deliver_to_poll(lease.run, place, Poll(**{**told, **members}))


@pytest.mark.parametrize("make", [a_task, a_validation, an_attempt])
def test_a_lease_is_found_by_the_poll_that_it_was_granted_to(make: Any) -> None:
    assert granted(make) is not None


@pytest.mark.parametrize(
    "other",
    [{"namespace": "another"}, {"worker_id": "w2"}, {"request_id": "p2"}, {"kind": "query"}],
    ids=str,
)
@pytest.mark.parametrize("make", [a_task, a_validation, an_attempt])
def test_a_lease_is_not_found_by_another_poll(make: Any, other: dict[str, str]) -> None:
    assert granted(make, **other) is None


def test_a_poll_does_not_find_what_it_does_not_take() -> None:
    assert granted(a_task, progress=False) is None
    assert granted(a_validation, validations=False) is None
    assert granted(a_task, validations=False) is not None
    assert granted(a_validation, progress=False) is not None
    assert granted(an_attempt, progress=False, validations=False) is not None
