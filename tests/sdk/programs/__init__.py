"""Programs written with the published SDK, the same text for every release."""

from tests.sdk.programs import (
    activities,
    children,
    improvised,
    journeys,
    markers,
    parallel,
    plain,
    queries,
    recovering,
    services,
    updates,
    waits,
)
from tests.sdk.release import since

_CHAPTERS = [
    activities,
    plain,
    parallel,
    children,
    waits,
    updates,
    markers,
    journeys,
    queries,
    recovering,
    services,
    improvised,
]

if since("2.0.0"):
    from tests.sdk.programs import freight, messages, output, selections

    _CHAPTERS += [freight, messages, output, selections]

if since("2.12.0"):
    from tests.sdk.programs import cancellation, local, prepared, sessions, sticky

    _CHAPTERS += [local, sessions, cancellation, sticky, prepared]

WORKFLOWS = tuple(workflow for chapter in _CHAPTERS for workflow in chapter.WORKFLOWS)
BY_NAME = {workflow.__workflow_name__: workflow for workflow in WORKFLOWS}
ACTIVITIES = tuple(activity for chapter in _CHAPTERS for activity in chapter.ACTIVITIES)
