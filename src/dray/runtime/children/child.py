"""A child process: runs one body at a time, in its main thread, for the worker at the other end of its socket.

worker → child   {"jobs": […], …}, with the descriptor of the worker's lock; {"rest": true}; {"quit": true}
child → worker   {"began": …}, {"lines": …}, {"report": …}, {"said": …}, {"grown": …}
                 and at last {"end": …}, {"refused": …} or {"stopped": true}; in the order of the jobs

A job is begun when its number is taken from a second socket (`wire.Turns`). Each outcome is sent at once, so that it
outlives this process. The worker need not wake up for each: it is rung when half of a message is done, and all.
"""

from __future__ import annotations

import contextlib
import contextvars
import faulthandler
import inspect
import logging
import os
import random
import select
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING, Any

from dray.backends import Backend
from dray.clock import Clock, SystemClock
from dray.hooks import Hooks, name_of
from dray.instants import MILLISECOND
from dray.model.bounds import LOG_LINES, TRACEBACK_BYTES
from dray.model.job import Claim, State
from dray.model.new_job import NewJob
from dray.model.settlement import Rng, Settlement
from dray.runtime import body, loading, notes, outcome
from dray.runtime.children import kernel, wire
from dray.runtime.children.wire import SharedFlags
from dray.runtime.execution import Execution, Interrupted
from dray.sanitize import clean_traceback, redact
from dray.task.task import Task

if TYPE_CHECKING:
    import asyncio

_GATHER = 20 * MILLISECOND  # between two messages with lines, once a burst is used up
_BURST = 20  # messages that are sent as they come
_LINES = 100  # in one message


def main(sock: socket.socket, flags: int, turns: socket.socket) -> None:
    kernel.set_name("dray-child")
    with sock, turns:
        _Child(sock, SharedFlags(flags), turns).serve()


class _Child:
    def __init__(self, sock: socket.socket, flags: SharedFlags, turns: socket.socket) -> None:
        self._inbox = wire.MessageReader(sock)
        self._flags = flags
        self._turns = turns
        self._pipe = Pipe(sock, self._interrupt_if_due, self._mark_begin)
        self._locks: list[int] = []  # of the worker, for as long as there is a job
        self._jobs: deque[tuple[int, Any]] = deque()  # each with its number; some are taken back
        self._common: dict[str, Any] = {}  # to the jobs of one message
        self._half = 0  # the number after which to ring
        self._ends = select.poll()
        for end in (self._inbox, turns):
            self._ends.register(end, select.POLLIN)
        # Of the job at hand:
        self._number = 0
        self._is_armed = False  # an order to stop is acted upon
        self._is_interrupted = False
        self._execution: Execution | None = None
        self._task: asyncio.Task[Settlement | None] | None = None
        self._is_forked = False
        self._tasks: dict[tuple[loading.TaskLocation, str], Task[..., Any]] = {}  # found so far
        faulthandler.enable(flags.descriptor)
        if kernel.STACK_SIGNAL is not None:
            faulthandler.register(kernel.STACK_SIGNAL, flags.descriptor)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, kernel.SIGNALS)
        logging.getLogger("dray").addHandler(_Echo(self._pipe))
        self._forking = threading.local()
        os.register_at_fork(
            before=self._hold_sigterm, after_in_parent=self._let_sigterm_go, after_in_child=self._forked
        )

    def serve(self) -> None:
        while (number := self._await_turn()) is not None:
            claim = self._claim(number)
            if claim is None:
                return
            self._pipe.answer(self._answer(claim, number))
            _flush_prints()
            if number == self._half:
                wire.ring(self._turns)

    def _await_turn(self) -> int | None:
        """The number of the next job; None: there will be none."""
        number = wire.take_turn(self._turns)
        if number is None:
            self._rest()
            if self._common.get("is_quiet"):
                wire.ring(self._turns)
        while number is None:
            ready = {descriptor for descriptor, _ in self._ends.poll()}
            number = wire.take_turn(self._turns)  # first: the message that can be read may be the next but one
            if number is None and self._inbox.fileno() in ready and not self._receive(self._inbox.wait()):
                return None
        return number

    def _claim(self, number: int) -> Claim | None:
        """The job of this number; None: the worker is gone."""
        while True:
            while self._jobs:
                its, claim = self._jobs.popleft()
                if its == number:  # those before it were taken back
                    return Claim(*claim)
            if not self._receive(self._inbox.wait()):
                return None

    def _receive(self, message: wire.Message | None) -> bool:
        if message is None or "quit" in message:
            return False
        came = self._inbox.take_descriptors()
        if came or "rest" in message:
            self._rest()
        self._locks += came
        if "jobs" in message:
            self._common, jobs = message, message["jobs"]
            self._jobs.extend(jobs)
            self._half = jobs[(len(jobs) - 1) // 2][0] if message["is_quiet"] else 0
        return True

    def _rest(self) -> None:
        """While it has no job, the worker's lock is not this process's."""
        while self._locks:
            os.close(self._locks.pop())

    def _answer(self, claim: Claim, number: int) -> wire.Message:
        self._number, self._is_interrupted, self._execution = number, False, None
        signal.signal(signal.SIGTERM, self._on_sigterm)  # an earlier body may have set its own
        root, level = logging.getLogger(), self._common["log_level"]
        if root.level != level:  # setting it makes all loggers forget what they know
            root.setLevel(level)
        try:
            try:
                self._is_armed = True
                self._interrupt_if_due()  # the order may have come before the job
                return self._run(claim)
            finally:
                self._is_armed = False
        except Interrupted:  # outside the body: the worker decides what becomes of the job
            self._is_armed = False
            return {"stopped": True}

    def _run(self, claim: Claim) -> wire.Message:
        job = self._common
        try:
            task = self._find(loading.TaskLocation(*job["locations"][claim.task]), claim.task, job["url"])
            if job["middleware"] or task.app.hooks.middleware:
                _arrange(task.app.hooks, job["middleware"])
        except Interrupted:
            raise
        except BaseException as error:  # noqa: BLE001 - the user's modules may raise anything, or exit
            return {
                "refused": _shown(traceback.format_exception_only(error)),
                "trace": _shown(traceback.format_exception(error, limit=100)),
            }
        execution = Execution(claim, task, job["worker_id"], self._pipe)
        self._pipe.attach(execution, says_begin=job["says_begin"])
        self._execution = execution
        notes.start_capture(self)
        try:
            settlement = self._perform(execution)
        finally:
            notes.end_capture(self)
        if settlement is not None and settlement.state == State.COMPLETED:
            self._pipe.hand_over(execution.grown)
        return {"end": settlement, "is_written": execution.is_written, "began": execution.started}

    def _mark_begin(self, at: int) -> None:
        self._flags.begin(self._number, at)

    def _find(self, location: loading.TaskLocation, name: str, url: str) -> Task[..., Any]:
        if (location, name) not in self._tasks:
            task = self._tasks[location, name] = loading.load_task(location, name)
            _use_database(task.app, url)
        return self._tasks[location, name]

    def _perform(self, execution: Execution) -> Settlement | None:
        if not inspect.iscoroutinefunction(execution.task.function):
            return contextvars.Context().run(body.run, execution)  # what it sets, the next body does not see
        import asyncio  # noqa: PLC0415 - 20 ms, only for coroutines

        async def lead() -> Settlement | None:
            self._task = asyncio.current_task()
            try:
                return await body.arun(execution, body.Leash())
            finally:
                self._task = None

        try:
            return asyncio.run(lead())
        except Interrupted:
            raise
        except BaseException as error:  # noqa: BLE001 - of a task that the body left behind
            self._is_armed = False
            return outcome.raised(execution, error)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._interrupt_if_due()

    def _interrupt_if_due(self) -> None:
        """In the main thread: raises in the body, once, if its worker has ordered it to stop."""
        if not self._is_armed or self._pipe.shields:
            return
        stop = self._flags.stop_of(self._number)
        if stop is None:  # not from the worker, which got the signal too and decides
            return
        if self._execution is not None:
            self._execution.stop = stop
            self._execution.told_at = self._pipe.clock.steady()  # or a log line of its clean-up would raise again
        if self._is_interrupted:
            return
        self._is_interrupted = True
        if self._task is None:
            raise Interrupted(stop)
        self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    # What a body forks

    def _hold_sigterm(self) -> None:
        """A SIGTERM that comes before the new process has a handler would be taken for an order, and be lost."""
        self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _let_sigterm_go(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forking.mask)

    def _forked(self) -> None:
        """A process that a body has forked must not use the socket, the lock and the orders of this one."""
        try:
            if not self._is_forked:
                self._cut_ties()
        finally:
            self._let_sigterm_go()

    def _cut_ties(self) -> None:
        self._is_forked = True
        self._is_armed = False
        self._pipe.cut()
        if kernel.STACK_SIGNAL is not None:
            faulthandler.unregister(kernel.STACK_SIGNAL)
        faulthandler.disable()
        self._turns.close()
        for descriptor in (*self._locks, self._flags.descriptor):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Pipe:
    """The `Link` of a body: the socket to its worker, and the App that the child has loaded. For any thread."""

    def __init__(
        self, sock: socket.socket, on_unshielded: Callable[[], None], mark_begin: Callable[[int], None]
    ) -> None:
        self.clock: Clock = SystemClock()
        self.rng: Rng = random.Random()  # noqa: S311 - for the jitter of retries
        self._sock: socket.socket | None = sock
        self._lock = threading.RLock()
        self._is_sending = False
        self.shields = 0  # of the main thread: it is sending, and must not be interrupted
        self._on_unshielded = on_unshielded
        self._mark_begin = mark_begin
        self._app: Any = None
        self._execution: Execution | None = None
        self._report: Any = None  # the one that was sent last
        self._says_begin = False
        self._said: deque[tuple[int, str]] = deque(maxlen=LOG_LINES)
        self._credit = float(_BURST)
        self._noted = 0  # when the credit was counted
        self._later: threading.Timer | None = None

    def attach(self, execution: Execution, *, says_begin: bool) -> None:
        """Messages are about this job from here on."""
        self._execution, self._app = execution, execution.task.app
        self._report, self._says_begin = None, says_begin

    def answer(self, message: wire.Message) -> None:
        """Ends a job: sends the last lines, then its outcome. Nothing of it comes later."""
        with self._turn():
            if self._later is not None:
                self._later.cancel()
                self._later = None
            self._flush()
            self._execution = None
            self._send(message)

    def hand_over(self, grown: Sequence[NewJob]) -> None:
        """Sends the steps that the body has added, before its outcome. One a message: these have a size limit."""
        for job in grown:
            with self._turn():
                self._send({"grown": asdict(job)})

    def cut(self) -> None:
        """In a process that the body has forked: closes its copy of the socket."""
        sock, self._sock, self._lock, self._execution = self._sock, None, threading.RLock(), None
        self.shields, self._is_sending = 0, False
        if sock is not None:
            sock.close()

    # As a Link

    @property
    def backend(self) -> Backend:
        """The backend of the App that the body uses too. Opened when first needed, and kept for the next job."""
        return self._app.backend

    def began(self, execution: Execution) -> None:
        self._mark_begin(execution.started or 0)
        if self._says_begin:
            with self._turn():
                self._send({"began": execution.started})

    def note(self, execution: Execution) -> None:
        """Sends lines and progress: as they come, or together when there are many."""
        with self._turn() as is_ours:
            if not is_ours or execution is not self._execution:  # the latter: a thread of an earlier body
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
                except (RuntimeError, MemoryError):  # no thread: a body must not fail because it logs
                    self._flush()
                else:
                    self._later = later

    def written(self, execution: Execution) -> None:
        with self._turn():
            if execution is self._execution:
                self._send({"written": True})

    def say(self, level: int, message: str) -> None:
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
        while execution.lines:
            lines = [execution.lines.popleft() for _ in range(min(_LINES, len(execution.lines)))]
            shown = [[line.at, line.level, line.logger, line.message] for line in lines]
            self._send({"lines": shown, "is_shown": _is_shown_here()})
        report = execution.report
        if report is not None and report is not self._report:
            self._report = report
            self._send({"report": report})

    def _send(self, message: wire.Message) -> None:
        if self._sock is None:
            return
        self._is_sending = True
        try:
            wire.send(self._sock, message)
        finally:
            self._is_sending = False

    @contextlib.contextmanager
    def _turn(self) -> Generator[bool]:
        """One thread at a time sends, and no order to stop interrupts it: half a message would garble the rest.

        False: this thread is in the middle of a message, and a signal handler or a finalizer has logged something. It
        is sent at the next turn. An order to stop waits for the end of this turn.
        """
        is_main = threading.current_thread() is threading.main_thread()
        self.shields += is_main
        try:
            with self._lock:
                yield not self._is_sending
        finally:
            self.shields -= is_main
        if is_main and not self.shields:
            self._on_unshielded()


def _is_shown_here() -> bool:
    """Whether the user's modules have set up logging, so that the child shows the captured lines itself."""
    return len(logging.getLogger().handlers) > 1


class _Echo(logging.Handler):
    """Sends what Dray itself logs here to the worker's log."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "dray":
            self._pipe.say(record.levelno, self.format(record))


def _flush_prints() -> None:
    """Shows what a body printed when it ends, not when the child does: that may be killed, or live for days."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed or replaced by a body
            stream.flush()


def _use_database(app: Any, url: str) -> None:
    """Makes the App use the worker's database, which a command line may have changed."""
    if app.settings.url != url:
        app.close()
        app.change_settings(url=url, listen_url=None)


def _arrange(hooks: Hooks, wanted: Sequence[tuple[str, Sequence[Any]]]) -> None:
    """Makes the middleware that of the worker, which may have loaded more modules than its child."""
    names = [name for name, _ in wanted]
    here = [*map(name_of, hooks.middleware)]
    if here == names:
        return
    for name, location in wanted:
        if name not in here:
            loading.load_module(loading.TaskLocation(*location))
    hooks.arrange(names)


def _shown(lines: list[str]) -> str:
    return clean_traceback(redact("".join(lines).strip()), TRACEBACK_BYTES)
