"""All runs of one operation: each call fails in each way, or a sample of that; what went wrong is told at once."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from tests.faults.count import Count, Fault, Figures

ALL = 1_000_000
RUNS = int(os.environ.get("DRAY_SOAK_FAULTS", "8"))  # of an operation, if there are as many; ALL of them in a soak
_SHOWN = 6


class Way(NamedTuple):
    """How calls fail."""

    fault: Fault
    is_lasting: bool = False  # the call, and all after it

    def __str__(self) -> str:
        return f"{self.fault}, and all after it" if self.is_lasting else str(self.fault)


NO_WAY = Way(Fault("nothing", frozenset()))


class Trial:
    """`run` does it once with call number `at` failing, checks all that must hold, and returns how many have failed.

    After a run that went wrong `start_over` makes all well for the next.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[Way, int], int],
        count: Count,
        figures: Figures,
        *,
        start_over: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = name
        self._run_once = run
        self._count = count
        self._figures = figures
        self._start_over = start_over
        self._problems: list[tuple[str, str]] = []

    def everywhere(
        self,
        ways: Sequence[Way],
        *,
        runs: int = RUNS,
        at_a_time: int | None = None,
        warm_up: int = 1,
        first: Sequence[tuple[Way, int]] = (),
        worst: Collection[Fault] = (),
    ) -> None:
        """N = 1, 2, 3 … until a run is clean, in every way; or a sample of `runs` of them, always the same.

        `at_a_time`: not in every way, but in so few of them at each call, in turn, because a run takes long.
        `first` is part of the sample, and so is what is `worst` for the last call.
        """
        if runs >= ALL and at_a_time is not None:
            self._in_turn(ways, at_a_time)
        elif runs >= ALL:
            for way in ways:
                at = 1
                while self._run(way, at):
                    at += 1
        else:
            for way, at in self._sample(ways, runs, warm_up, first, worst):
                self._run(way, at)
        self._tell()

    def _in_turn(self, ways: Sequence[Way], at_a_time: int) -> None:
        at = 1
        while sum(self._run(ways[(at * at_a_time + n) % len(ways)], at) for n in range(at_a_time)):
            at += 1

    def these(self, pairs: Sequence[tuple[Way, int]]) -> None:
        """Just these runs."""
        for way, at in pairs:
            self._run(way, at)
        self._tell()

    def _tell(self) -> None:
        """What went wrong, the same things together."""
        kinds: dict[str, list[str]] = {}
        for said, where in self._problems:
            kinds.setdefault(said, []).append(where)
        shown = [f"- {len(found)} times: {said}\n    {'; '.join(found[:_SHOWN])}" for said, found in kinds.items()]
        assert not self._problems, f"{len(self._problems)} runs went wrong:\n" + "\n".join(shown)

    def _sample(
        self,
        ways: Sequence[Way],
        runs: int,
        warm_up: int,
        first: Sequence[tuple[Way, int]],
        worst: Collection[Fault],
    ) -> list[tuple[Way, int]]:
        for _ in range(warm_up):
            self._run_once(NO_WAY, 1)
        seen = self._count.seen.copy()
        known = [(way, sum(seen[unit] for unit in way.fault.units)) for way in ways]
        pairs = [(way, at) for way, last in known for at in range(1, last + 1)]
        musts = [*first, *((way, last) for way, last in known if way.fault in worst and last and not way.is_lasting)]
        chance = random.Random(self._name)
        return musts + chance.sample(pairs, max(0, min(len(pairs), runs - len(musts))))

    def _run(self, way: Way, at: int) -> int:
        try:
            injected = self._run_once(way, at)
        except BaseException as problem:
            if isinstance(problem, KeyboardInterrupt):
                raise
            injected = self._count.disarm()
            self._problems.append((_said(problem), f"{way}, call {at} ({self._count.first_call})"))
            self._start_over()
        self._figures.add(self._name, str(way), injected)
        return injected


_NUMBERS = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|0x[0-9a-f]+|\.\.\.[0-9a-f]{12}|[0-9]{2,}")


def _said(problem: BaseException) -> str:
    """The same for the same problem, whichever job it first_call."""
    notes = "; ".join(getattr(problem, "__notes__", []))
    said = f"{type(problem).__name__}: {problem} [{notes}]".replace("\n", " ")
    return _NUMBERS.sub("…", said)[:500]
