"""When a worker looks at the database before it claims, and when it does not listen: policy without I/O.

A wake-up costs the same whether there is something for this worker or not, and beside busy others there are hundreds
a second. So after each look in vain it is deaf for a while, twice as long each time. What it has written itself
wakes it too; that is no reason to be deaf.

Alone, or where it mostly wins, a look only delays the claim: called by somebody's commit, it claims at once for as
long as that brings something. Of many workers on a queue only those that won last do so; the others look.
"""

from __future__ import annotations

_FIRST_PAUSE, _LONG_PAUSE, _LONGEST_PAUSE = 0.001, 0.02, 0.08  # seconds
_MANY_LOOKS = 50  # in vain, one after the other: others are busy, and have nothing for this worker
_FIRST_LOCKED_PAUSE, _LONGEST_LOCKED_PAUSE = 0.005, 0.25


class Alertness:
    """What the engine has seen of the database, and what follows for the next time it wakes."""

    def __init__(self, *, hears_own: bool) -> None:
        self.is_hungry = True  # there may be something to claim
        self.pause = 0.0  # seconds in which it does not listen
        self.due_at: int | None = None  # when the next job is, by the steady clock
        self.looked_at = 0
        self._hears_own = hears_own  # what it writes wakes it too
        self._expects_echo = False
        self._is_active = False  # it has just written, or heard itself
        self._is_called = False
        self._is_trying = False  # to claim without a look
        self._is_lucky = True
        self._vain_looks = 0
        self._locked_pause = 0.0

    def wants_work(self, now: int) -> bool:
        return self.is_hungry or (self.due_at is not None and now >= self.due_at)

    def woken(self, *, by_change: bool, by_ring: bool) -> None:
        """The wait for the database is over: something may have changed, another thread rang, or the time was up."""
        self.is_hungry = True  # the watch is a hint, its poll the truth
        if by_ring:
            return
        if not by_change:
            self.pause, self._vain_looks = 0.0, 0  # all is quiet
            return
        self._is_called = not self._expects_echo
        self._is_active |= self._expects_echo
        self._expects_echo = False

    def claims_at_once(self) -> bool:
        """Whether to claim without a look: called by somebody's commit, as when there was something for us."""
        self._is_trying = self._is_called and self._is_lucky
        self._is_called = False
        return self._is_trying

    def looked(self, *, in_vain: bool) -> None:
        self.is_hungry = False
        if not in_vain:
            self.pause, self._vain_looks = 0.0, 0
        elif not self._is_active:
            self._vain_looks += 1
            longest = _LONG_PAUSE if self._vain_looks < _MANY_LOOKS else _LONGEST_PAUSE
            self.pause = min(max(self.pause * 2, _FIRST_PAUSE), longest)
        self._is_active = False

    def exchanged(self, *, has_claimed: bool, has_changed: bool) -> float:
        """A transaction that could claim is over; the seconds until the next step."""
        self.is_hungry = True
        self._is_active |= has_changed
        self._expects_echo |= has_changed and self._hears_own
        was_trying, self._is_trying = self._is_trying, False
        if has_claimed or was_trying:
            self._is_lucky = has_claimed
        if has_changed or was_trying:
            self._locked_pause = 0.0
            return 0.0
        # Somebody's open transaction has the rows, of outcomes or of ready jobs: they are tried again, without haste.
        self._locked_pause = min(max(self._locked_pause * 2, _FIRST_LOCKED_PAUSE), _LONGEST_LOCKED_PAUSE)
        self.pause = self._locked_pause
        return self.pause
