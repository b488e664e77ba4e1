"""What other threads tell the engine, and how they wake it.

A thread first puts down what it brings, then rings. The engine first takes the ring back, then looks at what has
come. So it overlooks nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from dray.backends.watch import Bell, rest
from dray.model.settlement import Settlement
from dray.model.worker import Beat
from dray.runtime.execution import Execution


class Inbox:
    """The methods of the first part are for any thread. The attributes, `open` and the naps are for the engine's."""

    def __init__(self) -> None:
        self.ended: deque[tuple[Execution, Settlement | None]] = deque()  # None: nothing is to be written
        self.refused: deque[Execution] = deque()  # there was nothing to run them in
        self.stuck: deque[tuple[Execution, Settlement | None]] = deque()  # bodies that do not stop
        # Each with the id it was made under: the engine may have come back under another one meanwhile.
        self.beats: deque[tuple[str, Beat, bool]] = deque()
        self.is_draining = self.is_cut_off = False
        self.leaves_locked = False
        self.is_poked = self.is_recalled = False
        self.is_rung = False
        self._bell = Bell()
        self._waker: Callable[[], None] | None = None

    # For any thread

    def report(self, execution: Execution, settlement: Settlement | None) -> None:
        """An execution is over."""
        self.ended.append((execution, settlement))
        self.ring()

    def refuse(self, executions: Sequence[Execution]) -> None:
        """No thread or process could be had to run these."""
        self.refused.extend(executions)
        self.ring()

    def report_stuck(self, execution: Execution, settlement: Settlement | None) -> None:
        """A body does not stop. Its job ends with this settlement although the body goes on; None: only its slot is
        given up, and its claim is kept until it ends."""
        self.stuck.append((execution, settlement))
        self.ring()

    def hear(self, worker_id: str, beat: Beat, *, is_proven: bool = True, is_idle: bool = False) -> None:
        """A beat under this id returned; `is_proven`: the proof of life stands. An idle worker's beat that says
        nothing new does not wake the engine."""
        is_news = self.is_cut_off or not (is_idle and is_proven and beat.alive and not beat.held)
        self.is_cut_off = False
        self.beats.append((worker_id, beat, is_proven))
        if is_news:
            self.ring()

    def cut_off(self) -> None:
        """The database cannot be reached: the engine claims nothing until a beat gets through."""
        self.is_cut_off = True

    def look_soon(self) -> None:
        """Something was enqueued in this process."""
        self.is_poked = True
        self.ring()

    def recall(self) -> None:
        """Something was cancelled or paused in this process: what has not started goes back, to be claimed again."""
        self.is_recalled = True
        self.ring()

    def drain(self) -> None:
        """The engine claims nothing more, and hands back what has not started."""
        self.is_draining = True
        self.ring()

    def leave_locked(self) -> None:
        """Time is up: outcomes whose rows are locked are left for the worker that takes the jobs back."""
        self.leaves_locked = True
        self.ring()

    def ring(self) -> None:
        """Wakes the engine."""
        self.is_rung = True
        waker, self._waker = self._waker, None
        if waker is not None:
            waker()

    # For the engine's thread

    def open(self) -> None:
        """Takes the ring back: the engine is about to look at all that has come."""
        self.is_rung = False

    def doze(self, seconds: float) -> bool:
        """Sleeps without listening to the database. Returns whether a thread rang."""
        is_woken = self.nap(self._bell.ring, lambda: rest((self._bell.fileno(),), seconds))
        self._bell.silence()
        return is_woken

    def nap(self, waker: Callable[[], None], sleep: Callable[[], bool]) -> bool:
        """Sleeps until `waker` is called, unless a thread has rung already. Returns whether it was woken."""
        self._waker = waker
        is_woken = self.is_rung or sleep()
        self._waker = None
        return is_woken
