"""perdure: a durable-execution server."""

__version__ = "0.1.0"
