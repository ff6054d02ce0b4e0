"""Reproducible measurements of a perdure server, taken over real sockets from outside.

The load comes from a lean client of its own rather than from the SDK, so that the figures speak of
the server. Nothing here asserts a time: a bench reports, people judge.
"""
