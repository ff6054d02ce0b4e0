"""Refusals of the rules, each with a stable reason. A rejection changes nothing."""

from typing import ClassVar


class Rejection(Exception):
    """A refused request. `reason` is API; `details` become members of the response."""

    reason: ClassVar[str] = "rejected"

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class InvalidRequest(Rejection):
    """A value that the rules cannot accept; `field` is its dotted path."""

    reason = "validation_failed"

    def __init__(self, field: str, message: str, *, says_where: bool = False) -> None:
        text = message if says_where else f"{field}: {message}"
        super().__init__(text, errors={field: [message]})


# Lookups.
class NamespaceNotFound(Rejection):
    reason = "namespace_not_found"


class InstanceNotFound(Rejection):
    reason = "instance_not_found"


class RunNotFound(Rejection):
    reason = "run_not_found"


class TooManyScores(Rejection):
    """A push run has as many scores as it may have."""

    reason = "too_many_scores"


class ApprovalNotFound(Rejection):
    reason = "approval_not_found"


class ApprovalNotPending(Rejection):
    """It was already decided, or the run is closed."""

    reason = "approval_not_pending"


class ActivityNotFound(Rejection):
    """There is no standalone activity with this id."""

    reason = "activity_not_found"


class TaskNotFound(Rejection):
    reason = "task_not_found"


class AttemptNotFound(Rejection):
    reason = "attempt_not_found"


class WorkerNotFound(Rejection):
    reason = "worker_not_found"


class WorkerUnknown(Rejection):
    """A heartbeat of a worker that never registered."""

    reason = "worker_not_registered"


class WorkerNotRegistered(Rejection):
    """A poll of a worker that never registered."""

    reason = "worker_not_registered"


# External payloads.
class ExternalPayloadNotFound(Rejection):
    reason = "external_payload_not_found"


class ExternalPayloadExpired(Rejection):
    reason = "external_payload_expired"


class ExternalPayloadIntegrityMismatch(Rejection):
    reason = "external_payload_integrity_mismatch"


class ExternalPayloadOversized(Rejection):
    reason = "external_payload_oversized"


class ExternalPayloadUnsupported(Rejection):
    reason = "external_payload_unsupported"


class StoragePressure(Rejection):
    """Too many bytes of uploaded payloads are not referenced yet."""

    reason = "storage_pressure"


# Starting and commanding runs.
class DuplicateNotAllowed(Rejection):
    reason = "duplicate_not_allowed"


class TaskQueueDraining(Rejection):
    """A build of the queue is drained, and no other build has an active worker."""

    reason = "task_queue_draining"


# Rolling out builds.
class UnknownDeployment(Rejection):
    """The build has never been registered on this queue."""

    reason = "unknown_deployment"


class FleetIsDraining(Rejection):
    reason = "fleet_is_draining"


class NoCompatibleWorkers(Rejection):
    """The queue has no live worker."""

    reason = "no_compatible_workers"


class MissingWorkerHeartbeat(Rejection):
    """The queue has live workers, but none of the build."""

    reason = "missing_worker_heartbeat"


class RunNotActive(Rejection):
    reason = "run_not_active"


class RunNotFailed(Rejection):
    """Only a run that has failed can be continued."""

    reason = "run_not_failed"


class RedriveUnavailable(Rejection):
    """The run is not replayed from a history: push runs have a redrive of their own."""

    reason = "redrive_unavailable"


class HistoricalRunCommandRejected(Rejection):
    reason = "historical_run_command_rejected"


class RequestIdConflict(Rejection):
    reason = "request_id_conflict"


class StructuralLimitExceeded(Rejection):
    """A control-plane command would pass a bound of the run."""

    reason = "structural_limit_exceeded"


class InboxFull(StructuralLimitExceeded):
    """Too many signals, updates or messages wait in a run; retry once its code has read some.

    A subclass because it becomes a 429, which clients retry; they do not retry a 409.
    """


class DatasetNotFound(Rejection):
    """There is no such dataset."""

    reason = "dataset_not_found"


class ItemNotFound(Rejection):
    """The dataset has no such item."""

    reason = "dataset_item_not_found"


class DatasetIsEmpty(Rejection):
    """An eval needs a dataset with at least one item."""

    reason = "dataset_empty"


class WorkflowNotFound(Rejection):
    """No application has registered such a workflow."""

    reason = "workflow_not_found"


class CompletionTooLarge(Rejection):
    """A completion would pass a bound of the run."""

    reason = "structural_limit_exceeded"


class ResultTooLarge(Rejection):
    """The result of an activity is too large. The activity has failed, and history records it."""

    reason = "structural_limit_exceeded"


class UnknownSignal(Rejection):
    """Every live worker declares its signals, and none declares this one."""

    reason = "unknown_signal"


class InvalidSignalArguments(Rejection):
    reason = "invalid_signal_arguments"


# Streams.
class InvalidStreamName(Rejection):
    reason = "invalid_stream_name"


class InvalidStreamRequest(Rejection):
    """A request about an output stream is not valid."""

    reason = "invalid_request"


class StreamNotFound(Rejection):
    reason = "stream_not_found"


class StreamClosed(Rejection):
    reason = "stream_closed"


class StreamErrored(Rejection):
    reason = "stream_errored"


class StreamFull(Rejection):
    reason = "stream_full"


class CompletionOverflows(Rejection):
    """A completion would write more than a stream holds.

    Not a 429: workers retry that silently, and they report this like any other refusal.
    """

    reason = "stream_full"


# Services.
class ServiceEntryNotFound(Rejection):
    """The catalogue has no endpoint, service or operation with this name."""

    reason = "service_entry_not_found"


class EndpointHasServices(Rejection):
    reason = "endpoint_has_services"


class ServiceHasOperations(Rejection):
    reason = "service_has_operations"


class OperationHasServiceCalls(Rejection):
    reason = "operation_has_service_calls"


class ServiceCallNotFound(Rejection):
    reason = "service_call_not_found"


class ServiceCallRejected(Rejection):
    """The call was not made; `outcome` says why."""

    reason = "service_call_rejected"


class ServiceCallFailed(Rejection):
    """The call was made, and its handler failed or was stopped."""

    reason = "service_call_failed"


# Updates, as reported to their callers.
class UpdateRejected(Rejection):
    """Not accepted: the run is closed, or its code has no such update."""

    reason = "update_rejected"


class UpdateFailed(Rejection):
    """Accepted, and its handler failed."""

    reason = "update_failed"


class InvalidUpdateArguments(Rejection):
    reason = "invalid_update_arguments"


class UpdateValidatorRejected(Rejection):
    reason = "update_validator_rejected"


class UpdateValidatorUnavailable(Rejection):
    """The code validates this update, and no live worker can run the validator."""

    reason = "update_validator_worker_unavailable"


class UpdateValidatorIncompatible(Rejection):
    """Live workers know the type, but none of them can validate for this run."""

    reason = "update_validator_worker_incompatible"


class UpdateValidationUnsupported(Rejection):
    """A worker declares the validator and cannot be asked to run it."""

    reason = "update_validation_capability_unsupported"


class UpdateValidatorLost(Rejection):
    reason = "update_validator_worker_lost"


class UpdateValidationNotClaimed(Rejection):
    reason = "update_validation_task_not_claimed"


class UpdateValidationOutOfTime(Rejection):
    reason = "update_validation_execution_timeout"


class UpdateValidationFailed(Rejection):
    """The worker could not run the validator."""

    reason = "update_validation_worker_failed"


# Updates, as reported to the workers that validate them.
class UpdateValidationNotFound(Rejection):
    reason = "update_validation_task_not_found"


class UpdateValidationNotLeased(Rejection):
    reason = "update_validation_task_not_leased"


class UpdateValidationLeaseExpired(Rejection):
    reason = "update_validation_lease_expired"


class UpdateValidationStale(Rejection):
    reason = "stale_update_validation_completion"


class UpdateValidationDuplicate(Rejection):
    """The opposite verdict was already reported."""

    reason = "duplicate_update_validation_completion"


# Cooperative cancellation.
class CooperativeCancellationUnavailable(Rejection):
    """The worker speaks too old a protocol, or did not register for this."""

    reason = "cooperative_cancellation_unavailable"


class CancellationRequestNotFound(Rejection):
    """No cooperative cancellation of this run was requested, or not with this id."""

    reason = "cancellation_request_not_found"


class CancellationAlreadyDelivered(Rejection):
    """The request was already delivered, at another call."""

    reason = "cancellation_already_delivered"


class InvalidCancellationBoundary(Rejection):
    """The code cannot be blocked at the named call."""

    reason = "invalid_cancellation_boundary"


# Prepared local activities.
class PreparedLocalUnavailable(Rejection):
    """The worker speaks too old a protocol, or did not register for this."""

    reason = "prepared_local_activities_unavailable"


class PreparedLocalConflict(Rejection):
    """The reported position of the code, or its activity, does not fit the history."""

    reason = "prepared_local_activity_conflict"


class CancellationRequested(Rejection):
    """Cancellation of the code is requested: it must not start anything new."""

    reason = "cancellation_requested"


# Leases.
class TaskNotLeased(Rejection):
    reason = "task_not_leased"


class LeaseExpired(Rejection):
    reason = "lease_expired"


class LeaseOwnerMismatch(Rejection):
    reason = "lease_owner_mismatch"


class WorkflowTaskAttemptMismatch(Rejection):
    reason = "workflow_task_attempt_mismatch"


class RunClosed(Rejection):
    reason = "run_closed"


class RunCancelled(Rejection):
    reason = "run_cancelled"


class RunTerminated(Rejection):
    reason = "run_terminated"


class RunTimedOut(Rejection):
    reason = "run_timed_out"


class StaleAttempt(Rejection):
    reason = "stale_attempt"


class InvalidCommands(Rejection):
    reason = "invalid_commands"


class InvalidPageToken(Rejection):
    reason = "invalid_page_token"


# Workers and polls.
class TaskQueueMismatch(Rejection):
    reason = "task_queue_mismatch"


class BuildIdMismatch(Rejection):
    reason = "build_id_mismatch"


class WorkerDraining(Rejection):
    """A poll of a worker whose build is drained and gets no new tasks."""

    reason = "worker_draining"


class WorkflowDefinitionChanged(Rejection):
    reason = "workflow_definition_changed"


class RegistrationReplaced(Rejection):
    """A deregistration with the token of an earlier registration."""

    reason = "worker_registration_replaced"


class LongPollCapacityExhausted(Rejection):
    reason = "long_poll_capacity_exhausted"


# Queries, as reported to their callers.
class UnknownQuery(Rejection):
    reason = "rejected_unknown_query"


class InvalidQueryArguments(Rejection):
    reason = "invalid_query_arguments"


class QueryRejected(Rejection):
    """The worker's code refused, or failed."""

    reason = "query_rejected"


class QueryWorkflowStateUnavailable(Rejection):
    """The history could not be read or replayed."""

    reason = "query_workflow_state_unavailable"


class HistoryDamaged(Rejection):
    """Stored data of a run does not match what was written, or cannot be read."""

    reason = "history_damaged"


class QueryWorkflowTypeNotRegistered(Rejection):
    reason = "query_workflow_type_not_registered"


class QueryPayloadDecodeFailed(Rejection):
    reason = "query_payload_decode_failed"


class QueryResultEncodeFailed(Rejection):
    reason = "query_result_encode_failed"


class QueryResultCompletionFailed(Rejection):
    reason = "query_result_completion_failed"


class QueryWorkerUnavailable(Rejection):
    """No live worker of the queue answers queries of this workflow type."""

    reason = "query_worker_unavailable"


class QueryWorkerIncompatible(Rejection):
    """Live workers know the type, but none has the run's build."""

    reason = "query_worker_incompatible"


class QueryWorkerTimeout(Rejection):
    reason = "query_worker_timeout"


class QueryTaskQueueFull(Rejection):
    reason = "query_task_queue_full"


class QueryTaskQueueUnavailable(Rejection):
    """The server is stopping and accepts no more queries."""

    reason = "query_task_queue_unavailable"


# Queries, as reported to the workers that answer them.
class QueryTaskNotFound(Rejection):
    reason = "query_task_not_found"


class QueryTaskNotLeased(Rejection):
    reason = "query_task_not_leased"


class QueryTaskTimedOut(Rejection):
    reason = "query_task_timed_out"


class QueryTaskAttemptMismatch(Rejection):
    reason = "query_task_attempt_mismatch"


# Worker sessions.
class WorkerSessionsUnavailable(Rejection):
    """The worker's protocol version does not have sessions."""

    reason = "worker_sessions_unavailable"


class SessionNotFound(Rejection):
    reason = "session_not_found"


class WorkerSessionNotFound(Rejection):
    """An operator's request names a session that does not exist."""

    reason = "worker_session_not_found"


class SessionNotActive(Rejection):
    reason = "session_not_active"


class SessionOwnerMismatch(Rejection):
    reason = "session_owner_mismatch"


class SessionQueueMismatch(Rejection):
    reason = "session_queue_mismatch"


class SessionMissing(Rejection):
    reason = "session_missing"


class SessionRequirementsNotMet(Rejection):
    reason = "session_requirements_not_met"


class SessionOwnedByAnotherWorker(Rejection):
    reason = "session_owned_by_another_worker"


class SessionActivityLimitExceeded(Rejection):
    reason = "session_activity_limit_exceeded"


class WorkerSessionLimitExceeded(Rejection):
    reason = "worker_session_limit_exceeded"


class SessionClosed(Rejection):
    reason = "session_closed"


class SessionReacquireDisallowed(Rejection):
    reason = "session_reacquire_disallowed"
