"""HTTP routes of datasets and of evals."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from perdure.core import instant
from perdure.core.limits import (
    DATASET_EXPECTED_BYTES_MAX,
    DATASET_ITEMS_MAX,
    DATASET_METADATA_BYTES_MAX,
    DATASETS_MAX,
    DESCRIPTION_LENGTH_MAX,
    EVALS_SHOWN_MAX,
    EVENT_DATA_BYTES_MAX,
    NAME_LENGTH_MAX,
)
from perdure.engine.beat import Engine
from perdure.features.scores.dataset_operations import (
    DATASET,
    ITEM,
    AddItem,
    ArchiveItem,
    Dataset,
    Item,
    MakeDataset,
    item_key,
)
from perdure.features.scores.eval_operations import EVAL_OF, EVAL_RUNS, EVAL_SET, EvalSet, StartEval
from perdure.protocols.durablex.requests import bad_request, choice, read_body
from perdure.protocols.durablex.routes import FULL, READER, SENDER
from perdure.protocols.durablex.surface import DurablexSurface
from perdure.web.message import HttpError, Request, Response
from perdure.web.routing import Route

Name = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX, pattern=r"\S")]
"""Neither blank nor too long."""


class DatasetBody(Struct, rename="camel"):
    """A new dataset. A repeated `dedupeId` returns the first one, as for items and evals."""

    name: Name
    description: Annotated[str, Meta(max_length=DESCRIPTION_LENGTH_MAX)] | None = None
    dedupe_id: Name | None = None


class ItemBody(Struct, rename="camel"):
    input: Raw
    expected: Raw | UnsetType = UNSET
    metadata: Raw | UnsetType = UNSET
    dedupe_id: Name | None = None


class ArchiveBody(Struct):
    archived: bool


class EvalBody(Struct, rename="camel"):
    workflow: Name
    app: Name | None = None
    label: Annotated[str, Meta(max_length=NAME_LENGTH_MAX)] | None = None
    dedupe_id: Name | None = None


_dataset_decoder = msgspec.json.Decoder(DatasetBody)
_item_decoder = msgspec.json.Decoder(ItemBody)
_archive_decoder = msgspec.json.Decoder(ArchiveBody)
_eval_decoder = msgspec.json.Decoder(EvalBody)


class Datasets:
    """The routes under /datasets, and /eval-sets."""

    def __init__(self, engine: Engine, surface: DurablexSurface) -> None:
        self._engine = engine
        self._store = engine.store
        self._surface = surface

    async def add(self, request: Request) -> Response:
        """POST /datasets."""
        body = read_body(request, _dataset_decoder)
        operation = MakeDataset(
            request.namespace, body.name, body.description, dedupe_id=body.dedupe_id
        )
        dataset_id: str = await self._engine.submit(operation)
        dataset = await self._require(request.namespace, dataset_id)
        return self._surface.answer(201, dataset_view(dataset_id, dataset))

    async def find(self, request: Request) -> Response:
        """GET /datasets, newest first."""
        found = await DATASET.read_page(
            self._store, request.namespace, limit=DATASETS_MAX, newest_first=True
        )
        return self._surface.answer(200, [dataset_view(*one) for one in found])

    async def show(self, request: Request) -> Response:
        """GET /datasets/{id}."""
        dataset_id = request.params["dataset_id"]
        dataset = await self._require(request.namespace, dataset_id)
        return self._surface.answer(200, dataset_view(dataset_id, dataset))

    async def add_item(self, request: Request) -> Response:
        """POST /datasets/{id}/items."""
        dataset_id = request.params["dataset_id"]
        body = read_body(request, _item_decoder)
        operation = AddItem(
            request.namespace,
            dataset_id,
            _bounded("input", body.input, EVENT_DATA_BYTES_MAX) or b"null",
            _bounded("expected", body.expected, DATASET_EXPECTED_BYTES_MAX),
            _bounded("metadata", body.metadata, DATASET_METADATA_BYTES_MAX),
            dedupe_id=body.dedupe_id,
        )
        item_id: str = await self._engine.submit(operation)
        return await self._shown_item(request, dataset_id, item_id, 201)

    async def items(self, request: Request) -> Response:
        """GET /datasets/{id}/items, newest first; archived ones only on request."""
        dataset_id = request.params["dataset_id"]
        await self._require(request.namespace, dataset_id)
        all_of_them = choice(request.query, "archived", {"true", "false"}) == "true"
        prefix = item_key(dataset_id, "")
        found = await ITEM.read_page(
            self._store,
            request.namespace,
            prefix=prefix,
            limit=DATASET_ITEMS_MAX,
            newest_first=True,
        )
        rows = [
            item_view(dataset_id, key.removeprefix(prefix), item)
            for key, item in found
            if all_of_them or not item.archived
        ]
        return self._surface.answer(200, rows)

    async def archive_item(self, request: Request) -> Response:
        """PATCH /datasets/{id}/items/{item}: exclude it from evals, or include it again."""
        dataset_id, item_id = request.params["dataset_id"], request.params["item_id"]
        archived = read_body(request, _archive_decoder).archived
        await self._engine.submit(
            ArchiveItem(request.namespace, dataset_id, item_id, archived=archived)
        )
        return await self._shown_item(request, dataset_id, item_id, 200)

    async def start_eval(self, request: Request) -> Response:
        """POST /datasets/{id}/eval: one run for each case."""
        body = read_body(request, _eval_decoder)
        operation = StartEval(
            request.namespace,
            request.params["dataset_id"],
            body.workflow,
            app=body.app,
            label=body.label,
            dedupe_id=body.dedupe_id,
        )
        eval_id: str = await self._engine.submit(operation)
        eval_set = await EVAL_SET.read(self._store, request.namespace, eval_id)
        runs = await EVAL_RUNS.read(self._store, request.namespace, eval_id)
        assert eval_set is not None
        assert runs is not None
        answer = {"evalSet": eval_view(eval_id, eval_set), "runIds": runs.run_ids}
        return self._surface.answer(201, answer)

    async def evals(self, request: Request) -> Response:
        """GET /datasets/{id}/eval-runs: the evals of a dataset, newest first."""
        dataset_id = request.params["dataset_id"]
        await self._require(request.namespace, dataset_id)
        prefix = item_key(dataset_id, "")
        found = await EVAL_OF.read_page(
            self._store,
            request.namespace,
            prefix=prefix,
            limit=EVALS_SHOWN_MAX,
            newest_first=True,
        )
        rows = []
        for key, _ in found:
            eval_id = key.removeprefix(prefix)
            eval_set = await EVAL_SET.read(self._store, request.namespace, eval_id)
            if eval_set is not None:
                rows.append(eval_view(eval_id, eval_set))
        return self._surface.answer(200, rows)

    async def eval_set(self, request: Request) -> Response:
        """GET /eval-sets/{id}."""
        eval_id = request.params["eval_id"]
        eval_set = await EVAL_SET.read(self._store, request.namespace, eval_id)
        if eval_set is None:
            raise HttpError(404, "eval_set_not_found", f"there is no eval set {eval_id[:64]}")
        return self._surface.answer(200, eval_view(eval_id, eval_set))

    async def _require(self, namespace: str, dataset_id: str) -> Dataset:
        dataset = await DATASET.read(self._store, namespace, dataset_id)
        if dataset is None:
            raise HttpError(404, "dataset_not_found", f"there is no dataset {dataset_id[:64]}")
        return dataset

    async def _shown_item(
        self, request: Request, dataset_id: str, item_id: str, status: int
    ) -> Response:
        item = await ITEM.read(self._store, request.namespace, item_key(dataset_id, item_id))
        assert item is not None
        return self._surface.answer(status, item_view(dataset_id, item_id, item))


def dataset_view(dataset_id: str, dataset: Dataset) -> dict[str, Any]:
    view: dict[str, Any] = {
        "id": dataset_id,
        "name": dataset.name,
        "itemCount": dataset.items,
        "createdAt": instant.text(dataset.created_at),
    }
    return view if dataset.description is None else {**view, "description": dataset.description}


def item_view(dataset_id: str, item_id: str, item: Item) -> dict[str, Any]:
    view: dict[str, Any] = {
        "id": item_id,
        "datasetId": dataset_id,
        "createdAt": instant.text(item.created_at),
        "input": Raw(item.input),
        "archived": item.archived,
    }
    for name, value in (("expected", item.expected), ("metadata", item.metadata)):
        if value is not None:
            view[name] = Raw(value)
    return view


def eval_view(eval_id: str, eval_set: EvalSet) -> dict[str, Any]:
    view: dict[str, Any] = {
        "id": eval_id,
        "datasetId": eval_set.dataset_id,
        "workflow": eval_set.workflow,
        "app": eval_set.app,
        "runCount": eval_set.runs,
        "scores": [
            {"name": name, "avg": counted.total / counted.count, "count": counted.count}
            for name, counted in sorted(eval_set.scores.items())
        ],
        "createdAt": instant.text(eval_set.created_at),
    }
    return view if eval_set.label is None else {**view, "label": eval_set.label}


def _bounded(name: str, value: Raw | UnsetType, most: int) -> bytes | None:
    if value is UNSET:
        return None
    if len(value) > most:
        raise bad_request(f"{name} has more than {most} bytes")
    return bytes(value)


def dataset_routes(surface: DurablexSurface, datasets: Datasets) -> list[Route]:
    """Every route of datasets and evals, with its roles."""
    one = "/datasets/{dataset_id}"
    return [
        Route("GET", "/datasets", READER, surface, datasets.find),
        Route("POST", "/datasets", FULL, surface, datasets.add),
        Route("GET", one, READER, surface, datasets.show),
        Route("GET", f"{one}/items", READER, surface, datasets.items),
        Route("POST", f"{one}/items", FULL, surface, datasets.add_item),
        Route("PATCH", f"{one}/items/{{item_id}}", FULL, surface, datasets.archive_item),
        Route("POST", f"{one}/eval", SENDER, surface, datasets.start_eval),
        Route("GET", f"{one}/eval-runs", READER, surface, datasets.evals),
        Route("GET", "/eval-sets/{eval_id}", READER, surface, datasets.eval_set),
    ]
