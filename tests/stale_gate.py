"""A gate that counts before it has its locks: the control of tests that have to see limits exceeded by that."""

from __future__ import annotations

from typing import Any

from dray.backends.store.gate import Gate


def _lock_and_count(self: Gate, _: int) -> None:
    rooms, tx = self._rooms, self._tx
    rooms.count(tx)()
    names = sorted({name for line in self._ready for name in rooms.locks(line.task)})
    locked = tx.lock_limits(names)() if names else set[str]()
    self._ready = [line for line in self._ready if locked.issuperset(rooms.locks(line.task))]


def _with_locked_keys(self: Gate, chosen: list[Any]) -> list[Any]:
    rooms, tx = self._rooms, self._tx
    names = sorted({name for each in chosen for name in rooms.key_locks(each)})
    locked = tx.lock_limits(names)() if names else set[str]()
    return [each for each in chosen if locked.issuperset(rooms.key_locks(each))]


STALE = {"_lock_and_count": _lock_and_count, "_with_locked_keys": _with_locked_keys}
