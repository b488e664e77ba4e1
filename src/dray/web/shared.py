"""What visits share for a moment: read once, for all who ask within its time, however many tabs are open."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, TypeVar

T = TypeVar("T")

_MOST = 200  # things that are kept


class _Kept:
    __slots__ = ("lock", "until", "value")

    def __init__(self) -> None:
        self.lock = Lock()
        self.until = 0.0
        self.value: Any = None


class Shared:
    """Values by key. Of those who ask for the same at the same moment, one reads and the others wait for it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: dict[Hashable, _Kept] = {}

    def get(self, key: Hashable, seconds: float, read: Callable[[], T]) -> T:
        """The value of a key, at most `seconds` old, else read again. An error is not kept."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is None:
                while len(self._kept) >= _MOST:
                    del self._kept[next(iter(self._kept))]
                kept = self._kept[key] = _Kept()
        with kept.lock:
            if time.monotonic() >= kept.until:
                kept.value = read()
                kept.until = time.monotonic() + seconds
            return kept.value

    def drop(self, key: Hashable) -> None:
        """Has this one read again when it is asked for next. One that is being read now stays for its time."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                kept.until = 0.0

    def forget(self, *but: Hashable) -> None:
        """An action has changed something: what is asked for next is read again, but for these keys."""
        with self._lock:
            self._kept = {key: kept for key, kept in self._kept.items() if key in but}
