"""What a runner tells the engine of itself and its workflows."""

import platform

from perdure import __version__
from perdure.sdk.policies import Wire
from perdure.sdk.settings import Settings
from perdure.sdk.signature import fingerprint
from perdure.sdk.versions import OWN_RANGE, PROTOCOL_VERSION
from perdure.sdk.workflows import App

SDK_NAME = "perdure"


def registration(app: App, settings: Settings, *, framework: str, url: str | None = None) -> Wire:
    """The body of a registration; over a socket there is no URL to be called at."""
    told: Wire = {"app": settings.app}
    if settings.runner:
        told["runner"] = settings.runner
    if url is not None:
        told["url"] = url
    told |= {
        "runtime": platform.python_implementation().lower(),
        "language": "python",
        "sdkName": SDK_NAME,
        "version": __version__,
        "framework": framework,
        "protocolVersion": PROTOCOL_VERSION,
        "minProtocolVersion": OWN_RANGE[0],
        "maxProtocolVersion": OWN_RANGE[1],
    }
    told["offload"] = True
    if settings.region:
        told["region"] = settings.region
    if settings.signing_key and url is not None:
        told["keyFingerprint"] = fingerprint(settings.signing_key)
    return told | {"workflows": [workflow.wire() for workflow in app]}
