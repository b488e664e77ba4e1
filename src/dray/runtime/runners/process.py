"""Bodies in child processes: one at a time in each, in a process group of its own.

A slot is a thread of the worker that talks with one child. What a child sends may come from a body's code, so it is
not trusted: anything that is not a message ends the child, and the attempt with it.

While bodies are short, a child is given many jobs at a time, and its slot does not wake up for each that ends. What
has not begun can be taken back at any moment (`wire.Turns`): when one body takes long, before one is stopped, and
when the child has died. So all that happens to a child concerns the one job that it has begun last.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from queue import Empty
from typing import Any

from dray.hooks import name_of
from dray.instants import SECOND
from dray.log import log
from dray.model.settlement import Settlement
from dray.runtime import loading, outcome
from dray.runtime.children import hearing, wire
from dray.runtime.children.worker_side import ChildHandle, Died, ForkerHandle, NoChild, StartFailed
from dray.runtime.execution import Execution
from dray.runtime.runners import Line, Runner
from dray.task.task import Task

_IDLE = 60.0  # seconds that a child waits for another job
_START = 60.0  # seconds to load a task in a child
_MANY = 128  # short jobs that all children have at a time
_SMALL = 2048  # bytes of arguments; what a child is given while it runs a body has to fit into a socket
_PATIENCE = 0.005  # seconds in which some short bodies end
_FEW = 4
_BEGIN = 0.05  # seconds between two looks whether a body has begun


@dataclass(eq=False)
class ProcessRunner(Runner):
    """At most `size` children, started as they are needed and used again."""

    needs = "a child process"
    burial_us = 4 * SECOND  # killed, it will be gone; on a busy machine ten processes took a second
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
        self.are_short = False

    @property
    def capacity(self) -> int:
        with self._lock:
            return sum(not slot.lacks_child for slot in self.slots) if self.outage.is_on else self._size

    def start(self, executions: Sequence[Execution], *, are_short: bool = False) -> None:
        self.are_short = are_short
        if self._outranks(executions):
            self.ready.put_back(self._recalled())  # in the line, the more urgent ones come first
        with self._lock:
            self._pending += len(executions)
            wanted = min(self._size, self._pending)
            has_all = len(self.slots) >= wanted or self._add_slots(wanted)
            excess = self._pending - sum(not slot.lacks_child for slot in self.slots)
        self.ready.extend(executions)
        if not has_all:
            self.give_back(self.ready.take_back(excess))

    def _outranks(self, executions: Sequence[Execution]) -> bool:
        """Whether one of these is more urgent than one that a child has behind another."""
        highest = max(each.claim.priority for each in executions)
        return any(slot.has_behind(highest) for slot in self.slots)

    @property
    def most_ahead(self) -> int:
        """Short jobs that one child may have."""
        return max(1, _MANY // self._size)

    def _recalled(self) -> list[Execution]:
        return [execution for slot in self.slots for execution in slot.recall()]

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
        behind = self.ready.take_back()  # first: a free slot would get it
        taken = self._recalled() + behind
        self._settle_up(len(taken))
        return taken

    def stack(self, execution: Execution) -> str | None:
        return next((stack for slot in self.slots if (stack := slot.stack(execution)) is not None), None)

    def close(self) -> None:
        self.is_closing.set()
        self.ready.extend([None] * len(self.slots))

    def join(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        for slot in self.slots:
            slot.join(max(0.0, deadline - time.monotonic()))
        return not any(slot.is_alive() for slot in self.slots)

    def over(self, ended: Sequence[tuple[Execution, Settlement | None]]) -> None:
        self._settle_up(len(ended))
        for execution, settlement in ended:
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

    def middleware_of(self, task: Task[..., Any]) -> list[tuple[str, loading.TaskLocation]]:
        """The middleware that a child is to put around bodies, by name, and the modules that register it."""
        found: list[tuple[str, loading.TaskLocation]] = []
        for function in task.app.hooks.middleware:
            location = loading.locate_middleware(function)
            if isinstance(location, str):
                raise StartFailed(f"middleware {name_of(function)} cannot run in a child process: {location}")
            found.append((name_of(function), location))
        return found

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
    """Runs executions in a child that it keeps: one at a time or, while bodies are short, one after the other."""

    def __init__(self, runner: ProcessRunner, number: int) -> None:
        super().__init__(name=f"dray-child-{number}", daemon=True)
        self.lacks_child = False  # none could be started; it takes no execution until it has one
        self.is_gone = False
        self._runner = runner
        self.child: ChildHandle | None = None
        self._given: deque[tuple[int, Execution]] = deque()  # to the child, and not over; each with its number
        self._is_recalled = False  # nothing more is given to it until all is over
        self._guard = threading.Lock()  # around these
        self._ended: list[tuple[Execution, Settlement | None]] = []  # and not reported

    # From any thread

    @property
    def execution(self) -> Execution | None:
        """The first that its child has."""
        current = self._current()
        return None if current is None else current[1]

    def stop(self, execution: Execution) -> None:
        with self._guard:
            if execution.stop is not None and (child := self._child_of(execution)) is not None:
                child.stop(self._given[-1][0], execution.stop)

    def kill(self, execution: Execution) -> None:
        with self._guard:
            if (child := self._child_of(execution)) is not None:
                child.kill()

    def stack(self, execution: Execution) -> str | None:
        with self._guard:
            child = self._child_of(execution)
        return None if child is None else child.stack()

    def has_behind(self, priority: int) -> bool:
        """Whether a job of a lower priority waits in its child."""
        with self._guard:
            return any(each.claim.priority < priority for _, each in islice(self._given, 1, None))

    def recall(self) -> list[Execution]:
        """Takes back what the child has not begun, and now never will."""
        with self._guard:
            return self._recall()

    def _recall(self) -> list[Execution]:
        if self.child is None or not self._given:
            return []
        self._is_recalled = True
        numbers = self.child.recall()
        back = [execution for number, execution in self._given if number in numbers]
        self._given = deque(each for each in self._given if each[0] not in numbers)
        return back

    def _child_of(self, execution: Execution) -> ChildHandle | None:
        """The child, if this is what it runs. It begins nothing after that: a signal for this can hit no other."""
        if not any(each is execution for _, each in self._given):
            return None
        self._runner.ready.put_back(self._recall())
        return self.child if self._given and self._given[-1][1] is execution else None

    def _current(self) -> tuple[int, Execution] | None:
        with self._guard:
            return self._given[0] if self._given else None

    # From its own

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
            child = self._engage(execution)
        except NoChild as error:
            pause = self._runner.lacks_child(self, error)  # first: the worker must not claim it again at once
            if execution.stop is None:
                self._runner.give_back([execution])
            else:
                self._runner.over([(execution, outcome.stopped(execution))])
            return self._await_child(pause)
        if child is None:
            self._runner.over([(execution, outcome.stopped(execution))])
        else:
            self._serve(child, execution)
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

    def _engage(self, execution: Execution) -> ChildHandle | None:
        """A child that can run it; None: it has to stop before it has begun."""
        if self.child is not None and self.child.died_idle():  # no crash of this job
            with self._guard:
                dead, self.child = self.child, None
            dead.bury()
        if self.child is None and execution.stop is None:
            self.child = self._runner.forker.fork()
        return self.child if execution.stop is None else None

    def _serve(self, child: ChildHandle, first: Execution) -> None:
        """Runs an execution and, while bodies are short, those behind it, until the child has none left."""
        blame: Callable[[Execution], Settlement | None] | None = None
        try:
            child.wipe()
            is_alone = first.claim.crashes or first.task not in child.loaded
            more = [] if is_alone else self._more(child, first)
            self._give(child, [first, *more], is_quiet=bool(more))
            self._converse(child, is_quiet=bool(more))
            if self._is_recalled and not child.must_end:
                child.tell({"rest": True})  # or it would hold the worker's lock for what it has not begun
        except Died as death:
            blame = partial(_died, child, str(death))
        except wire.Garbled as error:
            how = f"the process that ran it sent a message that cannot be understood: {error}"
            blame = partial(_died, child, how)
        except StartFailed as error:
            blame = partial(_failed, error)
        except Exception as error:  # a defect of ours must cost neither the slot nor, silently, the job
            log.exception("%s: unexpected error", self.name)
            blame = partial(_failed, error)
        if child.must_end or blame is not None:
            self._part(child, blame)
        self._is_recalled = False

    def _part(self, child: ChildHandle, blame: Callable[[Execution], Settlement | None] | None) -> None:
        """Ends a child. `blame` ends the job that it ran; what it has not begun runs elsewhere."""
        with self._guard:
            back = self._recall()
            begun = [execution for _, execution in self._given]
            self._given.clear()
            self.child = None
        if not begun and not child.loaded:
            begun, back = back[:1], back[1:]  # or one that kills every child before it begins would be tried for ever
        self._runner.ready.put_back(back)
        if begun and blame is not None:
            self._ended.append((begun[0], blame(begun[0])))
        # Before the attempt is reported: nothing of it may live beside the next.
        child.bury()
        # Those that the child has begun later: what it said of them cannot be told from what a body wrote.
        self._ended += [(each, outcome.stopped(each)) for each in begun[1:] if each.stop is not None]
        self._runner.give_back([each for each in begun[1:] if each.stop is None])
        self._report_ended()

    def _report_ended(self) -> None:
        ended, self._ended = self._ended, []
        self._runner.over(ended)

    def _more(self, child: ChildHandle, before: Execution) -> list[Execution]:
        """Takes short jobs from the line that the child may have behind this one."""
        runner = self._runner
        if not runner.are_short or self._is_recalled or child.must_end:
            return []
        room = min(runner.most_ahead - len(self._given), runner.ready.share())
        return runner.ready.take_more(
            room,
            lambda each: (
                each.task in child.loaded
                and not each.claim.crashes
                and len(each.claim.args) + len(each.claim.headers or "") + len(each.claim.retry or "") <= _SMALL
                and each.worker_id == before.worker_id
            ),
        )

    def _give(self, child: ChildHandle, executions: Sequence[Execution], *, is_quiet: bool) -> None:
        """Sends a child jobs, then lets it begin them."""
        first, runner = executions[0], self._runner
        numbered = [*enumerate(executions, child.jobs + 1)]
        child.jobs += len(executions)
        try:
            message = {
                "jobs": [(number, each.claim) for number, each in numbered],
                "locations": {task.name: runner.location_of(task) for task in {each.task for each in executions}},
                "middleware": runner.middleware_of(first.task),
                "worker_id": first.worker_id,
                "url": runner.url,
                "log_level": logging.getLogger().level,
                # A task that is loaded begins at once: the child notes it, and spares this thread a wake-up.
                "says_begin": not is_quiet and (first.task not in child.loaded or first.claim.timeout is not None),
                "is_quiet": is_quiet,
            }
            child.tell(message, runner.lock_fd())
        except Exception as error:
            if not isinstance(error, StartFailed):
                log.exception("%s: unexpected error", self.name)
            child.must_end = True  # it may have got a part
            runner.ready.put_back(executions[1:])
            runner.over([(first, outcome.raised(first, error))])
            return
        with self._guard:
            # One that has had to stop meanwhile goes back into the line. From here on it would be found here.
            going = {} if self._is_recalled else {number: each for number, each in numbered if each.stop is None}
            self._given.extend(going.items())
            child.grant([*going])
        if len(going) < len(numbered):
            runner.ready.put_back([each for number, each in numbered if number not in going])

    def _converse(self, child: ChildHandle, *, is_quiet: bool) -> None:
        """Hears what the child says until all that it was given is over."""
        deadline = time.monotonic() + _START
        while (execution := self.execution) is not None:
            pause = _PATIENCE if is_quiet else _BEGIN if execution.started is None else None
            is_woken = child.hear(pause, is_quiet=is_quiet)
            ended = self._take_in(child)
            if ended:
                deadline = time.monotonic() + _START
            if is_quiet and not is_woken and ended < _FEW:  # one is not short: free slots may have those behind it
                is_quiet = False
                self._runner.ready.put_back(self.recall())
            elif is_quiet and self._given and (more := self._more(child, execution)):
                self._give(child, more, is_quiet=True)
            if not is_woken and not self._sees_begin(child) and time.monotonic() > deadline:
                raise StartFailed(f"task {execution.task.name} was not loaded within {_START:g} s")

    def _sees_begin(self, child: ChildHandle) -> bool:
        """Whether the job that comes next to its end has begun. Its timeout counts from there."""
        current = self._current()
        if current is None:
            return True
        number, execution = current
        begun, at = child.begun()
        if execution.started is None and begun == number:
            hearing.begin(execution, hearing.checked_instant(at, execution.link.clock.steady()))
        return execution.started is not None

    def _take_in(self, child: ChildHandle) -> int:
        """Takes in all that the child has said. Returns how many jobs it has ended."""
        while (execution := self.execution) is not None and (message := child.message()) is not None:
            try:
                if "end" in message:
                    settlement = hearing.settlement_of(execution, message)
                elif "stopped" in message:
                    settlement = outcome.stopped(execution, stack=child.last_stack())
                elif "refused" in message:
                    raise hearing.refusal_of(execution, message)
                else:
                    if "began" in message:
                        child.loaded.add(execution.task)
                    hearing.take_note(execution, message)
                    continue
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise wire.Garbled(f"a message that does not fit ({type(error).__name__}: {error})") from error
            with self._guard:
                self._given.popleft()
            self._ended.append((execution, settlement))
        ended = len(self._ended)
        if self._given or not child.must_end:  # else it is buried first
            self._report_ended()
        return ended

    def _dismiss(self) -> None:
        with self._guard:
            child, self.child = self.child, None
        if child is not None:
            child.quit()


def _died(child: ChildHandle, how: str, execution: Execution) -> Settlement | None:
    return outcome.died(execution, how, child.last_stack())


def _failed(error: Exception, execution: Execution) -> Settlement | None:
    return outcome.raised(execution, error)
