"""What model calls need, built from the settings."""

from perdure.clock import Clock
from perdure.dispatch.deadlines import DeadlineLoop
from perdure.dispatch.inferring import Inferrer
from perdure.engine.beat import Engine
from perdure.engine.datasets import MADE
from perdure.engine.inference import INFERENCE
from perdure.engine.intake import ForgetSeen
from perdure.engine.metering import METER, MeterDue
from perdure.engine.spending import SPEND
from perdure.protocols.completions import Completions
from perdure.protocols.durablex.ai_routes import ai_routes
from perdure.protocols.durablex.datasets import Datasets
from perdure.protocols.durablex.spending import Spending
from perdure.protocols.durablex.surface import DurablexSurface
from perdure.server.settings import Settings
from perdure.web.routing import Route


def make_inferrer(
    settings: Settings, engine: Engine, clock: Clock, deadlines: DeadlineLoop
) -> Inferrer:
    """Who asks models, listening to the one clock, or says that there is nobody to ask."""
    provider = None
    if settings.ai_url is not None:
        provider = Completions(clock, settings.ai_url, key=settings.ai_key, model=settings.ai_model)
    inferrer = Inferrer(engine, provider)
    deadlines.on_record(INFERENCE.name, inferrer.due, inferrer.decided)
    for kind in (SPEND.name, MADE.name):
        deadlines.on_record(kind, ForgetSeen)
    deadlines.on_record(METER.name, MeterDue)
    return inferrer


def make_ai_routes(engine: Engine, surface: DurablexSurface, clock: Clock) -> list[Route]:
    """Where people look at what models did."""
    return ai_routes(surface, Spending(engine, surface, clock), Datasets(engine, surface))
