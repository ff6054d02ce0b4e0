"""What model calls need, built from the settings."""

from perdure.clock import Clock
from perdure.dispatch.deadlines import DeadlineLoop
from perdure.engine.beat import Engine
from perdure.engine.events import ExpireDedupeId
from perdure.engine.usage_limits import METER, MeterDue
from perdure.features.model_calls.completions import Completions
from perdure.features.model_calls.loops import ModelCaller
from perdure.features.model_calls.operations import INFERENCE
from perdure.features.model_calls.routes import ai_routes
from perdure.features.model_calls.usage_operations import SPEND
from perdure.features.model_calls.usage_routes import ModelUsageRoutes
from perdure.features.scores.dataset_operations import MADE
from perdure.features.scores.dataset_routes import Datasets
from perdure.protocols.durablex.surface import DurablexSurface
from perdure.server.settings import Settings
from perdure.web.routing import Route


def make_inferrer(
    settings: Settings, engine: Engine, clock: Clock, deadlines: DeadlineLoop
) -> ModelCaller:
    """Who asks models, listening to the one clock, or says that there is nobody to ask."""
    provider = None
    if settings.ai_url is not None:
        provider = Completions(clock, settings.ai_url, key=settings.ai_key, model=settings.ai_model)
    model_caller = ModelCaller(engine, provider)
    deadlines.on_record(INFERENCE.name, model_caller.due, model_caller.decided)
    for kind in (SPEND.name, MADE.name):
        deadlines.on_record(kind, ExpireDedupeId)
    deadlines.on_record(METER.name, MeterDue)
    return model_caller


def make_ai_routes(engine: Engine, surface: DurablexSurface, clock: Clock) -> list[Route]:
    """Where people look at what models did."""
    return ai_routes(surface, ModelUsageRoutes(engine, surface, clock), Datasets(engine, surface))
