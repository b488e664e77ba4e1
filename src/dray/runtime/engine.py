"""The engine: one thread that writes outcomes and claims work, both in one transaction, and hands it to the runners.

Outcomes are written at once while nothing is being written; those that come meanwhile go together with the next
transaction, so that batches grow with the load and an idle worker does not wait for company. Whatever was claimed is
in `_held` until its outcome is known to be written, and every write carries the claim, so that a lost answer, an
outage or a takeover leave nothing in doubt.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dray.backends import Backend
from dray.backends.store.work import NOTHING, SILENCE, Exchange, Notes, Report
from dray.backends.watch import Bell, Watch, rest
from dray.clock import Clock, Rng
from dray.errors import ForkedConnection, SchemaTooNew, StorageError, StorageLocked
from dray.instants import SECOND
from dray.model.attempt import LogLine
from dray.model.job import FINAL, Claim, Held, State
from dray.model.queue import Demand
from dray.model.settlement import Settlement, released
from dray.model.worker import Beat
from dray.runtime.appetite import Appetite
from dray.runtime.execution import Execution, Stop
from dray.runtime.runners import Runner
from dray.runtime.timekeeper import Timekeeper

if TYPE_CHECKING:
    from dray.task import Task

log = logging.getLogger("dray")

_BATCH = 500  # outcomes in one transaction
_NOTES_PAUSE = SECOND // 2  # between two writes of what running bodies say
_STALE_AHEAD = SECOND // 4  # after which what is claimed ahead and cannot start goes back
_FULL_PAUSE = 0.25  # seconds in which a worker without a free slot does not listen
_LONGEST_REST = 2.0
_LOOK_PAUSE = SECOND  # in which a busy worker looks for cancels and other queues
_FIRST_PAUSE = 0.001
_LONGEST_PAUSE = 0.02
_LONG_LOCK = 10 * SECOND
_FIRST_BACKOFF = 0.1
_LONGEST_BACKOFF = 2.0


class Crew(Protocol):
    """The runners of a worker."""

    def runner_of(self, claim: Claim) -> Runner: ...
    def take_back(self) -> list[Execution]: ...


class _Ended(NamedTuple):
    execution: Execution
    settlement: Settlement | None


class Engine:
    """Owned by one thread, which calls `tick` and `rest`. What other threads may call says so."""

    def __init__(
        self,
        worker_id: str,
        backend: Backend,
        bodies_backend: Callable[[], Backend],
        watch: Watch,
        appetite: Appetite,
        clock: Clock,
        rng: Rng,
        *,
        tasks: Mapping[str, Task[..., Any]],
        lease_us: int,
        on_dead: Callable[[], str],
        on_done: Callable[[], None],
        on_stuck: Callable[[Execution], None],
        on_failure: Callable[[], None],
        durable: bool = False,
    ) -> None:
        self.worker_id = worker_id
        self.clock = clock
        self.rng = rng
        self.crew: Crew
        self.timekeeper = Timekeeper(clock, self.executions, on_stuck)
        self.ran = 0  # bodies that have ended since the start
        self.failure: StorageError | None = None  # what no waiting can repair
        self.has_written = False  # since the heartbeat last asked
        self.is_idle = threading.Event()  # nothing in hand, nothing that could be
        self._backend = backend
        self._bodies_backend = bodies_backend
        self._watch = watch
        self._appetite = appetite
        self._tasks = tasks
        self._lease_us = lease_us
        self._on_dead = on_dead
        self._on_done = on_done
        self._on_failure = on_failure
        self._durable = durable
        self._bell = Bell()
        self._waker: Callable[[], None] | None = None
        # From other threads
        self._ended: deque[_Ended] = deque()
        self._said: deque[Beat] = deque()
        self._noted: deque[Execution] = deque()
        self._stuck: deque[_Ended] = deque()
        self._given_up: deque[Execution] = deque()
        self._is_cut_off = False
        self._is_draining = False
        self._is_poked = False
        # Claimed and not known to be written
        self._held: dict[str, Execution] = {}
        self._lost: list[Execution] = []  # bodies that still run though their claims are gone
        self._outcomes: dict[str, Settlement] = {}
        self._farewells: list[Execution] = []  # completed by their bodies; what they said is still to be written
        self._in_hand = 0  # bodies that run or are about to, each in a slot
        self._slotless: set[Execution] = set()  # bodies that run on though their slots were given up
        # Between ticks
        self._has_heirs = False  # a body has completed its job itself: its children wait for us
        self._is_drained = False
        self._is_hungry = True  # there may be something to claim
        self._knows_of_notes = False
        self._pause = 0.0
        self._due_in: float | None = None
        self._is_full = False
        self._notes_at = 0
        self._moved_at = clock.steady()
        self._looked_at = 0
        self._backoff = 0.0
        self._away_since = 0
        self._is_outage_said = False
        self._must_reread = False
        self._is_dead = False

    # For other threads

    @property
    def backend(self) -> Backend:
        """For bodies."""
        return self._bodies_backend()

    def executions(self) -> Collection[Execution]:
        return [*self._held.values(), *self._lost]

    @property
    def in_hand(self) -> int:
        """How many bodies run or are about to."""
        return self._in_hand

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to run or to write."""
        return not (self._held or self._lost or self._in_hand or self._ended or self._outcomes or self._has_heirs)

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left but bodies that do not stop."""
        return self.has_nothing_to_write and all(each.is_stuck for each in self.executions())

    @property
    def has_nothing_to_write(self) -> bool:
        return not (self._outcomes or self._stuck or self._ended)

    def report(self, execution: Execution, settlement: Settlement | None) -> None:
        """An execution is over. From the runners' threads."""
        self._ended.append(_Ended(execution, settlement))
        self.wake()

    def began(self, execution: Execution) -> None:
        self.timekeeper.began(execution)

    def note(self, execution: Execution) -> None:
        is_first = not self._noted
        self._noted.append(execution)
        if is_first:
            self.wake()

    def hear(self, beat: Beat) -> None:
        """What a beat brought. From the heartbeat's thread."""
        self._is_cut_off = False
        self._said.append(beat)
        self.wake()

    def cut_off(self) -> None:
        """The database cannot be reached: nothing more is claimed until a beat gets through."""
        self._is_cut_off = True

    def look_soon(self) -> None:
        """Something was enqueued in this process."""
        self._is_poked = True
        self.wake()

    def give_up(self, execution: Execution) -> None:
        """Its body does not stop: its slot is replaced, and the claim is kept until it ends."""
        self._given_up.append(execution)
        self.wake()

    def settle_stuck(self, execution: Execution, settlement: Settlement) -> None:
        """Ends a job though its body goes on."""
        self._stuck.append(_Ended(execution, settlement))
        self.wake()

    def drain(self) -> None:
        """Nothing more is claimed, and what has not started goes back."""
        self._is_draining = True
        self.wake()

    def stop_all(self, cause: Stop) -> None:
        for execution in list(self._held.values()):
            if not execution.is_over:
                self.timekeeper.stop(execution, cause)

    def wake(self) -> None:
        waker, self._waker = self._waker, None
        if waker is not None:
            waker()

    # The engine's own thread

    def rest(self, seconds: float) -> None:
        """Sleeps until there is something to do."""
        if seconds <= 0:
            return
        deaf = self._backoff or max(self._pause, _FULL_PAUSE if self._is_full else 0.0)
        if deaf and self._nap(self._bell.ring, lambda: rest((self._bell.fileno(),), min(deaf, seconds))):
            self._bell.silence()
            return
        seconds -= deaf
        if seconds <= 0:
            return
        if not self._nap(self._watch.poke, lambda: self._watch.wait(seconds)):
            self._pause = 0.0  # all is quiet
        self._is_hungry = True  # the watch is a hint, its poll the truth

    def _nap(self, waker: Callable[[], None], sleep: Callable[[], bool]) -> bool:
        """Sleeps, unless something came before the waker was in place; whether it was woken."""
        self._waker = waker
        woken = self._has_news() or sleep()
        self._waker = None
        return woken

    def _has_news(self) -> bool:
        return bool(
            self._ended
            or self._said
            or self._stuck
            or self._given_up
            or self._is_poked
            or self._is_draining is not self._is_drained
            or (self._noted and not self._knows_of_notes)
        )

    def tick(self) -> float:
        """One step; the seconds until the next, if nothing happens before."""
        if self._is_poked:
            self._is_poked = False
            self._is_hungry = True
        self._absorb()
        self._absorb_stuck()
        if self._is_dead:
            return self._come_back()
        if self._is_draining and not self._is_drained:
            self._is_drained = True
            self._take_back()
        self._hear_beats()
        if self._is_dead or (self._must_reread and not self._reread()):
            return self._backoff
        if self._has_heirs and not self._pass_on():
            return self._backoff
        now = self.clock.steady()
        self._free_stale_ahead(now)
        demand = self._demand()
        notes_due = bool(self._noted) and (now >= self._notes_at or bool(self._farewells))
        if not self._outcomes and not notes_due:
            if not demand.limit:
                return self._full_rest(now)
            if not self._sees_work(demand, now):
                return self._idle_rest(now)
            demand = self._demand()  # the look may have brought other queues
        elif now - self._looked_at > _LOOK_PAUSE:
            self._look(demand, now)
        return self._exchange(demand)

    def _demand(self) -> Demand:
        if self._is_draining or self._is_cut_off:
            return NOTHING
        return self._appetite.demand(self._in_hand)

    # Outcomes

    def _absorb_stuck(self) -> None:
        while self._stuck:
            execution, settlement = self._stuck.popleft()
            if settlement is not None and self._held.get(execution.claim.id) is execution:
                self._outcomes[execution.claim.id] = settlement
        while self._given_up:
            execution = self._given_up.popleft()
            if not execution.is_over and execution not in self._slotless:
                self._slotless.add(execution)
                self._in_hand -= 1

    def _absorb(self) -> None:
        ended = self._ended
        if not ended:
            return
        now = self.clock.steady()
        while ended and len(self._outcomes) < _BATCH:
            execution, settlement = ended.popleft()
            if execution in self._slotless:
                self._slotless.discard(execution)
            else:
                self._in_hand -= 1
            self._moved_at = now
            if execution.started is not None:
                self.ran += 1
                self._appetite.noted((now if settlement is None else settlement.finished) - execution.started)
            claim = execution.claim
            if self._held.get(claim.id) is not execution:
                if execution in self._lost:
                    self._lost.remove(execution)
                continue
            if claim.id in self._outcomes:
                continue  # ended before its body did: out of time, with no attempt left
            if settlement is not None and execution.stop is not Stop.LOST:
                self._outcomes[claim.id] = settlement
                continue
            del self._held[claim.id]
            if execution.is_written:
                self._farewells.append(execution)
                self._has_heirs = True
            self._is_hungry = True  # it may have enqueued something in its transaction

    def _take_back(self) -> None:
        """What was claimed and has not started goes back, unburned."""
        now = self.clock.steady()
        for execution in self.crew.take_back():
            self._in_hand -= 1
            execution.is_over = True
            if self._held.get(execution.claim.id) is execution:
                self._outcomes[execution.claim.id] = released(execution.claim, now)

    def _free_stale_ahead(self, now: int) -> None:
        if self._in_hand > self._appetite.concurrency and now - self._moved_at > _STALE_AHEAD:
            self._appetite.spoilt()
            self._take_back()

    def _collect_notes(self, now: int) -> Notes:
        """What bodies have said so far: all of it twice a second, else only that of those which end now."""
        noted: dict[Execution, None] = {}
        while self._noted:
            noted[self._noted.popleft()] = None
        is_time = now >= self._notes_at
        if is_time:
            self._notes_at = now + _NOTES_PAUSE
        lines: list[LogLine] = []
        reports: list[Report] = []
        for execution in noted:
            is_last = execution.claim.id in self._outcomes or execution in self._farewells
            if not is_last and self._held.get(execution.claim.id) is not execution:
                continue  # its claim is lost
            if not is_last and not is_time:
                self._noted.append(execution)
                continue
            kept, report = execution.lines, execution.report
            while kept:
                lines.append(kept.popleft())
            if report is not None:
                execution.report = None
                reports.append(Report(execution.claim.id, execution.claim.claim, *report))
        self._farewells.clear()
        return Notes(lines, reports)

    # The database

    def _sees_work(self, demand: Demand, now: int) -> bool:
        """Looks for what could be claimed or is due, before anybody takes the write lock for nothing."""
        if not self._is_hungry and not self._is_due(now):
            return False
        self._is_hungry = False
        is_there = self._look(demand, now)
        self._pause = 0.0 if is_there else min(max(self._pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
        return is_there

    def _look(self, demand: Demand, now: int) -> bool:
        """Whether there is work; learns of cancels on the way."""
        self._looked_at = now
        try:
            seen = self._backend.job_look(self.worker_id, demand, serves_all=self._appetite.serves_all)
        except StorageError as error:
            self._back_off(error)
            return False
        self._recover()
        if self._appetite.serves_all:
            self._appetite.served(seen.queues)
        for held in seen.cancels:
            self._cancel(held)
        self._due_in = None if seen.due_at is None else (seen.due_at - seen.now) / SECOND
        return seen.is_ready or (self._due_in is not None and self._due_in <= 0)

    def _is_due(self, now: int) -> bool:
        return self._due_in is not None and now >= self._looked_at + self._due_in * SECOND

    def _exchange(self, demand: Demand) -> float:
        now = self.clock.steady()
        batch = list(self._outcomes.values())
        notes = self._collect_notes(now) if self._noted else SILENCE
        try:
            answer = self._backend.job_exchange(self.worker_id, batch, demand, notes, durable=self._durable)
        except StorageError as error:
            self._keep(notes)
            self._must_reread |= not isinstance(error, StorageLocked)
            return self._back_off(error)
        self._recover()
        self.has_written = True
        self._written(batch, answer)
        self._dispatch(answer.claims)
        if answer.claims:
            self._appetite.turn()
        self._is_hungry = True
        return 0.0

    def _written(self, batch: Sequence[Settlement], answer: Exchange) -> None:
        settled = answer.settled
        locked, stale, already = set(settled.locked), set(settled.stale), set(settled.already)
        queues = set(answer.promoted)
        any_final = False
        lost: list[str] = []
        for settlement in batch:
            if settlement.id in locked:
                continue  # somebody's open transaction has the row: with the next batch
            del self._outcomes[settlement.id]
            execution = self._held.pop(settlement.id, None)
            if settlement.id in already:
                self._say_already(settlement)
            elif settlement.id in stale:
                lost += [settlement.id] if execution is not None else []
            elif settlement.state in FINAL:
                any_final = True
            elif execution is not None and settlement.state == State.QUEUED:
                queues.add(execution.claim.queue)
            if execution is not None and not execution.is_over:
                self._lost.append(execution)  # it was ended though its body goes on
        _say_lost("their outcomes change nothing", lost)
        if any_final:
            self._tell_done()
        if queues:
            self._backend.announce(queues)

    def _pass_on(self) -> bool:
        """Frees the children of jobs that ended in a transaction which was not ours."""
        try:
            while (step := self._backend.job_fan_out()).left and step.decided:
                continue
        except StorageError as error:
            self._back_off(error)
            return False
        self._has_heirs = False
        self._is_hungry = True
        self._tell_done()
        return True

    def _say_already(self, settlement: Settlement) -> None:
        """Its body has completed the job on a connection of its own; what it did afterwards does not count."""
        self._has_heirs = True
        if settlement.state != State.COMPLETED and settlement.error is not None:
            log.warning("job %s was completed by its body, which then failed: %s", settlement.id, settlement.error)

    def _tell_done(self) -> None:
        self._backend.announce_done()
        self._on_done()

    def _dispatch(self, claims: Sequence[Claim]) -> None:
        if not claims:
            return
        self._moved_at = self.clock.steady()
        self._in_hand += len(claims)
        self.is_idle.clear()
        groups: dict[Runner, list[Execution]] = {}
        for claim in claims:
            execution = Execution(claim, self._tasks[claim.task], self.worker_id, self)
            execution.runner = runner = self.crew.runner_of(claim)
            self._held[claim.id] = execution
            groups.setdefault(runner, []).append(execution)
        for runner, executions in groups.items():
            runner.start(executions)

    # Beats, cancels, takeovers

    def _hear_beats(self) -> None:
        while self._said:
            beat = self._said.popleft()
            if not beat.alive:
                self._die()
                return
            self._compare(beat.held)

    def _compare(self, rows: Sequence[Held]) -> None:
        """Releases what this worker runs by its rows and does not know of: the answer to a claim was lost."""
        now = self.clock.steady()
        for row in rows:
            execution = self._held.get(row.id)
            if execution is None or execution.claim.claim < row.claim:
                self._outcomes.setdefault(row.id, released(row, now))
            elif row.cancel_requested:
                self._cancel(row)

    def _cancel(self, row: Held) -> None:
        execution = self._held.get(row.id)
        if execution is not None and execution.claim.claim == row.claim and not execution.is_over:
            self.timekeeper.stop(execution, Stop.CANCEL)

    def _reread(self) -> bool:
        """After an outage: what this worker still holds, before it claims again."""
        try:
            beat = self._backend.worker_beat(self.worker_id, self._lease_us)
        except StorageError as error:
            self._back_off(error)
            return False
        self._must_reread = False
        self._recover()
        if not beat.alive:
            self._die()
            return False
        found = {(row.id, row.claim) for row in beat.held}
        lost = [each for each in self._held.values() if (each.claim.id, each.claim.claim) not in found]
        self._lose([execution for execution in lost if not execution.is_over])
        self._compare(beat.held)
        return True

    def _lose(self, executions: Sequence[Execution]) -> None:
        """Claims are gone, by a crash of the server or a takeover: their bodies stop and write nothing."""
        _say_lost("stopping their bodies", [execution.claim.id for execution in executions])
        for execution in executions:
            del self._held[execution.claim.id]
            self._outcomes.pop(execution.claim.id, None)
            self._lost.append(execution)
            self.timekeeper.stop(execution, Stop.LOST)

    def _die(self) -> None:
        """This worker was declared dead while it was stopped or cut off: nothing it holds is its own any more."""
        log.warning("worker %s was declared dead; coming back under a new id", self.worker_id)
        self._lose([execution for execution in self._held.values() if not execution.is_over])
        self._held.clear()
        self._outcomes.clear()
        self._said.clear()
        self._is_dead = True

    def _come_back(self) -> float:
        try:
            self.worker_id = self._on_dead()
        except StorageError as error:
            return self._back_off(error)
        self._is_dead = False
        self._must_reread = False
        self._recover()
        self._is_hungry = True
        return 0.0

    # Rests and outages

    def _full_rest(self, now: int) -> float:
        """No free slot, or not allowed to claim: only outcomes, notes and cancels matter."""
        if self._is_draining and self.is_spent:
            self.is_idle.set()
        if self._is_hungry and self._held and now - self._looked_at >= _FULL_PAUSE * SECOND:
            self._is_hungry = False
            self._look(NOTHING, now)
        self._is_full = True
        return self._backoff or self._at_most(_LONGEST_REST, now)

    def _idle_rest(self, now: int) -> float:
        self._is_full = False
        if self._backoff:
            return self._backoff
        if self.is_empty:
            self.is_idle.set()
        longest = _LONGEST_REST if self._due_in is None else min(_LONGEST_REST, self._due_in)
        return self._at_most(max(0.0005, longest), now)

    def _at_most(self, seconds: float, now: int) -> float:
        self._knows_of_notes = bool(self._noted)
        if self._knows_of_notes:
            seconds = min(seconds, max(0.0005, (self._notes_at - now) / SECOND))
        if self._in_hand > self._appetite.concurrency:
            seconds = min(seconds, _STALE_AHEAD / SECOND)
        return seconds

    def _keep(self, notes: Notes) -> None:
        """Puts back what could not be written."""
        for line in notes.lines:
            execution = self._held.get(line.job_id)
            if execution is not None and execution.lines is not None:
                execution.lines.append(line)
                self._noted.append(execution)
        for report in notes.reports:
            execution = self._held.get(report.id)
            if execution is not None and execution.report is None:
                execution.report = (report.percent, report.message)
                self._noted.append(execution)

    def _back_off(self, error: StorageError) -> float:
        if isinstance(error, SchemaTooNew | ForkedConnection):
            self.failure = error
            self.is_idle.set()
            self._on_failure()
        now = self.clock.steady()
        if not self._backoff:
            self._away_since = now
        # A lock that others hold one after the other is no outage.
        is_news = not isinstance(error, StorageLocked) or now - self._away_since > _LONG_LOCK
        if is_news and not self._is_outage_said:
            self._is_outage_said = True
            log.warning("the database cannot be used: %s; going on as soon as it can", error)
        self._backoff = min(max(self._backoff * 2, _FIRST_BACKOFF), _LONGEST_BACKOFF)
        self._is_hungry = True
        return self._backoff

    def _recover(self) -> None:
        if self._is_outage_said:
            log.info("the database can be used again")
        self._backoff = 0.0
        self._is_outage_said = False


def _say_lost(what_follows: str, ids: Sequence[str]) -> None:
    """One line, however many there are: after an outage they come by the hundred."""
    if ids:
        some = f"{', '.join(ids[:3])}{' …' if len(ids) > 3 else ''}"
        log.warning("this worker no longer holds %d jobs (%s): %s", len(ids), some, what_follows)
