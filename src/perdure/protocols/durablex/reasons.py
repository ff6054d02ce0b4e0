"""Reasons of refusals that only this protocol uses. Documented in docs/reasons.md."""

PUSH_REASONS: dict[str, int] = {
    "validation_failed": 400,
    "protocol_mismatch": 400,
    "runner_address_refused": 400,
    "event_too_large": 413,
    "event_not_found": 404,
    "run_not_found": 404,
    "workflow_not_found": 404,
    "dataset_not_found": 404,
    "eval_set_not_found": 404,
    "run_not_finished": 409,
    "approval_not_found": 404,
    "ai_provider_missing": 501,
    "webhook_not_found": 404,
    "webhook_keys_missing": 403,
    "webhook_unauthorized": 401,
    "webhook_misconfigured": 503,
    "webhook_not_replayable": 409,
}
