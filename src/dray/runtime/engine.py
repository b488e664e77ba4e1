"""The engine: one thread that writes outcomes and claims work, both in one transaction, and hands it to the runners.

An outcome is written at once while nothing is being written. Those that come meanwhile go together into the next
transaction, so that batches grow with the load and an idle worker does not wait. Before the engine takes the write
lock only to claim, it looks whether there is any work.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from dray.backends import Backend
from dray.backends.store.graph import FanOut
from dray.backends.store.work import NOTHING
from dray.backends.watch import Watch
from dray.clock import Clock
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
from dray.log import log
from dray.model.job import Claim, Demand
from dray.model.settlement import Settled
from dray.runtime.claiming import Capacity, ClaimPolicy, GatherPolicy, PollPolicy, YieldPolicy
from dray.runtime.condition import SelfCheck
from dray.runtime.dispatcher import Dispatcher
from dray.runtime.events import Events
from dray.runtime.execution import Execution
from dray.runtime.fan_out_retry import FanOutRetry
from dray.runtime.ownership import Ownership
from dray.runtime.parts import Bodies, Hooks
from dray.runtime.standbys import standby_tasks
from dray.wording import counted

_STALE_AHEAD = SECOND // 4  # after the last claim, when jobs claimed ahead that have not started go back
_FULL_PAUSE = 0.25  # seconds in which a worker without a free slot ignores wake-ups
_ISOLATED_PAUSE = 5 * SECOND  # for a job that may run in a child process only, while none can be started
_LOOK_PAUSE = SECOND  # between a busy worker's looks for cancels and other queues
_LONGEST_REST = 2.0
_SHORT_REST = 0.1  # while threads or processes are missing
_SHORTEST_REST = 0.0005
_MANY_ENDED = 100  # outcomes that wait: it is worth it to send them first
_HAND_OVER = 0.0003  # seconds; mostly, a thread that was woken runs after a third of that


@dataclass(eq=False)
class Engine:
    """Owned by one thread, which calls `tick` and `rest`. Other threads use its inbox, and what says so."""

    _backend: Backend
    _watch: Watch
    _claim_policy: ClaimPolicy
    _bodies: Bodies
    _ownership: Ownership
    _self_check: SelfCheck
    _clock: Clock
    _hooks: Hooks
    _is_durable: bool
    _events: Events | None = None  # what the App's hooks are told; None: it has none

    def __post_init__(self) -> None:
        self.is_idle = Signal()  # nothing in flight but what does not stop, nothing to claim
        self.has_ended = Signal()  # it claims no more, and nothing is left to run or to write
        self._inbox, self._in_flight, self._notes = self._bodies.inbox, self._bodies.in_flight, self._bodies.notes
        self._standbys = self._bodies.standbys
        self._standby_tasks = standby_tasks(self._bodies.tasks.values())
        self._outage = self._self_check.outage
        self._poll_policy = PollPolicy(hears_own=self._watch.hears_own)
        self._yield_policy = YieldPolicy()
        # On a file it sees producers by their lock, and leaves that to them instead.
        self._gather_policy = None if self._watch.hears_own else GatherPolicy()
        self._yields = False  # it leaves the database to producers for its next rest
        self._is_drained = False
        self._fan_out_retry = FanOutRetry()
        self._is_full = False
        self._looks_on = False  # its last look has not come to an end
        self._dispatcher = Dispatcher(self._bodies, self._claim_policy, self._clock)
        self._capacity: Capacity | None = None  # what it can run; None: all that it was asked to

    # For other threads

    @property
    def worker_id(self) -> str:
        return self._ownership.worker_id

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to run or to write."""
        is_telling = self._fan_out_retry.at is not None
        return self._in_flight.is_empty and not (is_telling or self._inbox.ended or self._inbox.refused)

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left but bodies that do not stop."""
        inbox = self._inbox
        must_write = self._in_flight.outcomes or inbox.stuck or inbox.ended or inbox.refused
        return not must_write and all(each.is_stuck for each in self._in_flight.executions())

    def settles_down(self, seconds: float) -> bool:
        """Waits until nothing is left, or could come, but bodies that do not stop. False: it took longer."""
        self.is_idle.clear()
        self._inbox.look_soon()  # an engine that sleeps would not set it again
        return self.is_idle.wait(seconds)

    def rest(self, seconds: float) -> None:
        """Sleeps until there is something to do."""
        if seconds <= 0:
            return
        held_up = self._bodies.crew.hurry(self._clock.steady())
        first = seconds if held_up is None else min(seconds, held_up)
        if self._yields:
            # Nothing ends it: what bodies report and producers commit meanwhile is for one transaction.
            self._yields = False
            time.sleep(first)
            self._bodies.crew.hurry(self._clock.steady())
            time.sleep(seconds - first)
            return
        seconds = first
        deaf = self._outage.pause or max(self._poll_policy.pause, _FULL_PAUSE if self._is_full else 0.0)
        if deaf and self._inbox.doze(min(deaf, seconds)):
            return
        seconds -= deaf
        if seconds > 0:
            is_changed = self._inbox.nap(self._watch.poke, lambda: self._watch.wait(seconds))
            is_same = self._watch.is_unchanged and self.is_idle.is_set()
            self._poll_policy.woken(by_change=is_changed, by_ring=self._inbox.is_rung, is_same=is_same)

    def _full_rest(self, now: int) -> float:
        """With no free slot, or not allowed to claim: only outcomes, notes and cancels matter."""
        is_draining, poll = self._inbox.is_draining, self._poll_policy
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
        if self._looks_on:
            return 0.0  # without a wait: what has woken it meanwhile is for the look after this one
        if self.is_empty and self._capacity is None:
            self._become_idle()
        due_at = self._poll_policy.due_at
        due_in = _LONGEST_REST if due_at is None else max(_SHORTEST_REST, (due_at - now) / SECOND)
        return self._at_most(min(_LONGEST_REST, due_in), now)

    def _become_idle(self) -> None:
        if not self.is_idle.is_set():
            self.is_idle.set()
            self._hooks.on_idle()

    def _at_most(self, seconds: float, now: int) -> float:
        if self._in_flight.fanout_pending:
            return 0.0
        if self._fan_out_retry.at is not None:
            seconds = min(seconds, max(_SHORTEST_REST, (self._fan_out_retry.at - now) / SECOND))
        notes_us = self._notes.pause(now)
        if notes_us is not None:
            seconds = min(seconds, max(_SHORTEST_REST, notes_us / SECOND))
        if self._has_ahead:
            seconds = min(seconds, _STALE_AHEAD / SECOND)
        return seconds if self._capacity is None else min(seconds, _SHORT_REST)

    def tick(self) -> float:
        """Does one step. Returns the seconds until the next, if nothing happens before."""
        self._outage.began = self._clock.steady()
        held_back = self._dispatcher.unstarted
        try:
            return self._step()
        except Exception as error:
            # A defect. What was claimed in this step may be lost to it, and the worker does not work.
            self._ownership.must_reread = self._poll_policy.may_have_work = True
            self._outage.goes_on(error, self._clock.steady())
            self._dispatcher.start()  # the next step comes late
            raise
        finally:
            if self._dispatcher.unstarted is held_back:
                self._dispatcher.start()  # held back by the step before, for an exchange that this one has not made
            self._outage.began = None

    def _step(self) -> float:
        self._inbox.open()
        self._absorb()
        self._capacity = self._bodies.crew.mend()
        if self._inbox.is_draining and self.is_empty:
            return self._full_rest(self._clock.steady())  # it can end, whatever the database does
        if self._ownership.is_dead or (self._ownership.is_retiring and self.is_empty):
            return self._come_back()
        self._hand_back()
        self._ownership.hear_beats()
        if not self._is_in_order():
            return self._outage.pause
        now = self._clock.steady()
        demand = self._demand()
        if not self._in_flight.outcomes and not self._notes.is_due(now, self._in_flight):
            if not demand.limit:
                return self._full_rest(now)
            wanted = self._to_claim(demand, now)
            if wanted is None:
                return self._idle_rest(now)
            demand = wanted
        elif now - self._poll_policy.looked_at > _LOOK_PAUSE:
            self._look(demand, now)
        return self._exchange(demand)

    def _is_in_order(self) -> bool:
        """Whether it knows what it holds, and has fanned out what had ended. False: it is dead, or cannot now."""
        if self._ownership.is_dead:
            return False
        try:
            if self._ownership.must_reread:
                self._dispatcher.start()
                if not self._ownership.reread():
                    return False
        except StorageError as error:
            self._fail(error)
            return False
        is_time = self._fan_out_retry.is_due(self._clock.steady())
        return self._fan_out() if is_time or self._in_flight.fanout_pending else True

    def _absorb(self) -> None:
        """Takes in what other threads have put into the inbox."""
        inbox = self._inbox
        if inbox.is_poked:
            inbox.is_poked = False
            self._poll_policy.may_have_work = True
        ended, batch = inbox.ended, self._claim_policy.batch
        while ended and len(self._in_flight.outcomes) < batch:
            execution, settlement = ended.popleft()
            if execution.started is not None:
                ended_at = self._clock.steady() if settlement is None else settlement.finished
                self._claim_policy.body_took(ended_at - execution.started)
            self._in_flight.end(execution, settlement)
            if settlement is None:
                self._poll_policy.may_have_work = True  # it may have enqueued something in its transaction
                if execution.is_written:
                    self._tell_done()
                    self._backend.announce(execution.claim.gives_room_to)
                    if self._events is not None:
                        self._events.completed(execution)
        if self._standbys.was_missed:
            self._release_standbys()
        while inbox.refused:
            self._put_back(inbox.refused.popleft())
        while inbox.stuck:
            self._in_flight.stuck(*inbox.stuck.popleft())

    @property
    def _has_ahead(self) -> bool:
        """Whether it has claimed jobs that have not started, and have no slot yet."""
        return self._in_flight.count > self._claim_policy.concurrency or len(self._standbys) > 0

    def _release_standbys(self) -> None:
        """A job has ended under a limit and none could follow it: its place is for whoever claims next, and so are
        those that were waiting for it."""
        now = self._clock.steady()
        self._standbys.pause(now)
        self._in_flight.hand_back(self._standbys.take_back(), now)

    def _put_back(self, execution: Execution) -> None:
        """Gives back a job that nothing here can run: another worker may have it at once."""
        self._claim_policy.gave_back(1)
        # By its task it could run here: until children can be started, every claim would bring it again.
        delay_us = _ISOLATED_PAUSE if execution.claim.crashes else None
        self._in_flight.hand_back([execution], self._clock.steady(), delay_us)

    def _hand_back(self) -> None:
        """Hands back what is claimed and not started: the worker ends, a job was cancelled, or bodies take long."""
        now = self._clock.steady()
        is_stale = self._has_ahead and now - self._dispatcher.fed_at > _STALE_AHEAD
        inbox = self._inbox
        is_ending = inbox.is_draining and not self._is_drained
        if is_stale:
            self._claim_policy.stop_claiming_ahead()
        if is_stale or is_ending or inbox.is_recalled:
            inbox.is_recalled, self._is_drained = False, inbox.is_draining
            self._poll_policy.looked_at = 0
            self._poll_policy.may_have_work = True
            parts = self._dispatcher, self._bodies.crew, self._standbys
            self._in_flight.hand_back([each for part in parts for each in part.take_back()], now)

    def _demand(self) -> Demand:
        inbox = self._inbox
        if inbox.is_draining or inbox.is_cut_off or self._ownership.is_retiring:
            return NOTHING
        demand = self._claim_policy.demand(self._in_flight.count, self._capacity, len(self._standbys))
        may_stand_by = demand.ahead and self._claim_policy.wants_standbys
        if may_stand_by and self._standbys.are_wanted(self._clock.steady()):
            return demand._replace(standby_tasks=self._standby_tasks)
        return demand

    def _to_claim(self, demand: Demand, now: int) -> Demand | None:
        """What to claim, if it is time to: mostly after a look, so that the write lock is not taken for nothing."""
        poll = self._poll_policy
        self._looks_on = False
        if not poll.wants_work(now):
            return None
        if demand.queues and poll.claims_at_once():
            return demand._replace(tends=poll.is_due(now))  # the look that follows finds the rest
        is_there = self._look(demand, now)
        if is_there is None or self._looks_on:
            return None  # it still may have work: the next look tells
        poll.looked(found=is_there)
        return self._demand() if is_there else None  # the look may have brought other queues

    def _look(self, demand: Demand, now: int) -> bool | None:
        """Whether there is work. Hears of cancels on the way. None: the database could not be read."""
        self._poll_policy.looked_at = now
        self._dispatcher.start()  # it is not the exchange that they wait for
        try:
            seen = self._backend.work.look(self.worker_id, demand, serves_all=self._claim_policy.serves_all)
        except StorageError as error:
            self._fail(error)
            return None
        if self._claim_policy.serves_all:
            self._claim_policy.set_ready_queues(seen.queues)
        self._ownership.hear_look(seen)
        next_at = min((at for at in (seen.due_at, seen.opens_at) if at is not None), default=None)
        self._poll_policy.due_at = None if next_at is None else now + next_at - seen.now
        is_there = seen.is_ready or (seen.due_at is not None and seen.due_at <= seen.now)
        self._looks_on = seen.goes_on and not is_there
        if (is_there and demand.limit) or self._in_flight.outcomes or self._notes.pause(now) is not None:
            self._outage.eases()  # what failed has still to succeed
        else:
            self._outage.ends()  # nothing is left that failed
        return is_there

    def _exchange(self, demand: Demand) -> float:
        if demand.limit and self._in_flight.frees_steps:
            # First: a step that is ready now may come before all that has waited so far.
            pause = self._exchange(NOTHING)
            demand = self._demand()
            if pause or not demand.limit:
                return pause
        batch = self._in_flight.plain()
        notes = self._notes.collect(self._in_flight, self._clock.steady())
        began = self._clock.steady()
        try:
            answer = self._backend.work.exchange(
                self.worker_id,
                batch,
                demand,
                notes,
                followers=self._in_flight.followers(batch),
                durable=self._is_durable,
                meanwhile=self._dispatcher.start,
            )
        except StorageError as error:
            self._notes.keep(notes)
            self._ownership.must_reread |= not isinstance(error, StorageLocked)
            return self._fail(error)
        self._outage.eases()
        self._in_flight.has_written = True
        self._notes.keep(answer.late)
        any_final, queues = self._in_flight.written(batch, answer.settled, answer.claims)
        if self._events is not None:
            self._events.settled(batch, answer.settled)
        if answer.fan_out.left:
            self._go_on_telling(answer.fan_out)
        self._claim_policy.claimed(demand, answer.claims)
        self._dispatch(answer.claims, began)
        if any_final:
            self._tell_done()
        if queues := queues.union(answer.promoted):
            self._backend.announce(queues)
        # Notes that go with an outcome do not count: while the row is locked, both are tried again and again.
        has_noted = not notes.ids.issubset(self._in_flight.outcomes)
        has_grown = self._grow()
        if self._inbox.leaves_locked or self._ownership.is_retiring:
            has_grown |= self._leave_aside(answer.settled.locked)
        if not self._outage.pause:
            self._outage.ends()
        has_changed = has_grown or len(answer.settled.locked) < len(batch) or bool(answer.claims or answer.promoted)
        pause = self._poll_policy.exchanged(
            has_claimed=bool(answer.claims), has_changed=has_changed or has_noted, goes_on=answer.goes_on
        )
        now, policy = self._clock.steady(), self._claim_policy
        if self._gather_policy is None:
            yielded = self._yield_policy.exchanged(answer.rivalry, began, now)
        else:
            gathered = len(batch), len(answer.claims), now
            yielded = self._gather_policy.exchanged(*gathered, may_gather=policy.may_gather)
        self._yields = yielded > pause and not self._inbox.is_draining
        if answer.claims and policy.is_short and not self._yields:
            # It has all there was, and lets the bodies start. If it went on, a slot that was just woken would wait
            # for the GIL: before a thread is awake, the engine has it back from its next statement.
            self._inbox.doze(_HAND_OVER)
        return yielded if self._yields else pause

    def _grow(self) -> bool:
        """Ends the jobs that have added steps, each together with its steps. Returns whether it ended any."""
        has_grown = False
        for settlement, new in self._in_flight.growing():
            self._dispatcher.start()  # this takes a transaction each
            try:
                settled = self._backend.work.grow(self.worker_id, settlement, new, durable=self._is_durable)
            except StorageError as error:
                self._ownership.must_reread |= not isinstance(error, StorageLocked)
                self._fail(error)
                break
            except (GraphError, UnknownJob) as error:
                self._in_flight.refuse_growth(settlement, error)
                has_grown = True
                continue
            if not settled.locked:
                has_grown = True
                _, queues = self._in_flight.written([settlement], settled)
                if self._events is not None:
                    self._events.grown(settlement, new, settled)
                self._backend.announce(queues.union(job.queue for job in new))
                self._tell_done()
        return has_grown

    def _leave_aside(self, locked: Sequence[str]) -> bool:
        """Leaves the outcomes of these jobs for the worker that takes them back. Returns whether there were any."""
        left = self._in_flight.with_steps(locked)
        if not left:
            return False
        self._dispatcher.start()
        try:
            self._backend.outcomes.leave(self.worker_id, left)
        except StorageError as error:
            self._fail(error)
            return False
        log.warning(
            "another transaction has locked the rows of %s that ended here: outcomes are left for the next worker",
            counted(len(left), "job"),
        )
        self._in_flight.written([settlement for settlement, _ in left], Settled([], [], [], [], []), is_left=True)
        return True

    def _dispatch(self, claims: Sequence[Claim], claimed_at: int) -> None:
        if not claims:
            return
        self.is_idle.clear()
        self._dispatcher.take(claims, self.worker_id, claimed_at)
        exchanges_at_once = not self._claim_policy.is_short and len(self._inbox.ended) >= _MANY_ENDED
        if not (exchanges_at_once and self._backend.db.is_remote):
            self._dispatcher.start()

    def _fan_out(self) -> bool:
        """Frees children of jobs that a body completed in its own transaction, or that had very many."""
        self._dispatcher.start()
        try:
            step = self._backend.graph.fan_out()
        except StorageError as error:
            self._fail(error)
            return False
        self._in_flight.fanout_pending = False
        self._go_on_telling(step)
        if step.decided or not step.left:
            self._poll_policy.may_have_work = True
            self._tell_done()
        return True

    def _go_on_telling(self, step: FanOut) -> None:
        goes_on = self._fan_out_retry.goes_on(step, self._clock.steady())
        # One step at a time: bodies that end meanwhile, and other workers, get their turn in between.
        self._in_flight.fanout_pending |= goes_on and step.left

    def _tell_done(self) -> None:
        self._backend.announce_done()
        self._hooks.on_done()

    def _fail(self, error: StorageError) -> float:
        if isinstance(error, SchemaTooNew | ForkedConnection | DatabaseClosed | StorageDamaged):
            self._self_check.failure = error
            self._become_idle()
            self._hooks.on_failure()
        self._poll_policy.may_have_work = True
        return self._outage.goes_on(error, self._clock.steady())

    def _come_back(self) -> float:
        try:
            self._ownership.come_back()
        except StorageError as error:
            return self._fail(error)
        self._outage.ends()
        self._poll_policy.may_have_work = True
        return 0.0
