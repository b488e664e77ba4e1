"""Which claims are still this worker's: what beats, looks and rereads tell the engine about what it holds.

Another worker may declare this one dead while it is stopped or cut off. Then nothing that it holds is its own any
more. It stops its bodies, and comes back under a new id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dray.backends import Backend
from dray.backends.store.work import Look
from dray.clock import Clock
from dray.errors import StorageError
from dray.log import log
from dray.model.job import Held
from dray.model.worker import Beat
from dray.runtime.condition import Obstacle, SelfCheck
from dray.runtime.execution import Execution, StopCause
from dray.runtime.heartbeat import Heartbeat
from dray.runtime.in_flight import InFlight
from dray.runtime.inbox import Inbox
from dray.runtime.stopper import Stopper
from dray.wording import short_id


@dataclass(eq=False)
class Ownership:
    """Used by the engine's thread alone."""

    _backend: Backend
    _heartbeat: Heartbeat
    _in_flight: InFlight
    _stopper: Stopper
    _inbox: Inbox
    _self_check: SelfCheck
    _clock: Clock
    _take_new_id: Callable[[], str]
    is_dead: bool = False  # it has to come back before anything else
    is_retiring: bool = False  # it claims nothing more, and comes back when what it holds has ended
    must_reread: bool = False  # it does not know what it holds

    def __post_init__(self) -> None:
        self.worker_id = self._heartbeat.lease.worker_id

    def hear_beats(self) -> None:
        while self._inbox.beats:
            worker_id, beat, is_proven = self._inbox.beats.popleft()
            if worker_id != self.worker_id:
                continue
            if not beat.alive:
                self._die()
                return
            if not is_proven:
                self._retire()
            self._compare(beat)

    def hear_look(self, seen: Look) -> None:
        """Cancels, and questions of `dray why`."""
        for row in seen.cancels:
            self._cancel(row)
        if seen.asked:
            self._heartbeat.stacks.hear(seen.asked)

    def reread(self) -> bool:
        """After an outage: finds out what this worker still holds, before it claims again. False: it is dead."""
        beat = self._heartbeat.beat(self._backend, self.worker_id)
        missing = self._in_flight.missing(beat.held)
        written = self._written_by_bodies(missing)
        self.must_reread = False
        self._self_check.outage.eases()  # what failed has still to succeed
        if not beat.alive:
            self._die()
            return False
        self._stop_lost(self._in_flight.lose([each for each in missing if each.claim.id not in written]))
        self._compare(beat)
        return True

    def come_back(self) -> None:
        self.worker_id = self._take_new_id()
        self.is_dead = self.is_retiring = self.must_reread = False
        self._self_check.lost_id = None

    def _compare(self, beat: Beat) -> None:
        self._in_flight.release_unknown(beat.held, self._clock.steady())
        for row in beat.held:
            if row.cancel_requested:
                self._cancel(row)

    def _cancel(self, row: Held) -> None:
        execution = self._in_flight.find(row)
        if execution is not None:
            self._stopper.stop(execution, StopCause.CANCEL)

    def _written_by_bodies(self, executions: Sequence[Execution]) -> set[str]:
        """Those of these jobs that their bodies have completed, in transactions of their own."""
        claims = [(each.claim.id, each.claim.claim) for each in executions]
        return self._backend.work.completed_by(self.worker_id, claims) if claims else set()

    def _stop_lost(self, executions: Sequence[Execution]) -> None:
        for execution in executions:
            self._stopper.stop(execution, StopCause.LOST)

    def _retire(self) -> None:
        """It has lost its proof of life: it claims nothing more, and takes a new id once what it holds has ended."""
        if not self.is_retiring:
            known = short_id(self.worker_id)
            log.warning("worker %s has lost its proof of life; it takes another id when its jobs end", known)
            self.is_retiring = True
            self._give_up_id("has lost its proof of life, and takes another id when its jobs end")
            self._inbox.ring()  # it may hold nothing: then it comes back with the next step

    def _die(self) -> None:
        log.warning("worker %s was declared dead; coming back under a new id", short_id(self.worker_id))
        running = self._in_flight.claimed()
        try:
            written = self._written_by_bodies(running)
        except StorageError:
            # Which jobs ended in a user's transaction is not known: better stopped than beside their successors.
            written = {each.claim.id for each in running if each.is_written}
        self._stop_lost(self._in_flight.lose_all(written))
        self.is_dead = True
        self._give_up_id("was declared dead, and takes another id")

    def _give_up_id(self, reason: str) -> None:
        before = self._self_check.lost_id
        since = self._clock.steady() if before is None else before.since
        self._self_check.lost_id = Obstacle(since, reason, stops_claims=True)
