"""Traces that people follow through runs. They are carried and never looked into."""

from perdure.core.limits import TRACE_LINKS_MAX
from perdure.core.run.inbox import Signal, Update
from perdure.core.run.state import Run, TaskKind, WorkflowTask
from perdure.core.run.state_parts import TraceLink


def link_command(run: Run, command: Signal | Update) -> None:
    """The next task of the run has to do with whoever sent this."""
    if command.trace is not None:
        run.links.append(TraceLink(command.command_id, command.trace))
        del run.links[:-TRACE_LINKS_MAX]


def forget_links(run: Run, task: WorkflowTask) -> None:
    """A worker has worked under these; the next task has others."""
    if run.links and task.kind is not TaskKind.VALIDATION:
        run.links = []
