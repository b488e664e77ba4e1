"""Faults by count: which call into a driver fails, in which way, and how many have."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

MOST = 5_000  # faults in one run; a call that makes as many tries would go on for ever


@dataclass(frozen=True, slots=True)
class Fault:
    """One way in which a call into a driver can fail."""

    name: str
    units: frozenset[str]  # the kinds of calls that can fail so

    def __str__(self) -> str:
        return self.name


def _any(_: str) -> bool:
    return True


class Count:
    """Counts the calls into one driver, from any thread, and says which of them is to fail."""

    def __init__(self) -> None:
        self.on_disarm: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._fault: Fault | None = None
        self._start_over()

    def _start_over(self) -> None:
        self._at, self._is_lasting, self._only = 0, False, _any
        self._then: Callable[[], None] | None = None
        self.calls = 0
        self.seen: Counter[str] = Counter()  # all calls by their kinds
        self.injected = 0
        self.first_at = 0.0  # by the monotonic clock, when the first call failed
        self.first_call = ""  # what the first call that failed was to do
        self.is_endless = False

    @property
    def fault(self) -> Fault | None:
        """The one that is armed."""
        return self._fault

    def arm(
        self,
        fault: Fault,
        at: int,
        *,
        lasting: bool = False,
        only: Callable[[str], bool] = _any,
        then: Callable[[], None] | None = None,
    ) -> None:
        """From now on the call number `at`, of the kinds that can fail so, fails; lasting: all after it too.

        `only` picks calls by what they are to do. `then` is called before the next call after the one that failed.
        """
        with self._lock:
            self._start_over()
            self._fault, self._at, self._is_lasting, self._only = fault, at, lasting, only
            self._then = then

    def disarm(self) -> int:
        """No call fails any more; how many have."""
        with self._lock:
            self._fault = None
            self.on_disarm()
            return self.injected

    def fault_for(self, unit: str, what: str) -> Fault | None:
        """For the driver: how the call that is about to be made fails; None: it does not."""
        if self.injected and (then := self._then) is not None:
            self._then = None
            then()
        with self._lock:
            fault = self._fault
            self.seen[unit] += fault is not None
            if fault is None or unit not in fault.units or not self._only(what):
                return None
            self.calls += 1
            if self.calls != self._at and not (self._is_lasting and self.calls > self._at):
                return None
            self.injected += 1
            self.first_at = self.first_at or time.monotonic()
            self.first_call = self.first_call or " ".join(what.split())[:100]
            if self.injected >= MOST:
                self.is_endless = True
                self._fault = None
            return fault


class Figures:
    """How often what was tried."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._runs: Counter[tuple[str, str]] = Counter()
        self._faults: Counter[tuple[str, str]] = Counter()

    def add(self, operation: str, fault: str, injected: int) -> None:
        self._runs[operation, fault] += 1
        self._faults[operation, fault] += injected

    @property
    def runs(self) -> int:
        return self._runs.total()

    @property
    def faults(self) -> int:
        return self._faults.total()

    def print(self) -> None:
        """One line an operation: runs and faults, and the faults by their names."""
        print(f"\n{self._title}: {self.runs:,} runs, {self.faults:,} faults")
        for operation in dict.fromkeys(operation for operation, _ in self._runs):
            names = [name for each, name in self._runs if each == operation]
            runs = sum(self._runs[operation, name] for name in names)
            faults = sum(self._faults[operation, name] for name in names)
            by_name = ", ".join(f"{name} {self._faults[operation, name]}" for name in names)
            print(f"  {operation}: {runs:,} runs, {faults:,} faults ({by_name})")
