"""Trace carriers of requests and runs. They are passed on and never parsed."""

from perdure.core.limits import TRACE_LINKS_MAX
from perdure.core.run.inbox import Signal, Update
from perdure.core.run.state import Run, TaskKind, WorkflowTask
from perdure.core.run.state_parts import TraceLink


def link_command(run: Run, command: Signal | Update) -> None:
    """Link the next task of the run to the trace of a command."""
    if command.trace is not None:
        run.links.append(TraceLink(command.command_id, command.trace))
        del run.links[:-TRACE_LINKS_MAX]


def drop_links(run: Run, task: WorkflowTask) -> None:
    """Drop the links of a finished task."""
    if run.links and task.kind is not TaskKind.VALIDATION:
        run.links = []
