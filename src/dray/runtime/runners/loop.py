"""Bodies as coroutines on one event loop, in a thread of its own.

A body is stopped by cancelling its task, and the tasks it has started. One that goes on regardless is cut off: no
further step of it runs. One that blocks the loop cannot be reached; the loop is then given up and another started.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Coroutine, Generator, Sequence
from typing import Any

from dray.runtime import body, outcome
from dray.runtime.execution import Execution, current
from dray.runtime.leash import Leash
from dray.runtime.runners import Report

log = logging.getLogger("dray")


class LoopRunner:
    """At most `size` coroutines at a time."""

    def __init__(self, size: int, report: Report) -> None:
        self._size = size
        self._report = report
        self._ready: deque[Execution] = deque()
        self._ring: _Ring | None = None
        self._given_up: list[_Ring] = []

    def start(self, executions: Sequence[Execution]) -> None:
        self._ready.extend(executions)
        if self._ring is None:
            self._ring = _Ring(self._size, self._ready, self._report)
        self._ring.soon(self._ring.launch)

    def stop(self, execution: Execution) -> None:
        for ring in self._rings():
            ring.soon(ring.cancel, execution)

    def abandon(self, execution: Execution) -> None:
        for ring in self._rings():
            ring.soon(ring.cut, execution)

    def replace(self, execution: Execution) -> None:
        """Gives up the loop that a body blocks; the others on it go on when it does."""
        if self._ring is not None and execution in self._ring.bodies:
            self._given_up.append(self._ring)
            self._ring.close()
            self._ring = None

    def take_back(self) -> list[Execution]:
        taken: list[Execution] = []
        while True:
            try:
                taken.append(self._ready.popleft())
            except IndexError:
                return taken

    def stack(self, execution: Execution) -> str | None:
        return next((ring.stack(execution) for ring in self._rings() if execution in ring.bodies), None)

    def close(self) -> None:
        if self._ring is not None:
            self._ring.close()

    def _rings(self) -> list[_Ring]:
        return [*self._given_up, *([self._ring] if self._ring is not None else [])]


class _Ring:
    """One loop and its thread. All but `soon`, `stack` and `close` belong to that thread."""

    def __init__(self, size: int, ready: deque[Execution], report: Report) -> None:
        self.bodies: dict[Execution, tuple[asyncio.Task[None], Leash]] = {}
        self._size = size
        self._ready = ready
        self._report = report
        self._offspring: dict[Execution, weakref.WeakSet[asyncio.Task[Any]]] = {}
        self._is_closing = self._is_done = False
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(self._make_task)
        self._thread = threading.Thread(target=self._run, name="dray-loop", daemon=True)
        self._thread.start()

    def soon(self, callback: Any, *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # closed: nothing of it is left to be stopped
            log.debug("the loop has ended before it was told %s", callback.__name__)

    def close(self) -> None:
        self.soon(self._close)

    def stack(self, execution: Execution) -> str | None:
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        task = self.bodies[execution][0]
        frames = task.get_stack()
        shown = [line for each in frames for line in traceback.format_stack(each)[-1:]]
        return "".join(shown) or (None if frame is None else "".join(traceback.format_stack(frame)))

    def _run(self) -> None:
        while not self._is_done:
            try:
                self._loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - SystemExit in a task of a body's leaves the loop by here
                log.warning("a coroutine's task raised %s; the loop goes on", type(error).__name__)
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _close(self) -> None:
        self._is_closing = True
        self._end_if_empty()

    def _end_if_empty(self) -> None:
        if self._is_closing and not self.bodies:
            self._is_done = True  # a body may stop the loop too, and has no business to
            self._loop.stop()

    def launch(self) -> None:
        """Starts what there is room for."""
        while len(self.bodies) < self._size and not self._is_closing:
            try:
                execution = self._ready.popleft()
            except IndexError:
                return
            leash = Leash()
            # In a context of its own, not in that of the body whose end made room.
            task = self._loop.create_task(self._perform(execution, leash), context=contextvars.Context())
            self.bodies[execution] = task, leash

    async def _perform(self, execution: Execution, leash: Leash) -> None:
        link = execution.link
        if execution.stop is not None:
            settlement = outcome.stopped(execution, link.clock.steady(), link.rng)
        else:
            try:
                settlement = await body.arun(execution, leash)
            except BaseException as error:  # noqa: BLE001 - above all cancelled before the body had begun
                settlement = body.raised(execution, error)
        del self.bodies[execution]
        self._offspring.pop(execution, None)
        leash.bury()
        execution.is_over = True
        self._report(execution, settlement)
        self.launch()
        self._end_if_empty()

    def cancel(self, execution: Execution) -> None:
        for task in self._tasks_of(execution):
            task.cancel()

    def cut(self, execution: Execution) -> None:
        if execution in self.bodies:
            self.bodies[execution][1].cut()
            self.cancel(execution)

    def _tasks_of(self, execution: Execution) -> list[asyncio.Task[Any]]:
        if execution not in self.bodies:
            return []
        return [self.bodies[execution][0], *self._offspring.get(execution, ())]

    def _make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        **options: Any,
    ) -> asyncio.Task[Any]:
        """Remembers which body started which tasks: they are stopped with it."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **options)
        execution = _execution_in(options.get("context"))
        if execution is not None and execution in self.bodies:
            self._offspring.setdefault(execution, weakref.WeakSet()).add(task)
        return task


def _execution_in(context: contextvars.Context | None) -> Execution | None:
    return current.get() if context is None else context.get(current)
