"""External payloads: upload, fetch, and their announcement in cluster info."""

import asyncio
from typing import Any

import msgspec

from perdure.clock import Clock
from perdure.core import limits
from perdure.core.external import (
    CODECS,
    Reference,
    is_reference_id,
    is_sha256,
    reference_to,
    require_intact,
    require_there,
)
from perdure.core.references import REFERENCE_SCHEMA, shown_reference
from perdure.core.rejection import (
    ExternalPayloadIntegrityMismatch,
    ExternalPayloadNotFound,
    ExternalPayloadUnsupported,
    StoragePressure,
)
from perdure.engine.beat import Engine
from perdure.engine.payloads import PAYLOADS, UploadPayload, loose_part
from perdure.protocols.durable_workflow.payload_completion import (
    CONTEXT_HEADER,
    CONTEXT_SCHEMA,
    PREPARED_SCHEMA,
    PayloadCompletion,
)
from perdure.protocols.durable_workflow.surfaces import Namespaces
from perdure.store.interface import PayloadKey
from perdure.web.message import HttpError, Request, Response

UPLOAD_PATH = "/api/external-payloads/v1"
FETCH_PATH = UPLOAD_PATH + "/{reference_id}"

_CODEC = b"x-durable-workflow-payload-codec"
_SIZE = b"x-durable-workflow-payload-size"
_SHA256 = b"x-durable-workflow-payload-sha256"
_HASHED_INLINE_BYTES_MAX = 262_144
"""Larger payloads are hashed in a thread, so as not to block the event loop."""
_RETRY_SECONDS = 5

REASONS = {
    "unauthorized": "external_payload_unauthorized",
    "forbidden": "external_payload_unauthorized",
    "payload_too_large": "external_payload_oversized",
    "unsupported_media_type": "external_payload_unsupported",
}
"""Reasons of these routes, by general reason. Store errors become `unavailable`."""


def storage_policy(threshold_bytes: int) -> dict[str, Any]:
    """The storage policy of a namespace in cluster info, in the form that SDKs validate."""
    return {
        "status": "available",
        "enabled": True,
        "threshold_bytes": threshold_bytes,
        "integrity_required": True,
        "transport": {
            "schema": "durable-workflow.v2.runtime-external-payload-transport.v1",
            "version": 1,
            "reference_schema": REFERENCE_SCHEMA,
            "mode": "authenticated_namespace_runtime",
            "upload": {
                "method": "POST",
                "path": UPLOAD_PATH,
                "completion_context": {
                    "schema": CONTEXT_SCHEMA,
                    "prepared_schema": PREPARED_SCHEMA,
                    "header": CONTEXT_HEADER,
                },
            },
            "fetch": {"method": "GET", "path_template": UPLOAD_PATH + "/{referenceId}"},
            "limits": {
                "max_payload_bytes": limits.EXTERNAL_PAYLOAD_BYTES_MAX,
                "request_timeout_seconds": limits.EXTERNAL_PAYLOAD_REQUEST_SECONDS,
            },
        },
        "direct_provider_adapters": {"capability_negotiated": True, "enabled": False},
    }


class PayloadSurface:
    """Requests of clients and workers. Version headers are accepted, but not required."""

    _HEADERS = ((b"cache-control", b"no-store, private"),)

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces

    def admit(self, request: Request) -> None:
        request.namespace = self._namespaces.resolve(request)

    def answer(self, status: int, body: dict[str, Any]) -> Response:
        return Response(status, msgspec.json.encode(body), self._HEADERS)

    def refuse(self, request: Request, error: HttpError) -> Response:
        reason = REASONS.get(error.reason, error.reason)
        retryable = error.status == 503
        if retryable and reason != StoragePressure.reason:
            reason = "external_payload_unavailable"
        body = {
            "schema": "durable-workflow.v2.runtime-external-payload-error.v1",
            "reason": reason,
            "message": error.message,
            "retryable": retryable,
            "status": error.status,
            **error.details,
        }
        headers = (*self._HEADERS, *error.headers)
        return Response(error.status, msgspec.json.encode(body), headers)


class PayloadTransport:
    """Handlers of `/api/external-payloads/v1`."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        surface: PayloadSurface,
        payload_completion: PayloadCompletion,
        *,
        is_open: bool,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._payload_completion = payload_completion
        self._is_open = is_open
        self._upload_bytes = 0
        self.surface = surface

    async def upload(self, request: Request) -> Response:
        """Store a payload. The same bytes always get the same reference."""
        if not self._is_open:
            raise ExternalPayloadUnsupported(
                "external payloads are switched off; see PERDURE_EXTERNAL_PAYLOADS"
            )
        data, request.body = request.body, b""
        reference = _announced(request)
        await _require_intact(reference, data)
        if not data.isascii():
            raise ExternalPayloadUnsupported("the body must be the text of a blob")
        await self._require_room(request)
        reference = reference_to(
            request.namespace, reference.codec, reference.size_bytes, reference.sha256
        )
        self._upload_bytes += len(data)
        try:
            await self._engine.submit(UploadPayload(request.namespace, reference, data))
        finally:
            self._upload_bytes -= len(data)
        return self.surface.answer(
            201,
            {
                "schema": "durable-workflow.v2.runtime-external-payload-upload.v1",
                "transport_version": 1,
                "reference": shown_reference(reference),
            },
        )

    async def _require_room(self, request: Request) -> None:
        """Refuse an upload if too many bytes are stored that no run uses yet.

        Reports on leased tasks may use twice as much: they turn unused payloads into used ones.
        """
        part = max(
            await loose_part(self._engine.store),
            self._upload_bytes / limits.TAKEN_PAYLOADS_BYTES_MAX,
        )
        if part < 1 or (part < 2 and await self._payload_completion.is_for_leased_task(request)):
            return
        raise StoragePressure(
            "too many payloads were uploaded that no run uses; these are removed after an hour",
            storage_state="draining",
            request_admitted=False,
            retry_after_seconds=_RETRY_SECONDS,
        )

    async def fetch(self, request: Request) -> Response:
        """Send a payload, after checking it against its hash."""
        reference_id = request.params["reference_id"]
        stored = None
        if is_reference_id(reference_id):
            stored = await PAYLOADS.read(self._engine.store, request.namespace, reference_id)
        if stored is None or stored.codec not in CODECS:
            raise ExternalPayloadNotFound(
                f"there is no external payload {reference_id[:32]} in this namespace",
                reference_id=reference_id[:32],
            )
        known = Reference(reference_id, stored.codec, stored.size_bytes, stored.sha256)
        require_there(stored, _expected(request, known), self._clock.now())
        home = stored.home or request.namespace
        data = await self._engine.store.read_payload(PayloadKey(home, reference_id))
        await _require_intact(known, data or b"")
        return Response(
            200,
            data or b"",
            (
                (_CODEC, known.codec.encode()),
                (_SIZE, b"%d" % known.size_bytes),
                (_SHA256, known.sha256.encode()),
                (b"cache-control", b"immutable, max-age=60, private"),
            ),
            b"application/octet-stream",
        )


def _announced(request: Request) -> Reference:
    """The reference of the body, from the headers of an upload."""
    codec, size, sha256 = (request.header(name) for name in (_CODEC, _SIZE, _SHA256))
    if codec not in CODECS:
        codecs = ", ".join(sorted(CODECS))
        raise ExternalPayloadUnsupported(f"{_CODEC.decode()} must be one of: {codecs}")
    if size is None or not size.isascii() or not size.isdigit() or len(size) > 12:
        raise ExternalPayloadIntegrityMismatch(f"{_SIZE.decode()} must be the size of the body")
    if sha256 is None or not is_sha256(sha256):
        raise ExternalPayloadIntegrityMismatch(
            f"{_SHA256.decode()} must be 64 lower-case hexadecimal digits"
        )
    return Reference("", codec or "", int(size), sha256)


def _expected(request: Request, known: Reference) -> Reference:
    """The reference in the headers of a fetch; without them, the stored one."""
    codec, size, sha256 = (request.header(name) for name in (_CODEC, _SIZE, _SHA256))
    is_size = size is None or (size.isascii() and size.isdigit() and len(size) <= 12)
    return Reference(
        known.reference_id,
        known.codec if codec is None else codec,
        known.size_bytes if size is None else int(size) if is_size else -1,
        known.sha256 if sha256 is None else sha256,
    )


async def _require_intact(reference: Reference, data: bytes) -> None:
    if len(data) <= _HASHED_INLINE_BYTES_MAX:
        require_intact(reference, data)
    else:
        await asyncio.to_thread(require_intact, reference, data)
