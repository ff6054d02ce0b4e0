"""Every reason code of this protocol with its status. Documented in docs/reasons.md."""

from perdure.core import rejection as r

STATUS_BY_REJECTION: dict[type[r.Rejection], int] = {
    r.InvalidRequest: 422,
    r.NamespaceNotFound: 404,
    r.InstanceNotFound: 404,
    r.RunNotFound: 404,
    r.TaskNotFound: 404,
    r.AttemptNotFound: 404,
    r.WorkerNotFound: 404,
    r.WorkerUnknown: 404,
    r.WorkerNotRegistered: 412,
    r.DuplicateNotAllowed: 409,
    r.RunNotActive: 409,
    r.HistoricalRunCommandRejected: 409,
    r.RequestIdConflict: 409,
    r.StructuralLimitExceeded: 409,
    r.CompletionTooLarge: 422,
    r.TaskNotLeased: 409,
    r.LeaseExpired: 409,
    r.LeaseOwnerMismatch: 409,
    r.WorkflowTaskAttemptMismatch: 409,
    r.RunClosed: 409,
    r.RunCancelled: 409,
    r.RunTerminated: 409,
    r.RunTimedOut: 409,
    r.StaleAttempt: 409,
    r.InvalidCommands: 409,
    r.InvalidPageToken: 400,
    r.TaskQueueMismatch: 409,
    r.BuildIdMismatch: 409,
    r.WorkflowDefinitionChanged: 409,
    r.RegistrationReplaced: 409,
    r.LongPollCapacityExhausted: 429,
}

DOOR_REASONS: dict[str, int] = {
    "malformed_json": 400,
    "missing_control_plane_version": 400,
    "unsupported_control_plane_version": 400,
    "missing_protocol_version": 400,
    "unsupported_protocol_version": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "payload_too_large": 413,
    "unsupported_media_type": 415,
    "server_error": 500,
}
"""Refusals that never reach the rules."""

STORE_REASONS: dict[str, int] = {
    "storage_busy": 503,
    "storage_full": 503,
    "storage_error": 503,
    "storage_read_only": 503,
    "storage_corrupt": 503,
    "storage_unavailable": 503,
    "server_overloaded": 503,
}
"""The world failed; nothing was changed and trying again may help."""
