"""Jobs in a worker's hands: claimed, reported on, ended. Every write carries the claim."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from dray.backends import rows
from dray.backends.database import Claimed, Database, DataRefused, Later, Rivalry, Row, Session, nothing
from dray.backends.rows import Holding, SettledRow, SettlementRow
from dray.backends.store import Store
from dray.backends.store.block import hold
from dray.backends.store.gate import Gate, Opening
from dray.backends.store.graph import FanOut, GraphStore, tell_cancelled
from dray.backends.store.insert import insert
from dray.backends.store.stacks import Asked
from dray.backends.store.turns import Turns
from dray.log import log
from dray.model.bounds import ATTEMPTS_KEPT, LOG_LINES, PROMOTE_CHUNK
from dray.model.job import Claim, Demand, Held, LogLine, State
from dray.model.new_job import NewJob
from dray.model.settlement import Settled, Settlement, unstorable
from dray.wording import short_id

NOTHING = Demand((), (), 0)
_NONE: Later[list[SettledRow]] = list
_LOOK_STEPS = 8  # of a look along closed keys; then outcomes that have come meanwhile are written
_HEARD = {State.RUNNING, State.COMPLETED}  # the states in which a job takes notes


class Report(NamedTuple):
    """How far a running job is."""

    id: str
    claim: int
    percent: float | None
    message: str | None


class Notes(NamedTuple):
    """What bodies had to say; written with the outcomes, before them, while their claims still hold."""

    lines: Sequence[LogLine] = ()
    reports: Sequence[Report] = ()

    @property
    def ids(self) -> set[str]:
        """Whose bodies they are."""
        return {line.job_id for line in self.lines} | {report.id for report in self.reports}


SILENCE = Notes()

# Jobs that have ended under a limit, each with the id and the claim of the standby that runs in its place.
Followers = Mapping[str, tuple[str, int]]
NO_FOLLOWERS: Followers = {}


class Exchange(NamedTuple):
    """What one transaction of a worker brought."""

    settled: Settled
    promoted: list[str]  # the queues that got jobs whose time had come, one entry a job
    claims: list[Claim]
    fan_out: FanOut = FanOut(0, left=False)  # of what ended; if any are left, go on with `graph.fan_out`
    rivalry: Rivalry | None = None  # None: it did not wait for the write lock
    expired: Sequence[str] = ()  # jobs that were not started in time, and are cancelled
    late: Notes = SILENCE  # not written, since another transaction has locked the rows: for the next exchange
    goes_on: bool = False  # there may be more under limits that was not looked at: claim again soon


class Look(NamedTuple):
    """What a worker should know before it takes the write lock. Serves all: of every queue, not of the demand's."""

    is_ready: bool  # something it could claim is there
    due_at: int | None  # when the earliest scheduled job is due
    now: int  # by the database's clock
    queues: list[str]  # those that have anything ready; only where all are served
    cancels: list[Held]  # what it runs and was asked to stop
    asked: tuple[Asked, ...] = ()  # requests for the stacks of bodies
    opens_at: int | None = None  # when a rate lets the next job start, if nothing could be claimed now
    goes_on: bool = False  # it has not seen all that limits and keys may let start: look on


class _Turn(NamedTuple):
    """What one transaction did."""

    uncounted: set[str]  # jobs that could not be ended, because those in their places could not be counted
    unkept: Notes
    written: list[SettledRow]
    expired: list[Row]
    promoted: list[str]
    claimed: Claimed
    rivalry: Rivalry | None


class WorkStore(Store):
    def __init__(self, db: Database) -> None:
        super().__init__(db)
        self._turns = Turns()

    def exchange(
        self,
        worker_id: str,
        settlements: Sequence[Settlement],
        demand: Demand,
        notes: Notes = SILENCE,
        *,
        followers: Followers = NO_FOLLOWERS,
        durable: bool = False,
        meanwhile: Callable[[], None] = nothing,
    ) -> Exchange:
        """Keeps notes, ends attempts, cancels what expired, queues what is due, and claims, in one transaction.

        Each settlement is written only if (id, worker_id, claim) still holds the running job; see `Settled` for
        the others. An outcome whose data the database refuses does not stop those beside it: it is written as
        failed(result). It waits for no other transaction: notes whose row is locked are returned as late, and the
        outcome of their body goes with them, to the next exchange. `followers` count from now on; where the row of
        one is locked, the job whose place it took has to wait as well. Children of what ended are freed or cancelled
        after it, the first 250 of them: it says whether there are more. Claims count the attempt. No claims: nothing
        ready, queue paused, or this worker was declared dead.
        """
        refused: list[str] = []
        try:
            turn = self._transact(
                worker_id, settlements, demand, notes, followers=followers, durable=durable, meanwhile=meanwhile
            )
            written = turn.written
        except DataRefused:
            meanwhile()  # this takes several transactions
            # One after the other: what a body said must not cost an outcome, nor a bad outcome what others said.
            unkept = self._keep_apart(worker_id, notes, durable=durable)
            uncounted = self._transact(worker_id, (), NOTHING, followers=followers, durable=durable).uncounted
            free = [each for each in _free(settlements, unkept) if each.id not in uncounted]
            written = self._settle_apart(worker_id, free, refused, durable=durable)
            turn = self._transact(worker_id, (), demand, durable=durable)._replace(unkept=unkept)
        expired = tuple(row[0] for row in turn.expired)
        if expired:
            tell_cancelled(self._db, expired)
        has_children = expired or any(each.fanout_pending for each in written)
        fan_out = GraphStore(self._db).fan_out_all() if has_children else FanOut(0, left=False)
        settled = self._judge(worker_id, settlements, written, refused, {claim.id for claim in turn.claimed.claims})
        late = self._late(worker_id, turn.unkept)
        claims, goes_on = turn.claimed
        return Exchange(settled, turn.promoted, claims, fan_out, turn.rivalry, expired, late, goes_on)

    def _transact(
        self,
        worker_id: str,
        settlements: Sequence[Settlement],
        demand: Demand,
        notes: Notes = SILENCE,
        *,
        followers: Followers = NO_FOLLOWERS,
        durable: bool,
        meanwhile: Callable[[], None] = nothing,
    ) -> _Turn:
        def work(tx: Session) -> Later[_Turn]:
            tx.begin_work(demand.queues, durable=durable)
            unkept = self._keep_notes(tx, worker_id, notes)
            uncounted = _count_followers(tx, worker_id, followers) if followers else set[str]()
            free = [each for each in _free(settlements, unkept) if each.id not in uncounted]
            written = settle(tx, endings(self._db, worker_id, free)) if free else _NONE
            if not demand.limit:
                self._turns.end_unread(each.id for each in free)
            elif self._turns.may_swap(each.id for each in free):
                # Read now: a job that its body had completed before is not ended here, and others may have its room.
                ended = written()
                self._turns.have_ended((each.id for each in ended), len(followers))
                written = partial(list[SettledRow], ended)
            trim_attempts(tx, free)
            rivalry = tx.rivalry()
            if not demand.limit + demand.ahead:
                return lambda: _Turn(uncounted, unkept, written(), [], [], Claimed([]), rivalry)
            expired, promoted = tx.tend(PROMOTE_CHUNK) if demand.tends else (list[Row], list[Row])
            claimed = tx.claim(worker_id, demand, self._turns)
            return lambda: _Turn(
                uncounted, unkept, written(), expired(), [row[0] for row in promoted()], claimed(), rivalry
            )

        return self._db.exchange(work, durable=durable, meanwhile=meanwhile)

    def _late(self, worker_id: str, unkept: Notes) -> Notes:
        """Of notes that were not written, those whose claims still hold: the others are dropped."""
        ids = sorted(unkept.ids)
        if not ids:
            return SILENCE
        found = self._db.read(lambda tx: holdings(tx, ids))
        held = {(each.id, each.claim) for each in found if each.worker_id == worker_id and each.state in _HEARD}
        return Notes(
            [line for line in unkept.lines if (line.job_id, line.claim) in held],
            [report for report in unkept.reports if (report.id, report.claim) in held],
        )

    def _keep_apart(self, worker_id: str, notes: Notes, *, durable: bool) -> Notes:
        """Writes notes by themselves; those that the database refuses are dropped. Tried again, they would be refused
        for ever, and the worker would do nothing else."""
        try:
            return self._transact(worker_id, (), NOTHING, notes, durable=durable).unkept
        except DataRefused as error:
            log.warning(
                "log lines and progress of %s cannot be kept: %s", ", ".join(sorted(map(short_id, notes.ids))), error
            )
            return SILENCE

    def _settle_apart(
        self, worker_id: str, settlements: Sequence[Settlement], refused: list[str], *, durable: bool
    ) -> list[SettledRow]:
        """Halves a batch that the database refuses until the bad outcome is alone; that one is written as failed."""
        try:
            return self._transact(worker_id, settlements, NOTHING, durable=durable).written
        except DataRefused as error:
            if len(settlements) == 1:
                bad = unstorable(settlements[0], str(error))
                written = self._transact(worker_id, [bad], NOTHING, durable=durable).written
                refused += [each.id for each in written]
                return written
        middle = len(settlements) // 2
        return [
            row
            for half in (settlements[:middle], settlements[middle:])
            for row in self._settle_apart(worker_id, half, refused, durable=durable)
        ]

    def _judge(
        self,
        worker_id: str,
        settlements: Sequence[Settlement],
        written: list[SettledRow],
        refused: list[str],
        claimed: Collection[str] = (),
    ) -> Settled:
        """Sorts the outcomes that were not written: lost, there already, or only locked for the moment.

        `claimed`: jobs that were claimed in the same transaction, so nothing of them ran before. A job that was
        deleted and enqueued again under its id counts its claims from one: an older outcome would look like one of
        the new claim."""
        states = {each.id: each.state for each in written}
        cancelled = [s.id for s in settlements if states.get(s.id) == State.CANCELLED != s.state]
        missing = [s for s in settlements if s.id not in states]
        settled = Settled([], [], [], refused, cancelled)
        if not missing:
            return settled
        ids = [s.id for s in missing]
        found, recorded = self._db.read(lambda tx: (holdings(tx, ids), _recorded(tx, ids, worker_id)))
        by_id = {each.id: each for each in found}
        for s in missing:
            holding = by_id.get(s.id)
            is_held = holding is not None and (holding.worker_id, holding.claim) == (worker_id, s.claim)
            state = holding.state if holding is not None and is_held else None
            if s.id in claimed:
                settled.stale.append(s.id)
            elif state == State.RUNNING:
                settled.locked.append(s.id)
            elif state == State.COMPLETED or (s.id, s.claim) in recorded:  # maybe claimed again since
                settled.already.append(s.id)
            else:
                settled.stale.append(s.id)
        return settled

    def grow(
        self, worker_id: str, settlement: Settlement, new: Sequence[NewJob], *, durable: bool = False
    ) -> Settled:
        """Ends one attempt by its claim and writes the steps it has added to its workflow, in one transaction: where
        the claim is lost, neither. A step that is there under its id already counts as written; one that cannot be
        written raises as `jobs.enqueue` does, and then the attempt has not ended either."""

        def settle(tx: Session) -> tuple[list[SettledRow], bool]:
            written = tx.settle(endings(self._db, worker_id, [settlement]))()
            trim_attempts(tx, [settlement])
            if not written:
                return [], False
            tx.run("queue_add", names=sorted({job.queue for job in new}))
            ends_some = _add_steps(tx, settlement.id, new)
            return written, ends_some or written[0].fanout_pending

        try:
            written, has_children = self._db.write(settle, durable=durable)
        except DataRefused as error:
            return self.exchange(worker_id, [unstorable(settlement, str(error))], NOTHING, durable=durable).settled
        if has_children:
            GraphStore(self._db).fan_out_all(to_end=True)
        return self._judge(worker_id, [settlement], written, [])

    def complete(
        self,
        worker_id: str,
        settlement: Settlement,
        connection: Any,
        *,
        new: Sequence[NewJob] = (),
        room: Collection[str] = (),
    ) -> bool:
        """Ends one attempt, with the steps its body has added to its workflow, in a user's transaction: it counts if
        they commit. `room`: the queues in which jobs may wait for its end, see `Claim.gives_room_to`.

        `StaleClaim`: the claim is lost; nothing was written here, and their transaction must not be committed.
        Returns whether children may wait for the job: after the commit the next `graph.fan_out` frees them.
        """
        completion = self._completion(worker_id, settlement, new)
        return self._db.join(connection, completion, ready={*room, *(job.queue for job in new)}, ended=True)

    async def complete_async(
        self,
        worker_id: str,
        settlement: Settlement,
        connection: Any,
        *,
        new: Sequence[NewJob] = (),
        room: Collection[str] = (),
    ) -> bool:
        """As `complete`, for asynchronous connections too; see `jobs.enqueue_async`."""
        ready = {*room, *(job.queue for job in new)}
        completion = self._completion(worker_id, settlement, new)
        return await self._db.join_async(connection, completion, ready=ready, ended=True)

    def _completion(self, worker_id: str, settlement: Settlement, new: Sequence[NewJob]) -> Callable[[Session], bool]:
        def work(tx: Session) -> bool:
            # First: a settle skips a row that another transaction has locked, as if its claim were lost.
            sees_all = hold(tx, (settlement.id, worker_id, settlement.claim))
            (ended,) = tx.settle(endings(self._db, worker_id, [settlement]))()
            trim_attempts(tx, [settlement])
            ends_some = _add_steps(tx, settlement.id, new)
            if not sees_all:
                tx.run("fanout_suspect", id=settlement.id)
            return ended.fanout_pending or ends_some or not sees_all

        return work

    def completed_by(self, worker_id: str, claims: Sequence[tuple[str, int]]) -> set[str]:
        """The jobs among these that the claims (id, claim) of this worker have themselves completed."""
        ids = [job_id for job_id, _ in claims]
        found, recorded = self._db.read(lambda tx: (holdings(tx, ids), _recorded(tx, ids, worker_id)))
        completed = {each for each in found if each.worker_id == worker_id and each.state == State.COMPLETED}
        ended = recorded.union((each.id, each.claim) for each in completed)
        return {job_id for job_id, claim in claims if (job_id, claim) in ended}

    def _keep_lines(self, tx: Session, worker_id: str, lines: Sequence[LogLine]) -> list[bool]:
        """Keeps log lines (`at` read from the steady clock), the newest 1,000 a job; False for each whose claim is
        lost, or whose row another transaction is about to delete."""
        if not lines:
            return []
        steady = self._db.clock.steady()
        given = [
            (line.job_id, worker_id, line.claim, steady - line.at, line.level, line.logger, line.message)
            for line in lines
        ]
        written = tx.each("log_insert", given)
        for job_id in {line.job_id for line, is_written in zip(lines, written, strict=True) if is_written}:
            tx.run("log_trim", id=job_id, keep=LOG_LINES)
        return written

    def _keep_notes(self, tx: Session, worker_id: str, notes: Notes) -> Notes:
        """Writes what bodies had to say, in an open transaction, and waits for no lock; returns what was not written:
        its claim is lost, or another transaction has locked the row."""
        lines = self._keep_lines(tx, worker_id, notes.lines)
        given = [(each.id, worker_id, each.claim, each.percent, each.message) for each in notes.reports]
        reports = tx.each("progress_set", given)
        return Notes(
            [line for line, is_written in zip(notes.lines, lines, strict=True) if not is_written],
            [report for report, is_written in zip(notes.reports, reports, strict=True) if not is_written],
        )

    def take(self, worker_id: str, ids: Sequence[str]) -> list[Claim]:
        """Claims these jobs if they are ready, whatever limits say: for tests."""

        def work(tx: Session) -> list[Claim]:
            found = {job.id: job.key for job in map(rows.job, tx.rows("job_get", ids=list(ids)))}
            keys = {job_id: found[job_id] for job_id in ids if job_id in found}
            return tx.take(worker_id, keys, list(keys), len(keys))

        return self._db.write(work) if ids else []

    def look(self, worker_id: str, demand: Demand, *, serves_all: bool = False) -> Look:
        """What a worker should know before it takes the write lock; takes none itself. Serves all: looks at whatever
        queues have something ready, instead of the demand's."""
        queues, tasks = list(demand.queues), list(demand.tasks)
        given = {"id": worker_id, "queues": queues, "tasks": tasks, "limit": demand.limit, "all": serves_all}
        is_ready, due_at, now, found, cancels, stacks, gated = self._db.glance("job_look", **given)[0]
        names: list[str] = json.loads(found or "[]")
        stops = [Held(i, claim, cancel_requested=True) for i, claim in json.loads(cancels or "[]")]
        asked = tuple(Asked(*row) for row in json.loads(stacks or "[]"))
        # Of a queue that is new nothing is known yet: a claim will tell.
        is_there = bool(is_ready) or not set(queues).issuperset(names)
        opening = Opening(is_open=False, opens_at=None)
        if gated is not None and not is_there and demand.limit:
            opening = self._opening(json.loads(gated), tasks, now)
        is_there |= opening.is_open
        return Look(is_there, due_at, now, names, stops, asked, opening.opens_at, opening.goes_on)

    def _opening(self, queues: Sequence[str], tasks: Sequence[str], now: int) -> Opening:
        """Whether limits and keys let a claim from one of these queues find something. It passes over closed keys by
        reads, step by step: a claim that did so would keep all other writers from a file that has only one."""
        opens_at: list[int] = []

        def look(tx: Session) -> Opening:
            hops, goes_on = self._turns.begin(), False
            for queue in queues:
                found = Gate(tx, self._turns, hops, queue, tasks).look(now)
                if found.is_open:
                    return found
                if found.opens_at is not None:
                    opens_at.append(found.opens_at)
                goes_on |= found.goes_on
            return Opening(is_open=False, opens_at=None, goes_on=goes_on)

        found = self._db.read(look)
        for _ in range(_LOOK_STEPS):
            if not found.goes_on:
                break
            found = self._db.read(look)
        return found._replace(opens_at=min(opens_at, default=None))


def _count_followers(tx: Session, worker_id: str, followers: Followers) -> set[str]:
    """From now on limits count these. Returns the jobs whose followers could not be counted, since another
    transaction has locked their rows. These must not end yet: their places would be free for others."""
    pairs = [list(pair) for pair in followers.values()]
    tx.later("follower_hold", worker_id=worker_id, pairs=pairs)
    uncounted = {row[0] for row in tx.rows("follower_unheld", worker_id=worker_id, pairs=pairs)}
    return {ended for ended, (follower, _) in followers.items() if follower in uncounted}


def _free(settlements: Sequence[Settlement], unkept: Notes) -> Sequence[Settlement]:
    """Those whose bodies have nothing left to say: a job that has failed takes no last words any more, and the
    transaction that has its row now may release it before the next statement."""
    waiting = unkept.ids
    return [s for s in settlements if s.id not in waiting] if waiting else settlements


def settle(tx: Session, endings: Sequence[SettlementRow]) -> Later[list[SettledRow]]:
    """Ends attempts by their claims. Those that have begun nothing give back what they have spent of rates, if it was
    this transaction that ended them."""
    unspent = {each.settlement.id: each.settlement.unspent for each in endings if each.settlement.unspent}
    if not unspent:
        return tx.settle(endings)
    began: dict[str, int] = dict(tx.rows("starts_began", ids=list(unspent)))
    written = tx.settle(endings)()
    back = Counter((*rate, began[row.id]) for row in written for rate in unspent.get(row.id, ()))
    starts = [(*what, n) for what, n in sorted(back.items())]  # in the order in which claims add to them
    lowered = tx.each("starts_lower", starts)
    tx.each("starts_remove", [each for each, was_lowered in zip(starts, lowered, strict=True) if not was_lowered])
    return lambda: written


def trim_attempts(tx: Session, settlements: Sequence[Settlement]) -> None:
    many = [s.id for s in settlements if s.claim > ATTEMPTS_KEPT and s.outcome is not None]
    if many:
        tx.later("attempt_trim", ids=many, keep=ATTEMPTS_KEPT)


def _add_steps(tx: Session, job_id: str, new: Sequence[NewJob]) -> bool:
    """Writes the steps that a job has added, in the transaction that ends it, once it has ended there.

    A cancel of the workflow meanwhile counts for them too. True: they were cancelled, which is to be passed on.
    """
    if not new:
        return False
    insert(tx, new)
    if not tx.rows("cancel_requested", id=job_id):
        return False
    ids = [job.id for job in new]
    tx.rows("job_cancel", ids=ids)
    tx.run("fanout_mark", ids=ids)
    return True


def endings(db: Database, worker_id: str, settlements: Sequence[Settlement]) -> list[SettlementRow]:
    """Settlements as the statements take them."""
    steady = db.clock.steady()
    return [SettlementRow(s, worker_id, steady - s.started, steady - s.finished) for s in settlements]


def holdings(tx: Session, ids: Sequence[str]) -> list[Holding]:
    return [Holding(*row) for row in tx.rows("settle_found", ids=list(ids))]


def _recorded(tx: Session, ids: Sequence[str], worker_id: str) -> set[tuple[str, int]]:
    """(id, claim) of the attempts at these jobs that a worker has ended itself."""
    return {(job_id, claim) for job_id, claim in tx.rows("settle_recorded", ids=list(ids), worker_id=worker_id)}
