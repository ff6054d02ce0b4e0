"""What a workflow's `run` is, in types: a generator of commands that receives their results."""

# The SDK lives in environments of its own, where mypy does not look.
# mypy: disable-error-code="import-not-found,untyped-decorator,no-any-return"

from collections.abc import Generator
from typing import Any

from durable_workflow.workflow import WorkflowContext

Context = WorkflowContext
Steps = Generator[Any, Any, Any]

__all__ = ["Context", "Steps"]
