"""Checksums of stored histories, and the runs whose data did not match.

Every chunk of a history is stored with a digest: BLAKE2b of its bytes, cut to 128 bits. Digests
cover single chunks, so a chain over a history could be built from them without reading the chunks.
A chunk of an older release has no digest and is only checked for being well-formed.
"""

import logging
from collections import OrderedDict
from collections.abc import Collection
from hashlib import blake2b

import msgspec

from perdure.core.rejection import HistoryDamaged
from perdure.core.run.state import Run
from perdure.store import rows

log = logging.getLogger(__name__)

DIGEST_BYTES = 16
DAMAGED_RUNS_MAX = 1000
"""How many damaged runs are remembered; any other is detected again when it is read."""


def digest_of(data: bytes) -> bytes:
    """The checksum of some bytes."""
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


def chunk_digest(run: Run, first: int, chunk: bytes) -> bytes | None:
    """The digest of a new chunk. A first chunk that may still be re-encoded gets none until then.

    A node of an older release, which does not write digests, may be the one to re-encode it.
    """
    may_change = first == 1 and run.plain_input is not None and run.hosted is None
    return None if may_change else digest_of(chunk)


def is_intact(data: bytes, digest: bytes | None) -> bool:
    """Whether bytes match their digest; true if there is no digest."""
    return digest is None or digest_of(data) == digest


class DamagedRuns:
    """A decoder of histories that remembers which runs are damaged."""

    def __init__(self) -> None:
        self._damage: OrderedDict[str, str] = OrderedDict()

    def of(self, run_id: str) -> str | None:
        """The damage found when a run was read last, if any."""
        return self._damage.get(run_id)

    def events_of(self, run_id: str, chunk: bytes, digest: bytes | None) -> list[bytes]:
        """The single events of a chunk. Raises `HistoryDamaged`."""
        self.require_intact(run_id, chunk, digest)
        try:
            return rows.events_of(chunk)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._found(run_id, "a chunk of its history is not well-formed") from error

    def arguments_of(self, run_id: str, first_chunk: bytes, digest: bytes | None) -> bytes:
        """The start arguments in the first chunk. Raises `HistoryDamaged`."""
        self.require_intact(run_id, first_chunk, digest)
        try:
            return rows.arguments_of(first_chunk)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._found(run_id, "the start of its history is not well-formed") from error

    def require_intact(self, run_id: str, chunk: bytes, digest: bytes | None) -> None:
        if not is_intact(chunk, digest):
            raise self._found(run_id, "a chunk of its history does not match its checksum")

    def require_whole(self, run_id: str, chunks: Collection[object]) -> None:
        """Raise `HistoryDamaged` if the history of a run has no chunks."""
        if not chunks:
            raise self._found(run_id, "its history is missing")

    def whole(self, run_id: str) -> None:
        """Note that a whole history was read without damage."""
        if self._damage:
            self._damage.pop(run_id, None)

    def _found(self, run_id: str, what: str) -> HistoryDamaged:
        if run_id not in self._damage:
            log.error(
                "run %s is damaged on disk: %s; its tasks are not leased until its rows "
                "are restored from a backup",
                run_id,
                what,
            )
        self._damage[run_id] = what
        self._damage.move_to_end(run_id)
        while len(self._damage) > DAMAGED_RUNS_MAX:
            self._damage.popitem(last=False)
        return HistoryDamaged(f"run {run_id} is damaged on disk: {what}", run_id=run_id)
