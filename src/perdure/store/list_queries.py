"""Lists of runs: the query for a filter."""

from perdure.store.interface import RunFilter


def listing(selection: RunFilter) -> tuple[str, tuple[str, ...] | None]:
    """The query of a page, and the ids that it is limited to, if any."""
    if selection.run_ids is not None:
        return "read_list_of_runs", selection.run_ids
    if selection.workflow_ids is not None:
        return "read_list_of_ids", selection.workflow_ids
    return "read_list", None
