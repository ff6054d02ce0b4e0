"""Output streams of runs: list, describe, read (waiting for new items), append, close."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Raw, Struct

from perdure.core import instant, limits
from perdure.core.rejection import (
    InstanceNotFound,
    InvalidRequest,
    InvalidStreamName,
    InvalidStreamRequest,
    StreamNotFound,
)
from perdure.core.run.state import Run
from perdure.core.run.stream import NewItem, OutputStream
from perdure.dispatch.stream_readers import StreamReaders, WaitingReader
from perdure.engine.beat import Engine
from perdure.engine.streams import STREAMS, WriteStream, Written, record_key, stream_of
from perdure.protocols.durable_workflow import bodies
from perdure.protocols.durable_workflow.references import with_payloads
from perdure.protocols.durable_workflow.stream_items import NAME, append_request, close_request
from perdure.protocols.durable_workflow.surfaces import ControlSurface
from perdure.store.interface import RecordKey
from perdure.web.message import Request, Response

_CLIENT = NewItem(origin="control_plane")


class _Page(Struct, frozen=True):
    """A page for a reader: the stream, some items, and the next offset."""

    stream: OutputStream
    items: list[bytes]
    next_offset: int

    @property
    def is_last(self) -> bool:
        return self.stream.is_over and self.next_offset >= self.stream.total


class _Window(Struct, frozen=True):
    """The range of a stream that a reader requests, and how long it waits."""

    first: int
    limit: int
    seconds: int


class Streams:
    """Handlers of `/api/workflows/{workflow_id}/runs/{run_id}/streams…`."""

    def __init__(
        self, engine: Engine, stream_readers: StreamReaders, surface: ControlSurface
    ) -> None:
        self._engine = engine
        self._store = engine.store
        self._stream_readers = stream_readers
        names = ("list_streams", "describe_stream", "read_stream", "append_stream", "close_stream")
        self.surfaces = {name: surface.of(name) for name in names}

    # Read ----------------------------------------------------------------------------------------

    async def list_streams(self, request: Request) -> Response:
        run_id = (await self._require_run(request)).run_id
        prefix = f"{run_id}/"
        found = await STREAMS.read_page(
            self._store, request.namespace, limit=2 * limits.STREAMS_PER_RUN_MAX, prefix=prefix
        )
        streams = [_view(key.removeprefix(prefix), stream) for key, stream in found]
        answer = {**_run_of(request), "count": len(streams), "streams": streams}
        return self.surfaces["list_streams"].answer(request, 200, answer)

    async def describe(self, request: Request) -> Response:
        key = await self._require_key(request)
        stream = await STREAMS.read(self._store, key.namespace, key.key)
        if stream is None:
            raise _not_found(key)
        return self._stream_answer("describe_stream", request, stream)

    async def read(self, request: Request) -> Response:
        key = await self._require_key(request)
        with _as_stream_errors():
            window = _window(request.query)
        page = await self._page(key, window, request)
        if page is None:
            raise _not_found(key)
        members = {
            "items": Raw(b"[" + b",".join(page.items) + b"]"),
            "next_offset": page.next_offset,
            "terminal": page.is_last,
        }
        return self._stream_answer("read_stream", request, page.stream, members)

    async def _page(self, key: RecordKey, window: _Window, request: Request) -> _Page | None:
        """Read items. At the end of the stream, wait for more until it closes or time is up."""
        if not window.seconds:
            return await self._read_page(key, window, None)
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + window.seconds
        with self._stream_readers.waiting_at(key) as tail:
            is_disconnected = False

            def leave() -> None:
                nonlocal is_disconnected
                is_disconnected = True
                tail.wake()

            request.watch(leave)
            while True:
                tail.looks()
                page = await self._read_page(key, window, tail)
                left = give_up_at - loop.time()
                if page is not None and (page.items or page.is_last):
                    return page
                if (
                    is_disconnected
                    or self._stream_readers.is_closed
                    or left <= 0
                    or not await tail.wait(left)
                ):
                    return page

    async def _read_page(
        self, key: RecordKey, window: _Window, tail: WaitingReader | None
    ) -> _Page | None:
        record = await self._store.read_record(key)
        if record is None:
            return None
        if tail is not None:
            tail.seen = record.version
        stream = STREAMS.decode(record)
        found = await self._store.read_items(
            stream_of(key),
            window.first,
            stream.total,
            limit=window.limit,
            bytes_max=limits.STREAM_PAGE_BYTES_MAX,
        )
        if found:
            return _Page(stream, [data for _, data in found], found[-1][0] + 1)
        # At the end, or the requested items were removed: continue after the last known offset.
        return _Page(stream, [], max(window.first, stream.total))

    # Write ---------------------------------------------------------------------------------------

    async def append(self, request: Request) -> Response:
        key, is_closed = await self._require_stream_key(request)
        with _as_stream_errors():
            body = bodies.decode(request.body, bodies.AppendItemsBody)
            name = stream_of(key).stream_name
            directive = append_request(name, body.items, body.max_pending_items, _CLIENT)
        run_id = stream_of(key).run_id
        operation = WriteStream(key.namespace, run_id, directive, is_closed=is_closed)
        written: Written = await self._engine.submit(with_payloads(request, operation))
        members = {
            "accepted_offsets": written.offsets,
            "accepted": written.accepted,
            "deduped": len(written.offsets) - written.accepted,
        }
        return self._stream_answer("append_stream", request, written.stream, members)

    async def close(self, request: Request) -> Response:
        key, is_closed = await self._require_stream_key(request)
        with _as_stream_errors():
            body = bodies.decode(request.body, bodies.CloseStreamBody)
        stream = stream_of(key)
        directive = close_request(stream.stream_name, body.error_reason, body.retention_seconds)
        operation = WriteStream(key.namespace, stream.run_id, directive, is_closed=is_closed)
        written: Written = await self._engine.submit(operation)
        return self._stream_answer("close_stream", request, written.stream)

    # Both ----------------------------------------------------------------------------------------

    async def _require_key(self, request: Request) -> RecordKey:
        return (await self._require_stream_key(request))[0]

    async def _require_stream_key(self, request: Request) -> tuple[RecordKey, bool]:
        """The key of the stream in the path, and whether its run is closed."""
        name = request.params["stream_name"]
        if not NAME.fullmatch(name):
            raise InvalidStreamName(
                "the name of a stream is a letter or digit and up to 190 letters, digits, dots, "
                "colons, underscores and dashes",
                stream_name=name[:255],
            )
        run = await self._require_run(request)
        return record_key(request.namespace, run.run_id, name), run.is_closed

    async def _require_run(self, request: Request) -> Run:
        """The run in the path. Read outside the beat: the names of a run never change."""
        workflow_id, run_id = request.params["workflow_id"], request.params["run_id"]
        run = await self._store.read_run(run_id)
        if run is None or (run.namespace, run.workflow_id) != (request.namespace, workflow_id):
            raise InstanceNotFound(f"workflow {workflow_id[:128]} has no run {run_id[:64]}")
        return run

    def _stream_answer(
        self,
        operation: str,
        request: Request,
        stream: OutputStream,
        members: dict[str, Any] | None = None,
    ) -> Response:
        view = _view(request.params["stream_name"], stream)
        answer = {**_run_of(request), "stream": {**_run_of(request), **view}, **(members or {})}
        return self.surfaces[operation].answer(request, 200, answer)


def _run_of(request: Request) -> dict[str, str]:
    workflow_id, run_id = request.params["workflow_id"], request.params["run_id"]
    return {"workflow_id": workflow_id, "workflow_run_id": run_id}


def _view(name: str, stream: OutputStream) -> dict[str, Any]:
    return {
        "stream_name": name,
        "status": stream.status,
        "first_offset": stream.first,
        "last_offset": stream.total - 1 if stream.total else None,
        "total_items": stream.total,
        "pending_items": stream.pending,
        "opened_at": instant.text(stream.opened_at),
        "last_appended_at": instant.text_or_none(stream.last_appended_at),
        "closed_at": instant.text_or_none(stream.closed_at),
        "error_reason": stream.error_reason,
        "retention_seconds": stream.retention_seconds,
    }


def _not_found(key: RecordKey) -> StreamNotFound:
    run_id, name = stream_of(key)
    return StreamNotFound(f"run {run_id} has no stream {name}", stream_name=name)


def _window(query: dict[str, str]) -> _Window:
    return _Window(
        _number(query, "from", 0, 0, 2**53),
        _number(
            query, "max_items", limits.STREAM_PAGE_SIZE_DEFAULT, 1, limits.STREAM_PAGE_SIZE_MAX
        ),
        _number(query, "wait_seconds", 0, 0, limits.STREAM_WAIT_SECONDS_MAX),
    )


def _number(query: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    text = query.get(name)
    if text is None or text == "":
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and least <= int(text) <= most):
        raise InvalidRequest(name, f"must be a number from {least} to {most}")
    return int(text)


@contextmanager
def _as_stream_errors() -> Iterator[None]:
    """Turn validation errors into `invalid_request`, the reason of the stream routes."""
    try:
        yield
    except InvalidRequest as error:
        raise InvalidStreamRequest(error.message, **error.details) from None
