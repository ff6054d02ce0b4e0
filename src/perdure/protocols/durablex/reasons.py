"""Refusals that this protocol writes out itself. Documented in docs/reasons.md."""

PUSH_REASONS: dict[str, int] = {
    "validation_failed": 400,
    "event_too_large": 413,
    "event_not_found": 404,
    "run_not_found": 404,
    "run_not_finished": 409,
}
