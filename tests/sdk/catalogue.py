"""The stories that every release must tell: a name, a promise, and the first release that can.

Read by the driver (inside an SDK environment) and by pytest (outside), so it imports neither.
"""

from typing import NamedTuple

RELEASES = ("0.4.106", "2.0.0", "2.12.0")


class Case(NamedTuple):
    """One story about one program."""

    name: str
    promise: str
    since: str = "0.4.106"


CASES = (
    # 1, 2 · plain work
    Case("quickstart", "the README's greeter runs to its end under run_until"),
    Case("sequential-activities", "each activity gets what the one before it returned"),
    # 3 · retries
    Case("retry-succeeds", "an activity that fails twice succeeds on its third attempt"),
    Case("retry-exhausted", "a run fails with the failure of its activity's last attempt"),
    Case("retry-exhausted-caught", "code that catches the failure learns what failed"),
    Case("non-retryable-type", "a listed error type ends the retries at once"),
    Case("non-retryable-error", "a non-retryable error ends the retries at once"),
    Case("no-retry-policy", "an activity without a retry policy has one attempt"),
    # 4 · activity timeouts
    Case(
        "start-to-close-retried",
        "an attempt that takes too long is tried again, its late result refused",
    ),
    Case("start-to-close-expired", "an activity that takes too long fails in the code"),
    Case("heartbeat-timeout-retried", "a silent attempt is tried again, a beating one lives on"),
    Case("schedule-to-start-expired", "an activity on a queue that nobody polls times out"),
    Case("schedule-to-close-expired", "retries end when the whole activity is out of time"),
    # 5 · heartbeats
    Case("heartbeat-details", "heartbeat details become progress in the history"),
    Case(
        "cancel-reaches-activity",
        "an activity learns from its heartbeat that its run was cancelled",
    ),
    # 6 · timers
    Case("timers", "timers of zero and one second fire, and never early"),
    # 7 · parallel lists
    Case("parallel-out-of-order", "a list returns results in order, however they finish"),
    Case("parallel-mixed", "a list may hold an activity, a timer and a child"),
    Case("parallel-one-fails", "a failing member fails the list, and the code goes on"),
    Case("parallel-twice", "two lists follow each other"),
    Case("parallel-nested", "nested lists return nested results", since="2.0.0"),
    Case("parallel-after-gate", "a list after a wait that was opened again finds its members"),
    # 8 · children
    Case("child-result", "a parent gets its child's result"),
    Case("child-failure-caught", "a parent catches its child's failure"),
    Case("child-retried", "a failing child is started again until it succeeds"),
    Case("child-run-timeout", "a child that takes too long fails in its parent"),
    Case("child-continues-as-new", "a parent waits for the end of its child's chain"),
    Case("child-cancelled", "a parent learns that its child was cancelled"),
    Case("child-terminated", "a parent learns that its child was terminated"),
    Case("parent-close-abandon", "an abandoned child outlives its cancelled parent"),
    Case("parent-close-terminate", "a child is terminated when its parent closes"),
    Case("parent-close-request-cancel", "a child is cancelled when its parent closes"),
    # 9 · continue as new
    Case("continue-as-new", "a chain of runs carries its state to the last one"),
    Case("continue-as-another-type", "a chain may change its workflow type"),
    Case("continue-as-new-keeps-signals", "signals that one run did not see reach the next"),
    # 10 · waits and signals
    Case("wait-for-signal", "a signal satisfies a wait"),
    Case("wait-times-out", "a wait that nobody satisfies times out"),
    Case("wait-timeout-zero", "a wait of zero seconds times out at once"),
    Case("wait-gate-loop", "three signals pass a gate three times"),
    Case("wait-gate-early-signals", "signals sent before the first task pass the gate as well"),
    Case("wait-watchdog", "a watchdog counts beats, then misses them"),
    Case("wait-exactly-one", "a wait sees the moment between two signals"),
    Case("wait-two-in-order", "early signals satisfy two waits in order"),
    Case("wait-two-reversed", "early signals satisfy two waits in reverse order"),
    Case("signals-many", "no signal of a burst is lost"),
    Case("signal-during-timer", "a signal during a timer is read after it"),
    Case("signal-during-work", "signals during activities satisfy later waits", since="2.0.0"),
    Case("signals-late", "code that closes too early is shown what came meanwhile"),
    Case("signals-together", "one task carries several signals, and a replay as well"),
    Case("signal-repeated", "a repeated request is one signal", since="2.12.0"),
    Case("signal-unknown", "an unknown signal and wrong arguments are refused", since="2.0.0"),
    Case("signal-pinned", "a signal to one run of a chain never reaches another", since="2.12.0"),
    # 10a · updates
    Case("update-completed", "a handler's result reaches its caller, and its change the code"),
    Case("update-accepted", "a caller need not wait for the outcome"),
    Case("update-fails", "a failing handler fails its update, and neither its run nor a replay"),
    Case("update-validated", "a validator refuses what does not fit the state"),
    Case("update-validated-early", "a validator sees the signals before it", since="2.0.0"),
    Case("update-validator-away", "without a validator nothing is accepted", since="2.0.0"),
    Case("update-unknown", "an unknown update and wrong arguments are refused"),
    Case("update-closed-run", "a closed run takes no update"),
    Case("update-repeated", "a repeated request finds the first one and its result"),
    Case("update-early", "updates and signals before the first task keep their order"),
    Case("updates-many", "updates at the same time are answered one after another"),
    Case("updates-among-signals", "updates and signals are applied in the order they came"),
    Case("update-during-work", "an update during an activity is read after it"),
    Case("update-continues-as-new", "an update may end a run, and the next one takes updates"),
    # 10b · message streams
    Case("messages-in-order", "messages of a stream are read in their order", since="2.0.0"),
    Case("messages-before-the-worker", "messages wait for the first worker", since="2.0.0"),
    Case("messages-repeated", "a repeated message is one message", since="2.0.0"),
    Case("messages-in-batches", "no message of a burst is lost or read twice", since="2.0.0"),
    Case("messages-two-streams", "streams, signals and queries do not mix", since="2.0.0"),
    Case("messages-told-by-describe", "a run says which message it waits for", since="2.0.0"),
    Case("messages-over-a-chain", "positions go on from run to run", since="2.0.0"),
    Case("messages-left-unread", "what one run did not read, the next one gets", since="2.0.0"),
    Case("messages-refused", "bad names, closed runs and nobody take no message", since="2.0.0"),
    # 10c · streams of output
    Case("stream-followed", "a client follows what a program puts out", since="2.0.0"),
    Case("streams-of-a-run", "a program writes several streams beside its work", since="2.0.0"),
    Case("stream-of-a-client", "clients append once, and tails are woken", since="2.0.0"),
    Case("stream-too-small", "a run says that its stream has no room", since="2.0.0"),
    Case("streams-refused", "what streams refuse is told by name", since="2.0.0"),
    # 11, 12, 13 · markers
    Case("side-effects", "a side effect keeps the value of its first execution"),
    Case("deterministic-helpers", "time, random numbers and uuids are the same in every replay"),
    Case("version-markers", "version markers and patches keep their choice"),
    Case("search-attributes", "attributes given at start and changed by the code are described"),
    Case("memo-at-start", "a memo given at start is described"),
    Case("memo-upsert", "a memo changed by the code is described", since="2.0.0"),
    # 14 · selections
    Case("select-activity-wins", "the activity wins, the late timer is awaited", since="2.0.0"),
    Case("select-timer-wins", "the timer wins, the late activity is awaited", since="2.0.0"),
    Case("select-loser-left", "a run may end while the loser still runs", since="2.0.0"),
    Case("select-cancel-timer", "a cancelled timer raises where it is awaited", since="2.0.0"),
    Case(
        "select-cancel-activity", "a cancelled activity raises where it is awaited", since="2.0.0"
    ),
    Case("select-cancel-finished", "cancelling what has finished changes nothing", since="2.0.0"),
    Case("select-cancel-failed-list", "a list that has failed is not cancelled", since="2.0.0"),
    Case("select-failure-wins", "a failing member wins with its failure", since="2.0.0"),
    Case("select-condition-times-out", "a condition wins by its time-out", since="2.0.0"),
    Case("select-condition-beside-timer", "a condition and a timer of its length", since="2.0.0"),
    Case("select-group", "a list and a child compete as members", since="2.0.0"),
    Case("select-losers-beside-gates", "losers that end beside a condition", since="2.0.0"),
    Case("select-heard-meanwhile", "a signal beside a condition that lost", since="2.0.0"),
    Case("select-then-parallel", "a list after a selection finds its members", since="2.0.0"),
    # 15 · the client
    Case("start-duplicates", "an id is started once, and an open run can be used again"),
    Case("cancel", "a cancelled run is closed with its reason"),
    Case("terminate", "a terminated run is closed with its reason"),
    Case("describe-and-list", "describe, list, runs and history tell the same story"),
    Case("history-pages", "pages of a history join to the whole", since="2.12.0"),
    Case("retention", "an operator sees how long runs are kept, and none goes too early"),
    Case("not-found", "an unknown workflow id is not found"),
    Case("signal-closed-run", "a closed run takes no signal"),
    # 16 · routing
    Case("routing", "an activity and a child run on another queue's worker"),
    # 16a · the fleet
    Case("fleet-workers", "operators see workers, and send one away"),
    Case("fleet-drain", "a drained worker finishes what it has, and goes on when resumed"),
    Case("fleet-promote", "new starts go to the promoted build, old runs stay with theirs"),
    Case("fleet-queues", "operators see what waits on a queue, and who holds what"),
    # 17 · time limits of runs
    Case("run-timeout", "a run that takes too long is closed as failed"),
    Case("execution-timeout", "a chain that takes too long is closed as failed"),
    # 18, 19 · size
    Case("fan-out-hundred", "a hundred activities finish as one list"),
    Case("long-history", "a run with more history than one page goes on"),
    # 20, 21 · failures, plain JSON
    Case("workflow-failure", "a run fails with the exception of its code"),
    Case("plain-json-start", "a start in plain JSON reaches a worker of this release"),
    # 21a · local activities
    Case("local-activities", "local work is done once, and found again", since="2.12.0"),
    Case("local-activity-retried", "local work is tried again by its policy", since="2.12.0"),
    Case("local-activity-fails", "the code learns how local work failed", since="2.12.0"),
    Case("local-activity-heartbeats", "heartbeats of local work are told", since="2.12.0"),
    Case("local-activity-times-out", "local work that takes too long fails", since="2.12.0"),
    Case("local-activity-cancelled", "a stopping worker ends its local work", since="2.12.0"),
    Case("local-activity-closed-run", "a closed run takes no local work", since="2.12.0"),
    # 21b · payloads that are uploaded
    Case("payload-uploaded", "large payloads travel outside of histories", since="2.0.0"),
    Case("payload-spoken", "signals, updates and queries may be large", since="2.0.0"),
    Case("payload-cold", "a worker with no memory finds large payloads again", since="2.0.0"),
    Case("payload-refused", "a payload that is not there is refused", since="2.0.0"),
    # 21c · worker sessions
    Case("session", "the activities of a session go to one worker", since="2.12.0"),
    Case("session-requirements", "only a capable worker gets a session", since="2.12.0"),
    Case("session-at-once", "a session runs several activities at once", since="2.12.0"),
    Case("session-verbs", "a worker makes, keeps and closes a session", since="2.12.0"),
    # 21b · cooperative cancellation
    Case("cancel-timer", "code that sleeps is interrupted and tidies up", since="2.12.0"),
    Case("cancel-condition", "code that waits is interrupted at its wait", since="2.12.0"),
    Case("cancel-activity-of-another-worker", "heartbeats tell it too", since="2.12.0"),
    Case("cancel-activity-abandoned", "an abandoned activity goes on", since="2.12.0"),
    Case("cancel-child-abandoned", "an abandoned child goes on", since="2.12.0"),
    Case("cancel-child-too", "the request reaches the child", since="2.12.0"),
    Case("cancel-child-and-wait", "the code waits for its child's clean-up", since="2.12.0"),
    Case("cancel-parallel", "a list is interrupted as one call", since="2.12.0"),
    Case("cancel-first-loser", "the wait for the first of a selection as well", since="2.12.0"),
    Case("cancel-behind-condition", "a condition opened again is passed over", since="2.12.0"),
    Case("cancel-selection", "a selection is interrupted before anybody won", since="2.12.0"),
    Case("cancel-selection-handle", "the wait for a loser is interrupted", since="2.12.0"),
    Case("cancel-local-activity", "local work is interrupted", since="2.12.0"),
    Case("cancel-early", "a run is cancelled at its very first call", since="2.12.0"),
    Case("cancel-shielded", "a shield keeps the request away", since="2.12.0"),
    Case("cancel-with-messages", "messages find code that is cancelled", since="2.12.0"),
    Case("cancel-uncaught", "a request that nobody catches cancels the run", since="2.12.0"),
    Case("cancel-deadline", "code that does not end is ended", since="2.12.0"),
    Case("cancel-nobody-asks", "a worker that was not asked gets no task", since="2.12.0"),
    Case("cancel-hands-over", "a worker that knows how takes over", since="2.12.0"),
    # 21e · traces
    Case("trace-carried", "what a client captures reaches its run's workers", since="2.12.0"),
    # 21f · histories that workers keep
    Case("sticky-cache", "workers that keep histories are preferred", since="2.12.0"),
    Case("sticky-cache-lost", "a run is replayed cold by another worker", since="2.12.0"),
    # 22 · queries
    Case("query", "a query is answered by the code of the run, and writes nothing"),
    Case("query-sees-signals", "a query sees every signal that was accepted before it"),
    Case("query-completed-run", "a completed run still answers"),
    Case("query-unknown", "an unknown query, and one to nobody, are refused"),
    Case("query-wrong-arguments", "arguments that do not fit are refused"),
    Case("query-fails", "a query whose code fails is refused with its message"),
    Case("query-without-worker", "a query that nobody can answer is refused at once"),
    Case("query-closed-run", "a cancelled run does not answer"),
    Case("query-many", "queries that are asked at once are all answered"),
    Case("query-authority", "a worker may insist on query authority", since="2.12.0"),
    # 26 · at random
    Case("improvised-cancelled", "the same, asked to cancel themselves anywhere", since="2.12.0"),
    Case("improvised", "programs that nobody thought of run to their end and replay"),
    # 24 · redrive; older clients have no word for it, but their programs can be continued
    Case("redrive", "a failed run goes on with everything that was done before its failure"),
    Case("redrive-list", "a list of which a member failed is done anew"),
    Case("redrive-child", "a child that failed is started anew"),
    Case(
        "redrive-again", "a repeated request finds the first, a run that fails again goes on again"
    ),
    Case("redrive-refused", "only the newest run is continued, and only if it failed"),
    # 25 · service operations
    Case("service-called-by-client", "a client calls operations and gets results and failures"),
    Case("service-called-by-program", "a program calls operations between its own steps"),
    Case("service-begun-by-program", "a program has operations begun and goes on"),
    Case("service-redriven", "a failed program does not repeat the calls that were answered"),
    Case("service-cancelled", "a call is cancelled, and with its caller", since="2.12.0"),
    # 23 · standalone activities
    Case("standalone-activity", "an activity runs by itself and is described and listed"),
    Case("standalone-retries", "its retries follow its policy, and its failure is the end"),
    Case("standalone-time-outs", "each of its time-outs ends it, or the attempt"),
    Case("standalone-cancelled", "it learns from its heartbeat that it was cancelled"),
    Case("standalone-duplicates", "a running id is refused, a finished one starts again"),
)

ALONE = (
    Case("cancel-activity", "an activity is let go with its caller", since="2.12.0"),
    Case("cancel-activity-and-wait", "the code waits until it has stopped", since="2.12.0"),
    Case("prepared-errands", "a worker asks before it runs local work", since="2.12.0"),
    Case("prepared-cancelled", "it stops such work when it is told to", since="2.12.0"),
    Case("prepared-killed", "another worker recovers what it had begun", since="2.12.0"),
)
"""Played one after the other: the SDK starts a process for each activity and gives it five seconds,
which a driver that plays sixteen cases at once does not have."""


BOUNDED = (
    Case("result-too-large", "an activity whose result cannot be kept fails in the code, once"),
)
"""Played against a server that keeps payloads of a kilobyte, and takes no uploads."""


def cases_of(release: str) -> list[Case]:
    """The stories that `release` can tell."""
    return [case for case in CASES if _numbers(case.since) <= _numbers(release)]


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))
