"""Bodies in child processes: one at a time in each, in a process group of its own.

A slot is a thread of the worker that talks with one child. What a child sends may come from a body's code, so it is
not trusted: anything that is not a message ends the child, and the attempt with it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty
from typing import Any

from dray.log import log
from dray.model.job import LogLine
from dray.model.limits import LOG_LINES
from dray.model.settlement import Settlement
from dray.runtime import loading, outcome
from dray.runtime.children import wire, worker_side
from dray.runtime.children.worker_side import ChildHandle, Died, ForkerHandle, NoChild, StartFailed
from dray.runtime.execution import Execution, StopCause
from dray.runtime.runners import Line, Runner
from dray.sanitize import escape_control, escape_lines
from dray.task.task import Task

_IDLE = 60.0  # seconds that a child waits for another job
_START = 60.0  # seconds to load a task in a child


@dataclass(eq=False)
class ProcessRunner(Runner):
    """At most `size` children, started as they are needed and used again."""

    needs = "a child process"
    lock_fd: Callable[[], int | None]
    url: str

    def __post_init__(self) -> None:
        super().__post_init__()
        self.is_closing = threading.Event()
        self.forker = ForkerHandle()
        self.ready = Line()
        self._wanted = 0  # slots, when one could not be made
        self.slots: list[_Slot] = []
        self._locations: dict[Task[..., Any], loading.TaskLocation] = {}
        self._lock = threading.Lock()
        self._pending = 0  # executions that are here and not over

    @property
    def capacity(self) -> int:
        with self._lock:
            return sum(not slot.lacks_child for slot in self.slots) if self.outage.is_on else self._size

    def start(self, executions: Sequence[Execution], *, are_short: bool = False) -> None:  # noqa: ARG002
        with self._lock:
            self._pending += len(executions)
            wanted = min(self._size, self._pending)
            has_all = len(self.slots) >= wanted or self._add_slots(wanted)
            excess = self._pending - sum(not slot.lacks_child for slot in self.slots)
        self.ready.extend(executions)
        if not has_all:
            self.give_back(self.ready.take_back(excess))

    def _mend(self) -> None:
        """Makes slots. Those without a child try again by themselves."""
        with self._lock:
            if len(self.slots) < self._wanted and self._add_slots(self._wanted):
                self._end_outage()

    def _add_slots(self, count: int) -> bool:
        if self._start_slots(self.slots, count, lambda number: _Slot(self, number)):
            return True
        self._wanted = count
        return False

    def lacks_child(self, slot: _Slot, error: NoChild) -> float:
        """A slot could not get a child. Returns the seconds until it tries again."""
        with self._lock:
            slot.lacks_child = True
            return self.outage.goes_on(error, self._clock.steady())

    def has_child(self, slot: _Slot) -> None:
        with self._lock:
            slot.lacks_child = False
            self._end_outage()

    def _end_outage(self) -> None:
        if len(self.slots) >= self._wanted and not any(slot.lacks_child for slot in self.slots):
            self._wanted = 0
            self.outage.ends()

    def give_back(self, executions: Sequence[Execution]) -> None:
        self._settle_up(len(executions))
        if executions:
            self._refuse(executions)

    def stop(self, execution: Execution) -> bool:
        for slot in self.slots:
            slot.stop(execution)
        return True

    def abandon(self, execution: Execution) -> None:
        for slot in self.slots:
            slot.kill(execution)

    def replace(self, execution: Execution) -> None:
        """Does nothing: the process was killed, and its slot gets another."""

    def take_back(self) -> list[Execution]:
        taken = self.ready.take_back()
        self._settle_up(len(taken))
        return taken

    def stack(self, execution: Execution) -> str | None:
        return next((slot.stack() for slot in self.slots if slot.execution is execution), None)

    def close(self) -> None:
        self.is_closing.set()
        self.ready.extend([None] * len(self.slots))

    def join(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        for slot in self.slots:
            slot.join(max(0.0, deadline - time.monotonic()))
        return not any(slot.is_alive() for slot in self.slots)

    def over(self, execution: Execution, settlement: Settlement | None) -> None:
        self._settle_up(1)
        execution.is_over = True
        self._report(execution, settlement)

    def _settle_up(self, count: int) -> None:
        with self._lock:
            self._pending -= count

    def location_of(self, task: Task[..., Any]) -> loading.TaskLocation:
        if task not in self._locations:
            found = loading.locate(task)
            if isinstance(found, str):
                raise StartFailed(f"task {task.name} cannot run in a child process: {found}")
            self._locations[task] = found
        return self._locations[task]

    def is_last(self, slot: _Slot) -> bool:
        """Whether no other slot has a child: the last one is kept, however long it is idle."""
        with self._lock:
            return not any(other.child for other in self.slots if other is not slot)

    def slot_ended(self, slot: _Slot) -> None:
        with self._lock:
            slot.is_gone = True
            is_last = all(other.is_gone for other in self.slots)
        if is_last:
            self.forker.close()


class _Slot(threading.Thread):
    """Runs one execution at a time in a child that it keeps."""

    def __init__(self, runner: ProcessRunner, number: int) -> None:
        super().__init__(name=f"dray-child-{number}", daemon=True)
        self.execution: Execution | None = None
        self.lacks_child = False  # none could be started; it takes no execution until it has one
        self.is_gone = False
        self._runner = runner
        self.child: ChildHandle | None = None
        self._guard = threading.Lock()  # around the pair of them

    # From any thread

    def stop(self, execution: Execution) -> None:
        with self._guard:
            if self.execution is execution and self.child is not None and execution.stop is not None:
                self.child.stop(execution.stop)

    def kill(self, execution: Execution) -> None:
        with self._guard:
            if self.execution is execution and self.child is not None:
                self.child.kill()

    def stack(self) -> str | None:
        child = self.child
        return None if child is None else child.stack()

    def run(self) -> None:
        try:
            while self._take():
                pass
        finally:
            self._dismiss()
            self._runner.slot_ended(self)

    def _take(self) -> bool:
        try:
            execution = self._runner.ready.take(_IDLE if self.child else None)
        except Empty:
            if not self._runner.is_last(self):
                self._dismiss()
            return True
        if execution is None:
            return False
        try:
            settlement = self._perform(execution)
        except NoChild as error:
            pause = self._runner.lacks_child(self, error)  # first: the worker must not claim it again at once
            if execution.stop is None:
                self._runner.give_back([execution])
            else:
                self._runner.over(execution, outcome.stopped(execution))
            return self._await_child(pause)
        except Exception as error:  # a defect of ours must cost neither the slot nor, silently, the job
            log.exception("%s: unexpected error", self.name)
            settlement = outcome.raised(execution, error)
        with self._guard:
            self.execution = None
        self._runner.over(execution, settlement)
        return True

    def _await_child(self, pause: float) -> bool:
        """Tries until there is one; False: the runner is closed."""
        while not self._runner.is_closing.wait(pause):
            try:
                child = self._runner.forker.fork()
            except NoChild as error:
                pause = self._runner.lacks_child(self, error)
            else:
                self.child = child
                self._runner.has_child(self)
                return True
        return False

    def _perform(self, execution: Execution) -> Settlement | None:
        child = self._engage(execution)
        if child is None:
            return outcome.stopped(execution)
        is_whole = False
        try:
            settlement = self._converse(child, execution)
            is_whole = execution.stop is None
        except Died as death:
            settlement = outcome.died(execution, str(death), child.last_stack())
        except StartFailed as error:
            settlement = outcome.raised(execution, error)
        except wire.Garbled as error:
            how = f"the process that ran it sent a message that cannot be understood: {error}"
            settlement = outcome.died(execution, how, child.last_stack())
        finally:
            if not is_whole:
                # Before the attempt is reported: nothing of it may live beside the next.
                with self._guard:
                    self.child = None
                child.bury()
        return settlement

    def _engage(self, execution: Execution) -> ChildHandle | None:
        """The child that runs it; None: it has to stop before it has begun."""
        if self.child is not None and self.child.died_idle():  # no crash of this job
            with self._guard:
                dead, self.child = self.child, None
            dead.bury()
        if self.child is None and execution.stop is None:
            self.child = self._runner.forker.fork()
        child = self.child
        with self._guard:
            if child is None or execution.stop is not None:
                return None
            child.prepare()  # from here on it can be told to stop
            self.execution = execution
        return child

    def _converse(self, child: ChildHandle, execution: Execution) -> Settlement | None:
        """Sends a child its job and reads its messages until the body has ended."""
        # A task that is loaded begins at once: the child notes it, and spares this thread a wake-up.
        says_begin = execution.task not in child.loaded or execution.claim.timeout is not None
        job = {
            "claim": execution.claim,
            "task": execution.task.name,
            "location": self._runner.location_of(execution.task),
            "worker_id": execution.worker_id,
            "url": self._runner.url,
            "log_level": logging.getLogger().level,
            "says_begin": says_begin,
        }
        if not says_begin:
            _begin(execution, execution.link.clock.steady())
        child.give(job, self._runner.lock_fd())
        deadline: float | None = time.monotonic() + _START
        while True:
            try:
                message = child.hear(deadline)
            except TimeoutError:
                if child.has_begun:
                    deadline = None
                    continue
                raise StartFailed(f"task {execution.task.name} was not loaded within {_START:g} s") from None
            try:
                if "end" in message:
                    return _outcome(execution, message)
                if "stopped" in message:
                    return outcome.stopped(execution, stack=child.last_stack())
                if "refused" in message:
                    raise _refused(execution, message)
                if "began" in message:
                    deadline = None
                    child.loaded.add(execution.task)
                _take_note(execution, message)
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise wire.Garbled(f"a message that does not fit ({type(error).__name__}: {error})") from error

    def _dismiss(self) -> None:
        with self._guard:
            child, self.child = self.child, None
        if child is not None:
            child.quit()


def _take_note(execution: Execution, message: wire.Message) -> None:
    link = execution.link
    if "began" in message:
        _begin(execution, worker_side.checked_instant(message["began"], link.clock.steady()))
    elif "report" in message:
        execution.report = worker_side.checked_report(message["report"])
        link.note(execution)
    elif "lines" in message:
        lines = worker_side.checked_lines(execution.claim, message["lines"], link.clock.steady())
        if execution.lines is None:
            execution.lines = deque(maxlen=LOG_LINES)
        execution.lines.extend(lines)
        link.note(execution)
        if not message["is_shown"]:
            _show(lines)
    elif "written" in message:
        execution.is_written = True
    elif "grown" in message:
        execution.grown.append(worker_side.checked_step(message["grown"], execution.claim.workflow_id))
    else:
        level, said = worker_side.checked_log(message["said"])
        log.log(level, "%s", escape_lines(said))


def _begin(execution: Execution, at: int) -> None:
    execution.begin(at)
    execution.link.began(execution)


def _show(lines: Sequence[LogLine]) -> None:
    """Logs lines of a child in this process, where bodies in threads log too."""
    levels = logging.getLevelNamesMapping()
    for line in lines:
        name, message = escape_control(line.logger), escape_lines(line.message)
        logger, level = logging.getLogger(name), levels.get(line.level, logging.INFO)
        if logger.isEnabledFor(level):
            logger.handle(logger.makeRecord(name, level, "", 0, message, (), None))


def _outcome(execution: Execution, message: wire.Message) -> Settlement | None:
    execution.is_written = bool(message["is_written"])
    now, began = execution.link.clock.steady(), message["began"]
    execution.started = None if began is None else worker_side.checked_instant(began, now)
    if message["end"] is None or execution.stop is StopCause.LOST:
        return None
    return worker_side.checked_settlement(execution.claim, message["end"], now)


def _refused(execution: Execution, message: wire.Message) -> StartFailed:
    error = StartFailed(f"a child process could not load task {execution.task.name}: {message['refused']}")
    error.add_note(str(message["trace"]))
    return error
