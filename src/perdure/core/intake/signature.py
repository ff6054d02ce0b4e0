"""Signatures with a time in them: `t=<seconds>,v1=<hex>`, HMAC-SHA256 of `<t>.` and the raw body.

The same layout signs outgoing webhooks and invokes of runners, and is checked on incoming webhooks.
A header may have several `v1`, and several secrets may be valid, while a secret is rotated.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from typing import Literal

HEADERS = ("X-Durablex-Signature", "X-Duraton-Signature")
"""Both names are sent, and either is accepted."""
STRIPE_HEADER = "Stripe-Signature"
TOLERANCE_SECONDS = 300

Scheme = Literal["hmac_sha256", "stripe"]
Fault = Literal[
    "missing_signature",
    "malformed_signature",
    "timestamp_out_of_tolerance",
    "signature_mismatch",
]

_SECONDS = re.compile(r"[0-9]{1,12}", re.ASCII)
_PARTS_MAX = 32


def sign(secret: str, body: bytes, seconds: int) -> str:
    """The value of the header for a body that is sent at this second."""
    return f"t={seconds},v1={_digest(secret, body, str(seconds))}"


def verify(
    header: str | None, body: bytes, *, secrets: Sequence[str], seconds: int
) -> Fault | None:
    """What is wrong with a signature at this second; None if it is valid."""
    if header is None or not header.strip():
        return "missing_signature"
    parts = [part.strip().partition("=") for part in header.split(",", _PARTS_MAX)]
    times = [value for name, _, value in parts if name == "t"]
    digests = [value.lower() for name, _, value in parts if name == "v1"]
    if len(times) != 1 or not _SECONDS.fullmatch(times[0]) or not any(digests):
        return "malformed_signature"
    if abs(seconds - int(times[0])) > TOLERANCE_SECONDS:
        return "timestamp_out_of_tolerance"
    # Every pair is compared, so that timing reveals nothing.
    good = [
        hmac.compare_digest(_digest(secret, body, times[0]).encode(), digest.encode())
        for secret in secrets
        for digest in digests
    ]
    return None if any(good) else "signature_mismatch"


def header_of(scheme: Scheme, headers: Mapping[str, str]) -> str | None:
    """The signature among the headers of a request, whose names are in lower case."""
    names = (STRIPE_HEADER,) if scheme == "stripe" else HEADERS
    return next((value for name in names if (value := headers.get(name.lower()))), None)


def signed_second(header: str) -> str:
    """The time in a valid signature."""
    return next(
        value
        for name, _, value in (p.strip().partition("=") for p in header.split(","))
        if name == "t"
    )


def fingerprint(key: str) -> str:
    """The digest of a signing key, by which runner and server check that they share it."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def _digest(secret: str, body: bytes, seconds: str) -> str:
    return hmac.new(secret.encode(), seconds.encode() + b"." + body, hashlib.sha256).hexdigest()
