"""Requests that name external payloads.

A handler that accepts payloads submits its operation through `with_payloads`. The operation then
requires the payloads that the request names, and protects them from removal in its transaction.
"""

from perdure.core.references import find_references
from perdure.engine.operation import Operation
from perdure.engine.payloads import NamePayloads
from perdure.web.message import Request


def with_payloads(request: Request, operation: Operation) -> Operation:
    """The operation, together with the external payloads that its request names."""
    references = find_references(request.body)
    return NamePayloads(operation, request.namespace, references) if references else operation
