"""How bodies are run: in a thread, on an event loop, in a child process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty
from threading import Lock, Thread
from typing import ClassVar, TypeVar

from dray.clock import Clock
from dray.model.settlement import Settlement
from dray.runtime.condition import Outage
from dray.runtime.execution import Execution

E = TypeVar("E", Execution, Execution | None)
Slot = TypeVar("Slot", bound=Thread)

Report = Callable[[Execution, Settlement | None], None]  # an execution is over; None: nothing is to be written
Refuse = Callable[[Sequence[Execution]], None]  # there is nothing to run them in: they go back, uncounted


@dataclass(eq=False)
class Runner(ABC):
    """Takes executions and reports each exactly once when it is over, or refuses it. No method blocks.

    A machine may have no thread or process left. The runner then refuses what it cannot run, and makes what it lacks
    later, in `mend`. Until that has succeeded, `outage` is on and `capacity` is less than was asked for.
    """

    needs: ClassVar[str]  # to run bodies
    burial_us: ClassVar[int] = 0  # how much longer an abandoned body may take to be gone than one that only gives up
    _size: int
    _report: Report
    _refuse: Refuse
    _clock: Clock

    def __post_init__(self) -> None:
        self.outage = Outage(f"start {self.needs}")

    @property
    @abstractmethod
    def capacity(self) -> int:
        """How many bodies it can run at a time, with the threads and processes that it has or may have."""

    @abstractmethod
    def start(self, executions: Sequence[Execution], *, are_short: bool = False) -> None:
        """Runs these as soon as it can, in this order. From the engine's thread. `are_short`: as bodies were lately,
        they are over before another thread is awake."""

    def hurry(self, now: int) -> float | None:  # noqa: ARG002
        """Makes up for a wrong guess that bodies are short. From the engine's thread. Returns the seconds after which
        to call it again; None: all that can run does."""
        return None

    def mend(self) -> None:
        """Makes what could not be made, if the pause since the last try is over. From the engine's thread."""
        if self.outage.is_on and self._clock.steady() >= self.outage.retry_at:
            self._mend()

    @abstractmethod
    def _mend(self) -> None: ...

    @abstractmethod
    def stop(self, execution: Execution) -> bool:
        """Tells the body to stop; `execution.stop` says why. From any thread, any time. False: try again soon."""

    def abandon(self, execution: Execution) -> None:
        """Uses force on a body that was told to stop and has not, if there is any. From any thread."""
        self.stop(execution)

    @abstractmethod
    def replace(self, execution: Execution) -> None:
        """Gives the slot of a body that nothing stops to another. What the body runs in ends with it."""

    @abstractmethod
    def take_back(self) -> list[Execution]:
        """Returns those whose bodies have not started, and now never will. They are not reported."""

    @abstractmethod
    def stack(self, execution: Execution) -> str | None:
        """Where the body is at the moment, for people to read."""

    @abstractmethod
    def close(self) -> None:
        """No more executions come. Ends its threads and processes as soon as they are free."""

    def join(self, timeout: float) -> bool:  # noqa: ARG002
        """After `close`: waits for what would outlive the worker. Returns whether all of it has ended."""
        return True

    def _start_slots(self, slots: list[Slot], count: int, make: Callable[[int], Slot]) -> bool:
        """Starts threads until there are `count`. False: one could not be started, and the outage has begun."""
        while len(slots) < count:
            slot = make(len(slots) + 1)
            slots.append(slot)  # before the start: `stop` looks here
            try:
                slot.start()
            except (RuntimeError, MemoryError) as error:
                slots.remove(slot)
                self.outage.goes_on(error, self._clock.steady())
                return False
        return True


class Line:
    """Executions that wait for a slot. Any number of threads may `take`; None tells one of them to leave.

    The first goes to the next free slot; the last goes back first. Not the other way round: while a worker hands back
    what it has claimed, a free slot would get what comes behind.

    A job claimed later may be more urgent than those that wait here: a parent has just freed it, or it was just
    enqueued. It goes before the jobs of its queue that have a lower priority.

    A slot that finds one waiting takes it without a lock. With bodies of a few microseconds, one slot runs them all:
    each slot more that is awake only waits for the GIL, and makes the engine wait for it.
    """

    def __init__(self) -> None:
        self._waiting: deque[Execution | None] = deque()
        self._asleep: deque[Lock] = deque()  # of the slots that have found nothing; released to wake one
        self._lowest = 0  # priority of all that came since the line was last empty

    def share(self) -> int:
        """How many there are for each slot that waits, and the one that asks."""
        return -(-len(self._waiting) // (len(self._asleep) + 1))

    @property
    def is_waited_in(self) -> bool:
        """Whether some wait."""
        return bool(self._waiting)

    @property
    def is_held_up(self) -> bool:
        """Whether some wait although slots are asleep."""
        return bool(self._waiting and self._asleep)

    def extend(self, executions: Sequence[Execution | None], wake: int | None = None) -> None:
        """Adds to the end, and wakes a slot for each, or at most `wake`."""
        priorities = [each.claim.priority for each in executions if each is not None]
        if not self._waiting:
            self._lowest = min(priorities, default=0)
        elif priorities:
            if max(priorities) > self._lowest:
                executions = in_order([*self.take_back()], [*executions])
            self._lowest = min(self._lowest, *priorities)
        self._waiting.extend(executions)
        self.wake(len(executions) if wake is None else wake)

    def take(self, timeout: float | None = None) -> Execution | None:
        """Waits for the first; raises `Empty` after the timeout."""
        while True:
            try:
                return self._waiting.popleft()
            except IndexError:
                self._sleep(timeout)

    def take_more(self, most: int, fits: Callable[[Execution], bool]) -> list[Execution]:
        """Takes the first ones, at most `most`, up to one that does not fit. Does not wait."""
        taken: list[Execution] = []
        with suppress(IndexError):
            while len(taken) < most:
                first = self._waiting.popleft()
                if first is None or not fits(first):
                    self._waiting.appendleft(first)
                    self.wake(1)  # a slot that found nothing meanwhile
                    break
                taken.append(first)
        return taken

    def put_back(self, executions: Sequence[Execution]) -> None:
        """Puts some that were taken to the front again."""
        self._lowest = min([self._lowest, *(each.claim.priority for each in executions)])
        self._waiting.extendleft(reversed(executions))
        self.wake(len(executions))

    def _sleep(self, timeout: float | None) -> None:
        bell = Lock()
        bell.acquire()
        self._asleep.append(bell)
        if self._waiting:  # it came before the bell was there
            self.wake(1)
        if bell.acquire(timeout=-1 if timeout is None else timeout):
            return
        try:
            self._asleep.remove(bell)
        except ValueError:
            self.wake(1)  # rung at this moment: for another slot, if there is one
        raise Empty

    def wake(self, most: int) -> None:
        """Wakes slots that sleep."""
        for _ in range(most):
            try:
                bell = self._asleep.pop()
            except IndexError:
                return
            bell.release()

    def take_back(self, most: int | None = None) -> list[Execution]:
        """Takes all that wait, or at most `most` from the end, in their order."""
        taken: deque[Execution] = deque()
        while most is None or len(taken) < most:
            try:
                execution = self._waiting.pop()
            except IndexError:
                break
            if execution is not None:
                taken.appendleft(execution)
        return list(taken)


def in_order(waiting: Sequence[E], coming: Sequence[E]) -> list[E]:
    """Both in one line: each that comes stands before those of its queue that have a lower priority."""
    line = [*waiting]
    lowest = min((each.claim.priority for each in waiting if each is not None), default=0)
    if not any(each is not None and each.claim.priority > lowest for each in coming):
        return [*line, *coming]  # mostly all have one priority: a place for each need not be looked for
    for new in coming:
        place = next((n for n, old in enumerate(line) if _is_more_urgent(new, old)), len(line))
        line.insert(place, new)
    return line


def _is_more_urgent(new: Execution | None, old: Execution | None) -> bool:
    if new is None or old is None:
        return False
    return new.claim.queue == old.claim.queue and new.claim.priority > old.claim.priority
