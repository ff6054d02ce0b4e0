"""Which workers may have a task: those that know its type, and its build if it has one."""

from functools import lru_cache


def routing_name(name: str, build_id: str | None) -> str:
    """What a task is looked for under: its type, pinned to a build or free."""
    return name if build_id is None else f"{name}@{build_id}"


def pass_name(workflow: str, pin: str) -> str:
    """What a pass of a push run is looked for under: its workflow, for any runner or for one."""
    return f"{pin}\x1f{workflow}"


def split_pass_name(name: str) -> tuple[str, str]:
    """The workflow of a pass, and the runner that it is pinned to, if any."""
    pin, _, workflow = name.partition("\x1f")
    return workflow, pin


def validation_name(workflow_type: str, update_name: str) -> str:
    """What the validation of an update is looked for under; no worker calls a type like this."""
    return f"{workflow_type}\x1f{update_name}"


_OF_SESSION = "\x1e"


def session_name(name: str, session_id: str) -> str:
    """What an activity of a worker session is looked for under."""
    return f"{name}{_OF_SESSION}{session_id}"


def session_of_name(name: str) -> str:
    return name.partition(_OF_SESSION)[2]


def plain_of_name(name: str) -> str:
    """The name under which the activity would be looked for without its session."""
    return name.partition(_OF_SESSION)[0]


def cooperative_name(name: str) -> str:
    """What a task of a run that is asked to cancel itself is looked for under.

    Only workers that know of such requests may have it: others would go on as if nobody had asked.
    """
    return f"{name}\x1d"


def prepared_name(name: str) -> str:
    """What a task of a run with open local activities is looked for under.

    Only workers that ask before they run such activities may have it: others would run them again.
    """
    return f"{name}\x1c"


@lru_cache(maxsize=64)
def routing_names(names: tuple[str, ...], build_id: str | None) -> frozenset[str]:
    """What a worker can take: free tasks of its types, and those of its own build."""
    free = frozenset(names)
    return free if build_id is None else free | {routing_name(name, build_id) for name in free}
