"""Scores of runs, datasets of cases, and evals that run a workflow once for every case."""

from perdure.core.push.effect import Scored, ScoredElsewhere
from perdure.engine.events import ExpireDedupeId
from perdure.engine.registry import Extension
from perdure.features.feature import Feature, Kernel, Parts
from perdure.features.scores.dataset_operations import MADE
from perdure.features.scores.dataset_routes import Datasets, dataset_routes
from perdure.features.scores.operations import GIVEN, SCORE, KeepScore, ScoreAnother
from perdure.features.scores.routes import Scores
from perdure.protocols.durablex.routes import FULL, READER
from perdure.web.routing import Route


def _build(kernel: Kernel, settings: object) -> Parts:
    surface = kernel.push_surface
    scores = Scores(kernel.engine, kernel.push_runs, surface)
    return Parts(
        routes=[
            Route("GET", "/runs/{run_id}/scores", READER, surface, scores.of_run),
            Route("POST", "/runs/{run_id}/scores", FULL, surface, scores.add),
            *dataset_routes(surface, Datasets(kernel.engine, surface)),
        ]
    )


FEATURE: Feature[object] = Feature(
    extension=Extension(
        name="scores",
        follow_ups={Scored: KeepScore, ScoredElsewhere: ScoreAnother},
        when_due={GIVEN.name: ExpireDedupeId, MADE.name: ExpireDedupeId},
        run_records=(SCORE.name, GIVEN.name),
    ),
    build=_build,
)
