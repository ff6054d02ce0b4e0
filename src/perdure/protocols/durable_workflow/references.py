"""Requests that name external payloads.

A handler that lets payloads in submits its operation through `naming`: then what the request
names must be there, and is kept from the same transaction on.
"""

from perdure.core.references import find_references
from perdure.engine.operation import Operation
from perdure.engine.payloads import NamePayloads
from perdure.web.message import Request


def naming(request: Request, operation: Operation) -> Operation:
    """An operation with the payloads that its request names."""
    references = find_references(request.body)
    return NamePayloads(operation, request.namespace, references) if references else operation
