"""The life cycle of a worker's loops."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from dray.runtime.inbox import Inbox
from dray.runtime.service import EngineLoop, Loop


def test_an_end_between_two_steps_is_not_slept_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end comes after the thread has seen that it should continue, and before it clears the wake-up."""
    loop = Loop("ended", lambda: 60.0)
    forget = loop._woken.clear

    def end_and_forget() -> None:
        loop.end(timeout=0)
        forget()

    monkeypatch.setattr(loop, "_woken", _With(loop._woken, clear=end_and_forget))
    loop.start()

    loop._thread.join(5)

    assert not loop._thread.is_alive()


class _Cut(threading.Event):
    """Interrupts the main thread while it waits here, with the lock taken: as a signal does, in `Event.wait`."""

    def wait(self, timeout: float | None = None) -> bool:
        if threading.current_thread() is threading.main_thread():
            self._cond.acquire()  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        return super().wait(timeout)


def test_an_interrupt_of_a_start_does_not_leave_the_new_thread_locked() -> None:
    loop = Loop("started", lambda: 60.0)
    loop._thread._started = _Cut()  # type: ignore[attr-defined]

    loop.start()

    assert loop.is_running
    loop.end(timeout=30)
    assert not loop._thread.is_alive()


def test_a_thread_that_begins_after_its_end_takes_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start was interrupted, and the worker has given up."""
    steps: list[None] = []
    may_begin, start = threading.Event(), threading.Thread.start

    def step() -> float:
        steps.append(None)
        return 60.0

    def begin_late(thread: threading.Thread) -> None:
        if thread.name == "late":
            assert may_begin.wait(30)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", begin_late)
    loop = Loop("late", step)
    starter = threading.Thread(target=loop.start)
    starter.start()
    loop.end(timeout=30)
    may_begin.set()
    starter.join(30)
    loop._thread.join(30)

    assert not loop._thread.is_alive()
    assert not steps


def test_an_end_that_was_interrupted_waits_for_the_step_under_way_when_it_is_called_again() -> None:
    """Otherwise the worker would close the database that the step is using."""
    is_inside, goes_on = threading.Event(), threading.Event()

    def step() -> float:
        is_inside.set()
        assert goes_on.wait(30)
        return 60.0

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    loop = Loop("ended", step)
    loop.start()
    assert is_inside.wait(30)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            loop.end(timeout=30)
    finally:
        signal.signal(signal.SIGALRM, before)
    threading.Timer(0.05, goes_on.set).start()

    loop.end(timeout=30)

    assert goes_on.is_set()
    assert loop._has_ended


class _Engine:
    """Notes what its loop calls."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.on_rest: Callable[[], object] = list

    def rest(self, seconds: float) -> None:
        self.calls.append(seconds)
        self.on_rest()

    def tick(self) -> float:
        self.calls.append("step")
        return 7.0


def test_an_engine_steps_as_soon_as_its_rest_is_over() -> None:
    """Nothing of the loop stands between a wake-up and the step that claims."""
    engine: Any = _Engine()
    loop = EngineLoop(engine, Inbox(), lambda: None)

    assert [loop.tick(), loop.tick()] == [0.0, 0.0]

    assert engine.calls == [0.0, "step", 7.0, "step"]


def test_an_engine_whose_loop_ends_while_it_rests_takes_no_further_step() -> None:
    engine: Any = _Engine()
    loop = EngineLoop(engine, Inbox(), lambda: None)
    engine.on_rest = lambda: loop.end(timeout=0)

    loop.tick()

    assert engine.calls == [0.0]


class _With:
    """Wraps an object and replaces some of its methods."""

    def __init__(self, other: Any, **methods: Any) -> None:
        self._other = other
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._other, name)
