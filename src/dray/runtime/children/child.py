"""A child process: runs one body at a time, in its main thread, for the worker at the other end of its socket.

worker → child   {"job": …}, with the descriptor of the worker's lock; {"quit": true}
child → worker   {"began": …}, {"lines": …}, {"report": …}, {"said": …}, {"grown": …}
                 and at last {"end": …}, {"refused": …} or {"stopped": true}
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import inspect
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from dataclasses import replace
from types import FrameType
from typing import Any

from dray.model.job import Claim, State
from dray.model.limits import TRACEBACK_BYTES
from dray.model.settlement import Settlement
from dray.runtime import body, capture
from dray.runtime.children import kernel, places, wire
from dray.runtime.children.pipe import Pipe
from dray.runtime.children.shared_flags import SharedFlags
from dray.runtime.execution import Execution, Interrupted, Stop
from dray.runtime.leash import Leash
from dray.sanitize import clean_traceback, redact
from dray.task import Task


def main(sock: socket.socket, flags: int) -> None:
    """Runs what comes until the worker wants no more."""
    kernel.set_name("dray-child")
    with sock:
        _Child(sock, SharedFlags(flags)).serve()


class _Child:
    def __init__(self, sock: socket.socket, flags: SharedFlags) -> None:
        self._inbox = wire.Inbox(sock)
        self._flags = flags
        self._pipe = Pipe(sock, self._interrupt_if_due)
        self._locks: list[int] = []  # of the worker, for as long as there is a job
        # Of the job at hand:
        self._number = 0
        self._is_armed = False  # an order to stop is acted upon
        self._is_interrupted = False
        self._execution: Execution | None = None
        self._task: asyncio.Task[Settlement | None] | None = None
        self._is_forked = False
        self._tasks: dict[tuple[places.Place, str], Task[..., Any]] = {}  # found so far
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
        while (message := self._inbox.wait()) is not None and "quit" not in message:
            self._locks = self._inbox.take_descriptors()
            self._pipe.answer(self._answer(message["job"], message["number"]))
            while self._locks:
                os.close(self._locks.pop())
            _flush_prints()

    # A job

    def _answer(self, job: dict[str, Any], number: int) -> wire.Message:
        self._number, self._is_interrupted, self._execution = number, False, None
        signal.signal(signal.SIGTERM, self._on_sigterm)  # an earlier body may have put its own there
        logging.getLogger().setLevel(job["log_level"])
        try:
            try:
                self._is_armed = True
                self._interrupt_if_due()  # the order may have come before the job
                return self._run(job)
            finally:
                self._is_armed = False
        except Interrupted:  # outside the body: the worker knows best what becomes of it
            self._is_armed = False
            return {"stopped": True}

    def _run(self, job: dict[str, Any]) -> wire.Message:
        try:
            task = self._find(places.Place(*job["place"]), job["task"], job["url"])
        except Interrupted:
            raise
        except BaseException as error:  # noqa: BLE001 - the user's modules may raise anything, or exit
            return {"refused": _shown(traceback.format_exception_only(error)), "trace": _shown(_trace(error))}
        execution = Execution(Claim(*job["claim"]), task, job["worker_id"], self._pipe)
        self._pipe.attach(execution)
        self._execution = execution
        capture.start(self)
        try:
            settlement = self._perform(execution)
        finally:
            capture.end(self)
        if settlement is not None and settlement.state == State.COMPLETED:
            self._pipe.hand_over(execution.grown)
        return {"end": settlement, "is_written": execution.is_written}

    def _find(self, place: places.Place, name: str, url: str) -> Task[..., Any]:
        if (place, name) not in self._tasks:
            task = self._tasks[place, name] = places.find(place, name)
            _use_database(task.submitter, url)
        return self._tasks[place, name]

    def _perform(self, execution: Execution) -> Settlement | None:
        if not inspect.iscoroutinefunction(execution.task.function):
            return body.run(execution)
        try:
            return asyncio.run(self._lead(execution))
        except Interrupted:
            raise
        except BaseException as error:  # noqa: BLE001 - of a task that the body left behind
            self._is_armed = False
            return body.raised(execution, error)

    async def _lead(self, execution: Execution) -> Settlement | None:
        self._task = asyncio.current_task()
        try:
            return await body.arun(execution, Leash())
        finally:
            self._task = None

    # Stopping

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._interrupt_if_due()

    def _interrupt_if_due(self) -> None:
        """In the main thread: raises in the body, once, if its worker has ordered that it stop."""
        if not self._is_armed or self._pipe.is_shielded:
            return
        stop = self._flags.stop_of(self._number)
        if stop is None:  # somebody else's signal: the worker got it too, and is the one to decide
            return
        if self._execution is not None:
            self._execution.stop = stop
            self._execution.told_at = self._pipe.clock.steady()  # or a log line of its clean-up would tell it again
        if not self._is_interrupted:
            self._is_interrupted = True
            self._interrupt(stop)

    def _interrupt(self, stop: Stop) -> None:
        if self._task is None:
            raise Interrupted(stop)
        self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    # What a body forks

    def _hold_sigterm(self) -> None:
        """One that comes before the new process has its own way with it would be taken for an order, and be lost."""
        self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _let_sigterm_go(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forking.mask)

    def _forked(self) -> None:
        """Such a process has no claim to the socket, the lock and the orders of this one."""
        try:
            if not self._is_forked:
                self._become_nobody()
        finally:
            self._let_sigterm_go()

    def _become_nobody(self) -> None:
        self._is_forked = True
        self._is_armed = False
        self._pipe.cut()
        if kernel.STACK_SIGNAL is not None:
            faulthandler.unregister(kernel.STACK_SIGNAL)
        faulthandler.disable()
        for descriptor in (*self._locks, self._flags.descriptor):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _flush_prints() -> None:
    """What a body prints is seen when it ends, not when the child does: that may be killed, or live for days."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed or replaced by a body
            stream.flush()


def _use_database(app: Any, url: str) -> None:
    """The worker's database, also where a command line has given it another than the code says."""
    if app.settings.url != url:
        app.close()
        app.settings = replace(app.settings, url=url, listen_url=None)


class _Echo(logging.Handler):
    """What Dray itself has to say here goes to the worker's log."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "dray":
            self._pipe.say(record.levelno, self.format(record))


def _trace(error: BaseException) -> list[str]:
    return traceback.format_exception(error, limit=100)


def _shown(lines: list[str]) -> str:
    return clean_traceback(redact("".join(lines).strip()), TRACEBACK_BYTES)
