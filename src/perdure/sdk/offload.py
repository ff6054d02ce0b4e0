"""Large results of steps: uploaded before they are reported, and fetched before a pass begins.

An engine that takes part says so in every invoke. What was uploaded or fetched is remembered by its
hash, so a long run costs one fetch per result and runner, and not one per pass.
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from perdure.sdk.errors import ApiError
from perdure.sdk.http import Answer, HttpClient
from perdure.sdk.limits import (
    FETCHES_AT_ONCE_MAX,
    REPLY_INLINE_BYTES_MAX,
    RESULT_BACKOFF_SECONDS,
    RESULT_TRIES_MAX,
    RESULTS_CACHED_BYTES_MAX,
    SMALL_RESULT_BYTES,
)
from perdure.sdk.settings import Settings
from perdure.sdk.wire import Invoke, Memo, MemoPage, Offload, Ref

log = logging.getLogger("perdure.sdk")

_SHA256 = "x-durablex-payload-sha256"
T = TypeVar("T")


class ResultError(Exception):
    """A large result could not be stored at the engine, or not be fetched from there."""


class ResultStore:
    """The engine's store of large results, as one runner uses it."""

    def __init__(self, settings: Settings) -> None:
        self._http = HttpClient(settings.engine_url, settings.headers())
        self._cached: OrderedDict[str, bytes] = OrderedDict()
        self._cached_bytes = 0

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def complete(self, invoke: Invoke) -> None:
        """Fetch what an invoke only refers to, and put it in its place."""
        terms, run = invoke.ctx.offload, quote(invoke.ctx.run_id, safe="")
        after = None if terms is None else terms.after
        while after is not None:
            answer = await self._ask("GET", f"/runs/{run}/memo?after={after}")
            page = _read(answer.body, MemoPage)
            if page.after is not None and page.after <= after:
                raise ResultError("the engine repeats a page of the memo")
            invoke.steps.update(page.steps)
            after = page.after
        refs = {id: memo.ref for id, memo in invoke.steps.items() if memo.ref is not None}
        turns = asyncio.Semaphore(FETCHES_AT_ONCE_MAX)

        async def fetch(id: str, ref: Ref) -> None:
            async with turns:
                data = await self._fetch(run, ref)
            invoke.steps[id] = Memo(data=_read(data, object))

        failures: list[Exception] = []
        try:
            async with asyncio.TaskGroup() as group:
                for id, ref in refs.items():
                    group.create_task(fetch(id, ref))
        except* ResultError as failed:
            failures += failed.exceptions
        if failures:
            raise ResultError(str(failures[0]))

    async def _fetch(self, run: str, ref: Ref) -> bytes:
        known = self._cached.get(ref.sha256)
        if known is not None:
            self._cached.move_to_end(ref.sha256)
            return known
        answer = await self._ask("GET", f"/runs/{run}/payloads/{quote(ref.id, safe='')}")
        data = answer.body
        if len(data) != ref.size or hashlib.sha256(data).hexdigest() != ref.sha256:
            raise ResultError(f"the engine has other bytes than result {ref.id} had")
        self._remember(ref.sha256, data)
        return data

    async def upload(self, run_id: str, data: bytes) -> Ref:
        """Store a result of a run."""
        sha256 = hashlib.sha256(data).hexdigest()
        target = f"/payloads?run={quote(run_id, safe='')}"
        answer = await self._ask("POST", target, data, sha256)
        ref: Ref = _read(answer.body, _Uploaded).ref
        if (ref.sha256, ref.size) != (sha256, len(data)):
            raise ResultError("the engine has stored other bytes than were uploaded")
        self._remember(sha256, data)
        return ref

    def _remember(self, sha256: str, data: bytes) -> None:
        if sha256 not in self._cached and len(data) <= RESULTS_CACHED_BYTES_MAX:
            self._cached[sha256] = data
            self._cached_bytes += len(data)
            while self._cached_bytes > RESULTS_CACHED_BYTES_MAX:
                self._cached_bytes -= len(self._cached.popitem(last=False)[1])

    async def _ask(
        self, method: str, target: str, data: bytes | None = None, sha256: str = ""
    ) -> Answer:
        """One request, tried again while the engine is away or busy."""
        headers = None
        if data is not None:
            headers = {"content-type": "application/octet-stream", _SHA256: sha256}
        for tries in range(1, RESULT_TRIES_MAX + 1):
            try:
                answer = await self._http.request(method, target, data, headers=headers)
                told = f"{answer.status} {answer.body[:500].decode('utf-8', 'replace')}"
                if answer.status < 300:
                    return answer
                if answer.status < 500:
                    break
            except ApiError as error:
                told = str(error)
            if tries < RESULT_TRIES_MAX:
                await asyncio.sleep(RESULT_BACKOFF_SECONDS * 2 ** (tries - 1))
        raise ResultError(f"{method} {target.partition('?')[0]}: {told}")


class Uploads:
    """The large results of one pass."""

    def __init__(self, store: ResultStore, run_id: str, terms: Offload) -> None:
        self._store = store
        self._run_id = run_id
        self._threshold_bytes = terms.threshold_bytes
        self._inline_bytes = 0
        self.result_bytes_max = terms.max_bytes

    def take_inline(self, size: int) -> bool:
        """Whether the reply of the pass carries a result of this size. It counts from then on."""
        is_crowded = self._inline_bytes + size > REPLY_INLINE_BYTES_MAX
        if size > self._threshold_bytes or (is_crowded and size > SMALL_RESULT_BYTES):
            return False
        self._inline_bytes += size
        return True

    async def upload(self, data: bytes) -> Ref | None:
        """Where a result is stored; None if it goes into the reply, which has room for it."""
        try:
            return await self._store.upload(self._run_id, data)
        except ResultError as error:
            if self._inline_bytes + len(data) > REPLY_INLINE_BYTES_MAX:
                raise
            log.warning("a result of %d bytes is sent inline: %s", len(data), error)
            self._inline_bytes += len(data)
            return None


class _Uploaded(msgspec.Struct, frozen=True):
    ref: Ref


def uploads_of(store: ResultStore | None, invoke: Invoke) -> Uploads | None:
    """How the results of a pass are uploaded, if its engine takes them."""
    if store is None or invoke.ctx.offload is None:
        return None
    return Uploads(store, invoke.ctx.run_id, invoke.ctx.offload)


def is_complete(invoke: Invoke) -> bool:
    """Whether an invoke carries all that it tells of."""
    terms = invoke.ctx.offload
    if terms is None:
        return True
    return terms.after is None and all(memo.ref is None for memo in invoke.steps.values())


def _read(body: bytes, kind: type[T]) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise ResultError(f"the engine answered something else: {error}") from error
