"""The life cycle of a worker's loops."""

from __future__ import annotations

from typing import Any

import pytest

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


class _With:
    """Wraps an object and replaces some of its methods."""

    def __init__(self, other: Any, **methods: Any) -> None:
        self._other = other
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._other, name)
