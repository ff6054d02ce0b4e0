"""HTTP routes of the scores of runs."""

from typing import Any

import msgspec

from perdure.core import instant
from perdure.core.limits import NAME_LENGTH_MAX, SCORES_PER_RUN_MAX
from perdure.core.push.score import Score, judgement_of
from perdure.engine.beat import Engine
from perdure.features.scores.operations import SCORE, AddScore, ScoreGiven, score_key
from perdure.protocols.durablex.opcodes import ScoreTold
from perdure.protocols.durablex.requests import bad_request, read_body
from perdure.protocols.durablex.runs import Runs
from perdure.protocols.durablex.surface import DurablexSurface
from perdure.web.message import Request, Response


class ScoreBody(ScoreTold, rename="camel"):
    """A score from a client. A repeated `dedupeId` returns the first score."""

    step: str | None = None
    dedupe_id: str | None = None


_decoder = msgspec.json.Decoder(ScoreBody)


class Scores:
    """The routes /runs/{id}/scores."""

    def __init__(self, engine: Engine, runs: Runs, surface: DurablexSurface) -> None:
        self._engine = engine
        self._runs = runs
        self._surface = surface

    async def of_run(self, request: Request) -> Response:
        """GET /runs/{id}/scores, newest first."""
        run = await self._runs.require(request)
        prefix = score_key(run.run_id, "")
        found = await SCORE.read_page(
            self._engine.store,
            run.namespace,
            prefix=prefix,
            limit=SCORES_PER_RUN_MAX,
            newest_first=True,
        )
        rows = [score_view(key.removeprefix(prefix), score) for key, score in found]
        return self._surface.answer(200, rows)

    async def add(self, request: Request) -> Response:
        """POST /runs/{id}/scores."""
        run_id = request.params["run_id"]
        body = read_body(request, _decoder)
        if body.run_id not in (None, run_id):
            raise bad_request("runId is another run than the path names")
        if body.dedupe_id is not None and not 0 < len(body.dedupe_id) <= NAME_LENGTH_MAX:
            raise bad_request(f"dedupeId has 1 to {NAME_LENGTH_MAX} characters")
        try:
            judgement = judgement_of(
                name=body.name,
                value=body.value,
                text=body.string_value,
                data_type=body.data_type,
                source=body.source or "human",
                comment=body.comment,
                step=body.step,
            )
        except ValueError as error:
            raise bad_request(str(error)) from None
        operation = AddScore(
            request.namespace,
            run_id,
            judgement,
            scorer=request.principal.subject,
            dedupe_id=body.dedupe_id,
        )
        added: ScoreGiven | str = await self._engine.submit(operation)
        if isinstance(added, str):
            key = score_key(run_id, added)
            known = await SCORE.read(self._engine.store, request.namespace, key)
            assert known is not None, "scores are never removed"
            added = ScoreGiven(added, known)
        return self._surface.answer(200, score_view(added.score_id, added.score))


def score_view(score_id: str, score: Score) -> dict[str, Any]:
    """The JSON of a score. Members without a value are left out."""
    judgement = score.judgement
    view = {
        "id": score_id,
        "runId": score.run_id,
        "name": judgement.name,
        "dataType": judgement.data_type,
        "source": judgement.source,
        "createdAt": instant.text(score.created_at),
        "step": judgement.step,
        "value": judgement.value,
        "stringValue": judgement.text,
        "comment": judgement.comment,
        "scorer": score.scorer,
    }
    return {name: value for name, value in view.items() if value is not None}
