"""Names of events and patterns of them.

A pattern is an exact name or a prefix with one `*` at its end. Names that begin with a reserved
prefix belong to us: nobody may send them, and only a trigger that names one exactly hears it.
"""

RESERVED_PREFIXES = ("duraton/", "durablex/")
RUN_FINISHED = "duraton/run.finished"
"""Raised by us when a run ends."""
RUN_FINISHED_ALIAS = "durablex/run.finished"


def is_reserved(name: str) -> bool:
    """Whether only we may raise events of this name."""
    return name.startswith(RESERVED_PREFIXES)


def require_pattern(pattern: str) -> None:
    """Raises ValueError for a star anywhere but at the end."""
    if "*" in pattern[:-1]:
        raise ValueError("may have one * and only at its end")


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern means an event of this name."""
    if not pattern.endswith("*"):
        return canonical(pattern) == canonical(name)
    return name.startswith(pattern[:-1]) and not is_reserved(name)


def target_app(app: str | None, target: str | None) -> str | None:
    """The app whose workflows and waits an event is for; none is all of the namespace."""
    return target or app or None


def recorded_app(app: str | None, target: str | None) -> str:
    """The app under which an event from outside is logged."""
    return app or target or ""


def canonical(name: str) -> str:
    """The one spelling of a name that has two."""
    return RUN_FINISHED if name == RUN_FINISHED_ALIAS else name
