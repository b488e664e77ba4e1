"""What a body in a child process is linked to: the socket to its worker, and the App that the child has loaded."""

from __future__ import annotations

import logging
import random
import socket
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dray.clock import Clock, Rng, SystemClock
from dray.instants import MILLISECOND
from dray.model.limits import LOG_LINES
from dray.runtime.children import wire
from dray.runtime.execution import Execution
from dray.runtime.growth import packed

if TYPE_CHECKING:
    from dray.backends import Backend
    from dray.model.new_job import NewJob

_GATHER = 20 * MILLISECOND  # between two messages with lines, once a burst is used up
_BURST = 20  # messages that are sent as they come
_LINES = 100  # in one message


class Pipe:
    """A `Link` whose other end is in the worker. Any thread of a body may use it."""

    def __init__(self, sock: socket.socket, on_unshielded: Callable[[], None]) -> None:
        self.clock: Clock = SystemClock()
        self.rng: Rng = random.Random()  # noqa: S311 - for the jitter of retries
        self._sock: socket.socket | None = sock
        self._lock = threading.RLock()
        self._is_sending = False
        self._shields = 0  # of the main thread: it is sending, and must not be torn out of it
        self._on_unshielded = on_unshielded
        self._app: Any = None
        self._execution: Execution | None = None
        self._report: Any = None  # the one that was sent last
        self._said: deque[tuple[int, str]] = deque(maxlen=LOG_LINES)
        self._credit = float(_BURST)
        self._noted = 0  # when the credit was counted
        self._later: threading.Timer | None = None

    @property
    def is_shielded(self) -> bool:
        return self._shields > 0

    def attach(self, execution: Execution) -> None:
        """From here on this is the body that runs."""
        self._execution, self._app = execution, execution.task.submitter
        self._report = None

    def answer(self, message: wire.Message) -> None:
        """Ends a job: the last lines, then its outcome; nothing of it comes later."""
        with self._turn():
            if self._later is not None:
                self._later.cancel()
                self._later = None
            self._flush()
            self._execution = None
            self._send(message)

    def hand_over(self, grown: Sequence[NewJob]) -> None:
        """Steps that the body has added, ahead of its outcome; no message may be too long."""
        for job in grown:
            with self._turn():
                self._send({"grown": packed(job)})

    def cut(self) -> None:
        """In a process that the body has forked: it has no worker to speak to."""
        sock, self._sock, self._lock, self._execution = self._sock, None, threading.RLock(), None
        self._shields, self._is_sending = 0, False
        if sock is not None:
            sock.close()

    # As a Link

    @property
    def backend(self) -> Backend:
        """That of the App which the body would use as well; opened when it is first needed, and kept for the next."""
        return self._app.backend

    def began(self, execution: Execution) -> None:
        with self._turn():
            self._send({"began": execution.started})

    def note(self, execution: Execution) -> None:
        """Sends lines and progress: as they come, but together where they come in masses."""
        with self._turn() as is_ours:
            if not is_ours or execution is not self._execution:  # the latter: a thread that an earlier body left
                return
            now = self.clock.steady()
            self._credit = min(_BURST, self._credit + (now - self._noted) / _GATHER)
            self._noted = now
            if self._credit >= 1:
                self._credit -= 1
                self._flush()
            elif self._later is None:
                later = threading.Timer(_GATHER / 1_000_000, self._note_later, (execution,))
                later.daemon = True
                try:
                    later.start()
                except (RuntimeError, MemoryError):  # no thread: no reason for a body to fail that only logs
                    self._flush()
                else:
                    self._later = later

    def written(self, execution: Execution) -> None:
        with self._turn():
            if execution is self._execution:
                self._send({"written": True})

    def say(self, level: int, message: str) -> None:
        """A line for the worker's own log."""
        self._said.append((level, message))
        with self._turn() as is_ours:
            if is_ours:
                self._flush()

    def _note_later(self, execution: Execution) -> None:
        with self._turn():
            if execution is self._execution:
                self._later = None
                self._flush()

    def _flush(self) -> None:
        while self._said:
            self._send({"said": self._said.popleft()})
        execution = self._execution
        if execution is None:
            return
        report = execution.report
        if report is not None and report is not self._report:
            self._report = report
            self._send({"report": report})
        while execution.lines:
            lines = [execution.lines.popleft() for _ in range(min(_LINES, len(execution.lines)))]
            shown = [[line.at, line.level, line.logger, line.message] for line in lines]
            self._send({"lines": shown, "is_shown": _is_shown_here()})

    def _send(self, message: wire.Message) -> None:
        if self._sock is None:
            return
        self._is_sending = True
        try:
            wire.send(self._sock, message)
        finally:
            self._is_sending = False

    @contextmanager
    def _turn(self) -> Generator[bool]:
        """One thread at a time sends, and nothing tears it out of a message: the half of it would garble the rest.

        False: this thread is amid a message; a signal handler or a finalizer has logged something. What there is to
        be sent waits for the next turn. An order to stop waits for the end of this one.
        """
        is_main = threading.current_thread() is threading.main_thread()
        self._shields += is_main
        try:
            with self._lock:
                yield not self._is_sending
        finally:
            self._shields -= is_main
        if is_main and not self._shields:
            self._on_unshielded()


def _is_shown_here() -> bool:
    """Whether the user's modules have set up logging, so that what is captured is shown without the worker's help."""
    return len(logging.getLogger().handlers) > 1
