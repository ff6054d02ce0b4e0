"""Incoming webhooks: whether one is from whom it says, and by what it is known when it repeats."""

import hashlib
from collections.abc import Mapping

from perdure.core.intake.signature import Fault, Scheme, header_of, signed_second, verify


def check(
    scheme: Scheme, secret: str, headers: Mapping[str, str], body: bytes, seconds: int
) -> Fault | None:
    """What is wrong with a webhook that came at this second. Names of headers are lower case."""
    return verify(header_of(scheme, headers), body, secrets=[secret], seconds=seconds)


def identity(
    source_id: str, scheme: Scheme, headers: Mapping[str, str], body: bytes, value: object
) -> str:
    """By what a good webhook is told from others: its own id, else its second and its body."""
    told = value.get("id") if isinstance(value, dict) else None
    if scheme == "stripe" and isinstance(told, str) and told:
        mark = hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()
    else:
        header = header_of(scheme, headers)
        assert header is not None
        mark = hashlib.sha256(signed_second(header).encode() + b"." + body).hexdigest()
    return f"webhook:{source_id}:{mark}"
