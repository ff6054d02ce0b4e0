"""Lists of runs: which query answers what is asked."""

from perdure.store.interface import RunFilter


def listing(wanted: RunFilter) -> tuple[str, tuple[str, ...] | None]:
    """The query of a page, and the ids that it is about if it is about some."""
    if wanted.run_ids is not None:
        return "read_list_of_runs", wanted.run_ids
    if wanted.workflow_ids is not None:
        return "read_list_of_ids", wanted.workflow_ids
    return "read_list", None
