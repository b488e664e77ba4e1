"""Several worker processes under one parent: it starts them, restarts those that die, and ends with them.

It knows nothing of jobs: other workers rescue those of a worker process that died. With a `Fleet` it hears how its
processes are, for probes, metrics and a service manager, which it tells in their place; it kills one whose engine
hangs for as long as the service manager's watchdog allows. Under a service manager SIGHUP replaces all processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

from dray.backends.watch import rest
from dray.clock import SystemClock
from dray.instants import SECOND
from dray.log import log
from dray.runtime.children import kernel
from dray.runtime.fleet import Fleet
from dray.runtime.notify import Manager, status_of
from dray.runtime.reporting import CHANNEL
from dray.runtime.signals import SUPERVISED, ends_by, handling

RENEW = 75  # exit status of a worker that wants to be restarted at once
_NO_USE = frozenset({2, 6})  # wrong usage, no database: a restart would end the same way
_LEEWAY = 15.0  # seconds that a worker may take beyond its grace
_FIRST_PAUSE, _LONGEST_PAUSE = SECOND // 10, 30 * SECOND  # before a restart
_PROVEN_AFTER = 60 * SECOND  # a worker that ran for so long could work: failures are counted from there
_HANGS_AFTER = 15.0  # seconds without a step of its engine, at least: a worker reports steps every three
_NEVER = 1 << 62  # a reading that the steady clock never reaches


class Reload(Protocol):
    """Says when running processes are out of date. They are then stopped, each once, and restarted."""

    def is_due(self) -> bool: ...  # files have changed since it was last due, and have stopped changing
    def rest(self) -> float: ...  # seconds until the next look
    def environment(self) -> Mapping[str, str]: ...  # variables to add for the process that starts now


class Supervisor:
    """Runs `count` processes of one command until it is told to stop, or until all have ended by themselves.

    Each has its own process group, so that only the supervisor gets a Ctrl-C at the terminal, and passes it on once.
    A worker whose supervisor is killed gets SIGTERM from the kernel.
    """

    def __init__(
        self,
        argv: Sequence[str],
        count: int,
        grace: float,
        reload: Reload | None = None,
        fleet: Fleet | None = None,
        manager: Manager | None = None,  # only with a fleet
    ) -> None:
        self._clock = SystemClock()
        self._grace = grace + _LEEWAY
        self._grace_us = int(self._grace * SECOND)
        self._reload = reload
        self._fleet = fleet
        self._manager = manager
        self._told_at = 0  # the manager, last
        self._is_changing = True  # the manager waits to hear that all are ready
        self._workers = [_WorkerProcess(number + 1, argv) for number in range(count)]
        self._signals: deque[int] = deque()
        self._told: int | None = None  # the first signal
        self._kill_at: int | None = None
        self._exit_code: int | None = None  # set once it makes no sense to go on

    def run(self) -> int:
        """Runs until all have ended. Returns the exit code."""
        with self._listening() as wakes:
            for worker in self._workers:
                worker.start(self._clock.steady(), self._environment(), self._fleet)
            while True:
                self._obey()
                self._heed_changes()
                self._hear()
                self._look()
                if not any(worker.is_wanted or worker.process for worker in self._workers):
                    break
                rest([wakes.fileno(), *([] if self._fleet is None else self._fleet.filenos())], self._rest())
                with contextlib.suppress(BlockingIOError):
                    wakes.recv(4096)
        if self._exit_code is not None:
            return self._exit_code
        return next((worker.code for worker in self._workers if worker.code), 0)

    @contextlib.contextmanager
    def _listening(self) -> Generator[socket.socket]:
        wakes, waker = socket.socketpair()
        wakes.setblocking(False)  # noqa: FBT003
        waker.setblocking(False)  # noqa: FBT003
        handlers = dict.fromkeys((*ends_by(), signal.SIGCHLD), self._note)
        with wakes, waker, handling(handlers, waker.fileno()):
            yield wakes

    def _note(self, number: int, _: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self._signals.append(number)

    def _obey(self) -> None:
        while self._signals:
            number = self._signals.popleft()
            if self._told is None and number == signal.SIGHUP and self._manager is not None:
                log.info("SIGHUP: replacing %d workers", len(self._workers))
                self._manager.reloading()
                self._is_changing = True
                self._replace_all()
            elif self._told is None:
                self._told = number
                log.info("%s: stopping %d workers", signal.Signals(number).name, len(self._workers))
                self._stop(number)
            elif number != signal.SIGHUP:  # for a closed terminal both the shell and the kernel send one
                log.warning("%s again: ending at once", signal.Signals(number).name)
                self._exit_code = 128 + number
                self._send(signal.SIGKILL)

    def _stop(self, number: int) -> None:
        self._kill_at = self._clock.steady() + self._grace_us
        for worker in self._workers:
            worker.is_wanted = False
        self._send(number)
        if self._manager is not None:
            self._manager.stopping()

    def _send(self, number: int) -> None:
        for worker in self._workers:
            worker.send(number)

    def _look(self) -> None:
        """Notes which processes have ended, and starts those that are due."""
        now = self._clock.steady()
        if self._kill_at is not None and now >= self._kill_at:
            log.error("workers still ran %.0f s after they were told to stop: killed", self._grace)
            self._kill_at = None
            self._send(signal.SIGKILL)
        for worker in self._workers:
            if worker.process is not None and worker.kill_at is not None and now >= worker.kill_at:
                log.error("worker %d still ran %.0f s after it was told to stop: killed", worker.number, self._grace)
                worker.kill_at = None
                worker.send(signal.SIGKILL)
            code = worker.ended()
            if code is not None:
                self._ended(worker, code, now)
            elif worker.is_wanted and worker.process is None and now >= worker.due_at:
                try:
                    worker.start(now, self._environment(), self._fleet)
                except OSError as error:  # no memory, or no more processes: it worked before, and may again
                    worker.due_at = now + _LONGEST_PAUSE
                    log.error("worker %d could not be started: %s", worker.number, error)  # noqa: TRY400 - it says all

    def _hear(self) -> None:
        """Takes in reports, and tells the service manager."""
        fleet, manager = self._fleet, self._manager
        if fleet is None:
            return
        fleet.hear()
        if manager is None or self._told is not None:
            return
        for worker in self._workers:
            if manager.watchdog is not None and fleet.unturned(worker.number) > max(_HANGS_AFTER, manager.watchdog):
                log.error("the engine of worker %d hangs: killed", worker.number)
                worker.send(signal.SIGKILL)
        now = self._clock.steady()
        is_whole = all(fleet.is_ready(each.number) and not each.is_outdated for each in self._workers)
        if self._is_changing and is_whole:
            self._is_changing = False
            manager.tell("READY=1", status_of(fleet.condition()))
        if now - self._told_at >= manager.period * SECOND:
            self._told_at = now
            pings = [] if manager.watchdog is None else ["WATCHDOG=1"]
            manager.tell(status_of(fleet.condition()), *pings)

    def _ended(self, worker: _WorkerProcess, code: int, now: int) -> None:
        if self._fleet is not None:
            self._fleet.hear()  # its last report
            self._fleet.ended(worker.number)
        lived_us = now - worker.started_at
        worker.kill_at = None
        if worker.is_outdated and worker.is_wanted:
            worker.restart_soon(now)
            return
        if not worker.is_wanted or code == 0:
            worker.is_wanted = False
            if self._told is not None and code == 128 + self._told:
                worker.code = 0  # it was told to end before it had started: that is no failure
            log.info("worker %d has ended (%s)", worker.number, _shown(code))
            return
        if code in _NO_USE and worker.starts == 1 and lived_us < _PROVEN_AFTER:
            log.error("worker %d could not work (%s); stopping all", worker.number, _shown(code))
            self._exit_code = code
            self._stop(signal.SIGTERM)
            return
        if self._reload is not None and code < 128 and code != RENEW:
            worker.due_at, worker.code = _NEVER, 0
            log.warning("the worker has ended (%s); it restarts when something changes", _shown(code))
            return
        if lived_us >= _PROVEN_AFTER or code == RENEW:
            worker.failures = 0
        pause_us = 0 if code == RENEW else min(_LONGEST_PAUSE, _FIRST_PAUSE << min(worker.failures, 20))
        worker.failures += code != RENEW
        worker.due_at = now + pause_us
        worker.code = 0  # only the exit of the last process counts
        log.warning("worker %d ended (%s); it restarts in %.1f s", worker.number, _shown(code), pause_us / SECOND)

    def _rest(self) -> float | None:
        """Seconds until something is due; None: wait for a signal."""
        due = [worker.due_at for worker in self._workers if worker.is_wanted and worker.process is None]
        due += [at for at in (self._kill_at, *(worker.kill_at for worker in self._workers)) if at is not None]
        if self._manager is not None and self._told is None:
            due.append(self._told_at + int(self._manager.period * SECOND))
        seconds = max(0, min(due) - self._clock.steady()) / SECOND if due else None
        if self._reload is None or self._told is not None:
            return seconds
        return self._reload.rest() if seconds is None else min(seconds, self._reload.rest())

    def _heed_changes(self) -> None:
        if self._reload is not None and self._told is None and self._reload.is_due():
            self._replace_all()

    def _replace_all(self) -> None:
        now = self._clock.steady()
        for worker in self._workers:
            if worker.process is None:
                worker.restart_soon(now)
            elif not worker.is_outdated:  # otherwise it is stopping already, and the next process sees all changes
                worker.is_outdated = True
                worker.kill_at = now + self._grace_us
                worker.send(signal.SIGTERM)

    def _environment(self) -> Mapping[str, str]:
        return {} if self._reload is None else self._reload.environment()


@dataclass(eq=False)
class _WorkerProcess:
    """One of the workers: a process, and the one that replaces it."""

    number: int
    argv: Sequence[str]
    process: subprocess.Popen[bytes] | None = None
    is_wanted: bool = True  # restarted when it ends
    starts: int = 0
    failures: int = 0  # in a row
    started_at: int = 0  # readings of the steady clock
    due_at: int = 0
    is_outdated: bool = False  # stopping, to be restarted at once
    kill_at: int | None = None  # if it has not stopped by then
    code: int = 0  # exit code of the last process

    def restart_soon(self, now: int) -> None:
        """Restarts it at the next look, without a pause for earlier failures."""
        self.is_outdated = False
        self.failures = self.code = 0
        self.due_at = now

    def start(self, now: int, environment: Mapping[str, str], fleet: Fleet | None) -> None:
        self.starts += 1
        self.started_at = now
        supervisor = os.getpid()

        def before_exec() -> None:
            kernel.ask_for_death_signal(signal.SIGTERM)
            if os.getppid() != supervisor:  # it died before the kernel was asked
                os._exit(1)

        with contextlib.ExitStack() as until_started:
            channel = None if fleet is None else until_started.enter_context(fleet.open(self.number))
            number = None if channel is None else channel.fileno()
            its_own = {SUPERVISED: "1"} if number is None else {SUPERVISED: "1", CHANNEL: str(number)}
            # A hook between fork and exec is safe only in a process without threads. One that serves probes has some;
            # its workers see the end of their channels.
            self.process = subprocess.Popen(  # noqa: S603 - the command that we were given
                self.argv,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **environment, **its_own},
                process_group=0,
                preexec_fn=before_exec if number is None else None,  # noqa: PLW1509
                pass_fds=() if number is None else (number,),
            )
        log.info("worker %d is process %d", self.number, self.process.pid)

    def ended(self) -> int | None:
        """The exit code, if the process has ended since the last look."""
        status = None if self.process is None else self.process.poll()
        if status is None:
            return None
        self.process = None
        self.code = status if status >= 0 else 128 - status
        return self.code

    def send(self, number: int) -> None:
        if self.process is not None:
            self.process.send_signal(number)


def _shown(code: int) -> str:
    if code > 128:
        with contextlib.suppress(ValueError):
            return signal.Signals(code - 128).name
    return f"exit status {code}"
