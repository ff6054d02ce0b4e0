"""Terms of worker sessions in commands and worker requests."""

from typing import Annotated, Any

from msgspec import Meta

from perdure.core import limits
from perdure.core.fleet.session import SessionTerms
from perdure.core.rejection import InvalidRequest
from perdure.protocols.durable_workflow.bodies import Body, Name255, OptionalName

SessionSeconds = Annotated[int, Meta(ge=1, le=limits.SESSION_SECONDS_MAX)]


class TermsBody(Body):
    """The terms of a session. Only the id is required."""

    session_id: Name255
    queue: OptionalName = None
    connection: OptionalName = None
    requirements: (
        Annotated[list[Name255], Meta(max_length=limits.SESSION_REQUIREMENTS_MAX)] | None
    ) = None
    lease_seconds: SessionSeconds | None = None
    ttl_seconds: SessionSeconds | None = None
    max_concurrent_activities: (
        Annotated[int, Meta(ge=1, le=limits.SESSION_ACTIVITIES_MAX)] | None
    ) = None
    create_if_missing: bool | None = None
    allow_reacquire_after_failure: bool | None = None


def terms_of(body: TermsBody, at: str = "") -> SessionTerms:
    """The terms, with defaults for what was left out."""
    given = {
        name: value
        for name in SessionTerms.__struct_fields__
        if name != "requirements" and (value := getattr(body, name)) is not None
    }
    if not body.session_id.strip():
        raise InvalidRequest(f"{at}session_id", "must not be blank")
    requirements = tuple(dict.fromkeys(body.requirements or ()))
    if any(not need.strip() for need in requirements):
        raise InvalidRequest(f"{at}requirements", "must not be blank")
    return SessionTerms(**given, requirements=requirements)


def terms_view(terms: SessionTerms) -> dict[str, Any]:
    """The terms as sent to the workers of the session."""
    view: dict[str, Any] = {
        "session_id": terms.session_id,
        "requirements": list(terms.requirements),
        "lease_seconds": terms.lease_seconds,
        "ttl_seconds": terms.ttl_seconds,
        "max_concurrent_activities": terms.max_concurrent_activities,
        "create_if_missing": terms.create_if_missing,
        "allow_reacquire_after_failure": terms.allow_reacquire_after_failure,
    }
    for name in ("queue", "connection"):
        if (value := getattr(terms, name)) is not None:
            view[name] = value
    return view
