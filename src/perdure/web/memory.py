"""How many bytes of requests all connections hold together, and who may add to them."""

SMALL_BYTES_MAX = 65_536
"""Bodies up to this size are still taken when larger ones are refused."""


class Memory:
    """One counter for all connections of a process.

    A request whose sender is not known yet may use half of it, a large one of a known sender seven
    eighths. So strangers do not keep known clients out, nor large uploads the small requests of
    workers.
    """

    __slots__ = ("_large_max", "bytes_max", "free_max", "held", "refused")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held = 0
        self.refused = 0
        # Up to here anybody may add to it.
        self.free_max = bytes_max // 2
        self._large_max = bytes_max - bytes_max // 8

    def reserve(self, size: int, *, is_known: bool, total: int | None = None) -> bool:
        """Count `size` more bytes, of a request that has `total`, if there is room for them."""
        held = self.held + size
        if held > self.free_max:
            is_small = (size if total is None else total) <= SMALL_BYTES_MAX
            most = self.bytes_max if is_small else self._large_max
            if not is_known or held > most:
                self.refused += 1
                return False
        self.held = held
        return True

    def release(self, size: int) -> None:
        self.held -= size
