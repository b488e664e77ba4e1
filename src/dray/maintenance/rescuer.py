"""Brings back the jobs of dead workers. Every worker does it: the one that had the duty may be the one that died.

A worker that is proven dead is buried at once. Where only its lease has ended, three doubts come first:

- A rescuer that was itself cut off (its own lease was not renewed for more than a beat, or it did not get to look)
  cannot know whether others were cut off with it. It lets one whole lease pass.
- So does a rescuer that sees the clock of the leases diverge from its own: a server's clock that is set forward ends
  all leases at once.
- The lease of a worker of another boot, or from before the server's clock was set back, cannot be compared with any
  clock here. Such a worker is dead if it renews nothing while it is watched for one whole lease.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dray.backends import Backend
from dray.clock import Clock
from dray.instants import MILLISECOND, SECOND
from dray.log import log
from dray.maintenance.duty_runner import jittered
from dray.maintenance.unrun_log import UnrunLog
from dray.model.job import ALL_QUEUES, FINAL
from dray.model.settlement import Rng
from dray.model.worker import DeathVerdict, Judgement, Rescued
from dray.wording import counted, short_id

_CHUNK = 250  # jobs in one transaction: 26 ms on SQLite
_GLANCE = 0.5  # seconds between two looks that cost the database nothing
_LOOK = 1.0  # where only the database can tell
_TOLD_GLANCE = 1.0  # while the kernel tells of deaths; as it costs nothing, workers may do it at the same moment
_FIRST_AGAIN, _AGAIN_GROWTH = 0.002, 4.0  # after it has told: it frees the lock a moment later
_LOOK_ANYWAY = 2 * SECOND  # for what a glance does not show: leases, and jobs without a worker
_LOOK_SLACK = 450 * MILLISECOND  # by which that look may be early, so that it needs no wake-up of its own


@dataclass
class Rescuer:
    """Judges workers, buries the dead and takes their jobs back."""

    name = "rescue"
    is_exclusive = False

    _backend: Backend
    worker_id: str | None  # that rescues; it may come back under another id
    _clock: Clock
    _rng: Rng
    _lease_us: int
    _on_burial: Callable[[], None]
    _hears_deaths: Callable[[], bool] = lambda: False  # whether `told_of_death` is called for each
    on_rescued: Callable[[Sequence[Rescued]], None] | None = None
    _again: float | None = None  # seconds until the next look at what it was told of
    _look_at: int = 0
    _looked_at: int | None = None
    _ahead_us: int | None = None  # how far the clock that gives the leases is ahead of ours
    _trusts_leases_at: int = 0
    _strangers: dict[DeathVerdict, int] = field(default_factory=dict[DeathVerdict, int])

    def __post_init__(self) -> None:
        self._ends = UnrunLog(self._backend)

    def told_of_death(self) -> None:
        """A worker may have died: the next tick looks. From any thread."""
        self._again = _FIRST_AGAIN

    def _pause(self, *, suspects: bool | None) -> float:
        again = self._again
        if again is not None and not suspects:
            self._again = None if again > _GLANCE else again * _AGAIN_GROWTH
            return again
        self._again = None
        if suspects is None:
            return jittered(_LOOK, self._rng)
        return _TOLD_GLANCE if self._hears_deaths() else jittered(_GLANCE, self._rng)

    def tick(self) -> float:
        suspects = self._backend.proofs.suspects()
        pause = self._pause(suspects=suspects)
        if suspects is False and self._clock.steady() + _LOOK_SLACK < self._look_at:
            return pause
        judgement = self._backend.workers.judge(self.worker_id)
        now = self._clock.steady()
        self._look_at = now + _LOOK_ANYWAY
        self._doubt(now, judgement)
        verdicts = [*judgement.dead, *self._by_lease(now, judgement)]
        if not verdicts and not judgement.has_orphans:
            return pause
        rescued = self._backend.workers.rescue(verdicts, rng=self._rng, limit=_CHUNK)
        self._tell(verdicts, rescued)
        if len(rescued) < _CHUNK:
            return pause
        self._look_at = now
        return 0.0

    def _doubt(self, now: int, judgement: Judgement) -> None:
        """Distrusts leases for a while after this rescuer was cut off itself, or when its clock disagrees."""
        left_us, ahead_us = judgement.left_us, judgement.clock_at - now
        beat_us = self._lease_us // 3
        was_away = self._looked_at is not None and now - self._looked_at > beat_us + _LOOK_ANYWAY
        is_late = self.worker_id is not None and (left_us is None or left_us < self._lease_us - 2 * beat_us)
        was_set = self._ahead_us is not None and abs(ahead_us - self._ahead_us) > beat_us
        self._looked_at, self._ahead_us = now, ahead_us
        if was_away or is_late or was_set:
            self._trusts_leases_at = now + self._lease_us
            self._strangers.clear()

    def _by_lease(self, now: int, judgement: Judgement) -> list[DeathVerdict]:
        self._strangers = {verdict: self._strangers.get(verdict, now) for verdict in judgement.strangers}
        if now < self._trusts_leases_at:
            return []
        watched = [verdict for verdict, since in self._strangers.items() if now - since >= self._lease_us]
        return [*judgement.overdue, *watched]

    def _tell(self, verdicts: Sequence[DeathVerdict], rescued: Sequence[Rescued]) -> None:
        for job in rescued:
            if job.had_ended:
                ended = short_id(job.id), short_id(job.worker_id or "unknown")
                log.info("job %s had ended when worker %s left; its outcome is written", *ended)
        over = [job for job in rescued if job.state in FINAL and not job.had_ended]
        taken_back = Counter(job.worker_id for job in rescued if job.state not in FINAL and not job.had_ended)
        for worker_id in {**taken_back, **{job.worker_id: 0 for job in over}}:
            count = taken_back[worker_id]
            words = (
                f"; {counted(count, 'of its jobs was taken back', 'of its jobs were taken back')}" if count else ""
            )
            log.warning("worker %s is gone%s", short_id(worker_id or "unknown"), words)
        self._ends.ended([job.id for job in over], logging.WARNING)
        # Jobs of other queues may have waited for their room under a limit.
        has_limits = bool(rescued) and bool(self._backend.limits.all())
        queues = {job.queue for job in rescued if job.state not in FINAL}
        self._backend.announce({ALL_QUEUES} if has_limits else queues)
        if any(job.state in FINAL for job in rescued):
            self._backend.announce_done()
        if self.on_rescued is not None:
            self.on_rescued(rescued)
        if verdicts:
            self._on_burial()
