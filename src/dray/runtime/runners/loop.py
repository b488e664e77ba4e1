"""Bodies as coroutines on one event loop, in a thread of its own.

A body is stopped by cancelling its task and those it has started. A task that goes on is cut off: no further step of
it runs. A body that blocks the loop cannot be reached; the runner gives up that loop and starts another.

The tasks that a body has started end with it unless it completed: nothing of the last attempt may run beside a
retry. After a completed one they are left alone, because a body may make something for the next (a pool of
connections) that has tasks too.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any

from dray.log import log
from dray.model.job import State
from dray.model.settlement import Settlement
from dray.runtime import body, outcome
from dray.runtime.body import Leash
from dray.runtime.execution import Execution, current
from dray.runtime.runners import Report, Runner, in_order
from dray.sanitize import escape_control

_AHEAD = 100  # short bodies that one turn of the loop may run, one after the other
_TASK_GRACE = 5.0  # seconds for the tasks of a body that has ended
_CUT_GRACE = 1.0


class LoopRunner(Runner):
    """At most `size` coroutines at a time."""

    needs = "a thread for its event loop"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._ready: deque[Execution] = deque()
        self._lock = threading.Lock()  # around the loops: the engine starts them, the stopper gives them up
        self._current: _LoopThread | None = None
        self._given_up: list[_LoopThread] = []

    @property
    def capacity(self) -> int:
        return 0 if self.outage.is_on else self._size

    def start(self, executions: Sequence[Execution], *, are_short: bool = False) -> None:
        if self._ready:
            executions = in_order(self.take_back(), executions)
        self._ready.extend(executions)
        self._go_on(_AHEAD if are_short else 0)

    def _mend(self) -> None:
        self._go_on()

    def stop(self, execution: Execution) -> bool:
        for loop in self._loops():
            loop.soon(loop.cancel, execution)
        return True

    def abandon(self, execution: Execution) -> None:
        for loop in self._loops():
            loop.soon(loop.cut, execution)

    def replace(self, execution: Execution) -> None:
        with self._lock:
            if self._current is None or execution not in self._current.bodies:
                return
            self._given_up = [loop for loop in self._given_up if loop.bodies]
            self._given_up.append(self._current)
            self._current.soon(self._current.close)
            self._current = None
        if self._ready:
            self._go_on()

    def take_back(self) -> list[Execution]:
        taken: deque[Execution] = deque()
        while True:
            try:
                taken.appendleft(self._ready.pop())  # from the other end than those that start
            except IndexError:
                return list(taken)

    def stack(self, execution: Execution) -> str | None:
        return next((loop.stack(execution) for loop in self._loops() if execution in loop.bodies), None)

    def join(self, timeout: float) -> bool:
        return all(loop.join(timeout) for loop in self._loops() if not loop.bodies)

    def close(self) -> None:
        with self._lock:
            if self._current is not None:
                self._current.soon(self._current.close)

    def _go_on(self, ahead: int = 0) -> None:
        """Makes the loop start what it has room for. Without a loop, gives back what waits."""
        with self._lock:
            if self._current is not None or self._add_loop():
                assert self._current is not None
                self._current.soon(self._current.start, ahead)
                return
        refused = self.take_back()
        if refused:
            self._refuse(refused)

    def _add_loop(self) -> bool:
        if self.outage.is_on and self._clock.steady() < self.outage.retry_at:
            return False
        try:
            self._current = loop = _LoopThread(self._size, self._ready, self._report)
            loop.begin()
        except (RuntimeError, MemoryError, OSError) as error:  # no thread, or no descriptors for a loop
            self._current = None
            self.outage.goes_on(error, self._clock.steady())
            return False
        except BaseException:
            self._current = None
            raise
        self.outage.ends()
        return True

    def _loops(self) -> list[_LoopThread]:
        with self._lock:
            return [*self._given_up, *([self._current] if self._current is not None else [])]


class _Threads(ThreadPoolExecutor):
    """Runs ``asyncio.to_thread``: what a body does there is part of its attempt."""

    def __init__(self, body_of: Callable[[], _Body | None]) -> None:
        super().__init__(thread_name_prefix="dray-aside")
        self._body_of = body_of

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        found = self._body_of()
        if found is not None:
            found.calls.add(future)
            future.add_done_callback(found.calls.discard)
        return future


class _Body:
    """What belongs to one execution on a loop."""

    def __init__(self) -> None:
        self.task = asyncio.current_task()
        self.leash = Leash()
        self.calls: set[Future[Any]] = set()  # in threads
        self.is_over = False  # only the tasks that it started are left
        self.last_stack: str | None = None  # where it was when it was cut off

    @cached_property
    def subtasks(self) -> weakref.WeakKeyDictionary[asyncio.Task[Any], Leash]:
        """The tasks it has started. Most start none."""
        return weakref.WeakKeyDictionary()

    def cancel(self) -> None:
        if self.task is not None and not self.is_over:
            self.task.cancel()
        self.cancel_subtasks()

    def cancel_subtasks(self) -> None:
        for task in list(self.subtasks):
            task.cancel()

    def cut_subtasks(self) -> None:
        for leash in list(self.subtasks.values()):
            leash.cut()
        self.cancel_subtasks()


class _LoopThread:
    """One loop and its thread. All but `soon`, `stack` and `join` belong to that thread."""

    def __init__(self, size: int, ready: deque[Execution], report: Report) -> None:
        self.bodies: dict[Execution, _Body] = {}
        self._size = size
        self._ready = ready
        self._report = report
        self._is_closing = self._is_done = False
        self._coming = 0  # tasks that have not taken their first step
        self._ahead = 0  # how many of them there may be beside those that have a slot
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(self._make_task)
        self._loop.set_default_executor(_Threads(lambda: self._body_in(None)))
        self._thread = threading.Thread(target=self._run, name="dray-loop", daemon=True)

    def begin(self) -> None:
        try:
            self._thread.start()
        except BaseException:
            self._is_done = True
            if self._loop.is_running():  # an exception came once the thread had started: it closes the loop
                self.soon(self._loop.stop)
            else:
                self._loop.close()
            raise

    def soon(self, callback: Any, *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # closed: nothing is left to stop
            log.debug("the loop has ended before it was told %s", callback.__name__)

    def join(self, timeout: float) -> bool:
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def stack(self, execution: Execution) -> str | None:
        found = self.bodies.get(execution)
        if found is None:
            return None
        if found.task is not None and asyncio.current_task(self._loop) is found.task:
            frames = sys._current_frames()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - documented
            return "".join(traceback.format_stack(frames.get(self._thread.ident or 0)))
        return found.leash.stack()

    def _run(self) -> None:
        while not self._is_done:
            try:
                self._loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - a SystemExit in a task of a body leaves the loop here
                kind = escape_control(type(error).__name__)
                log.warning("a coroutine's task raised %s; the loop goes on", kind)
        if not self._loop.is_closed():
            self._loop.run_until_complete(self._finish())
            self._loop.close()

    async def _finish(self) -> None:
        """As asyncio.run does: no task is destroyed while it is pending."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_CUT_GRACE)
        await self._loop.shutdown_asyncgens()

    def close(self) -> None:
        self._is_closing = True
        self._end_if_empty()

    def _end_if_empty(self) -> None:
        if self._is_closing and not self.bodies:
            self._is_done = True  # set, because a body may stop the loop too, which must not end it
            self._loop.stop()

    def start(self, ahead: int) -> None:
        """Starts what there is room for, or `ahead` bodies one after the other: as they were lately, each is over
        before the next begins. A turn of the loop asks the system for events and waits for the GIL."""
        self._ahead = ahead
        self._launch()

    def _launch(self) -> None:
        room = max(self._size - len(self.bodies), self._ahead)
        for _ in range(min(room, len(self._ready)) - self._coming if not self._is_closing else 0):
            self._coming += 1
            # In a context of its own, not in that of the body whose end made room.
            asyncio.Task(self._perform_next(), loop=self._loop, context=contextvars.Context())

    async def _perform_next(self) -> None:
        self._coming -= 1
        if len(self.bodies) >= self._size or self._is_closing:
            self._ahead = 0  # bodies take longer than expected
            return
        try:
            execution = self._ready.popleft()
        except IndexError:
            return
        found = self.bodies[execution] = _Body()
        settlement = await self._outcome(execution, found)
        found.is_over = True
        found.leash.bury()
        if settlement is None or settlement.state != State.COMPLETED:
            await self._end_subtasks(found)
        del self.bodies[execution]
        execution.is_over = True
        self._report(execution, settlement)
        self._launch()
        self._end_if_empty()

    async def _outcome(self, execution: Execution, found: _Body) -> Settlement | None:
        if execution.stop is not None:
            return outcome.stopped(execution)
        try:
            settlement = await body.arun(execution, found.leash)
        except BaseException as error:  # noqa: BLE001 - mostly: cancelled before the body had begun
            settlement = outcome.raised(execution, error)
        if found.leash.is_cut and not execution.is_written:
            return outcome.stopped(execution, stack=found.last_stack)
        return settlement

    async def _end_subtasks(self, found: _Body) -> None:
        current.set(None)  # what they log now belongs to no job
        for end, grace in ((found.cancel_subtasks, _TASK_GRACE), (found.cut_subtasks, _CUT_GRACE)):
            left = [task for task in found.subtasks if not task.done()]
            if left:
                end()
                await asyncio.wait(left, timeout=grace)
        # A thread cannot be cut off: the attempt is not over while one of its calls runs.
        calls = [asyncio.wrap_future(call) for call in list(found.calls) if not call.cancel()]
        if calls:
            await asyncio.wait(calls)

    def cancel(self, execution: Execution) -> None:
        found = self.bodies.get(execution)
        if found is not None:
            found.cancel()

    def cut(self, execution: Execution) -> None:
        found = self.bodies.get(execution)
        if found is None:
            return
        found.last_stack = found.leash.stack()
        found.leash.cut()
        found.cut_subtasks()
        found.cancel()

    def _make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        **options: Any,
    ) -> asyncio.Task[Any]:
        """Notes which body started which tasks, and puts them on a leash, to be stopped with it."""
        found = self._body_in(options.get("context"))
        if found is None or not isinstance(coro, Coroutine):
            return asyncio.Task(coro, loop=loop, **options)
        leash = Leash()
        task: asyncio.Task[Any] = asyncio.Task(_led(leash.lead(coro)), loop=loop, **options)
        found.subtasks[task] = leash
        return task

    def _body_in(self, context: contextvars.Context | None) -> _Body | None:
        execution = current.get() if context is None else context.get(current)
        return None if execution is None else self.bodies.get(execution)


async def _led(leash: Leash) -> Any:
    try:
        return await leash
    finally:
        leash.bury()
