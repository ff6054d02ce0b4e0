"""Rules of incoming webhooks: the check of the signature, and the identity of a repeated one."""

import hashlib
from collections.abc import Mapping

from perdure.core.intake.signature import Fault, Scheme, header_of, signed_second, verify


def check(
    scheme: Scheme, secret: str, headers: Mapping[str, str], body: bytes, seconds: int
) -> Fault | None:
    """The fault of a webhook received at this second, if any. Header names are lower case."""
    return verify(header_of(scheme, headers), body, secrets=[secret], seconds=seconds)


def identity(
    source_id: str, scheme: Scheme, headers: Mapping[str, str], body: bytes, value: object
) -> str:
    """The dedupe id of a valid webhook: from its own id, else from its second and its body."""
    own_id = value.get("id") if isinstance(value, dict) else None
    if scheme == "stripe" and isinstance(own_id, str) and own_id:
        digest = hashlib.sha256(own_id.encode("utf-8", "surrogatepass")).hexdigest()
    else:
        header = header_of(scheme, headers)
        assert header is not None
        digest = hashlib.sha256(signed_second(header).encode() + b"." + body).hexdigest()
    return f"webhook:{source_id}:{digest}"
