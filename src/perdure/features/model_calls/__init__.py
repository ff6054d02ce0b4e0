"""Model calls that the engine makes for runs, and what they use up."""

from perdure.core.push.effect import Asked
from perdure.core.push.usage import Metered
from perdure.engine.events import ExpireDedupeId
from perdure.engine.registry import Extension
from perdure.features.feature import Feature, Kernel, Parts
from perdure.features.model_calls.completions import Completions
from perdure.features.model_calls.explanation_routes import RunExplanation
from perdure.features.model_calls.loops import ModelCaller
from perdure.features.model_calls.operations import INFERENCE, OpenInference
from perdure.features.model_calls.settings import ModelSettings
from perdure.features.model_calls.usage_operations import SPEND, RecordSpend
from perdure.features.model_calls.usage_routes import ModelUsageRoutes
from perdure.protocols.durablex.routes import FULL, READER
from perdure.web.routing import Route


def _build(kernel: Kernel, settings: ModelSettings) -> Parts:
    engine, clock, surface = kernel.engine, kernel.clock, kernel.push_surface
    provider = None
    if settings.ai_url is not None:
        provider = Completions(clock, settings.ai_url, key=settings.ai_key, model=settings.ai_model)
    caller = ModelCaller(engine, provider)
    kernel.deadlines.on_record(INFERENCE.name, caller.due, caller.decided)
    usage = ModelUsageRoutes(engine, surface, clock)
    explanation = RunExplanation(engine, kernel.push_runs, provider)
    return Parts(
        routes=[
            Route("GET", "/ai/spend", READER, surface, usage.spend),
            Route("POST", "/runs/{run_id}/explain", FULL, surface, explanation.explain),
        ],
        loops=[("model calls", caller)],
    )


FEATURE: Feature[ModelSettings] = Feature(
    extension=Extension(
        name="model calls",
        follow_ups={Asked: OpenInference, Metered: RecordSpend},
        when_due={SPEND.name: ExpireDedupeId},
        run_records=(INFERENCE.name,),
    ),
    build=_build,
)
