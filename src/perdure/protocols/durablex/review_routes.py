"""The routes of people: what they decide, how they judge, what they try otherwise."""

from perdure.features.approvals.routes import Approvals
from perdure.features.conversations.routes import Conversations
from perdure.features.model_calls.explanation_routes import RunExplanation
from perdure.features.scores.routes import Scores
from perdure.protocols.durablex.control import RunControl
from perdure.protocols.durablex.routes import FULL, READER
from perdure.protocols.durablex.surface import DurablexSurface
from perdure.web.routing import Route


def people_routes(
    surface: DurablexSurface,
    control: RunControl,
    approvals: Approvals,
    scores: Scores,
    conversations: Conversations,
    explaining: RunExplanation,
) -> list[Route]:
    """Every route, with who may use it."""
    run, approval = "/runs/{run_id}", "/approvals/{approval_id}"
    return [
        Route("GET", "/approvals", READER, surface, approvals.find),
        Route("GET", approval, READER, surface, approvals.show),
        Route("POST", f"{approval}/decision", FULL, surface, approvals.decide),
        Route("GET", "/sessions", READER, surface, conversations.find),
        Route("GET", f"{run}/scores", READER, surface, scores.of_run),
        Route("POST", f"{run}/scores", FULL, surface, scores.add),
        Route("POST", f"{run}/fork", FULL, surface, control.fork),
        Route("POST", f"{run}/explain", FULL, surface, explaining.explain),
    ]
