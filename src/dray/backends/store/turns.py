"""Whose turn it is: what one worker remembers of the lines that it claims from, and how far a claim looks along them.

A claim visits a bounded number of keys, over all its lines together. A line that has got too few of them, or none,
has a share of its own the next time: no line waits for ever behind the closed keys of another. Where a line was left,
it goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dray.model.job import Demand

_HOPS = 512  # keys that a claim visits
_LEAST_HOPS = 16  # that a line gets which had too few before
_FEW = 8  # keys of a line that are asked for more of their jobs at once
_MOST_LINES = 10_000  # whose turns a worker remembers

Line = tuple[str, str]  # a queue and a task: the keys of one line take turns


class Place(NamedTuple):
    """Where a claim stopped on its way along a line, because it had made all its hops."""

    priority: int
    key: str
    has_wrapped: bool  # it has begun with the first key again


class SwapLine(NamedTuple):
    """The only line of a queue, where nothing counts but limits of all its jobs: one job may take another's place."""

    queue: str
    task: str
    spans_queues: bool  # see `Claim`


class Hops:
    """How many keys a claim or a look may still visit. `starved`: lines that had too few, the neediest first."""

    def __init__(self, starved: Sequence[Line] = ()) -> None:
        self.starved = starved
        served = starved[: max(1, _HOPS // _LEAST_HOPS - 1)]
        share = _HOPS // (len(served) + 1)
        self._shares = dict.fromkeys(served, share)
        self._waiting = set(starved[len(served) :])
        self._common = _HOPS - share * len(served)  # for all other lines
        self.resumed: dict[Line, Place] = {}  # lines that went on where an earlier claim had stopped

    def left(self, line: Line) -> int:
        return 0 if line in self._waiting else self._shares.get(line, self._common)

    def spend(self, line: Line, n: int) -> None:
        if line in self._shares:
            self._shares[line] -= n
        else:
            self._common -= n


class Turns:
    """What one worker remembers of whose turn it is. If it is lost, turns go on after the keys whose jobs started
    last, as far as jobs that have ended tell."""

    def __init__(self) -> None:
        self.is_needed = True  # one of the worker's queues had limits or keys at its last claim, or there was none
        self._swap_line: SwapLine | None = None  # of the last claim
        self._claimed_there: set[str] = set()  # running jobs
        self._ended = 0  # how many of them the current transaction has ended
        self._queues: set[str] = set()
        self._last: dict[Line, str] = {}
        self._places: dict[Line, Place] = {}
        self._few: dict[Line, list[str]] = {}
        self._passed_by: list[Line] = []  # lines for which the last claim had no hops left
        self._cut_short: list[Line] = []  # and those it has not seen to the end
        self._seen: set[Line] = set()  # lines without an open key, while the others have not been seen to the end

    def begin(self) -> Hops:
        """A claim or a look begins."""
        starved = [*self._passed_by, *self._cut_short]
        if not starved:
            self._seen.clear()
        self._passed_by, self._cut_short = [], []
        return Hops(starved)

    def begin_again(self, hops: Hops) -> None:
        """The next claim is to find what a look has found."""
        self._passed_by, self._cut_short = list(hops.starved), []
        for line, place in hops.resumed.items():
            self._rest(line, place)

    def allow_swaps(self, line: SwapLine, claimed: Iterable[str]) -> None:
        """These jobs were claimed from a line where others may take their places. Not those that stand by: one that
        ends before it was ever counted leaves no place."""
        if self._swap_line != line:
            self._swap_line = line
            self._claimed_there.clear()
        self._claimed_there.update(claimed)

    def forget_swaps(self) -> None:
        self._swap_line = None
        self._claimed_there.clear()

    def may_swap(self, ids: Iterable[str]) -> bool:
        """Whether other jobs may take the places of some of these, once they have ended. A transaction begins."""
        self._ended = 0
        return not self._claimed_there.isdisjoint(ids)

    def end_unread(self, ids: Iterable[str]) -> None:
        """A transaction that takes no places ends these jobs, or tries to."""
        self._ended = 0
        self._claimed_there.difference_update(ids)

    def have_ended(self, ids: Iterable[str], taken: int) -> None:
        """The current transaction has ended these jobs itself; standbys have taken some of their places."""
        ended = self._claimed_there.intersection(ids)
        self._claimed_there -= ended
        self._ended = max(0, len(ended) - taken)

    def swappable(self, demand: Demand) -> SwapLine | None:
        """Where all that is wanted may take the places of jobs that the current transaction has ended, or is to stand
        by."""
        line, ended, self._ended = self._swap_line, self._ended, 0
        if line is None or demand.queues != (line.queue,):
            return None
        stands_by = not demand.limit and demand.ahead > 0 and line.task in demand.standby_tasks
        return line if stands_by or 0 < demand.limit <= ended else None

    def is_new(self, queue: str) -> bool:
        return queue not in self._queues

    def begin_after(self, queue: str, last: Iterable[tuple[str, str]]) -> None:
        """The keys of tasks in a queue that is new here after which their turns go on."""
        if len(self._queues) >= _MOST_LINES:
            self._queues.clear()
        self._queues.add(queue)
        for task, key in last:
            self._last.setdefault((queue, task), key)

    def last(self, line: Line) -> str:
        return self._last.get(line, "")

    def took(self, line: Line, key: str) -> None:
        if len(self._last) >= _MOST_LINES:
            self._last.clear()
        self._last[line] = key

    def leave(self, line: Line) -> Place | None:
        return self._places.pop(line, None)

    def few(self, line: Line) -> list[str]:
        """The keys of a line, if they were too few for the last claim. Asked once: the next one may find more."""
        return self._few.pop(line, [])

    def has_few(self, line: Line, keys: list[str]) -> None:
        if len(keys) <= _FEW and len(self._few) < _MOST_LINES:
            self._few[line] = keys

    def cut_short(self, line: Line, place: Place) -> None:
        self._cut_short.append(line)
        self._rest(line, place)

    def pass_by(self, line: Line) -> None:
        self._passed_by.append(line)

    def go_on_from(self, line: Line, place: Place) -> None:
        """It took a job there, and has not seen what comes after it."""
        self._rest(line, place)

    def is_seen(self, line: Line) -> bool:
        """Whether there was nothing to take in a line, while others wait to be seen."""
        return line in self._seen

    def saw_all(self, lines: Iterable[Line]) -> None:
        self._seen.update(lines)

    def have_changed(self) -> None:
        """Something was taken: all lines are looked at again."""
        self._seen.clear()

    def _rest(self, line: Line, place: Place) -> None:
        if len(self._places) >= _MOST_LINES:
            self._places.clear()
        self._places[line] = place
