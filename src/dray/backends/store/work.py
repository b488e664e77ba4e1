"""Jobs in a worker's hands: claimed, reported on, ended. Every write carries the claim."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence
from typing import NamedTuple

from dray.backends import rows
from dray.backends.database import Database, Later, Row, Session
from dray.backends.errors import DataRefused
from dray.backends.store import graph
from dray.backends.store.stacks import Asked
from dray.model.job import FINAL, Claim, Demand, Held, LogLine, State
from dray.model.limits import ATTEMPTS_KEPT, LOG_LINES, PROMOTE_CHUNK
from dray.model.settlement import Settled, Settlement, unstorable

log = logging.getLogger("dray")


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


class Exchange(NamedTuple):
    """What one transaction of a worker brought."""

    settled: Settled
    promoted: list[str]  # the queues that got jobs whose time had come, one entry a job
    claims: list[Claim]
    has_more_children: bool = False  # than were told of the end of their parents: go on with `job_fan_out`
    late: Notes = SILENCE  # what somebody's open transaction kept from being written: for the next time


class Look(NamedTuple):
    """What a worker should know before it takes the write lock."""

    is_ready: bool  # something it could claim is there
    due_at: int | None  # when the earliest scheduled job is due
    now: int  # by the database's clock
    queues: list[str]  # those that have anything ready; only where all are served
    cancels: list[Held]  # what it runs and was asked to stop
    asked: tuple[Asked, ...] = ()  # of which bodies somebody wants to know where they are


NOTHING = Demand((), (), 0)
_HEARD = {State.RUNNING, State.COMPLETED}  # the states in which a job takes notes


def _none() -> list[Row]:
    return []


def exchange(
    db: Database,
    worker_id: str,
    settlements: Sequence[Settlement],
    demand: Demand,
    notes: Notes = SILENCE,
    *,
    durable: bool = False,
) -> Exchange:
    refused: list[str] = []
    try:
        turn = _transact(db, worker_id, settlements, demand, notes, durable=durable)
        written = turn.written
    except DataRefused:
        # One after the other: what a body said must not cost an outcome, nor a bad outcome what others said.
        unkept = _keep_apart(db, worker_id, notes, durable=durable)
        written = _settle_apart(db, worker_id, _free(settlements, unkept), refused, durable=durable)
        turn = _transact(db, worker_id, (), demand, durable=durable)._replace(unkept=unkept)
    has_children = turn.expired or any(fanout_pending for _, _, fanout_pending in written)
    has_more = bool(has_children and graph.fan_out_all(db))
    settled = judge(db, worker_id, settlements, written, refused, {claim.id for claim in turn.claims})
    return Exchange(settled, turn.promoted, turn.claims, has_more, _late(db, worker_id, turn.unkept))


class _Turn(NamedTuple):
    """What one transaction did."""

    unkept: Notes
    written: list[Row]
    expired: list[Row]
    promoted: list[str]
    claims: list[Claim]


def _transact(
    db: Database,
    worker_id: str,
    settlements: Sequence[Settlement],
    demand: Demand,
    notes: Notes = SILENCE,
    *,
    durable: bool,
) -> _Turn:
    def work(tx: Session) -> Later[_Turn]:
        tx.begin_work(demand.queues, durable=durable)
        unkept = keep_notes(db, tx, worker_id, notes)
        free = _free(settlements, unkept)
        written = tx.settle(settle_rows(db, worker_id, free)) if free else _none
        trim_attempts(tx, free)
        if not demand.limit + demand.ahead:
            return lambda: _Turn(unkept, written(), [], [], [])
        expired, promoted = tx.tend(PROMOTE_CHUNK)
        claimed = tx.claim(worker_id, demand)
        return lambda: _Turn(
            unkept, written(), expired(), [row[0] for row in promoted()], _in_order(demand, claimed())
        )

    return db.exchange(work, durable=durable)


def _free(settlements: Sequence[Settlement], unkept: Notes) -> Sequence[Settlement]:
    """Those whose bodies have nothing left to say: a job that has failed takes no last words any more, and whoever
    has its row now may let it go before the next statement."""
    waiting = unkept.ids
    return [s for s in settlements if s.id not in waiting] if waiting else settlements


def _late(db: Database, worker_id: str, unkept: Notes) -> Notes:
    """Of notes that were not written, those whose claims still hold: the others are nobody's any more."""
    ids = sorted(unkept.ids)
    if not ids:
        return SILENCE
    found = db.read(lambda tx: tx.rows("settle_found", ids=ids))
    held = {(i, claim) for i, state, claim, holder in found if holder == worker_id and state in _HEARD}
    return Notes(
        [line for line in unkept.lines if (line.job_id, line.claim) in held],
        [report for report in unkept.reports if (report.id, report.claim) in held],
    )


def _in_order(demand: Demand, claimed: list[Row]) -> list[Claim]:
    """RETURNING has an order of its own; bodies start in the order of the queues."""
    place = {queue: n for n, queue in enumerate(demand.queues)}
    claims = [Claim(*row) for row in claimed]
    claims.sort(key=lambda c: (place[c.queue], -c.priority, c.run_at, c.id))
    return claims


def trim_attempts(tx: Session, settlements: Sequence[Settlement]) -> None:
    many = [s.id for s in settlements if s.claim > ATTEMPTS_KEPT and s.outcome is not None]
    if many:
        tx.later("attempt_trim", ids=many, keep=ATTEMPTS_KEPT)


def settle_rows(
    db: Database, worker_id: str, settlements: Sequence[Settlement], *, by_rescuer: bool = False
) -> list[Row]:
    """Settlements as the statements take them: readings of the steady clock become ages.

    A rescuer cannot know when the attempt started: the row's own time stays.
    """
    steady = db.clock.steady()
    return [
        (
            s.id,
            worker_id,
            s.claim,
            s.state,
            s.state in FINAL,
            s.reason,
            s.delay_us,
            int(s.gives_back),
            int(s.counts_crash),
            s.result,
            s.drops_args,
            s.error,
            None if by_rescuer else steady - s.started,
            steady - s.finished,
            s.outcome,
            s.error_type,
            s.error_message,
            s.traceback,
            s.keeps_error,
        )
        for s in settlements
    ]


def _keep_apart(db: Database, worker_id: str, notes: Notes, *, durable: bool) -> Notes:
    """Writes notes by themselves; those that the database refuses are dropped. Tried again, they would be refused for
    ever, and the worker would do nothing else."""
    try:
        return _transact(db, worker_id, (), NOTHING, notes, durable=durable).unkept
    except DataRefused as error:
        log.warning("log lines and progress of %s cannot be kept: %s", ", ".join(sorted(notes.ids)), error)
        return SILENCE


def _settle_apart(
    db: Database, worker_id: str, settlements: Sequence[Settlement], refused: list[str], *, durable: bool
) -> list[Row]:
    """Halves a batch that the database refuses until the bad outcome is alone; that one is written as failed."""
    try:
        return _transact(db, worker_id, settlements, NOTHING, durable=durable).written
    except DataRefused as error:
        if len(settlements) == 1:
            bad = unstorable(settlements[0], str(error))
            written = _transact(db, worker_id, [bad], NOTHING, durable=durable).written
            refused += [row[0] for row in written]
            return written
    middle = len(settlements) // 2
    return [
        row
        for half in (settlements[:middle], settlements[middle:])
        for row in _settle_apart(db, worker_id, half, refused, durable=durable)
    ]


def judge(
    db: Database,
    worker_id: str,
    settlements: Sequence[Settlement],
    written: list[Row],
    refused: list[str],
    claimed: Collection[str] = (),
) -> Settled:
    """Sorts the outcomes that were not written: lost, there already, or only locked for the moment.

    `claimed`: jobs that were claimed in the same transaction, so nothing of them ran before. A job that was deleted
    and enqueued again under its id counts its claims from one: an older outcome would look like one of the new claim.
    """
    states = {row[0]: row[1] for row in written}
    cancelled = [s.id for s in settlements if s.state not in FINAL and states.get(s.id) == State.CANCELLED]
    missing = [s for s in settlements if s.id not in states]
    settled = Settled([], [], [], refused, cancelled)
    if not missing:
        return settled
    ids = [s.id for s in missing]
    found, recorded = db.read(
        lambda tx: (tx.rows("settle_found", ids=ids), tx.rows("settle_recorded", ids=ids, worker_id=worker_id))
    )
    rows_by_id = {row[0]: row for row in found}
    for s in missing:
        _, state, claim, holder = rows_by_id.get(s.id, (s.id, None, None, None))
        held = (holder, claim) == (worker_id, s.claim)
        if s.id in claimed:
            settled.stale.append(s.id)
        elif held and state == State.RUNNING:
            settled.locked.append(s.id)
        elif (held and state == State.COMPLETED) or (s.id, s.claim) in recorded:  # maybe claimed again since
            settled.already.append(s.id)
        else:
            settled.stale.append(s.id)
    return settled


def completed_by(db: Database, worker_id: str, claims: Sequence[tuple[str, int]]) -> set[str]:
    ids = [job_id for job_id, _ in claims]
    found, recorded = db.read(
        lambda tx: (tx.rows("settle_found", ids=ids), tx.rows("settle_recorded", ids=ids, worker_id=worker_id))
    )
    ended = {(i, claim) for i, state, claim, holder in found if holder == worker_id and state == State.COMPLETED}
    return {job_id for job_id, claim in claims if (job_id, claim) in ended.union(recorded)}


def report_progress(
    db: Database, worker_id: str, reports: Sequence[tuple[str, int, float | None, str | None]]
) -> list[bool]:
    return db.write(lambda tx: _keep_reports(tx, worker_id, reports), durable=False)


def _keep_reports(
    tx: Session, worker_id: str, reports: Sequence[tuple[str, int, float | None, str | None]]
) -> list[bool]:
    given = [(i, worker_id, claim, percent, message) for i, claim, percent, message in reports]
    return tx.each("progress_set", given) if given else []


def write_logs(db: Database, worker_id: str, lines: Sequence[LogLine]) -> list[bool]:
    return db.write(lambda tx: _keep_lines(db, tx, worker_id, lines), durable=False)


def _keep_lines(db: Database, tx: Session, worker_id: str, lines: Sequence[LogLine]) -> list[bool]:
    if not lines:
        return []
    steady = db.clock.steady()
    given = [
        (line.job_id, worker_id, line.claim, steady - line.at, line.level, line.logger, line.message)
        for line in lines
    ]
    written = tx.each("log_insert", given)
    for job_id in {line.job_id for line, is_written in zip(lines, written, strict=True) if is_written}:
        tx.run("log_trim", id=job_id, keep=LOG_LINES)
    return written


def keep_notes(db: Database, tx: Session, worker_id: str, notes: Notes) -> Notes:
    """Writes what bodies had to say, in an open transaction, and waits for nobody; answers what was not written: its
    claim is lost, or somebody else has the row."""
    lines = _keep_lines(db, tx, worker_id, notes.lines)
    reports = _keep_reports(tx, worker_id, notes.reports)
    return Notes(
        [line for line, is_written in zip(notes.lines, lines, strict=True) if not is_written],
        [report for report, is_written in zip(notes.reports, reports, strict=True) if not is_written],
    )


def look(db: Database, worker_id: str, demand: Demand, *, serves_all: bool) -> Look:
    queues, tasks = list(demand.queues), list(demand.tasks)
    given = {"id": worker_id, "queues": queues, "tasks": tasks, "limit": demand.limit, "all": serves_all}
    is_ready, due_at, now, found, cancels, stacks = db.glance("job_look", **given)[0]
    names: list[str] = json.loads(found or "[]")
    stops = [Held(i, claim, cancel_requested=True) for i, claim in json.loads(cancels or "[]")]
    asked = tuple(Asked(*row) for row in json.loads(stacks or "[]"))
    # Of a queue that is new nothing is known yet: a claim will tell.
    return Look(bool(is_ready) or not set(queues).issuperset(names), due_at, now, names, stops, asked)


def probe(db: Database, demand: Demand) -> bool:
    return db.read(lambda tx: tx.ready(demand))()


def list_logs(db: Database, job_id: str, after: int, limit: int) -> list[tuple[int, LogLine]]:
    found = db.read(lambda tx: tx.rows("log_list", id=job_id, after=after, limit=limit))
    return [(row[0], rows.log_line(row[1:])) for row in found]
