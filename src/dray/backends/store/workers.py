"""Workers and their proof of life, the jobs of dead ones, and who does which duty."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from dray.backends import rows
from dray.backends.database import Row, Session, write_and_recall
from dray.backends.migrate import newest
from dray.backends.rows import Orphan, SettlementRow
from dray.backends.store import Store
from dray.backends.store.graph import GraphStore
from dray.backends.store.liveness import Evidence, Life, Liveness, liveness, lives
from dray.backends.store.outcomes import Left, OutcomeStore
from dray.model.bounds import ATTEMPTS_KEPT, PRUNE_CHUNK
from dray.model.job import Held
from dray.model.settlement import Rng, crashed
from dray.model.worker import Beat, DeathVerdict, Judgement, Lease, NewWorker, Rescued, Worker


class WorkerStore(Store):
    def register(self, worker: NewWorker, lease_us: int) -> None:
        """Adds a worker with its first lease. Its id must never have been used."""

        def work(tx: Session) -> None:
            if worker.queues:
                tx.run("queue_add", names=sorted(worker.queues))
            served = {"queues": json.dumps(worker.queues), "tasks": json.dumps(worker.tasks)}
            tx.run("worker_register", **asdict(worker) | served, lease_us=lease_us, knows=newest())

        self._db.write(work)

    def beat(
        self,
        worker_id: str,
        lease_us: int,
        state: str = "active",
        *,
        trouble: str | None = None,
        durable: bool = False,
    ) -> Beat:
        """Renews the lease and returns what the worker has running. Not alive: it was declared dead.

        `trouble`: what keeps it from working, in its own words.
        """

        def work(tx: Session) -> Beat:
            alive = tx.run("worker_beat", id=worker_id, lease_us=lease_us, state=state, trouble=trouble) > 0
            held = [Held(i, claim, bool(asked)) for i, claim, asked in tx.rows("worker_held", id=worker_id)]
            return Beat(alive, held)

        return self._db.write(work, durable=durable)

    def deregister(self, worker_id: str) -> bool:
        """The worker leaves; its duties are free. False: it was declared dead before."""

        def work(tx: Session) -> bool:
            tx.run("lease_resign_all", holder=worker_id)
            return tx.run("worker_stop", id=worker_id) > 0

        return write_and_recall(self._db, work)

    def all(self, limit: int = 1000) -> list[Worker]:
        """Live workers first, then those that ended."""
        return [rows.worker(row) for row in self._read("worker_list", limit=limit)]

    def gone(self) -> set[str]:
        """Workers whose rows say that they live, and which do not: no rescuer has declared them dead yet."""
        known = self._db.read(lambda tx: lives(self._db, tx))
        return {worker_id for worker_id, life in known.items() if life is Life.GONE}

    def judge(self, asker: str | None = None) -> Judgement:
        """Who else may be dead, by proofs and leases; how much of the asker's own lease is left; whether jobs are in
        the hands of workers that are gone."""

        def work(tx: Session) -> tuple[list[Liveness], Row]:
            live, orphans = tx.later("worker_live"), tx.later("rescue_look")
            return liveness(self._db, tx, live(), asker), orphans()[0]

        found, (has_orphans, clock_at) = self._db.read(work)
        self._db.proofs.sweep({each.signs.id for each in found})
        left_us = next((each.signs.left_us for each in found if each.signs.id == asker), None)
        judgement = Judgement([], [], [], left_us, bool(has_orphans), clock_at)
        for each in found:
            signs, evidence = each.signs, each.evidence
            verdict = DeathVerdict(signs.id, signs.lease_until)
            if signs.id == asker or evidence is Evidence.PROVEN_ALIVE:
                continue
            if evidence is Evidence.PROVEN_DEAD:
                judgement.dead.append(verdict)
            elif evidence is Evidence.NONE or (self._db.boot is None and signs.unseen_us < 0):
                judgement.strangers.append(verdict)
            elif evidence is Evidence.LEASE_OVER:
                judgement.overdue.append(verdict)
        return judgement

    def rescue(self, verdicts: Sequence[DeathVerdict], *, rng: Rng, limit: int = 1000) -> list[Rescued]:
        """Declares workers dead and takes back the jobs of all that are dead, stopped or unknown.

        A worker that renewed its lease after the verdict, or proves to be alive, is left alone. The attempt
        stays counted, the crash is counted, and the job runs again after a moment or ends as failed(crashed);
        where a cancel was requested it ends as cancelled(user). Needs no job code; safe to run twice, anywhere.
        Takes and returns jobs in the order of their workers and ids.
        """
        buried: set[str] = set()  # by any try: what is forgotten below is only what proves nothing any more
        left: list[tuple[Orphan, Left]] = []
        outcomes = OutcomeStore(self._db)

        def work(tx: Session) -> list[Rescued]:
            buried.update(v.worker_id for v, done in zip(verdicts, tx.bury(verdicts), strict=True) if done)
            picked = _orphans(tx, limit)
            ended = outcomes.find(tx, [orphan.id for orphan in picked])
            left[:] = [(orphan, ended[orphan.fence]) for orphan in picked if orphan.fence in ended]
            orphans = {orphan.id: orphan for orphan in picked if orphan.fence not in ended}
            given = [self._taken_back(orphan, rng) for orphan in orphans.values()]
            written = tx.settle(given)() if given else []
            tx.run("attempt_trim", ids=[each.id for each in written], keep=ATTEMPTS_KEPT)
            states = {each.id: each.state for each in written}
            return [_rescued(orphan, states[job_id]) for job_id, orphan in orphans.items() if job_id in states]

        rescued = write_and_recall(self._db, work)
        self._db.proofs.forget(buried)
        rescued += [
            _rescued(orphan, state, had_ended=True)
            for orphan, each in left
            if (state := outcomes.write(each)) is not None
        ]
        if left:
            self._db.write(lambda tx: tx.run("outcome_forget"), durable=False)
        if rescued:
            # What is more is for the worker with that duty: the next rescue does not wait for it.
            GraphStore(self._db).fan_out_all()
        return rescued

    def _taken_back(self, orphan: Orphan, rng: Rng) -> SettlementRow:
        settlement = crashed(
            orphan.id,
            orphan.claim,
            orphan.worker_id,
            task=orphan.task,
            attempts_left=orphan.max_attempts - orphan.attempt,
            crashes_left=orphan.max_crashes - orphan.crashes - 1,
            crashes=orphan.crashes + 1,
            rng=rng,
            at=self._db.clock.steady(),
        )
        return SettlementRow(settlement, orphan.worker_id, None, 0)  # nothing here tells when the attempt started

    def prune(self, before: int, limit: int = PRUNE_CHUNK) -> int:
        """Forgets at most `limit` workers that ended before an instant."""

        def work(tx: Session) -> int:
            tx.run("outcome_forget")
            return len(tx.rows("worker_prune", before=before, limit=limit))

        return self._db.write(work, durable=False)


class LeaseStore(Store):
    def take(self, duty: str, holder: str) -> int | None:
        """The term, if the duty was free (never held, resigned, its holder gone: a new one) or is held already."""
        found = self._db.write(lambda tx: tx.rows("lease_take", duty=duty, holder=holder), durable=False)
        return found[0][0] if found else None

    def resign(self, duty: str, holder: str, term: int) -> bool:
        """Gives the duty back. False: another worker has it."""
        given = {"duty": duty, "holder": holder, "term": term}
        return write_and_recall(self._db, lambda tx: tx.run("lease_resign", **given), durable=False) > 0

    def held(self) -> list[Lease]:
        """The duties that a live worker has; all others are free."""
        return [Lease(*row) for row in self._db.glance("lease_held")]

    def all(self) -> list[Lease]:
        return [Lease(*row) for row in self._read("lease_list")]


def _orphans(tx: Session, limit: int) -> list[Orphan]:
    """Locks running jobs whose worker is gone, and looks again: none is taken out of a live worker's hands."""
    picked = [Orphan(*row) for row in tx.rows("rescue_pick", limit=limit)]
    if not picked:
        return []
    spared = {row[0] for row in tx.rows("rescue_spare", ids=sorted({orphan.worker_id for orphan in picked}))}
    return [orphan for orphan in picked if orphan.worker_id not in spared]


def _rescued(orphan: Orphan, state: str, *, had_ended: bool = False) -> Rescued:
    return Rescued(orphan.id, orphan.claim, orphan.worker_id, state, orphan.queue, had_ended)
