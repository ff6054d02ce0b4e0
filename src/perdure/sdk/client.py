"""A small client of the engine's HTTP API: send events, start workflows, look at runs, wait."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Literal, Self, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from perdure.sdk.datasets import Datasets
from perdure.sdk.errors import ApiError, RunFailedError
from perdure.sdk.http import Answer, HttpClient
from perdure.sdk.settings import resolve
from perdure.sdk.steps import ABSENT, judged
from perdure.sdk.views import ApprovalRow, ScoreRow, SessionRow
from perdure.sdk.wire import Fork, Json, Ref, StepError, encode, encoded

FINISHED = frozenset({"succeeded", "failed", "cancelled"})
LOOK_SECONDS = 0.02
LOOK_SECONDS_MAX = 1.0


class Triggered(msgspec.Struct, frozen=True, rename="camel"):
    """What an event, or a call, did to one workflow."""

    workflow: str = ""
    app: str | None = None
    run_id: str | None = None
    skipped: bool = False
    dropped: bool = False
    debounced: bool = False
    batched: bool = False
    deduped: bool = False


class Sent(msgspec.Struct, frozen=True, rename="camel"):
    """What an event did. If it `continues`, more runs are still to be woken."""

    event_id: str | None = None
    run_id: str | None = None
    woke: int = 0
    continues: bool = False
    deduped: bool = False
    triggered: list[Triggered] = []


class PausedBy(msgspec.Struct, frozen=True):
    """Why a run stands still."""

    reason: str = ""
    detail: str | None = None
    since: str | None = None


class Run(msgspec.Struct, frozen=True, rename="camel"):
    """A run as the engine shows it."""

    id: str
    status: str
    workflow_name: str = ""
    app: str = ""
    attempt: int = 1
    input: Json = None
    result: Json = None
    error: StepError | None = None
    event_name: str | None = None
    executed_by: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    replay_of: str | None = None
    fork: Fork | None = None
    session: str | None = None
    score_count: int = 0
    paused_by: PausedBy | None = None
    ai_tokens: int | None = None
    ai_cost: float | None = None
    wait_reason: str | None = None
    """What an open run waits for, in words."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will happen."""
        return self.status in FINISHED


class StepRow(msgspec.Struct, frozen=True, rename="camel"):
    """A step as the engine shows it."""

    name: str
    index: int = 0
    status: str = ""
    attempt: int = 1
    input: Json = None
    output: Json = None
    output_ref: Ref | None = None
    """Where the output is stored if it is large; then it may be missing here."""
    error: StepError | None = None


class Client:
    """Talks to one engine. Use it as a context, or `close()` it."""

    def __init__(
        self,
        *,
        engine_url: str | None = None,
        api_key: str | None = None,
        app: str | None = None,
        timeout_seconds: float = 30.0,
    ) -> None:
        settings = resolve(engine_url=engine_url, api_key=api_key, app=app)
        self._app = settings.app if app is not None else None
        self._timeout_seconds = timeout_seconds
        self._http = HttpClient(settings.engine_url, settings.headers())
        self.datasets = Datasets(self._told)

    async def send(
        self,
        name: str,
        data: object = ABSENT,
        *,
        app: str | None = None,
        runner: str | None = None,
        dedupe_id: str | None = None,
        session: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Sent:
        """Send an event. With a `dedupe_id` it is safe to send it again."""
        told = {
            "app": app or self._app,
            "runner": runner,
            "dedupeId": dedupe_id,
            "session": session,
            "tags": tags,
        }
        body: dict[str, object] = {"name": name}
        body |= {key: value for key, value in told.items() if value is not None}
        if data is not ABSENT:
            body["data"] = encoded(data)
        return _read(await self._ask("POST", "/events", body), Sent)

    async def trigger(
        self,
        workflow: str,
        data: object = ABSENT,
        *,
        app: str | None = None,
        runner: str | None = None,
        dedupe_id: str | None = None,
    ) -> Triggered:
        """Start this workflow and no other, without an event."""
        body = {"runner": runner, "dedupeId": dedupe_id}
        told: dict[str, object] = {key: value for key, value in body.items() if value is not None}
        if data is not ABSENT:
            told["input"] = encoded(data)
        of = quote(app or self._app or "default", safe="")
        target = f"/workflows/{of}/{quote(workflow, safe='')}/trigger"
        return _read(await self._ask("POST", target, told), Triggered)

    async def run(self, run_id: str) -> Run:
        """One run."""
        return _read(await self._ask("GET", f"/runs/{quote(run_id, safe='')}"), Run)

    async def steps(self, run_id: str) -> list[StepRow]:
        """The steps of a run, in the order in which they were first seen."""
        answer = await self._ask("GET", f"/runs/{quote(run_id, safe='')}/steps")
        return _read(answer, list[StepRow])

    async def stored_output(self, run_id: str, ref: Ref) -> Json:
        """The output of a step that is stored apart because it is large."""
        target = f"/runs/{quote(run_id, safe='')}/payloads/{quote(ref.id, safe='')}"
        return await self._told("GET", target)

    async def workflows(self) -> list[dict[str, Json]]:
        """What is registered, as the engine shows it."""
        return _read(await self._ask("GET", "/workflows"), list[dict[str, Json]])

    async def events(self, name: str | None = None) -> list[dict[str, Json]]:
        """The log of events, newest first, as the engine shows it."""
        asked = "" if name is None else f"?name={quote(name, safe='')}"
        return _read(await self._ask("GET", f"/events{asked}"), list[dict[str, Json]])

    async def cancel(self, run_id: str) -> Run:
        """Cancel a run that has not ended."""
        return _read(await self._ask("POST", f"/runs/{quote(run_id, safe='')}/cancel"), Run)

    async def approvals(
        self, *, status: str | None = None, run_id: str | None = None
    ) -> list[ApprovalRow]:
        """What runs ask people for, newest first."""
        asked = {"status": status, "runId": run_id}
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        return _read(await self._ask("GET", f"/approvals?{query}"), list[ApprovalRow])

    async def until_asked(
        self, run_id: str, step: str, *, timeout_seconds: float = 60.0
    ) -> ApprovalRow:
        """Wait until a step of a run asks for approval."""

        async def look() -> ApprovalRow | None:
            rows = await self.approvals(run_id=run_id)
            return next((row for row in rows if row.step == step), None)

        return await _until(look, timeout_seconds)

    async def decide(
        self, approval_id: str, *, approve: bool, by: str | None = None, args: object = ABSENT
    ) -> ApprovalRow:
        """Say yes or no; `args` replaces what was asked for. Saying the same again is safe."""
        told: dict[str, object] = {"status": "approved" if approve else "denied"}
        if by is not None:
            told["decidedBy"] = by
        if args is not ABSENT:
            told["args"] = encoded(args)
        target = f"/approvals/{quote(approval_id, safe='')}/decision"
        return _read(await self._ask("POST", target, told), ApprovalRow)

    async def sessions(self) -> list[SessionRow]:
        """Labels that runs share, those with the newest runs first; of the client's app, if any."""
        asked = "" if self._app is None else f"?app={quote(self._app, safe='')}"
        return _read(await self._ask("GET", f"/sessions{asked}"), list[SessionRow])

    async def scores(self, run_id: str) -> list[ScoreRow]:
        """How a run was judged, newest first."""
        answer = await self._ask("GET", f"/runs/{quote(run_id, safe='')}/scores")
        return _read(answer, list[ScoreRow])

    async def score(
        self,
        run_id: str,
        name: str,
        value: float | bool | str,
        *,
        comment: str | None = None,
        step: str | None = None,
        source: Literal["human", "code", "llm-judge"] | None = None,
        dedupe_id: str | None = None,
    ) -> ScoreRow:
        """Judge a run, or a step of it. With a `dedupe_id` it is safe to say it again."""
        told = {"comment": comment, "step": step, "source": source, "dedupeId": dedupe_id}
        body = {key: each for key, each in told.items() if each is not None}
        target = f"/runs/{quote(run_id, safe='')}/scores"
        answer = await self._ask("POST", target, {"name": name} | judged(value) | body)
        return _read(answer, ScoreRow)

    async def fork(
        self,
        run_id: str,
        step: str,
        *,
        model: str | None = None,
        prompt: str | None = None,
        params: Mapping[str, object] | None = None,
        dedupe_id: str | None = None,
    ) -> Run:
        """Begin a finished run again at a step, and tell its code what to try otherwise."""
        told = {"model": model, "prompt": prompt, "params": params, "dedupeId": dedupe_id}
        body = {key: value for key, value in told.items() if value is not None}
        target = f"/runs/{quote(run_id, safe='')}/fork"
        return _read(await self._ask("POST", target, {"step": step} | body), Run)

    async def spend(
        self, *, workflow: str | None = None, app: str | None = None, since: str | None = None
    ) -> Json:
        """What model calls used up, as the engine shows it."""
        asked = {"workflow": workflow, "app": app or self._app, "since": since}
        query = urlencode({name: value for name, value in asked.items() if value is not None})
        return await self._told("GET", f"/ai/spend?{query}")

    async def resume(self, run_id: str) -> Run:
        """Let a paused run go on, also one that its budget stopped."""
        return _read(await self._ask("POST", f"/runs/{quote(run_id, safe='')}/resume"), Run)

    async def wait(self, run_id: str, *, timeout_seconds: float = 60.0) -> Run:
        """The run once it has ended; `TimeoutError` if that takes too long."""

        async def look() -> Run | None:
            run = await self.run(run_id)
            return run if run.is_finished else None

        return await _until(look, timeout_seconds)

    async def until_known(self, workflow: str, *, timeout_seconds: float = 60.0) -> None:
        """Wait until a runner has registered this workflow."""

        async def look() -> bool | None:
            known = [row for row in await self.workflows() if row.get("name") == workflow]
            return any(self._app in (None, row.get("app")) for row in known) or None

        await _until(look, timeout_seconds)

    async def until_step(self, run_id: str, step: str, *, timeout_seconds: float = 60.0) -> StepRow:
        """Wait until a run has come to a step."""

        async def look() -> StepRow | None:
            return next((row for row in await self.steps(run_id) if row.name == step), None)

        return await _until(look, timeout_seconds)

    async def result(self, run_id: str, *, timeout_seconds: float = 60.0) -> Json:
        """The result of a run once it has succeeded; otherwise `RunFailedError`."""
        run = await self.wait(run_id, timeout_seconds=timeout_seconds)
        if run.status != "succeeded":
            raise RunFailedError(run_id, run.status, run.error.message if run.error else "")
        return run.result

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _told(self, method: str, target: str, body: object = None) -> Json:
        return _read(await self._ask(method, target, body), object)

    async def _ask(self, method: str, target: str, body: object = None) -> Answer:
        sent = None if body is None else encode(body)
        answer = await self._http.request(method, target, sent, seconds=self._timeout_seconds)
        if answer.status >= 300:
            raise ApiError(answer.status, _complaint(answer))
        return answer


T = TypeVar("T")


async def _until(look: Callable[[], Awaitable[T | None]], seconds: float) -> T:
    """Look again, less and less often, until there is something to see."""
    async with asyncio.timeout(seconds):
        pause = LOOK_SECONDS
        while (seen := await look()) is None:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LOOK_SECONDS_MAX)
        return seen


def _read(answer: Answer, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except msgspec.MsgspecError as error:
        raise ApiError(
            answer.status, f"the engine sent an answer that cannot be read: {error}"
        ) from error


def _complaint(answer: Answer) -> str:
    try:
        told: object = msgspec.json.decode(answer.body)
    except msgspec.MsgspecError:
        told = None
    if isinstance(told, dict) and isinstance(told.get("error"), str):
        return str(told["error"])
    return answer.body[:500].decode("utf-8", "replace")
