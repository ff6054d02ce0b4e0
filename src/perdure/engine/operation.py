"""What enters the beat: an operation says what it needs and decides when it has it."""

from typing import TYPE_CHECKING, Any, ClassVar

from perdure.store.interface import Instance, ReceiptKey, RecordKey, Store

if TYPE_CHECKING:
    from perdure.engine.world import World


class Operation:
    """One thing to decide. `decide` raises a `Rejection` before it changes anything.

    An operation may be decided more than once: after a failed commit its beat is repeated.
    """

    __slots__ = ()

    name: ClassVar[str] = "operation"
    reads_before_load: ClassVar[bool] = False
    """Whether `prepare` has anything to do; most operations name what they need."""

    reads_after_load: ClassVar[bool] = False
    """Whether `closer_records` names more once the runs are there."""

    locks_rows: ClassVar[bool] = False
    """Whether `prepare` takes rows that no other node shall decide on meanwhile."""

    names_only_runs: bool = False
    """Whether `run_ids` says all that it needs, for those that are many: then nothing else is
    asked."""

    @property
    def expects_new_id(self) -> bool:
        """Whether the workflow ids that it names are most likely new: then nothing is looked up
        beforehand, and the commit finds out."""
        return False

    def run_ids(self) -> tuple[str, ...]:
        """Runs that must be loaded."""
        return ()

    def naming_runs(self) -> tuple[str, ...]:
        """Runs that name the external payloads of a request, beside those that it opens."""
        return self.run_ids()

    def keeps_payloads(self, reply: Any) -> bool:
        """Whether anything durable names those payloads, now that it was decided."""
        return True

    def instances(self) -> tuple[Instance, ...]:
        """Workflow ids whose newest run must be loaded."""
        return ()

    def receipts(self) -> tuple[ReceiptKey, ...]:
        """Earlier answers that must be known."""
        return ()

    def workers(self) -> tuple[tuple[str, str], ...]:
        """Registrations that must be known: namespace and worker id."""
        return ()

    def records(self) -> tuple[RecordKey, ...]:
        """Records that must be known. Asked after `prepare`, which may find out about them."""
        return ()

    def closer_records(self, world: "World") -> tuple[RecordKey, ...]:
        """Records that only the loaded runs tell of."""
        return ()

    async def prepare(self, store: Store, world: "World") -> tuple[str, ...]:
        """Look for what cannot be named beforehand; returns further runs to load."""
        return ()

    def decide(self, world: "World") -> Any:
        """Apply the rules to what was loaded and return the reply."""
        raise NotImplementedError
