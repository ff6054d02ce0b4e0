"""Results of steps that are stored apart from their runs, and how much all of them may come to."""

import logging

from msgspec import structs

from perdure.core.external import PayloadOwner, Stored
from perdure.core.push.apply_pass import error_of, fail
from perdure.core.push.effect import Offloaded, ResultsGrew
from perdure.engine.operation import Operation
from perdure.engine.payloads import PAYLOADS
from perdure.engine.world import World
from perdure.store.interface import PayloadKey, RecordKey

log = logging.getLogger(__name__)

TOO_LARGE = "step_results_too_large"
"""Why a run fails whose step results come to more than they may."""


class KeepResult(Operation):
    """Store the result of a step, in the transaction that completes the step."""

    __slots__ = ("_offloaded",)
    name = "keep_result"

    def __init__(self, offloaded: Offloaded) -> None:
        self._offloaded = offloaded

    def records(self) -> tuple[RecordKey, ...]:
        namespace = self._offloaded.run.namespace
        return (PAYLOADS.key(namespace, self._offloaded.reference.reference_id),)

    def decide(self, world: World) -> None:
        reference = self._offloaded.reference
        key = PayloadKey(self._offloaded.run.namespace, reference.reference_id)
        known = PAYLOADS.find(world, *key)
        if known is not None and known.custody is PayloadOwner.KEPT:
            return
        if known is None or known.custody is PayloadOwner.GONE:
            known = Stored(
                reference.codec,
                reference.size_bytes,
                reference.sha256,
                PayloadOwner.KEPT,
                counted=True,
            )
            PAYLOADS.put(world, *key, known)
            world.put_payload(key, self._offloaded.data)
        else:
            kept = structs.replace(known, custody=PayloadOwner.KEPT, until=None, counted=True)
            PAYLOADS.put(world, *key, kept)
        world.keep_payload(key)


class BoundResults(Operation):
    """Warn that the step results of a run come near to their bound, or fail the run beyond it."""

    __slots__ = ("_grew",)
    name = "bound_results"

    def __init__(self, grew: ResultsGrew) -> None:
        self._grew = grew

    def decide(self, world: World) -> None:
        run, total, most = self._grew.run, self._grew.total_bytes, self._grew.bytes_max
        if total <= most:
            log.warning("run %s: step results come to %d of %d bytes", run.run_id, total, most)
            return
        if run.is_closed:
            return
        log.warning("run %s fails: step results come to more than %d bytes", run.run_id, most)
        message = (
            f"the step results of the run come to {total} bytes, more than {most} "
            "(DW_MAX_STEP_RESULTS_BYTES)"
        )
        fail(run, world.ctx, error_of(message, TOO_LARGE))
        world.changed(run)
