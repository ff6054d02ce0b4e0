"""The loop that makes model calls: each try is counted on disk before it starts."""

import asyncio
import logging
from typing import Protocol

from perdure.core import limits
from perdure.engine.beat import Engine
from perdure.engine.operation import Operation
from perdure.features.model_calls.operations import BeginInference, ConcludeInference
from perdure.features.model_calls.rules import Inference, Outcome
from perdure.store.interface import RecordKey, Unavailable

log = logging.getLogger(__name__)


class Provider(Protocol):
    """A provider of models."""

    async def ask(self, inference: Inference) -> Outcome:
        """Ask a model. May take long; errors of the provider are returned, not raised."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...


class ModelCaller:
    """The model calls of this process that are in progress."""

    def __init__(self, engine: Engine, provider: Provider | None) -> None:
        self._engine = engine
        self._provider = provider
        self._reserved: set[Operation] = set()
        self._begun: asyncio.Queue[tuple[RecordKey, Inference]] = asyncio.Queue()
        self._under_way = 0

    @property
    def provider(self) -> Provider | None:
        """The configured provider, if there is one."""
        return self._provider

    def due(self, record: RecordKey) -> Operation:
        """The operation that counts a try of a call that is due."""
        busy = self._under_way + self._begun.qsize() + len(self._reserved)
        operation = BeginInference(
            record,
            has_provider=self._provider is not None,
            has_room=busy < limits.INFERENCES_AT_ONCE_MAX,
        )
        self._reserved.add(operation)
        return operation

    def decided(self, record: RecordKey, operation: Operation, committed: bool) -> None:
        """Start the try if its operation was committed."""
        self._reserved.discard(operation)
        assert isinstance(operation, BeginInference)
        if committed and operation.begun is not None:
            self._begun.put_nowait((record, operation.begun))

    async def run(self) -> None:
        """Make calls for as long as the server lives."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    record, inference = await self._begun.get()
                    self._under_way += 1
                    group.create_task(self._try(record, inference), name=f"infer {record.key}")
        finally:
            if self._provider is not None:
                self._provider.close()

    async def _try(self, record: RecordKey, inference: Inference) -> None:
        try:
            assert self._provider is not None
            outcome = await self._provider.ask(inference)
            await self._engine.submit(ConcludeInference(record, inference.tries, outcome))
        except Unavailable as error:
            # The record is due again when the timeout of this try has passed.
            log.warning(
                "storing the result of model call %s failed; its deadline retries it: %s",
                record.key,
                error.message,
            )
        except Exception:
            log.exception("model call %s failed unexpectedly; its deadline retries it", record.key)
        finally:
            self._under_way -= 1
