"""The life cycle of a worker's loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dray.runtime.engine import EngineLoop
from dray.runtime.inbox import Inbox
from dray.runtime.service import Loop


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
    loop = EngineLoop(engine, Inbox())

    assert [loop.tick(), loop.tick()] == [0.0, 0.0]

    assert engine.calls == [0.0, "step", 7.0, "step"]


def test_an_engine_whose_loop_ends_while_it_rests_takes_no_further_step() -> None:
    engine: Any = _Engine()
    loop = EngineLoop(engine, Inbox())
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
