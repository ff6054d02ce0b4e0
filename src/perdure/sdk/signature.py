"""The signature of an invoke over HTTP: a time and an HMAC-SHA256 of time and body."""

import hashlib
import hmac

from perdure.sdk.limits import SIGNATURE_TOLERANCE_SECONDS

SIGNATURE_HEADERS = ("x-durablex-signature", "x-duraton-signature")


def sign(key: str, body: bytes, at_seconds: int) -> str:
    """The header for a body sent at this time."""
    return f"t={at_seconds},v1={_digest(key, body, at_seconds)}"


def complaint(key: str, header: str | None, body: bytes, now_seconds: int) -> str | None:
    """What is wrong with a signature, as a stable word; None if it is good."""
    if not header:
        return "missing_signature"
    times = [value for name, value in _parts(header) if name == "t"]
    digests = [value for name, value in _parts(header) if name == "v1"]
    if len(times) != 1 or not digests or not times[0].isascii() or not times[0].isdigit():
        return "malformed_signature"
    at_seconds = int(times[0][:12])
    if abs(now_seconds - at_seconds) > SIGNATURE_TOLERANCE_SECONDS:
        return "timestamp_out_of_tolerance"
    expected = _digest(key, body, at_seconds).encode()
    matches = [hmac.compare_digest(expected, digest.encode()) for digest in digests]
    return None if any(matches) else "signature_mismatch"


def fingerprint(key: str) -> str:
    """What a runner tells of its key, so that the console can say whether both have the same."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def _digest(key: str, body: bytes, at_seconds: int) -> str:
    return hmac.new(key.encode(), b"%d." % at_seconds + body, hashlib.sha256).hexdigest()


def _parts(header: str) -> list[tuple[str, str]]:
    pairs = (part.partition("=") for part in header.split(","))
    return [(name.strip(), value.strip()) for name, _, value in pairs]
