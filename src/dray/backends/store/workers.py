"""Workers and their proof of life, the jobs of dead ones, and who does which duty."""

from __future__ import annotations

import json
from collections.abc import Sequence

from dray.backends import rows
from dray.backends.database import Database, Row, Session
from dray.backends.proof import are_comparable
from dray.backends.store import graph, outcomes, repeated
from dray.backends.store.life import Life, lives
from dray.backends.store.work import settle_rows
from dray.clock import UNKNOWN_BOOT
from dray.model.job import Held
from dray.model.limits import ATTEMPTS_KEPT
from dray.model.settlement import Rng, crashed
from dray.model.worker import Beat, Judgement, Lease, NewWorker, Rescued, Signs, Verdict, Worker


def register(db: Database, worker: NewWorker, lease_us: int) -> None:
    def work(tx: Session) -> None:
        if worker.queues:
            tx.run("queue_add", names=sorted(worker.queues))
        tx.run(
            "worker_register",
            id=worker.id,
            name=worker.name,
            host=worker.host,
            pid=worker.pid,
            boot=worker.boot,
            lock=worker.lock,
            queues=json.dumps(worker.queues),
            tasks=json.dumps(worker.tasks),
            concurrency=worker.concurrency,
            lease_us=lease_us,
        )

    db.write(work)


def beat(db: Database, worker_id: str, lease_us: int, state: str, trouble: str | None, *, durable: bool) -> Beat:
    def work(tx: Session) -> Beat:
        alive = tx.run("worker_beat", id=worker_id, lease_us=lease_us, state=state, trouble=trouble) > 0
        held = [Held(i, claim, bool(asked)) for i, claim, asked in tx.rows("worker_held", id=worker_id)]
        return Beat(alive, held)

    return db.write(work, durable=durable)


def deregister(db: Database, worker_id: str) -> bool:
    def work(tx: Session) -> bool:
        tx.run("lease_resign_all", holder=worker_id)
        return tx.run("worker_stop", id=worker_id) > 0

    return repeated.write(db, work)


def list_workers(db: Database, limit: int) -> list[Worker]:
    return [rows.worker(row) for row in db.read(lambda tx: tx.rows("worker_list", limit=limit))]


def gone_workers(db: Database) -> set[str]:
    known = db.read(lambda tx: lives(db, tx))
    return {worker_id for worker_id, life in known.items() if life is Life.GONE}


def judge(db: Database, asker: str | None) -> Judgement:
    def work(tx: Session) -> tuple[list[Signs], dict[str, bool], Row]:
        found, orphans = tx.later("worker_live"), tx.later("rescue_look")
        live = [Signs(*row) for row in found()]
        return live, db.proofs.witness(tx, live), orphans()[0]

    live, proven, (has_orphans, clock_at) = db.read(work)
    db.proofs.sweep({worker.id for worker in live})
    left_us = next((worker.left_us for worker in live if worker.id == asker), None)
    judgement = Judgement([], [], [], left_us, bool(has_orphans), clock_at)
    for worker in live:
        verdict = Verdict(worker.id, worker.lease_until)
        if worker.id == asker or proven.get(worker.id) is True:
            continue
        if worker.id in proven:
            judgement.dead.append(verdict)
        elif not are_comparable(db.boot, worker.boot) or (db.boot is None and worker.unseen_us < 0):
            judgement.strangers.append(verdict)
        elif worker.left_us < 0:
            judgement.overdue.append(verdict)
    return judgement


def overdue(db: Database) -> list[Verdict]:
    if db.boot == UNKNOWN_BOOT:
        return []
    return [Verdict(*row) for row in db.read(lambda tx: tx.rows("worker_overdue", boot=db.boot))]


def rescue(db: Database, verdicts: Sequence[Verdict], limit: int, rng: Rng) -> list[Rescued]:
    buried: set[str] = set()  # by any try: what is forgotten below is only what proves nothing any more
    left: list[tuple[Row, outcomes.Left]] = []

    def work(tx: Session) -> list[Rescued]:
        buried.update(v.worker_id for v, done in zip(verdicts, tx.bury(verdicts), strict=True) if done)
        picked = _orphans(tx, limit)
        ended = outcomes.find(db, tx, [row[0] for row in picked])
        left[:] = [(row, ended[row[0], row[1]]) for row in picked if (row[0], row[1]) in ended]
        orphans = [row for row in picked if (row[0], row[1]) not in ended]
        given = [row for orphan in orphans for row in _taken_back(db, orphan, rng)]
        written = tx.settle(given)() if given else []
        tx.run("attempt_trim", ids=[i for i, *_ in written], keep=ATTEMPTS_KEPT)
        taken = {row[0]: row for row in orphans}
        return [Rescued(i, taken[i][1], taken[i][2], state, taken[i][7]) for i, state, _ in written]

    rescued = repeated.write(db, work)
    db.proofs.forget(buried)
    rescued += [
        Rescued(row[0], row[1], row[2], state, row[7], had_ended=True)
        for row, each in left
        if (state := outcomes.write(db, each)) is not None
    ]
    if left:
        db.write(outcomes.forget, durable=False)
    if rescued:
        graph.fan_out_all(db)  # what is more is for the worker with that duty: the next rescue does not wait for it
    return rescued


def _orphans(tx: Session, limit: int) -> list[Row]:
    """Locks running jobs whose worker is gone, and looks again: none is taken out of a live worker's hands."""
    picked = tx.rows("rescue_pick", limit=limit)
    if not picked:
        return []
    spared = {row[0] for row in tx.rows("rescue_spare", ids=sorted({row[2] for row in picked}))}
    return [row for row in picked if row[2] not in spared]


def _taken_back(db: Database, orphan: Row, rng: Rng) -> list[Row]:
    job_id, claim, worker_id, attempt, max_attempts, crashes, max_crashes, _ = orphan
    settlement = crashed(
        job_id,
        claim,
        worker_id,
        attempts_left=max_attempts - attempt,
        crashes_left=max_crashes - crashes - 1,
        crashes=crashes + 1,
        rng=rng,
        at=db.clock.steady(),
    )
    return settle_rows(db, worker_id, [settlement], by_rescuer=True)


def prune(db: Database, before: int, limit: int) -> int:
    def work(tx: Session) -> int:
        outcomes.forget(tx)
        return len(tx.rows("worker_prune", before=before, limit=limit))

    return db.write(work, durable=False)


def take_lease(db: Database, duty: str, holder: str) -> int | None:
    found = db.write(lambda tx: tx.rows("lease_take", duty=duty, holder=holder), durable=False)
    return found[0][0] if found else None


def renew_lease(db: Database, duty: str, holder: str, term: int) -> bool:
    return bool(db.read(lambda tx: tx.rows("lease_renew", duty=duty, holder=holder, term=term))[0][0])


def resign_lease(db: Database, duty: str, holder: str, term: int) -> bool:
    given = {"duty": duty, "holder": holder, "term": term}
    return repeated.write(db, lambda tx: tx.run("lease_resign", **given), durable=False) > 0


def held_leases(db: Database) -> list[Lease]:
    return [Lease(*row) for row in db.read(lambda tx: tx.rows("lease_held"))]


def list_leases(db: Database) -> list[Lease]:
    return [Lease(*row) for row in db.read(lambda tx: tx.rows("lease_list"))]
