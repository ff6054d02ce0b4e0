"""Names of events and patterns of them.

A pattern is an exact name or a prefix with one `*` at its end. Names with a reserved prefix belong
to the engine: clients may not send them, and they match only triggers with the exact name.
"""

RESERVED_PREFIXES = ("duraton/", "durablex/")
RUN_FINISHED = "duraton/run.finished"
"""Sent by the engine when a run ends."""
RUN_FINISHED_ALIAS = "durablex/run.finished"


def is_reserved(name: str) -> bool:
    """Whether only the engine may send events of this name."""
    return name.startswith(RESERVED_PREFIXES)


def require_pattern(pattern: str) -> None:
    """Raise ValueError for a `*` anywhere but at the end."""
    if "*" in pattern[:-1]:
        raise ValueError("may have one * and only at its end")


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern matches the name of an event."""
    if not pattern.endswith("*"):
        return canonical(pattern) == canonical(name)
    return name.startswith(pattern[:-1]) and not is_reserved(name)


def target_app(app: str | None, target: str | None) -> str | None:
    """The app whose workflows and waits an event is for; None is all of the namespace."""
    return target or app or None


def recorded_app(app: str | None, target: str | None) -> str:
    """The app under which an external event is logged."""
    return app or target or ""


def canonical(name: str) -> str:
    """The canonical spelling of a name that has two."""
    return RUN_FINISHED if name == RUN_FINISHED_ALIAS else name
