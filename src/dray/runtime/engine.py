"""The engine: one thread that writes outcomes and claims work, both in one transaction, and hands it to the runners.

Outcomes are written at once while nothing is being written; those that come meanwhile go together with the next
transaction, so that batches grow with the load and an idle worker does not wait for company. Before it takes the
write lock only to claim, it looks whether there is anything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dray.backends import Backend
from dray.backends.store.work import NOTHING
from dray.backends.watch import Watch
from dray.clock import Clock, Rng
from dray.errors import (
    DatabaseClosed,
    ForkedConnection,
    GraphError,
    SchemaTooNew,
    StorageDamaged,
    StorageError,
    StorageLocked,
    UnknownJob,
)
from dray.instants import SECOND
from dray.interrupts import Signal
from dray.model.job import Claim, Demand
from dray.model.settlement import Settled
from dray.model.worker import Beat
from dray.runtime.claiming import Capacity, ClaimPolicy, PollPolicy
from dray.runtime.condition import Obstacle, Outage
from dray.runtime.execution import Execution, StopCause
from dray.runtime.in_flight import InFlight
from dray.runtime.inbox import Inbox
from dray.runtime.notes import NoteBuffer
from dray.runtime.runners import Runner
from dray.runtime.stopper import Stopper
from dray.wording import counted

if TYPE_CHECKING:
    from dray.backends.store.why import Asked
    from dray.task import Task

log = logging.getLogger("dray")

_BATCH = 500  # outcomes in one transaction
_STALE_AHEAD = SECOND // 4  # after the last claim, when what was claimed ahead and has not started goes back
_FULL_PAUSE = 0.25  # seconds in which a worker without a free slot does not listen
_ISOLATED_PAUSE = 5 * SECOND  # for a job that may run in a child process only, while none can be started
_LOOK_PAUSE = SECOND  # in which a busy worker looks for cancels and other queues
_LONGEST_REST = 2.0
_SHORT_REST = 0.1  # while threads or processes are missing
_FANOUT_PAUSE, _MOST_FANOUT_WAITS = 0.01, 100  # seconds; later it is left to the duty
_SHORTEST_REST = 0.0005


class Crew(Protocol):
    """The runners of a worker."""

    def runner_of(self, claim: Claim) -> Runner: ...
    def mend(self) -> Capacity | None: ...
    def outages(self) -> list[Outage]: ...
    def take_back(self) -> list[Execution]: ...


class Engine:
    """Owned by one thread, which calls `tick` and `rest`. Other threads use its inbox, and what says so."""

    def __init__(
        self,
        worker_id: str,
        backend: Backend,
        bodies_backend: Callable[[], Backend],
        watch: Watch,
        claim_policy: ClaimPolicy,
        clock: Clock,
        rng: Rng,
        *,
        tasks: Mapping[str, Task[..., Any]],
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
        self.beat: Callable[[Backend, str], Beat]  # renews the lease of the worker with this id
        self.on_asked: Callable[[Sequence[Asked]], None]  # somebody wants to know where bodies are
        self.failure: StorageError | None = None  # what no waiting can repair
        self.has_written = False  # since the heartbeat last asked
        self.inbox = Inbox()
        self.is_idle = Signal()  # nothing in hand but what does not stop, nothing that could be
        self.has_ended = Signal()  # it claims no more, and nothing is left to run or to write
        self.on_idle: Callable[[], None] = lambda: None
        self.on_began: Callable[[Execution], None] = lambda _: None
        self._backend = backend
        self._bodies_backend = bodies_backend
        self._watch = watch
        self._claim_policy = claim_policy
        self._tasks = tasks
        self._on_dead = on_dead
        self._on_done = on_done
        self._on_failure = on_failure
        self._durable = durable
        self._in_flight = InFlight()
        self._notes = NoteBuffer()
        self._outage = Outage("use the database")
        self.stopper = Stopper(clock, self._in_flight.executions, on_stuck)
        self._poll_policy = PollPolicy(hears_own=watch.hears_own)
        self._is_drained = False
        self._fanout_waits = 0
        self._is_full = False
        self._is_dead = False
        self._is_retiring = False
        self._must_reread = False
        self._fed_at = clock.steady()
        self._capacity: Capacity | None = None  # what it can run; None: all that it was asked to
        self._unclaiming: Obstacle | None = None  # it has to take another id before it claims again

    # For other threads

    @property
    def backend(self) -> Backend:
        """For bodies."""
        return self._bodies_backend()

    @property
    def ran(self) -> int:
        """How many bodies have ended."""
        return self._in_flight.ran

    @property
    def stopped(self) -> int:
        """How many of them were stopped because the worker ends, and their jobs handed back."""
        return self._in_flight.stopped

    @property
    def running(self) -> int:
        """How many bodies run."""
        return sum(each.started is not None and not each.is_over for each in self.executions())

    def executions(self) -> Collection[Execution]:
        return self._in_flight.executions()

    def find(self, asked: Asked) -> Execution | None:
        """The body that somebody asks about, if it may run."""
        known = (each for each in self.executions() if (each.claim.id, each.claim.claim) == asked[1:])
        return next(known, None)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to run or to write."""
        return self._in_flight.is_empty and not (self.inbox.ended or self.inbox.refused)

    @property
    def has_nothing_to_write(self) -> bool:
        return not (self._in_flight.outcomes or self.inbox.stuck or self.inbox.ended or self.inbox.refused)

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left but bodies that do not stop."""
        return self.has_nothing_to_write and all(each.is_stuck for each in self.executions())

    def obstacles(self) -> list[Obstacle]:
        """What keeps it from claiming, running and writing, and since when."""
        found = [each for each in (self._outage.obstacle, self._unclaiming) if each is not None]
        missing = (each.obstacle for each in self.crew.outages() if each.is_on)
        return [*found, *(each._replace(stops_claims=True) for each in missing if each is not None)]

    def began(self, execution: Execution) -> None:
        self.stopper.began(execution)
        self.on_began(execution)

    def note(self, execution: Execution) -> None:
        if self._notes.add(execution):
            self.inbox.ring()

    def written(self, execution: Execution) -> None:
        """Nothing to do: `give_up` checks `is_written`. Only a child process has to send a message."""

    def settles_down(self, seconds: float) -> bool:
        """Waits until nothing is left, or could come, but bodies that do not stop; whether that came in time."""
        self.is_idle.clear()
        self.inbox.look_soon()  # an engine that sleeps would not set it again
        return self.is_idle.wait(seconds)

    def stop_all(self, cause: StopCause) -> None:
        for execution in self.executions():
            if not execution.is_over:
                self.stopper.stop(execution, cause)

    def give_up(self, by: int) -> None:
        """Stops whatever another worker may run soon; a body that has completed its job will not be run again."""
        for execution in self.executions():
            if not (execution.is_over or execution.is_written):
                self.stopper.stop(execution, StopCause.SHUTDOWN, by)

    # Resting

    def rest(self, seconds: float) -> None:
        """Sleeps until there is something to do."""
        if seconds <= 0:
            return
        deaf = self._outage.pause or max(self._poll_policy.pause, _FULL_PAUSE if self._is_full else 0.0)
        if deaf and self.inbox.doze(min(deaf, seconds)):
            return
        seconds -= deaf
        if seconds > 0:
            is_changed = self.inbox.nap(self._watch.poke, lambda: self._watch.wait(seconds))
            self._poll_policy.woken(by_change=is_changed, by_ring=self.inbox.is_rung)

    def _full_rest(self, now: int) -> float:
        """No free slot, or not allowed to claim: only outcomes, notes and cancels matter."""
        is_draining, poll = self.inbox.is_draining, self._poll_policy
        if (is_draining and self.is_spent) or (self._claim_policy.is_exhausted and self.is_empty):
            self._become_idle()
        if is_draining and self.is_empty:
            self.has_ended.set()
        if poll.may_have_work and self._in_flight.held and now - poll.looked_at >= _FULL_PAUSE * SECOND:
            poll.may_have_work = False
            self._look(NOTHING, now)
        self._is_full = True
        return self._outage.pause or self._at_most(_LONGEST_REST, now)

    def _idle_rest(self, now: int) -> float:
        self._is_full = False
        if self._outage.pause:
            return self._outage.pause
        if self.is_empty and self._capacity is None:
            self._become_idle()
        due_at = self._poll_policy.due_at
        due_in = _LONGEST_REST if due_at is None else max(_SHORTEST_REST, (due_at - now) / SECOND)
        return self._at_most(min(_LONGEST_REST, due_in), now)

    def _become_idle(self) -> None:
        if not self.is_idle.is_set():
            self.is_idle.set()
            self.on_idle()

    def _at_most(self, seconds: float, now: int) -> float:
        if self._in_flight.fanout_pending:
            return 0.0
        notes_us = self._notes.pause(now)
        if notes_us is not None:
            seconds = min(seconds, max(_SHORTEST_REST, notes_us / SECOND))
        if self._in_flight.count > self._claim_policy.concurrency:
            seconds = min(seconds, _STALE_AHEAD / SECOND)
        return seconds if self._capacity is None else min(seconds, _SHORT_REST)

    # Working

    def tick(self) -> float:
        """One step; the seconds until the next, if nothing happens before."""
        self._outage.begins(self.clock.steady())
        try:
            return self._step()
        except Exception as error:
            # A defect. What was claimed in this step may be known to nobody; and the worker does not work.
            self._must_reread = self._poll_policy.may_have_work = True
            self._outage.goes_on(error, self.clock.steady())
            raise
        finally:
            self._outage.returns()

    def _step(self) -> float:
        self.inbox.open()
        self._absorb()
        self._capacity = self.crew.mend()
        if self.inbox.is_draining and self.is_empty:
            return self._full_rest(self.clock.steady())  # whatever the database does, it can go
        if self._is_dead or (self._is_retiring and self.is_empty):
            return self._come_back()
        self._hand_back()
        self._hear_beats()
        if not self._is_in_order():
            return self._outage.pause
        now = self.clock.steady()
        demand = self._demand()
        if not self._in_flight.outcomes and not self._notes.is_due(now, self._in_flight):
            if not demand.limit:
                return self._full_rest(now)
            if not self._sees_work(demand, now):
                return self._idle_rest(now)
            demand = self._demand()  # the look may have brought other queues
        elif now - self._poll_policy.looked_at > _LOOK_PAUSE:
            self._look(demand, now)
        return self._exchange(demand)

    def _is_in_order(self) -> bool:
        """Whether it knows what it holds, and has passed on what had ended. False: it died, or cannot now."""
        if self._is_dead or (self._must_reread and not self._reread()):
            return False
        return not self._in_flight.fanout_pending or self._fan_out()

    def _absorb(self) -> None:
        """Takes in what other threads have said."""
        inbox = self.inbox
        if inbox.is_poked:
            inbox.is_poked = False
            self._poll_policy.may_have_work = True
        ended = inbox.ended
        while ended and len(self._in_flight.outcomes) < _BATCH:
            execution, settlement = ended.popleft()
            if execution.started is not None:
                ended_at = self.clock.steady() if settlement is None else settlement.finished
                self._claim_policy.body_took(ended_at - execution.started)
            self._in_flight.end(execution, settlement)
            if settlement is None:
                self._poll_policy.may_have_work = True  # it may have enqueued something in its transaction
                if execution.is_written:
                    self._tell_done()
        while inbox.refused:
            self._put_back(inbox.refused.popleft())
        while inbox.stuck:
            execution, settlement = inbox.stuck.popleft()
            if settlement is None:
                self._in_flight.give_up_slot(execution)
            else:
                self._in_flight.settle(execution, settlement)

    def _put_back(self, execution: Execution) -> None:
        """There is nothing to run it in: another worker may have it at once."""
        self._claim_policy.gave_back(1)
        # By its task it could run here: until children can be started, every claim would bring it again.
        delay_us = _ISOLATED_PAUSE if execution.claim.crashes else None
        self._in_flight.hand_back([execution], self.clock.steady(), delay_us)

    def _hand_back(self) -> None:
        """What is claimed and has not started goes back: the worker ends, a job was cancelled, bodies take long."""
        now = self.clock.steady()
        is_stale = self._in_flight.count > self._claim_policy.concurrency and now - self._fed_at > _STALE_AHEAD
        inbox = self.inbox
        is_ending = inbox.is_draining and not self._is_drained
        if is_stale:
            self._claim_policy.stop_claiming_ahead()
        if is_stale or is_ending or inbox.is_recalled:
            inbox.is_recalled, self._is_drained = False, inbox.is_draining
            self._poll_policy.looked_at = 0
            self._poll_policy.may_have_work = True
            self._in_flight.hand_back(self.crew.take_back(), now)

    def _demand(self) -> Demand:
        inbox = self.inbox
        if inbox.is_draining or inbox.is_cut_off or self._is_retiring:
            return NOTHING
        return self._claim_policy.demand(self._in_flight.count, self._capacity)

    def _sees_work(self, demand: Demand, now: int) -> bool:
        """Whether it is time to claim: mostly after a look, before anybody takes the write lock for nothing."""
        poll = self._poll_policy
        if not poll.wants_work(now):
            return False
        if demand.queues and poll.claims_at_once():
            return True
        is_there = self._look(demand, now)
        if is_there is None:
            return False  # and it stays hungry: nothing but the next look tells that the database is back
        poll.looked(found=is_there)
        return is_there

    def _look(self, demand: Demand, now: int) -> bool | None:
        """Whether there is work; learns of cancels on the way. None: the database could not be read."""
        self._poll_policy.looked_at = now
        try:
            seen = self._backend.work.look(self.worker_id, demand, serves_all=self._claim_policy.serves_all)
        except StorageError as error:
            self._fail(error)
            return None
        if self._claim_policy.serves_all:
            self._claim_policy.set_ready_queues(seen.queues)
        for row in seen.cancels:
            self._cancel(self._in_flight.find(row))
        if seen.asked:
            self.on_asked(seen.asked)
        self._poll_policy.due_at = None if seen.due_at is None else now + seen.due_at - seen.now
        is_there = seen.is_ready or (seen.due_at is not None and seen.due_at <= seen.now)
        if (is_there and demand.limit) or self._in_flight.outcomes or self._notes.pause(now) is not None:
            self._outage.eases()  # what failed has still to succeed
        else:
            self._outage.ends()  # there is nothing that it cannot do
        return is_there

    def _exchange(self, demand: Demand) -> float:
        if demand.limit and self._in_flight.frees_steps:
            # First: a step that is ready now may come before all that has waited so far.
            pause = self._exchange(NOTHING)
            demand = self._demand()
            if pause or not demand.limit:
                return pause
        batch = self._in_flight.plain()
        notes = self._notes.collect(self._in_flight, self.clock.steady())
        try:
            answer = self._backend.work.exchange(self.worker_id, batch, demand, notes, durable=self._durable)
        except StorageError as error:
            self._notes.keep(notes)
            self._must_reread |= not isinstance(error, StorageLocked)
            return self._fail(error)
        self._outage.eases()
        self.has_written = True
        self._notes.keep(answer.late)
        written = self._in_flight.written(batch, answer.settled)
        self._in_flight.fanout_pending |= answer.has_more_children
        self._claim_policy.claimed(demand, len(answer.claims))
        self._dispatch(answer.claims)
        if written.any_final:
            self._tell_done()
        queues = written.queues.union(answer.promoted)
        if queues:
            self._backend.announce(queues)
        # What goes with an outcome is no step by itself: while the row is held, both are tried again and again.
        has_noted = not notes.ids.issubset(self._in_flight.outcomes)
        has_grown = self._grow()
        if self.inbox.leaves_locked or self._is_retiring:
            has_grown |= self._leave_aside(answer.settled.locked)
        if not self._outage.pause:
            self._outage.ends()
        has_changed = has_grown or len(answer.settled.locked) < len(batch) or bool(answer.claims or answer.promoted)
        return self._poll_policy.exchanged(has_claimed=bool(answer.claims), has_changed=has_changed or has_noted)

    def _grow(self) -> bool:
        """Ends the jobs that have added steps, each together with these; whether there was any to end."""
        has_grown = False
        for settlement, new in self._in_flight.growing():
            try:
                settled = self._backend.work.grow(self.worker_id, settlement, new, durable=self._durable)
            except StorageError as error:
                self._must_reread |= not isinstance(error, StorageLocked)
                self._fail(error)
                break
            except (GraphError, UnknownJob) as error:
                self._in_flight.refuse_growth(settlement, error)
                has_grown = True
                continue
            if not settled.locked:
                has_grown = True
                self._in_flight.written([settlement], settled)
                self._backend.announce({job.queue for job in new})
                self._tell_done()
        return has_grown

    def _leave_aside(self, locked: Sequence[str]) -> bool:
        """Whoever takes these jobs back learns how they ended; whether there was any such."""
        left = self._in_flight.with_steps(locked)
        if not left:
            return False
        try:
            self._backend.outcomes.leave(self.worker_id, left)
        except StorageError as error:
            self._fail(error)
            return False
        log.warning(
            "another transaction has locked the rows of %s that ended here: whoever takes them back learns how",
            counted(len(left), "job"),
        )
        self._in_flight.written([settlement for settlement, _ in left], Settled([], [], [], [], []))
        return True

    def _dispatch(self, claims: Sequence[Claim]) -> None:
        if not claims:
            return
        self._fed_at = self.clock.steady()
        self.is_idle.clear()
        executions = [Execution(claim, self._tasks[claim.task], self.worker_id, self) for claim in claims]
        groups: dict[Runner, list[Execution]] = {}
        for execution in executions:
            execution.runner = runner = self.crew.runner_of(execution.claim)
            groups.setdefault(runner, []).append(execution)
        self._in_flight.take(executions)  # not before each has a runner: what has none is released by the next beat
        for runner, group in groups.items():
            runner.start(group)

    def _fan_out(self) -> bool:
        """Frees children of jobs that ended in a transaction which was not ours, or that had very many."""
        try:
            step = self._backend.graph.fan_out()
        except StorageError as error:
            self._fail(error)
            return False
        if step.left and not step.decided and self._fanout_waits < _MOST_FANOUT_WAITS:
            # Somebody else is at it, mostly the duty: until that is committed what it frees cannot be seen.
            self._fanout_waits += 1
            self.inbox.doze(_FANOUT_PAUSE)
            return True
        self._fanout_waits = 0
        # One step at a time: bodies that end meanwhile, and other workers, have their turn between two.
        self._in_flight.fanout_pending = bool(step.left and step.decided)
        self._poll_policy.may_have_work = True
        self._tell_done()
        return True

    def _tell_done(self) -> None:
        self._backend.announce_done()
        self._on_done()

    def _fail(self, error: StorageError) -> float:
        if isinstance(error, SchemaTooNew | ForkedConnection | DatabaseClosed | StorageDamaged):
            self.failure = error
            self._become_idle()
            self._on_failure()
        self._poll_policy.may_have_work = True
        return self._outage.goes_on(error, self.clock.steady())

    # Beats, cancels, takeovers

    def _hear_beats(self) -> None:
        while self.inbox.beats:
            worker_id, beat, is_proven = self.inbox.beats.popleft()
            if worker_id != self.worker_id:
                continue
            if not beat.alive:
                self._die()
                return
            if not is_proven:
                self._retire()
            self._compare(beat)

    def _compare(self, beat: Beat) -> None:
        self._in_flight.release_unknown(beat.held, self.clock.steady())
        for row in beat.held:
            if row.cancel_requested:
                self._cancel(self._in_flight.find(row))

    def _cancel(self, execution: Execution | None) -> None:
        if execution is not None:
            self.stopper.stop(execution, StopCause.CANCEL)

    def _reread(self) -> bool:
        """After an outage: what this worker still holds, before it claims again."""
        try:
            beat = self.beat(self._backend, self.worker_id)
            missing = self._in_flight.missing(beat.held)
            written = self._written_by_bodies(missing)
        except StorageError as error:
            self._fail(error)
            return False
        self._must_reread = False
        self._outage.eases()  # what failed has still to succeed
        if not beat.alive:
            self._die()
            return False
        self._stop_lost(self._in_flight.lose([each for each in missing if each.claim.id not in written]))
        self._compare(beat)
        return True

    def _written_by_bodies(self, executions: Sequence[Execution]) -> set[str]:
        """Those of these jobs that their bodies have completed themselves, in transactions of their own."""
        claims = [(each.claim.id, each.claim.claim) for each in executions]
        return self._backend.work.completed_by(self.worker_id, claims) if claims else set()

    def _stop_lost(self, executions: Sequence[Execution]) -> None:
        for execution in executions:
            self.stopper.stop(execution, StopCause.LOST)

    def _retire(self) -> None:
        """Somebody took this worker's proof of life away: it claims nothing more, and comes back under a new id once
        what it holds has ended."""
        if not self._is_retiring:
            log.warning("worker %s has lost its proof of life; it takes another id when its jobs end", self.worker_id)
            self._is_retiring = True
            self._give_up_id("has lost its proof of life, and takes another id when its jobs end")
            self.inbox.ring()  # it may hold nothing: then it comes back with the next step

    def _die(self) -> None:
        """This worker was declared dead while it was stopped or cut off: nothing it holds is its own any more."""
        log.warning("worker %s was declared dead; coming back under a new id", self.worker_id)
        running = self._in_flight.running()
        try:
            written = self._written_by_bodies(running)
        except StorageError:
            # Not known of those that ended in a user's transaction: rather stopped than beside their successors.
            written = {each.claim.id for each in running if each.is_written}
        self._stop_lost(self._in_flight.lose_all(written))
        self._is_dead = True
        self._give_up_id("was declared dead, and takes another id")

    def _give_up_id(self, reason: str) -> None:
        since = self.clock.steady() if self._unclaiming is None else self._unclaiming.since
        self._unclaiming = Obstacle(since, reason, stops_claims=True)

    def _come_back(self) -> float:
        try:
            self.worker_id = self._on_dead()
        except StorageError as error:
            return self._fail(error)
        self._is_dead = self._is_retiring = self._must_reread = False
        self._unclaiming = None
        self._outage.ends()
        self._poll_policy.may_have_work = True
        return 0.0
