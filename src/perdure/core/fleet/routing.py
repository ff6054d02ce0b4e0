"""Routing names: a task goes to workers that can take its name, made of type and build."""

from functools import lru_cache


def routing_name(name: str, build_id: str | None) -> str:
    """The routing name of a task: its type, and its build if it is pinned to one."""
    return name if build_id is None else f"{name}@{build_id}"


def pass_name(workflow: str, pin: str) -> str:
    """The routing name of a pass: its workflow, and its runner if it is pinned to one."""
    return f"{pin}\x1f{workflow}"


def split_pass_name(name: str) -> tuple[str, str]:
    """The workflow of a pass, and the runner that it is pinned to, if any."""
    pin, _, workflow = name.partition("\x1f")
    return workflow, pin


def validation_name(workflow_type: str, update_name: str) -> str:
    """The routing name of the validation of an update; no workflow type has such a name."""
    return f"{workflow_type}\x1f{update_name}"


_OF_SESSION = "\x1e"


def session_name(name: str, session_id: str) -> str:
    """The routing name of an activity of a worker session."""
    return f"{name}{_OF_SESSION}{session_id}"


def session_of_name(name: str) -> str:
    return name.partition(_OF_SESSION)[2]


def plain_of_name(name: str) -> str:
    """The routing name that the activity would have without its session."""
    return name.partition(_OF_SESSION)[0]


def cooperative_name(name: str) -> str:
    """The routing name of a task of a run with a cooperative cancellation request.

    Only workers that support such requests may take it: others would ignore the request.
    """
    return f"{name}\x1d"


def prepared_name(name: str) -> str:
    """The routing name of a task of a run with open local activities.

    Only workers that ask before they run such activities may take it: others would run them again.
    """
    return f"{name}\x1c"


@lru_cache(maxsize=64)
def routing_names(names: tuple[str, ...], build_id: str | None) -> frozenset[str]:
    """The routing names that a worker can take: its types unpinned, and pinned to its build."""
    free = frozenset(names)
    return free if build_id is None else free | {routing_name(name, build_id) for name in free}
