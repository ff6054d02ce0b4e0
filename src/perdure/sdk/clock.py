"""The SDK's own door to time: it runs in other people's processes, without the server's clock."""

import time


def now_ms() -> int:
    """The present instant in milliseconds since 1970, UTC."""
    return time.time_ns() // 1_000_000


def monotonic_seconds() -> float:
    """Seconds that never go back, from an arbitrary zero."""
    return time.monotonic()
