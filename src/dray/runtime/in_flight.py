"""What a worker has in flight: every claim from the moment it is made until its outcome is known to be written.

For the engine's thread. Every write carries its claim, so a lost response, an outage or a takeover leave nothing in
doubt: if it cannot be written, another worker has the job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from dray.log import log
from dray.model.job import ALL_QUEUES, FINAL, Claim, Held, Reason, State
from dray.model.new_job import NewJob
from dray.model.settlement import Settled, Settlement, released, snoozed, unstorable
from dray.runtime import outcome
from dray.runtime.execution import Execution, StopCause
from dray.sanitize import escape_control
from dray.wording import counted, short_id


class End(NamedTuple):
    """An attempt whose outcome is written."""

    execution: Execution
    settlement: Settlement | None  # None: the body has completed the job in a transaction of its own


class InFlight:
    """Claims, their bodies, and the outcomes that are to be written. `tell` gets what was written, after the fact."""

    def __init__(self, tell: Callable[[Sequence[End]], None] = lambda _: None) -> None:
        self._tell = tell
        self.held: dict[str, Execution] = {}
        self.lost: list[Execution] = []  # bodies that still run though their claims are gone
        self.outcomes: dict[str, Settlement] = {}
        self.count = 0  # bodies that run or will, each in a slot
        self.ran = 0  # bodies that have ended
        self.stopped = 0  # of these, bodies that were stopped because the worker ends; their jobs went back
        self.final_notes: list[Execution] = []  # completed by their bodies; their notes are still to be written
        self.has_written = False  # the engine has, since the last beat
        self.fanout_pending = False  # a body has completed its job itself: its children are still to be freed
        self._growing: set[str] = set()  # jobs whose bodies have added steps: each ends in a transaction with these
        self._slotless: set[Execution] = set()  # bodies that run on though their slots were given up

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to run or to write."""
        return not (self.held or self.lost or self.count or self.outcomes or self.fanout_pending)

    def executions(self) -> list[Execution]:
        """All whose bodies may run. For any thread."""
        return [*self.held.values(), *self.lost]

    @property
    def running(self) -> int:
        """How many bodies run. For any thread."""
        return sum(each.started is not None and not each.is_over for each in self.executions())

    def take(self, executions: Sequence[Execution]) -> None:
        """Claims were made."""
        self.count += sum(not each.claim.is_standby for each in executions)
        for execution in executions:
            before = self.held.get(execution.claim.id)
            if before is not None and not before.is_over:
                self.lost.append(before)  # completed in its own transaction, then started over: still watched
            self.held[execution.claim.id] = execution

    def end(self, execution: Execution, settlement: Settlement | None) -> None:
        """A body is over; None: nothing is to be written."""
        if execution in self._slotless:
            self._slotless.discard(execution)
        elif execution.follower is None:
            self.count -= 1
        self.ran += execution.started is not None
        self.stopped += execution.stop is StopCause.SHUTDOWN and settlement is not None and settlement.gives_back
        claim = execution.claim
        if self.held.get(claim.id) is not execution:
            if execution in self.lost:
                self.lost.remove(execution)
            self.fanout_pending |= execution.is_written and execution.fanout_pending
            if execution.is_written:
                self._tell([End(execution, None)])
        elif claim.id in self.outcomes:
            return  # ended before its body did: out of time, with no attempt left
        elif settlement is not None and execution.stop is not StopCause.LOST:
            self.outcomes[claim.id] = settlement
            if execution.grown:
                self._growing.add(claim.id)
        else:
            del self.held[claim.id]
            if execution.is_written:
                self.final_notes.append(execution)
                self.fanout_pending |= execution.fanout_pending
                self._tell([End(execution, None)])

    def hand_back(self, executions: Iterable[Execution], now: int, delay_us: int | None = None) -> None:
        """Hands back jobs whose bodies have not started. Without a delay each keeps its place in the queue."""
        for execution in executions:
            self.count -= not execution.claim.is_standby
            execution.is_over = True
            claim = execution.claim
            if self.held.get(claim.id) is execution:
                back = released(claim, now) if delay_us is None else snoozed(claim, now, now, delay_us)
                self.outcomes[claim.id] = back
            elif execution in self.lost:
                self.lost.remove(execution)

    def park(self, keys: Mapping[Execution, str], now: int) -> None:
        """Hands back jobs that have not started and lack the keys that they should have: each takes its turn."""
        self.hand_back(keys, now)
        for execution, key in keys.items():
            self.outcomes[execution.claim.id] = released(execution.claim, now, key)

    def stuck(self, execution: Execution, settlement: Settlement | None) -> None:
        """A body does not stop: ends its job although it goes on, or, without a settlement, gives its slot to another
        and keeps its claim until it ends."""
        if settlement is not None:
            if self.held.get(execution.claim.id) is execution:
                self.outcomes[execution.claim.id] = settlement
        elif not execution.is_over and execution not in self._slotless:
            self._slotless.add(execution)
            self.count -= 1

    def plain(self) -> list[Settlement]:
        """The outcomes that can be written together."""
        if not self._growing:
            return list(self.outcomes.values())
        return [each for each in self.outcomes.values() if not self._grows(each)]

    def followers(self, batch: Iterable[Settlement]) -> dict[str, tuple[str, int]]:
        """Which standby runs in the place of a job that has ended: its id and claim."""
        found: dict[str, tuple[str, int]] = {}
        for settlement in batch:
            ended = self.held.get(settlement.id)
            each = None if ended is None else ended.follower
            while each is not None and each.is_over:
                each = each.follower  # it has ended before it was ever counted
            if each is not None and self.held.get(each.claim.id) is each:
                found[settlement.id] = (each.claim.id, each.claim.claim)
        return found

    def growing(self) -> list[tuple[Settlement, list[NewJob]]]:
        """The outcomes that are written with new steps, each by itself."""
        if not self._growing:
            return []
        found = [(each, self.held[each.id].grown) for each in self.outcomes.values() if self._grows(each)]
        self._growing = {each.id for each, _ in found}
        return found

    def with_steps(self, ids: Sequence[str]) -> list[tuple[Settlement, Sequence[NewJob]]]:
        """The outcomes of these jobs, and all that are written with new steps."""
        growing = {settlement.id: new for settlement, new in self.growing()}
        wanted = {**dict.fromkeys(ids), **growing}
        return [(self.outcomes[each], growing.get(each, [])) for each in wanted if each in self.outcomes]

    def _grows(self, settlement: Settlement) -> bool:
        """Not if it failed, or went back."""
        is_one = settlement.id in self._growing and settlement.state == State.COMPLETED
        return is_one and settlement.id in self.held

    @property
    def frees_steps(self) -> bool:
        """Whether one of these outcomes may free another step of its workflow."""
        held = self.held
        return any(
            each.id in held and held[each.id].claim.workflow_id is not None
            for each in self.outcomes.values()
            if each.state in FINAL
        )

    def refuse_growth(self, settlement: Settlement, error: Exception) -> None:
        """The new steps cannot be written: the job fails, as it does when its result cannot be stored."""
        execution = self.held[settlement.id]
        self._growing.discard(settlement.id)
        self.outcomes[settlement.id] = outcome.ungrown(execution, settlement, error)

    def written(
        self, batch: Sequence[Settlement], settled: Settled, claims: Sequence[Claim] = (), *, is_left: bool = False
    ) -> tuple[bool, set[str]]:
        """A batch was written as `settled` says. Returns whether a job has ended, and queues that have ready jobs.

        `claims`: what was claimed in the same transaction, and may have taken the room of what ended. `is_left`: it
        was left for the workers that take its jobs back.
        """
        locked, stale, already = set(settled.locked), set(settled.stale), set(settled.already)
        changed = {*settled.refused, *settled.cancelled}
        ends: list[End] = []
        any_final = False
        queues: set[str] = set()
        freed: list[Claim] = []
        lost: list[str] = []
        for settlement in batch:
            if settlement.id in locked:
                continue  # another transaction has locked the row: tried again with the next batch
            del self.outcomes[settlement.id]
            execution = self.held.pop(settlement.id, None)
            if execution is not None and execution.claim.held and settlement.id not in stale:
                freed += [execution.claim] if execution.follower is None else []
            if settlement.id in changed:
                settlement = _as_written(settlement, settled)  # noqa: PLW2901 - the rest is about what is stored
            if settlement.id in stale:
                lost += [settlement.id] if execution is not None else []
            elif settlement.id in already:
                # The body has completed the job on a connection of its own. What it did afterwards does not count.
                self.fanout_pending = True
                if settlement.state != State.COMPLETED and settlement.error is not None:
                    said = escape_control(settlement.error)
                    job = short_id(settlement.id)
                    log.warning("job %s was completed by its body, which then failed: %s", job, said)
            elif settlement.state in FINAL:
                any_final = True
            elif settlement.state == State.QUEUED:
                # Of a claim whose response was lost the queue is not known, nor the limits that counted it.
                queues.add(ALL_QUEUES if execution is None else execution.claim.queue)
            if execution is not None and not execution.is_over:
                self.lost.append(execution)  # the job has ended although its body goes on
            is_there = settlement.id not in already or settlement.state == State.COMPLETED
            if execution is not None and settlement.id not in stale and is_there:
                ends.append(End(execution, settlement))
        _say_lost("their outcomes change nothing", lost)
        if ends and not is_left:
            self._tell(ends)
        return any_final, queues | _with_room(freed, claims)

    def find(self, row: Held) -> Execution | None:
        """The body that a running row stands for."""
        execution = self.held.get(row.id)
        if execution is None or execution.claim.claim != row.claim or execution.is_over:
            return None
        return execution

    def release_unknown(self, rows: Sequence[Held], now: int) -> None:
        """Releases jobs that are this worker's by their rows and unknown to it: the response to a claim was lost."""
        for row in rows:
            execution = self.held.get(row.id)
            if execution is None or execution.claim.claim < row.claim:
                self.outcomes.setdefault(row.id, released(row, now))

    def missing(self, rows: Sequence[Held]) -> list[Execution]:
        """Bodies whose claims are not among the rows that the database shows as this worker's."""
        found = {(row.id, row.claim) for row in rows}
        return [each for each in self.claimed() if (each.claim.id, each.claim.claim) not in found]

    def claimed(self) -> list[Execution]:
        """Bodies that run, or are about to, under a claim."""
        return [execution for execution in self.held.values() if not execution.is_over]

    def lose_all(self, written: Collection[str]) -> list[Execution]:
        """Drops all claims. Returns the bodies that must stop: those that have not completed their jobs."""
        running = self.claimed()
        lost = self.lose([each for each in running if each.claim.id not in written])
        self.lost += [each for each in running if each.claim.id in written]
        self.held.clear()
        self.outcomes.clear()
        return lost

    def lose(self, executions: list[Execution]) -> list[Execution]:
        """Drops claims that a crash of the database or a takeover has ended. All these bodies must stop."""
        _say_lost("stopping their bodies", [execution.claim.id for execution in executions])
        for execution in executions:
            del self.held[execution.claim.id]
            self.outcomes.pop(execution.claim.id, None)
            self.lost.append(execution)
        return executions


def _with_room(freed: Sequence[Claim], claims: Sequence[Claim]) -> set[str]:
    """The queues in which jobs may have waited for the end of these. Not where another has taken the room in the same
    transaction: workers would look for nothing."""
    if not freed:
        return set()
    taken = Counter((claim.task, claim.queue, claim.key) for claim in claims if claim.held)
    left = Counter((claim.task, claim.queue, claim.key) for claim in freed) - taken
    return {queue for claim in freed if left[claim.task, claim.queue, claim.key] for queue in claim.gives_room_to}


def _as_written(settlement: Settlement, settled: Settled) -> Settlement:
    """What stands in the database instead of this outcome."""
    if settlement.id in settled.refused:
        return unstorable(settlement, "the database refused its data")
    return settlement._replace(state=State.CANCELLED, reason=Reason.USER)


def _say_lost(what_follows: str, ids: Sequence[str]) -> None:
    """One line for all: after an outage there may be hundreds."""
    if ids:
        some = f"{', '.join(map(short_id, ids[:3]))}{' …' if len(ids) > 3 else ''}"
        log.warning("this worker no longer holds %s (%s): %s", counted(len(ids), "job"), some, what_follows)
