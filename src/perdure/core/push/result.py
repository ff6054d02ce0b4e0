"""Results of steps: small ones stay inline in their run, large ones are stored as payloads.

A stored result belongs to the vault of its run, which is the run itself or, for one that continues
another from a step, the first run of that line. Its reference is derived from the vault, so no run
can name a result of another one.
"""

import hashlib
from typing import Any

from perdure.core import limits
from perdure.core.bounds import Bounds, Reached
from perdure.core.external import JSON, Reference, result_reference
from perdure.core.references import shown_reference
from perdure.core.run.history import encode
from perdure.core.run.push import Push
from perdure.core.run.state import Run


def vault_of(run: Run) -> str:
    """The run id under which the stored results of a run are addressed."""
    assert run.push is not None
    return run.push.vault or run.run_id


def stored_result(run: Run, size_bytes: int, sha256: str) -> Reference:
    """The reference of a result that was uploaded for a run."""
    return result_reference(run.namespace, vault_of(run), size_bytes, sha256)


def reference_of(run: Run, data: bytes) -> Reference:
    """The reference of a result that the engine stores for a run."""
    return stored_result(run, len(data), hashlib.sha256(data).hexdigest())


def is_stored_apart(push: Push, data: bytes) -> bool:
    """Whether a result is too large to stay inline."""
    is_crowded = push.memo_bytes > limits.INLINE_RESULTS_BYTES
    return len(data) > (limits.OFFLOAD_SMALL_BYTES if is_crowded else limits.OFFLOAD_BYTES)


def member_of(reference: Reference) -> bytes:
    """The memo entry of a step whose result is stored."""
    return b'"ref":' + encode(reference_view(reference))


def reference_view(reference: Reference) -> dict[str, Any]:
    """A reference as sent to runners and clients."""
    return {
        "id": reference.reference_id,
        "sha256": reference.sha256,
        "size": reference.size_bytes,
    }


def recorded(reference: Reference) -> dict[str, Any]:
    """A reference as recorded in history, where retention finds it."""
    return {"codec": JSON, "external_payload": shown_reference(reference)}


def near_results(run: Run, bounds: Bounds) -> list[Reached]:
    """The bound of the step results of an open run, if they are near to it."""
    if run.is_closed or run.push is None:
        return []
    most = bounds.step_results_bytes_max
    if run.push.result_bytes < bounds.warns_from(most):
        return []
    return [Reached("step_results_bytes", run.push.result_bytes, most)]
