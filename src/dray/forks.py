"""Telling objects of every fork of this process, one fork at a time.

Hooks are registered once: `os.register_at_fork` forgets nothing, and every fork goes through all of it. Objects are
held weakly.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol, TypeVar


class InChild(Protocol):
    """Puts itself right in a forked child."""

    def after_fork_in_child(self) -> None: ...


class Forking(InChild, Protocol):
    """Gets ready for a fork, too."""

    def before_fork(self) -> None: ...
    def after_fork_in_parent(self) -> None: ...


T = TypeVar("T")


class _Forks:
    def __init__(self) -> None:
        self._all: set[weakref.ref[Forking]] = set()
        self._in_child: set[weakref.ref[InChild]] = set()
        self._one_at_a_time = threading.Lock()
        self._told: list[Forking] = []
        self.happened = False
        os.register_at_fork(before=self._before, after_in_parent=self._after_in_parent, after_in_child=self._after)

    def watch(self, each: Forking) -> None:
        """Tells an object before and after every fork of this process."""
        self._all.add(weakref.ref(each, self._all.discard))

    def watch_child(self, each: InChild) -> None:
        """Tells an object in every forked child."""
        self._in_child.add(weakref.ref(each, self._in_child.discard))

    def _before(self) -> None:
        self._one_at_a_time.acquire()
        self._told = _alive(self._all)
        for each in self._told:
            each.before_fork()

    def _after_in_parent(self) -> None:
        told, self._told = self._told, []  # they live no longer for having been told
        for each in told:
            each.after_fork_in_parent()
        self._one_at_a_time.release()

    def _after(self) -> None:
        self.happened = True
        self._one_at_a_time = threading.Lock()
        told, self._told = self._told, []
        for each in (*told, *_alive(self._in_child)):
            each.after_fork_in_child()


def _alive(refs: set[weakref.ref[T]]) -> list[T]:
    # A copy first, in one step of the interpreter: other threads open and close databases while a WeakSet is gone
    # through, and a fork that fails here tells no object, or those of the fork before.
    return [each for ref in refs.copy() if (each := ref()) is not None]


_forks = _Forks()
watch, watch_child = _forks.watch, _forks.watch_child


def has_happened() -> bool:
    """Whether this process is a child that was forked after Dray was imported."""
    return _forks.happened
