"""Bodies in threads of the worker.

A body is stopped by an exception raised into its thread, which reaches Python code only. The exception must never
hit what runs after the body: it is raised under a lock while the body runs, and taken back under the same lock if it
has not arrived when the body ends.
"""

from __future__ import annotations

import contextvars
import ctypes
import sys
import threading
import time
import traceback
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType

from dray.instants import MILLISECOND, SECOND
from dray.model.settlement import Settlement
from dray.runtime import body, outcome
from dray.runtime.execution import Execution, Interrupted
from dray.runtime.runners import Line, Report, Runner
from dray.runtime.standbys import Standbys

_AWAKE = 1  # slots for short bodies: two wait for each other's GIL, and a drain took a tenth longer
_LONG_SLICE = 0.05  # seconds; a thread that asks for the GIL meanwhile waits for as long, if no other gives it away
_PATIENCE = 2 * MILLISECOND  # until all slots are woken for bodies that were expected to be short


@dataclass(eq=False)
class ThreadRunner(Runner):
    """At most `size` threads, started as they are needed. They end with the process."""

    needs = "a thread"
    _standbys: Standbys

    def __post_init__(self) -> None:
        super().__post_init__()
        self._ready = Line()
        self._slots: list[_Slot] = []
        self._started = 0  # executions that came here; both counts only grow
        self._gone = 0  # those that went back
        self._wanted = 0  # slots, when one could not be made
        self._hurry_at = 0

    @property
    def capacity(self) -> int:
        return len(self._slots) if self.outage.is_on else self._size

    def start(self, executions: Sequence[Execution], *, are_short: bool = False) -> None:
        self._hurry_at = self._clock.steady() + _PATIENCE
        self._ready.extend(executions, _AWAKE if are_short else None)
        self._started += len(executions)
        if len(self._slots) < self._size:
            self._need(min(self._size, self._here))

    def hurry(self, now: int) -> float | None:
        if not self._ready.is_held_up:
            return None
        if now < self._hurry_at:
            return (self._hurry_at - now) / SECOND
        self._ready.wake(self._size)
        return None

    def _mend(self) -> None:
        if self._add_slots(self._wanted):
            self._wanted = 0
            self.outage.ends()

    @property
    def _here(self) -> int:
        return self._started - self._gone - sum(slot.ended - slot.followed for slot in self._slots)

    def _need(self, count: int) -> None:
        """Makes as many slots. If it cannot, it gives back the executions that would have to wait."""
        if len(self._slots) >= count:
            return
        if self.outage.is_on or not self._add_slots(count):
            self._wanted = max(self._wanted, count)
            excess = self._ready.take_back(max(0, self._here - len(self._slots)))
            self._gone += len(excess)
            self._refuse(excess)

    def _add_slots(self, count: int) -> bool:
        return self._start_slots(
            self._slots, count, lambda number: _Slot(self._ready, self._standbys, self._report, number)
        )

    def stop(self, execution: Execution) -> bool:
        return all(slot.strike(execution) for slot in list(self._slots))

    def replace(self, execution: Execution) -> None:
        """Gives up the thread of a body that does not stop; it ends with the body."""
        for slot in [slot for slot in self._slots if slot.execution is execution]:
            slot.is_given_up = True
            self._slots.remove(slot)
            self._gone += slot.ended - slot.followed + 1

    def take_back(self) -> list[Execution]:
        taken = self._ready.take_back()
        self._gone += len(taken)
        return taken

    def stack(self, execution: Execution) -> str | None:
        frames = sys._current_frames()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - documented
        frame = next((frames.get(slot.ident or 0) for slot in self._slots if slot.execution is execution), None)
        return None if frame is None else "".join(traceback.format_stack(frame))

    def close(self) -> None:
        self._ready.extend([None] * len(self._slots))


class _Slot(threading.Thread):
    def __init__(self, ready: Line, standbys: Standbys, report: Report, number: int) -> None:
        super().__init__(name=f"dray-run-{number}", daemon=True)
        self.execution: Execution | None = None
        self.is_given_up = False
        self.ended = 0
        self.followed = 0  # of these, standbys
        self._ready = ready
        self._standbys = standbys
        self._report = report
        self._guard = threading.Lock()
        self._is_struck = False

    def run(self) -> None:
        follower: Execution | None = None
        while not self.is_given_up:
            execution = follower or self._ready.take()
            if execution is None:
                return
            self.followed += follower is not None
            settlement = self._perform(execution)
            # Before it is over: the engine must not see it end without the one that takes its place.
            follower = self._follower(execution, settlement)
            execution.is_over = True
            self.ended += 1
            self._report(execution, settlement)
            del execution, settlement  # not kept until the next one comes

    def _follower(self, ended: Execution, settlement: Settlement | None) -> Execution | None:
        """Not while others wait for a slot, which were claimed before."""
        if self.is_given_up or self._ready.is_waited_in or not len(self._standbys):
            return None
        return self._standbys.follow(ended, settlement)

    def _perform(self, execution: Execution) -> Settlement | None:
        if execution.stop is not None:
            return outcome.stopped(execution)
        settlement: Settlement | None = None
        is_done = False
        try:
            self.execution = execution
            # In a context of its own: what one body sets, the next must not see.
            settlement = contextvars.Context().run(body.run, execution)
            is_done = True
        except Interrupted:
            pass  # raised after the body had ended, before its outcome was there
        except BaseException as error:  # noqa: BLE001 - every execution must be reported
            settlement = outcome.raised(execution, error)
            is_done = True
        while True:
            try:
                self._leave()
                return settlement if is_done else outcome.stopped(execution)
            except Interrupted:
                continue

    def strike(self, execution: Execution) -> bool:
        """Raises into the body, if it runs here. False: not now, it is where that would do harm."""
        with self._guard:
            if self.execution is not execution:
                return True
            with _gil_to_itself():
                frames = sys._current_frames()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - documented
                around = execution.task.app.hooks.middleware_codes
                if not _may_be_struck(frames.get(self.ident or 0), around):
                    return False
                self._is_struck = True
                _raise_into(self.ident or 0, Interrupted)
                return True

    def _leave(self) -> None:
        with self._guard:
            self.execution = None
            if self._is_struck:
                self._is_struck = False
                _raise_into(self.ident or 0, None)


_one_at_a_time = threading.Lock()


@contextmanager
def _gil_to_itself() -> Generator[None]:
    """No other thread runs Python code within: where a thread is seen to be, it still is when it is struck.

    A thread has the GIL for a slice. One begins when it comes back from `sleep`, of the length set before that. The
    usual length may be over before the operating system lets this thread go on.
    """
    with _one_at_a_time:
        usual = sys.getswitchinterval()
        try:
            sys.setswitchinterval(_LONG_SLICE)
            time.sleep(0)
            yield
        finally:
            sys.setswitchinterval(usual)


def _may_be_struck(frame: FrameType | None, middleware: Collection[CodeType]) -> bool:
    """Whether an exception raised here by another thread does no harm.

    It can arrive between the taking of a lock and the `try` that releases it. In a body's own code that is the
    body's problem. In shared modules of the interpreter and in Dray it would stop all other threads for ever.
    """
    is_waiting = frame is not None and (_module(frame), frame.f_code.co_name) == ("threading", "wait")
    is_in_body = False
    while frame is not None and frame.f_code is not body.run.__code__:
        name = _module(frame)
        if frame.f_code is threading.Thread.start.__code__:
            return False  # CPython would raise into the thread being started, and this one wait for it for ever
        is_ours = name.startswith("dray.")
        is_around = is_ours and frame.f_code in middleware  # an integration's: it has called the body
        if name.partition(".")[0] in _NOT_HERE or (is_ours and not is_around and not is_waiting):
            return False
        is_in_body = is_in_body or not is_around
        frame = frame.f_back
    return frame is not None and is_in_body


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


_NOT_HERE = {"logging", "importlib", "_frozen_importlib", "_frozen_importlib_external", "zipimport"}


def _raise_into(thread_id: int, kind: type[BaseException] | None) -> None:
    """Raises an exception in another thread's Python code; None: takes back one that has not arrived."""
    what = ctypes.py_object(kind) if kind is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), what)
