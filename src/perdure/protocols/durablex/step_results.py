"""HTTP routes of step results that runners upload and fetch, and of pages of a memo."""

import asyncio
import hashlib
from typing import Any

import msgspec
from msgspec import Raw

from perdure.clock import Clock
from perdure.core import limits
from perdure.core.external import Reference, is_reference_id, is_sha256, require_there
from perdure.core.push.result import reference_view, stored_result
from perdure.core.rejection import (
    ExternalPayloadIntegrityMismatch,
    ExternalPayloadNotFound,
    RunNotActive,
    StoragePressure,
)
from perdure.core.run.state import Run
from perdure.engine.beat import Engine
from perdure.engine.claims import ShowRun
from perdure.engine.payloads import PAYLOADS, UploadPayload, loose_part
from perdure.protocols.durablex.invoke import memo_page
from perdure.protocols.durablex.json_depth import find_obstacle
from perdure.protocols.durablex.requests import bad_request, integer
from perdure.protocols.durablex.runs import Runs
from perdure.protocols.durablex.surface import DurablexSurface
from perdure.store.interface import PayloadKey
from perdure.web.message import HttpError, Request, Response

UPLOAD_PATH = "/payloads"
FETCH_PATH = "/runs/{run_id}/payloads/{payload_id}"
MEMO_PATH = "/runs/{run_id}/memo"

_SHA256 = b"x-durablex-payload-sha256"
_CHECKED_AT_ONCE_MAX = 262_144
"""Larger results are checked in a thread, so that they do not delay other requests."""
_RETRY_SECONDS = 5


class StepResults:
    """The routes for results of steps that are stored apart from their runs."""

    def __init__(self, engine: Engine, runs: Runs, surface: DurablexSurface, clock: Clock) -> None:
        self._engine = engine
        self._runs = runs
        self._surface = surface
        self._clock = clock
        self._taking_bytes = 0

    async def upload(self, request: Request) -> Response:
        """POST /payloads?run=…: store a result before it is reported.

        The same bytes have the same reference within a run, however often they are uploaded.
        """
        run = await self._runs.find_run(request, request.query.get("run", ""))
        if run.is_closed:
            raise RunNotActive(f"run {run.run_id} is over", run_id=run.run_id)
        data, request.body = request.body, b""
        digest = request.header(_SHA256)
        if digest is None or not is_sha256(digest):
            raise bad_request(f"{_SHA256.decode()} must be 64 lower-case hexadecimal digits")
        if not data:
            raise bad_request("a result must have at least one byte")
        await self._require_room()
        self._taking_bytes += len(data)
        try:
            if await _checked(_digest_of_json, data) != digest:
                raise ExternalPayloadIntegrityMismatch(
                    f"the SHA-256 of the body differs from {_SHA256.decode()}"
                )
            reference = stored_result(run, len(data), digest)
            await self._engine.submit(UploadPayload(run.namespace, reference, data))
        finally:
            self._taking_bytes -= len(data)
        return self._surface.answer(201, {"ref": reference_view(reference)})

    async def fetch(self, request: Request) -> Response:
        """GET /runs/{id}/payloads/{id}: the bytes of a result of this run."""
        run = await self._runs.require(request)
        payload_id = request.params["payload_id"]
        stored = None
        if is_reference_id(payload_id):
            stored = await PAYLOADS.read(self._engine.store, run.namespace, payload_id)
        if (
            stored is None
            or stored_result(run, stored.size_bytes, stored.sha256).reference_id != payload_id
        ):
            raise ExternalPayloadNotFound(
                f"run {run.run_id} has no stored result {payload_id[:32]}",
                reference_id=payload_id[:32],
            )
        reference = Reference(payload_id, stored.codec, stored.size_bytes, stored.sha256)
        require_there(stored, reference, self._clock.now())
        data = await self._engine.store.read_payload(PayloadKey(run.namespace, payload_id)) or b""
        if await _checked(_digest, data) != stored.sha256:
            raise ExternalPayloadIntegrityMismatch(
                f"the stored bytes of {payload_id} are not what was uploaded",
                reference_id=payload_id,
            )
        headers = (
            (_SHA256, stored.sha256.encode()),
            (b"cache-control", b"immutable, max-age=60, private"),
        )
        return Response(200, data, headers)

    async def memo(self, request: Request) -> Response:
        """GET /runs/{id}/memo: the entries of a memo that did not fit into a pass."""
        run_id = (await self._runs.require(request)).run_id
        after = integer(request.query, "after", 0, 2**40, 0)

        def copy(run: Run) -> bytes | None:
            return None if run.is_closed else memo_page(run, after)

        page = await self._engine.submit(ShowRun(request.namespace, run_id, copy))
        if page is None:
            raise RunNotActive(f"run {run_id} is over", run_id=run_id)
        assert isinstance(page, bytes)
        return Response(200, page)

    async def _require_room(self) -> None:
        """Bound uploads without references. Runners get twice the bound: reports free room."""
        part = max(
            await loose_part(self._engine.store),
            self._taking_bytes / limits.TAKEN_PAYLOADS_BYTES_MAX,
        )
        if part >= 2:
            raise StoragePressure(
                "too much was uploaded that nothing names yet; it is removed after an hour",
                retry_after_seconds=_RETRY_SECONDS,
            )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _digest_of_json(data: bytes) -> str:
    """The digest of a result. Refuses what is not JSON: it is spliced into other documents."""
    obstacle = find_obstacle(data)
    if obstacle is not None:
        raise bad_request(obstacle)
    try:
        data.decode()
        msgspec.json.decode(data, type=Raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise HttpError(400, "malformed_json", "a result is JSON in UTF-8") from None
    return _digest(data)


async def _checked(check: Any, data: bytes) -> str:
    if len(data) <= _CHECKED_AT_ONCE_MAX:
        return str(check(data))
    return str(await asyncio.to_thread(check, data))
