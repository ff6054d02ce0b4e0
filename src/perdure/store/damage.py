"""Checksums of what is stored, and which runs did not match theirs.

Every chunk of a history has a digest beside it: BLAKE2b of its bytes, cut to 128 bits. It stands
alone, so a chain over a history can be built from digests without reading the chunks again. A chunk
from before there were digests has none, and is only checked for being well-formed.
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
"""How many damaged runs are remembered by name; each is found out anew when it is read."""


def digest_of(data: bytes) -> bytes:
    """What is stored beside some bytes."""
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


def chunk_digest(run: Run, first: int, chunk: bytes) -> bytes | None:
    """The digest of a new chunk. A start that may still be encoded anew gets none before that:

    a node of an older release, which knows no digests, may be the one that does it.
    """
    is_fluid = first == 1 and run.plain_input is not None and run.hosted is None
    return None if is_fluid else digest_of(chunk)


def is_intact(data: bytes, digest: bytes | None) -> bool:
    """Whether bytes are what they were; true if nobody knows."""
    return digest is None or digest_of(data) == digest


class DamagedRuns:
    """Reads histories and remembers which of them are damaged."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, str] = OrderedDict()

    def of(self, run_id: str) -> str | None:
        """What was found wrong with a run when it was read last."""
        return self._known.get(run_id)

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
        """Raises `HistoryDamaged` when there is nothing where every run has something."""
        if not chunks:
            raise self._found(run_id, "its history is missing")

    def whole(self, run_id: str) -> None:
        """A run was read from end to end, and all was well."""
        if self._known:
            self._known.pop(run_id, None)

    def _found(self, run_id: str, what: str) -> HistoryDamaged:
        if run_id not in self._known:
            log.error(
                "run %s is damaged on disk: %s; none of its tasks is handed out until its rows "
                "are restored from a backup",
                run_id,
                what,
            )
        self._known[run_id] = what
        self._known.move_to_end(run_id)
        while len(self._known) > DAMAGED_RUNS_MAX:
            self._known.popitem(last=False)
        return HistoryDamaged(f"run {run_id} is damaged on disk: {what}", run_id=run_id)
