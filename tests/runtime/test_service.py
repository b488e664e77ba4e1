"""The life of a worker's loops."""

from __future__ import annotations

from typing import Any

import pytest

from dray.runtime.service import Loop


def test_an_end_between_two_steps_is_not_slept_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes when the thread has seen that it is to go on, and before it forgets that it was woken."""
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
    """Another object with some methods replaced."""

    def __init__(self, other: Any, **methods: Any) -> None:
        self._other = other
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._other, name)
