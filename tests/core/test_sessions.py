"""The rules of worker sessions: one owner at a time, whatever happens and in whatever order."""

from hypothesis import given
from hypothesis import strategies as st

from perdure.core.fleet.session import (
    Claimant,
    Session,
    SessionStatus,
    SessionTerms,
    admit,
    close,
    due_at,
    is_forgettable,
    refresh,
    renew,
    require_owned,
)
from perdure.core.fleet.worker import Worker
from perdure.core.limits import SECOND, WORKER_STALE_AFTER
from perdure.core.rejection import Rejection

WORKERS = ("a", "b", "c")


def a_worker(worker_id: str, heartbeat_at: int) -> Worker:
    return Worker(
        namespace="default",
        worker_id=worker_id,
        queue="q",
        runtime="python",
        registered_at=0,
        heartbeat_at=heartbeat_at,
        registration_token="",
    )


happenings = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from(WORKERS)),
    st.tuples(st.just("renew"), st.sampled_from(WORKERS)),
    st.tuples(st.just("close"), st.sampled_from(WORKERS)),
    st.tuples(st.just("live"), st.sampled_from(WORKERS)),
    st.tuples(st.just("wait"), st.sampled_from(["1", "5", "40", "100"])),
)


@given(
    st.lists(happenings, max_size=40),
    st.integers(1, 60),
    st.integers(1, 300),
    st.booleans(),
)
def test_a_session_has_one_owner_and_one_life(
    story: list[tuple[str, str]], lease: int, ttl: int, may_be_taken: bool
) -> None:
    terms = SessionTerms(
        session_id="s",
        lease_seconds=lease,
        ttl_seconds=ttl,
        allow_reacquire_after_failure=may_be_taken,
    )
    now = 0
    session: Session | None = None
    heard = dict.fromkeys(WORKERS, 0)
    born: int | None = None
    for what, who in story:
        if what == "wait":
            now += int(who) * SECOND
            continue
        if what == "live":
            heard[who] = now
            continue
        holder = None if session is None else a_worker(session.owner, heard[session.owner])
        before = None if session is None else refresh(session, now, holder=holder)
        try:
            session = play(what, before, terms, a_worker(who, heard[who]), now)
        except Rejection:
            session = before
            continue
        if born is None:
            born = now
        assert session.ttl_expires_at == born + ttl * SECOND, "the time to live is never extended"
        assert session.lease_expires_at <= session.ttl_expires_at
        if before is not None and before.is_active and before.owner != who:
            raise AssertionError(f"{who} changed a session of {before.owner}")
        if before is not None and before.is_over:
            raise AssertionError("a session that was over has changed")
        if before is not None and not before.is_active and what == "ask":
            assert may_be_taken


def play(
    what: str, session: Session | None, terms: SessionTerms, worker: Worker, now: int
) -> Session:
    if what == "ask":
        claimant = Claimant(worker, 0)
        return admit(session, terms, claimant, now, queue="q", for_activity=False)[0]
    if session is None:
        raise Rejection("there is none")
    require_owned(session, worker.worker_id)
    return renew(session, now) if what == "renew" else close(session, now, "done")


@given(st.integers(1, 100), st.integers(1, 200), st.integers(0, 400), st.integers(0, 400))
def test_nothing_changes_before_a_session_is_due(
    lease: int, ttl: int, heard: int, later: int
) -> None:
    """Whoever wakes up when it is due misses nothing."""
    terms = SessionTerms(session_id="s", lease_seconds=lease, ttl_seconds=ttl)
    holder = a_worker("a", heard * SECOND)
    now = heard * SECOND
    session, _ = admit(None, terms, Claimant(holder, 0), now, queue="q", for_activity=False)
    due = due_at(session, holder=holder)
    at = now + later * SECOND
    if at < due:
        assert refresh(session, at, holder=holder) == session
    else:
        assert refresh(session, at, holder=holder).status is not SessionStatus.ACTIVE
    assert due <= now + WORKER_STALE_AFTER + 1


def test_a_session_that_is_over_is_kept_for_a_while() -> None:
    holder = a_worker("a", 0)
    session, _ = admit(
        None,
        SessionTerms(session_id="s"),
        Claimant(holder, 0),
        0,
        queue="q",
        for_activity=False,
    )
    session = close(session, 10, None)
    due = due_at(session, holder=holder)
    assert not is_forgettable(session, due - 1)
    assert is_forgettable(session, due)
