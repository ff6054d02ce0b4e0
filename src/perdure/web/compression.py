"""Smaller answers for clients that ask for them."""

import zlib

LEVEL = 1
"""Fast beats small here: most answers travel inside one machine or one network."""


def choose(accept: bytes) -> bytes | None:
    """The encoding that an Accept-Encoding header prefers of ours: gzip, deflate, or none."""
    weights: dict[bytes, float] = {}
    for part in accept.lower().split(b","):
        name, _, parameters = part.strip().partition(b";")
        weight = 1.0
        if parameters.strip().startswith(b"q="):
            try:
                weight = float(parameters.strip()[2:])
            except ValueError:
                weight = 0.0
        weights[name.strip()] = weight
    rest = weights.get(b"*", 0.0)
    gzip, deflate = weights.get(b"gzip", rest), weights.get(b"deflate", rest)
    if gzip > 0 and gzip >= deflate:
        return b"gzip"
    return b"deflate" if deflate > 0 else None


def compress(body: bytes, encoding: bytes) -> bytes:
    """`deflate` is raw deflate, without a zlib header."""
    window = 31 if encoding == b"gzip" else -15
    compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, window)
    return compressor.compress(body) + compressor.flush()
