"""Conversations: runs of one app that share a session label."""

from perdure.core.push.effect import Ended, Joined
from perdure.engine.registry import Extension
from perdure.features.conversations.operations import (
    JoinConversation,
    leave_conversation,
    quit_conversation,
)
from perdure.features.conversations.routes import Conversations
from perdure.features.feature import Feature, Kernel, Parts
from perdure.protocols.durablex.routes import READER
from perdure.web.routing import Route


def _build(kernel: Kernel, settings: object) -> Parts:
    surface = kernel.push_surface
    conversations = Conversations(kernel.engine, surface)
    return Parts(routes=[Route("GET", "/sessions", READER, surface, conversations.find)])


FEATURE: Feature[object] = Feature(
    extension=Extension(
        name="conversations",
        follow_ups={Joined: JoinConversation, Ended: leave_conversation},
        when_removed=(quit_conversation,),
    ),
    build=_build,
)
