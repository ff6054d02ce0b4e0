"""`client.datasets`: cases that workflows are evaluated on, and how well they do."""

from collections.abc import Awaitable, Callable
from urllib.parse import quote

import msgspec

from perdure.sdk.steps import ABSENT
from perdure.sdk.wire import Json, encoded


class DatasetRow(msgspec.Struct, frozen=True, rename="camel"):
    """A dataset as the engine shows it."""

    id: str
    name: str
    item_count: int = 0
    created_at: str = ""
    description: str | None = None


class ItemRow(msgspec.Struct, frozen=True, rename="camel"):
    """One case."""

    id: str
    dataset_id: str
    created_at: str = ""
    input: Json = None
    expected: Json = None
    metadata: Json = None
    archived: bool = False


class ScoreAverage(msgspec.Struct, frozen=True):
    """What the runs of an eval were scored on average."""

    name: str
    avg: float
    count: int


class EvalRow(msgspec.Struct, frozen=True, rename="camel"):
    """An eval of one workflow."""

    id: str
    dataset_id: str
    workflow: str
    run_count: int = 0
    scores: list[ScoreAverage] = []
    created_at: str = ""
    label: str | None = None
    app: str | None = None


class Evaluation(msgspec.Struct, frozen=True, rename="camel"):
    """An eval that was started, and its runs in the order of the cases."""

    eval_set: EvalRow
    run_ids: list[str]


class Datasets:
    """The calls around datasets. With a `dedupe_id` each is safe to repeat."""

    def __init__(self, ask: Callable[..., Awaitable[Json]]) -> None:
        self._ask = ask

    async def make(
        self, name: str, description: str | None = None, *, dedupe_id: str | None = None
    ) -> DatasetRow:
        """A new dataset."""
        body = _given(name=name, description=description, dedupeId=dedupe_id)
        return msgspec.convert(await self._ask("POST", "/datasets", body), DatasetRow)

    async def find(self) -> list[DatasetRow]:
        """All of them, newest first."""
        return [msgspec.convert(row, DatasetRow) for row in await self._ask("GET", "/datasets")]

    async def show(self, dataset_id: str) -> DatasetRow:
        """One of them."""
        return msgspec.convert(await self._ask("GET", _path(dataset_id)), DatasetRow)

    async def add(
        self,
        dataset_id: str,
        input: object,
        *,
        expected: object = ABSENT,
        metadata: object = ABSENT,
        dedupe_id: str | None = None,
    ) -> ItemRow:
        """One more case: what goes in, and what is expected of it."""
        body = _given(dedupeId=dedupe_id) | {"input": encoded(input)}
        for name, value in (("expected", expected), ("metadata", metadata)):
            if value is not ABSENT:
                body[name] = encoded(value)
        answer = await self._ask("POST", f"{_path(dataset_id)}/items", body)
        return msgspec.convert(answer, ItemRow)

    async def items(self, dataset_id: str, *, archived: bool = False) -> list[ItemRow]:
        """The cases, newest first; with `archived`, those that evals leave out as well."""
        more = "?archived=true" if archived else ""
        answer = await self._ask("GET", f"{_path(dataset_id)}/items{more}")
        return [msgspec.convert(row, ItemRow) for row in answer]

    async def archive(self, dataset_id: str, item_id: str, *, archived: bool = True) -> ItemRow:
        """Let evals leave a case out, or take it in again."""
        path = f"{_path(dataset_id)}/items/{quote(item_id, safe='')}"
        return msgspec.convert(await self._ask("PATCH", path, {"archived": archived}), ItemRow)

    async def evaluate(
        self,
        dataset_id: str,
        workflow: str,
        *,
        app: str | None = None,
        label: str | None = None,
        dedupe_id: str | None = None,
    ) -> Evaluation:
        """Run a workflow once for every case."""
        body = _given(workflow=workflow, app=app, label=label, dedupeId=dedupe_id)
        answer = await self._ask("POST", f"{_path(dataset_id)}/eval", body)
        return msgspec.convert(answer, Evaluation)

    async def evals(self, dataset_id: str) -> list[EvalRow]:
        """The evals of a dataset, newest first."""
        answer = await self._ask("GET", f"{_path(dataset_id)}/eval-runs")
        return [msgspec.convert(row, EvalRow) for row in answer]

    async def eval_set(self, eval_id: str) -> EvalRow:
        """One eval, with the averages of its scores by now."""
        answer = await self._ask("GET", f"/eval-sets/{quote(eval_id, safe='')}")
        return msgspec.convert(answer, EvalRow)


def _path(dataset_id: str) -> str:
    return f"/datasets/{quote(dataset_id, safe='')}"


def _given(**fields: object) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}
