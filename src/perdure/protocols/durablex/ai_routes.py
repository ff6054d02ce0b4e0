"""The routes around model calls: what they used up."""

from perdure.protocols.durablex.routes import READER
from perdure.protocols.durablex.spending import Spending
from perdure.protocols.durablex.surface import DurablexSurface
from perdure.web.routing import Route


def ai_routes(surface: DurablexSurface, spending: Spending) -> list[Route]:
    """Every route, with who may use it."""
    return [Route("GET", "/ai/spend", READER, surface, spending.spend)]
