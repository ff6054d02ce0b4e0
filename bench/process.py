"""What the operating system says about a process and its children: CPU time and memory.

Linux only; elsewhere every reading is `None` and the table says n/a.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Reading:
    """The wall clock, and the CPU seconds used so far by server, database and this client."""

    at: float
    server_cpu: float | None
    database_cpu: float | None
    client_cpu: float

    def since(self, earlier: "Reading") -> "Spent":
        """What was spent between two readings."""
        return Spent(
            self.at - earlier.at,
            _between(earlier.server_cpu, self.server_cpu),
            _between(earlier.database_cpu, self.database_cpu),
            self.client_cpu - earlier.client_cpu,
        )


def _between(earlier: float | None, later: float | None) -> float | None:
    return None if earlier is None or later is None else later - earlier


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of wall clock and CPU between two readings."""

    wall: float
    server_cpu: float | None
    database_cpu: float | None
    client_cpu: float

    def server_milliseconds_each(self, count: int) -> float | None:
        """Server CPU per thing done, where the platform tells it."""
        return None if self.server_cpu is None else 1e3 * self.server_cpu / count

    def database_milliseconds_each(self, count: int) -> float | None:
        """Database CPU per thing done, where the database has processes that we can see."""
        return None if self.database_cpu is None else 1e3 * self.database_cpu / count

    def client_milliseconds_each(self, count: int) -> float:
        """Client CPU per thing done."""
        return 1e3 * self.client_cpu / count


def read_usage(server_pid: int, database_pid: int | None) -> Reading:
    """Read all clocks together."""
    return Reading(
        time.perf_counter(),
        cpu_seconds(server_pid),
        None if database_pid is None else cpu_seconds(database_pid),
        time.process_time(),
    )


def cpu_seconds(pid: int) -> float | None:
    """CPU seconds used by a process, its living descendants and the children it has reaped."""
    if not PROC.is_dir():
        return None
    return _sum_over_family(_own_cpu_seconds, pid)


def resident_bytes(pid: int) -> int | None:
    """Resident memory of a process and its living descendants."""
    if not PROC.is_dir():
        return None
    return int(_sum_over_family(_own_resident_bytes, pid))


def _sum_over_family(read: Callable[[int], float], pid: int) -> float:
    total = read(pid)
    for member in _descendants(pid):
        # A database has children that come and go; one that has just gone is counted by its parent.
        with suppress(FileNotFoundError, ProcessLookupError):
            total += read(member)
    return total


def _own_cpu_seconds(pid: int) -> float:
    # The kernel counts in ticks of 10 ms in `stat`, too coarse for a short run; the CPU clock of
    # the process has nanoseconds. Its id is what clock_getcpuclockid(3) would compute.
    fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    own, reaped = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    ticks_per_second = os.sysconf("SC_CLK_TCK")
    try:
        own_seconds = time.clock_gettime((~pid << 3) | 2)
    except OSError:
        own_seconds = own / ticks_per_second
    return own_seconds + reaped / ticks_per_second


def _own_resident_bytes(pid: int) -> int:
    for line in (PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def _descendants(pid: int) -> Iterator[int]:
    for children in (PROC / str(pid) / "task").glob("*/children"):
        try:
            listed = children.read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in listed:
            yield int(child)
            yield from _descendants(int(child))
