"""The supervisor of several server processes behind one port: starts, watches, restarts them."""

import contextlib
import itertools
import logging
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence

from perdure.clock import monotonic_seconds
from perdure.cluster.local_sockets import Family, families, socket_pairs
from perdure.server.run import DRAIN_SECONDS, LISTENING, announce, open_shared_listeners
from perdure.server.settings import Settings

READY_SECONDS = 60
"""How long the first processes may take until they serve."""
_PAUSE_MAX = 5.0
_STEADY_SECONDS = 10.0
"""A process that lived this long did not fail at its start."""
REFUSED = 2
"""The exit code of a process that cannot serve and has printed why."""

log = logging.getLogger(__name__)


class Child:
    """One server process. It ends with the supervisor, which holds a pipe to its standard input."""

    def __init__(
        self, command: Sequence[str], listeners: Sequence[socket.socket], family: Family
    ) -> None:
        descriptors = [listener.fileno() for listener in listeners]
        inherited = [f"--listen-fd={descriptor}" for descriptor in descriptors]
        self._command = [*command, *inherited, "--family", str(family)]
        self._descriptors = (*descriptors, *family.descriptors)
        self._failures = 0
        self._started_at = 0.0
        self.start_at = 0.0
        self.is_ready = False
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._started_at = monotonic_seconds()
        self.is_ready = False
        self.process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=self._descriptors,
        )

    def ended(self) -> int | None:
        """The exit code, if the process has ended."""
        return None if self.process is None else self.process.poll()

    def schedule_restart(self) -> None:
        """Set when the next process starts: at once, or later if this one ended soon."""
        assert self.process is not None
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process = None
        lived = monotonic_seconds() - self._started_at
        self._failures = 0 if lived > _STEADY_SECONDS else self._failures + 1
        pause = 0.0 if self._failures < 2 else min(0.1 * 2**self._failures, _PAUSE_MAX)
        self.start_at = monotonic_seconds() + pause

    def read(self) -> None:
        """Read its output, which is one line when it is ready."""
        assert self.process is not None
        assert self.process.stdout is not None
        output = os.read(self.process.stdout.fileno(), 4096)
        if LISTENING.encode() in output:
            self.is_ready = True


class Supervisor:
    """Owns the listening sockets and the processes; serves no request itself.

    Each process has a socket of its own on each port, so that the kernel spreads connections
    evenly. They stay open here: clients that connect while a process is replaced wait in its queue.
    """

    def __init__(self, settings: Settings, command: Sequence[str], processes: int) -> None:
        self._listeners = open_shared_listeners(settings, processes)
        self._pairs = socket_pairs(processes)
        self._children = [
            Child(command, listeners, family)
            for listeners, family in zip(self._listeners, families(self._pairs), strict=True)
        ]
        self._wake, self._woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._has_begun = False
        self._stopping = False

    def run(self) -> int:
        """Run until SIGTERM or SIGINT; returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGCHLD, self._wake_up)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        # Start only the first: an error that prevents serving is then printed once, not by each.
        self._children[0].start()
        try:
            return self._watch()
        finally:
            self._end()
            for listener in itertools.chain(*self._listeners):
                listener.close()
            for pair in self._pairs:
                for end in pair:
                    end.close()

    def _watch(self) -> int:
        give_up_at = monotonic_seconds() + READY_SECONDS
        while not self._stopping:
            self._wait()
            for child in self._children:
                code = child.ended()
                if code is not None:
                    if not self._has_begun:
                        if code != REFUSED:
                            print(
                                f"perdure: a server process ended with code {code} at start",
                                file=sys.stderr,
                            )
                        return REFUSED
                    log.warning("a server process ended with code %s; starting a new one", code)
                    child.schedule_restart()
                if self._is_to_start(child) and monotonic_seconds() >= child.start_at:
                    child.start()
            if not self._has_begun and all(child.is_ready for child in self._children):
                self._has_begun = True
                announce(self._listeners[0])
            if not self._has_begun and monotonic_seconds() > give_up_at:
                print(
                    f"perdure: the server processes were not ready after {READY_SECONDS} s",
                    file=sys.stderr,
                )
                return REFUSED
        return 0

    def _is_to_start(self, child: Child) -> bool:
        return child.process is None and (self._has_begun or self._children[0].is_ready)

    def _wait(self) -> None:
        """Wait until a child writes or ends, a signal arrives, or a start is due."""
        outputs = {
            child.process.stdout.fileno(): child
            for child in self._children
            if child.process is not None and not child.is_ready and child.process.stdout is not None
        }
        due = [child.start_at for child in self._children if self._is_to_start(child)]
        timeout = min([1.0, *(max(at - monotonic_seconds(), 0) for at in due)])
        readable, _, _ = select.select([self._wake, *outputs], [], [], timeout)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)
        for output in readable:
            if output in outputs:
                outputs[output].read()

    def _stop(self, number: int, frame: object) -> None:
        self._stopping = True

    def _wake_up(self, number: int, frame: object) -> None:
        """Does nothing: the signal itself wakes the loop."""

    def _end(self) -> None:
        living = [child.process for child in self._children if child.process is not None]
        for process in living:
            if process.poll() is None:
                process.terminate()
        give_up_at = monotonic_seconds() + DRAIN_SECONDS + 5
        for process in living:
            try:
                process.wait(max(give_up_at - monotonic_seconds(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for process in living:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def inherited_listener(descriptor: int) -> socket.socket:
    """The listening socket that the supervisor opened."""
    listener = socket.socket(fileno=descriptor)
    listener.setblocking(False)
    return listener
