"""The routes around models: what they used up, and how well workflows do with them."""

from perdure.features.model_calls.usage_routes import ModelUsageRoutes
from perdure.features.scores.dataset_routes import Datasets
from perdure.protocols.durablex.routes import FULL, READER, SENDER
from perdure.protocols.durablex.surface import DurablexSurface
from perdure.web.routing import Route


def ai_routes(
    surface: DurablexSurface, spending: ModelUsageRoutes, datasets: Datasets
) -> list[Route]:
    """Every route, with who may use it."""
    one = "/datasets/{dataset_id}"
    return [
        Route("GET", "/ai/spend", READER, surface, spending.spend),
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
