"""The storage contract: every verb, what is atomic in it, what it answers, what no rows mean.

Verbs are noun-first and take batches; one job is a batch of one. They decide nothing: next states, delays and
cut-offs come from `model/`. Each is one transaction unless it says otherwise, safe to repeat after a lost
answer, and the same on every database. Where the backend repeats one itself, on a server whose answer was lost, it
tells of both tries together. The parts below (`store/`) hold one noun each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dray.backends import store
from dray.backends.store.jobs import LAST_ID
from dray.backends.store.work import NOTHING, SILENCE
from dray.model.limits import FANOUT_CHUNK, PROMOTE_CHUNK, PRUNE_CHUNK

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from dray.backends.copier import Copier
    from dray.backends.database import Database
    from dray.backends.proof import Proof
    from dray.backends.store.audit import Part, Whole
    from dray.backends.store.doctor import Examination
    from dray.backends.store.graph import FanOut, Reconciled
    from dray.backends.store.history import Stats
    from dray.backends.store.jobs import Ended, Filter, Upcoming
    from dray.backends.store.live import Ask, Changes, Numbers, Panels
    from dray.backends.store.outcomes import Unwritten
    from dray.backends.store.prune import Pruned
    from dray.backends.store.transfer import Transfer
    from dray.backends.store.work import Exchange, Look, Notes
    from dray.backends.store.workflows import Node
    from dray.backends.upkeep import Checkpoint, LogFile
    from dray.backends.watch import Watch
    from dray.model.circumstances import Circumstances
    from dray.model.job import Attempt, CancelResult, Claim, Demand, Enqueued, Job, LogLine, Queue
    from dray.model.new_job import NewJob
    from dray.model.retention import Retention
    from dray.model.schedule import Schedule
    from dray.model.settlement import Rng, Settled, Settlement
    from dray.model.worker import Beat, Judgement, Lease, NewWorker, Rescued, Verdict, Worker
    from dray.model.workflow import Workflow


class Backend:
    """All that Dray does to a database."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self._known_queues: set[str] = set()

    # Life cycle

    def migrate(self) -> int:
        """Creates or upgrades the tables under a lock; returns their version. Any number may run at once."""
        return self.db.migrate()

    def schema_version(self) -> int | None:
        """The version of the tables; None: there are none."""
        return self.db.version()

    def now(self) -> int:
        """The database's time: the server's where there is one, this machine's otherwise."""
        return self.db.now()

    def examine(self, seconds: float = 1.0) -> Examination:
        """For a look at a database in whatever state; it changes nothing. Each question may take so many seconds."""
        return store.doctor.Examination(self.db, seconds)

    @property
    def transfer(self) -> Transfer:
        """This database as one side of a move into another."""
        return store.transfer.Transfer(self.db)

    def watch(
        self, *, hears_work: bool = True, hears_done: bool = True, queues: Collection[str] | None = None
    ) -> Watch:
        """A new watch on this database, whose tables must be there; look once after making it.

        It need not tell of jobs that are ready, of jobs that have ended, or of other queues than these; where every
        commit wakes, it does.
        """
        return self.db.watch(hears_work=hears_work, hears_done=hears_done, queues=queues)

    def announce(self, queues: Iterable[str]) -> None:
        """Tells other processes' watches that jobs of these queues are ready, where the commit does not tell."""
        self.db.announce(queues)

    def announce_done(self) -> None:
        """Tells other processes' watches that jobs have ended, where the commit does not tell."""
        self.db.announce_done()

    @property
    def copier(self) -> Copier:
        """Makes copies of the whole as it is at one moment, while others write."""
        return self.db.copier

    def close(self) -> None:
        """Closes this process's connections. Nothing is lost: there is no buffer."""
        self.db.close()

    # Jobs, as producers and operators see them

    def job_enqueue(
        self,
        new: Sequence[NewJob],
        *,
        workflow: Workflow | None = None,
        connection: Any = None,
        durable: bool = True,
    ) -> list[Enqueued]:
        """Writes jobs, their edges and their workflow, all or nothing; on disk when it returns, if durable.

        A job whose id is there already is this same enqueue repeated, and counts as written. One whose unique
        key is held is not written: the answer is the holder's id, marked duplicate. A holder that has not started
        takes over, if `on_conflict` says so, the request's arguments or its time, and the answer is marked replaced
        too. Parents must exist, here or in the batch; those already ended count at once. With `connection`
        everything happens in that connection's transaction and stands or falls with it.
        """
        return store.jobs.enqueue(self.db, self._known_queues, new, workflow, connection, durable=durable)

    async def job_enqueue_async(
        self,
        new: Sequence[NewJob],
        *,
        workflow: Workflow | None = None,
        connection: Any = None,
        durable: bool = True,
    ) -> list[Enqueued]:
        """As `job_enqueue`, without blocking the event loop; takes asynchronous connections too.

        A synchronous connection is used in the calling thread. Cancelled, it wrote all or nothing.
        """
        if connection is None:
            import asyncio  # noqa: PLC0415 - 40 ms for those who do not have it loaded

            return await asyncio.to_thread(self.job_enqueue, new, workflow=workflow, durable=durable)
        return await store.jobs.enqueue_async(self.db, new, workflow, connection)

    def job_get(self, ids: Sequence[str]) -> list[Job]:
        """The jobs that exist among these ids, oldest first."""
        return store.jobs.get(self.db, ids)

    def job_find(self, part: str, limit: int = 10) -> list[str]:
        """The ids that contain a part (lower case), newest first. Reads every id: for people, not for loops."""
        return store.jobs.find(self.db, part, limit)

    def job_ended(self, ids: Sequence[str]) -> Ended:
        """The jobs that have ended among these ids, and the ids that do not exist. Cheap where there are none."""
        return store.jobs.ended(self.db, ids)

    def job_circumstances(self, job_id: str) -> Circumstances | None:
        """One job with its queue, parents, the workers there are and what comes before it; None: there is none."""
        return store.circumstances.get(self.db, job_id)

    def job_list(self, fit: Filter | None = None, *, limit: int = 100, before: str | None = None) -> list[Job]:
        """Jobs that fit, newest first; go on with `before` = the last id seen."""
        return store.jobs.list_jobs(self.db, fit or store.jobs.Filter(), limit, before)

    def job_cancel(self, ids: Sequence[str]) -> dict[str, CancelResult]:
        """Ends jobs that have not started, notes a request on running ones, leaves ended ones alone."""
        return store.jobs.cancel(self.db, ids)

    def job_retry(self, ids: Sequence[str]) -> list[str]:
        """Starts ended jobs over, attempts and crashes at 0; answers those it did.

        Children cancelled because of them wait again. A completed attempt is kept in the history first. The
        unique lock is not taken again.
        """
        return store.jobs.retry(self.db, ids)

    def job_delete(self, ids: Sequence[str]) -> list[str]:
        """Removes jobs with their history, each whole, in as many short transactions as it takes; answers those it
        did. Never running ones or parents of live ones."""
        return store.jobs.delete(self.db, ids)

    def job_promote(self, limit: int = PROMOTE_CHUNK) -> list[str]:
        """Queues scheduled jobs whose time has come; answers their queues, one entry a job."""
        return store.jobs.promote(self.db, limit)

    def job_next_due(self) -> int | None:
        """When the earliest scheduled job is due."""
        return store.jobs.next_due(self.db)

    def job_upcoming(self) -> Upcoming:
        """What is to be done to jobs that wait for their time or their parents, and when."""
        return store.jobs.upcoming(self.db)

    def job_expire(self, limit: int = PROMOTE_CHUNK) -> list[str]:
        """Cancels, as `expired`, jobs not started in time; answers them. Tells one chunk of their children; the duty
        does the rest."""
        return store.jobs.expire(self.db, limit)

    def job_prune(self, retention: Retention, limit: int = PRUNE_CHUNK) -> int:
        """Removes at most `limit` ended jobs past their retention, as `job_prune_steps` does; how many."""
        return store.prune.prune(self.db, retention, limit)

    def job_prune_steps(self, retention: Retention, limit: int | None = None) -> Iterator[Pruned]:
        """Removes ended jobs past their retention, one transaction a step, bounded in time and in the rows of all
        tables: rest between two, so that others can write. Never one that a live child needs; jobs of a workflow
        only once all of them may go, and while no other transaction has locked one of them to start it over."""
        return store.prune.prune_steps(self.db, retention, limit)

    def job_prunable(self, retention: Retention) -> dict[str, int]:
        """How many jobs `job_prune` would remove now, by state."""
        return store.prune.prunable(self.db, retention)

    def job_stats(self, window_us: int) -> Stats:
        """Counts by queue and state, age of the oldest ready job, throughput and run times in a window."""
        return store.history.stats(self.db, window_us)

    # Jobs in a worker's hands

    def job_exchange(
        self,
        worker_id: str,
        settlements: Sequence[Settlement],
        demand: Demand,
        notes: Notes = SILENCE,
        *,
        durable: bool = False,
    ) -> Exchange:
        """Keeps notes, ends attempts, cancels what expired, queues what is due, and claims, in one transaction.

        Each settlement is written only if (id, worker_id, claim) still holds the running job; see `Settled` for
        the others. An outcome whose data the database refuses does not stop those beside it: it is written as
        failed(result). It waits for nobody's open transaction: notes whose row is held are answered as late, and the
        outcome of their body goes with them, to the next exchange. Children of what ended are freed or cancelled
        after it, the first 250 of them: it says whether there are more. Claims count the attempt. No claims: nothing
        ready, queue paused, or this worker was declared dead.
        """
        return store.work.exchange(self.db, worker_id, settlements, demand, notes, durable=durable)

    def job_claim(self, worker_id: str, demand: Demand) -> list[Claim]:
        """The claiming half of `job_exchange`."""
        return self.job_exchange(worker_id, (), demand).claims

    def job_settle(self, worker_id: str, settlements: Sequence[Settlement], *, durable: bool = False) -> Settled:
        """The settling half of `job_exchange`."""
        return self.job_exchange(worker_id, settlements, NOTHING, durable=durable).settled

    def job_grow(
        self, worker_id: str, settlement: Settlement, new: Sequence[NewJob], *, durable: bool = False
    ) -> Settled:
        """Ends one attempt by its claim and writes the steps it has added to its workflow, in one transaction: where
        the claim is lost, neither. A step that is there under its id already counts as written; one that cannot be
        written raises as `job_enqueue` does, and then the attempt has not ended either."""
        return store.workflows.grow(self.db, worker_id, settlement, new, durable=durable)

    def job_leave(self, worker_id: str, ended: Sequence[Unwritten]) -> None:
        """Leaves how attempts ended, each with the steps it adds, for whoever takes their jobs back: the worker has
        to go, and another transaction has locked the rows. Waits for none of them. `job_rescue` writes it once that
        is over, if the claim still holds; one whose claim is lost is not left."""
        store.outcomes.leave(self.db, worker_id, ended)

    def job_probe(self, demand: Demand) -> bool:
        """Whether anything of a demand is ready, without taking a lock."""
        return store.work.probe(self.db, demand)

    def job_look(self, worker_id: str, demand: Demand, *, serves_all: bool = False) -> Look:
        """What a worker should know before it takes the write lock; takes none itself. Serves all: looks at whatever
        queues have something ready, instead of the demand's."""
        return store.work.look(self.db, worker_id, demand, serves_all=serves_all)

    def job_completed_by(self, worker_id: str, claims: Sequence[tuple[str, int]]) -> set[str]:
        """The jobs among these that the claims (id, claim) of this worker have themselves completed."""
        return store.work.completed_by(self.db, worker_id, claims)

    def job_progress(
        self, worker_id: str, reports: Sequence[tuple[str, int, float | None, str | None]]
    ) -> list[bool]:
        """Notes how far jobs are, as `Report`s; False for each whose claim is lost, or whose row somebody holds."""
        return store.work.report_progress(self.db, worker_id, reports)

    def transaction(self, *, fence: tuple[str, str, int] | None = None) -> store.block.Transaction:
        """A fresh connection of the driver's (sqlite3.Connection, psycopg.Connection) for the body of a job.

        Its transaction is durable, commits at the end of the block and rolls back after an error. With a fence
        (job id, worker id, claim) the block is entered only while that claim holds (else `StaleClaim`). On SQLite it
        holds the write lock; on PostgreSQL the job can be cancelled or taken back meanwhile, and `job_complete` at
        the end tells. After an error of the commit itself only the job's row says whether it happened: settle by the
        same fence.
        """
        return store.block.Transaction(self.db, fence and store.block.Fence(*fence))

    def atransaction(self, *, fence: tuple[str, str, int] | None = None) -> AbstractAsyncContextManager[Any]:
        """As `transaction`, for an event loop: sqlite3.Connection (of the loop's thread), psycopg.AsyncConnection."""
        return store.block.atransaction(self.db, fence and store.block.Fence(*fence))

    def job_complete(
        self,
        worker_id: str,
        settlement: Settlement,
        connection: Any,
        *,
        new: Sequence[NewJob] = (),
    ) -> bool:
        """Ends one attempt, with the steps its body has added to its workflow, in a user's transaction: it counts if
        they commit.

        `StaleClaim`: the claim is lost; nothing was written here, and their transaction must not be committed.
        Answers whether children may wait for the job: after the commit somebody's `job_fan_out` frees them.
        """
        return store.block.complete(self.db, worker_id, settlement, new, connection)

    async def job_complete_async(
        self,
        worker_id: str,
        settlement: Settlement,
        connection: Any,
        *,
        new: Sequence[NewJob] = (),
    ) -> bool:
        """As `job_complete`, for asynchronous connections too; see `job_enqueue_async`."""
        return await store.block.complete_async(self.db, worker_id, settlement, new, connection)

    # History

    def attempt_list(self, job_id: str) -> list[Attempt]:
        """The recorded attempts of a job, oldest first, without a completed one that the job itself shows."""
        return store.history.attempts(self.db, job_id)

    def log_write(self, worker_id: str, lines: Sequence[LogLine]) -> list[bool]:
        """Keeps log lines (`at` read from the steady clock); False for each whose claim is lost, or whose row
        somebody is about to delete. The newest 1,000 a job are kept."""
        return store.work.write_logs(self.db, worker_id, lines)

    def log_list(self, job_id: str, *, after: int = 0, limit: int = 1000) -> list[tuple[int, LogLine]]:
        """(sequence number, line) of a job, oldest first, after a sequence number."""
        return store.work.list_logs(self.db, job_id, after, limit)

    # Live views

    def live_changes(self, ask: Ask) -> Changes:
        """What has happened since the places that somebody has got to, of one moment; see `ops/tail.py` for what that
        finds for certain."""
        return store.live.changes(self.db, ask)

    def live_newest_times(self, limit: int, *, lines: bool) -> list[int]:
        """When the newest events of each kind happened, at most `limit` of each; log lines too, if asked for."""
        return store.live.newest_times(self.db, limit, lines=lines)

    def live_last_line(self, since: int | None = None) -> int:
        """The sequence number of the newest log line, or of the newest that is older than an instant; 0: none."""
        return store.live.last_line(self.db, since)

    def live_panels(self, limit: int) -> Panels:
        """What runs, what failed, workers and queues, at most `limit` of each, at one moment."""
        return store.live.panels(self.db, limit)

    def live_numbers(self, *, since: int, since_id: str, limit: int, newest: int) -> Numbers:
        """How many jobs there are, each count ending at `limit`, and how many of the newest came and ended since an
        instant (and the id of that instant)."""
        return store.live.numbers(self.db, since, since_id, limit, newest)

    # What should never be

    def verify(self, *, full: bool = False) -> list[str]:
        """What is wrong with how the tables are stored, by the database's own checks; full ones read all there is."""
        return self.db.verify(full=full)

    def audit_part(self, after: str | None, limit: int) -> Part:
        """What does not hold of the `limit` jobs after an id and of all that belongs to them, in one consistent read;
        go on after the `until` that it answers. Both are None for the ends."""
        return store.audit.part(self.db, after, limit)

    def audit_whole(self, limit: int) -> Whole:
        """What only all jobs together can show, and what belongs to none; at most `limit` ids of a kind."""
        return store.audit.whole(self.db, limit)

    def audit_orphans(self) -> set[tuple[str, int]]:
        """(id, claim) of running jobs whose worker has ended: they are about to be taken back."""
        return store.audit.orphans(self.db)

    # Queues

    def queue_upsert(self, name: str, priority: int) -> None:
        """Makes a queue, or changes its default priority for jobs to come."""
        store.queues.upsert(self.db, name, priority)

    def queue_pause(self, name: str) -> bool:
        """Once this returns nothing is claimed from the queue. False: it was paused already."""
        return store.queues.pause(self.db, name)

    def queue_resume(self, name: str) -> bool:
        """False: it was not paused."""
        return store.queues.resume(self.db, name)

    def queue_list(self) -> list[Queue]:
        """All queues that were enqueued to (other than on a user's connection), served, set or paused."""
        return store.queues.list_queues(self.db)

    # Workers

    def worker_register(self, worker: NewWorker, lease_us: int) -> None:
        """Adds a worker with its first lease. Its id must never have been used."""
        store.workers.register(self.db, worker, lease_us)

    def worker_beat(
        self,
        worker_id: str,
        lease_us: int,
        state: str = "active",
        *,
        trouble: str | None = None,
        durable: bool = False,
    ) -> Beat:
        """Renews the lease and answers what the worker has running. Not alive: it was declared dead.

        `trouble`: what keeps it from working, in its own words.
        """
        return store.workers.beat(self.db, worker_id, lease_us, state, trouble, durable=durable)

    def worker_deregister(self, worker_id: str) -> bool:
        """The worker leaves; its duties are free. False: it was declared dead before."""
        return store.workers.deregister(self.db, worker_id)

    def worker_list(self, limit: int = 1000) -> list[Worker]:
        """Live workers first, then those that ended."""
        return store.workers.list_workers(self.db, limit)

    def worker_gone(self) -> set[str]:
        """Workers whose rows say that they live, and which do not: nobody has buried them yet."""
        return store.workers.gone_workers(self.db)

    def worker_prove(self, worker_id: str, watch: Watch) -> Proof:
        """Takes the proof of life of a worker, before it registers; `lock` belongs into its row."""
        return self.db.proofs.prove(worker_id, watch)

    def worker_suspects(self) -> bool | None:
        """Whether a proof of life was let go, without asking the database; None: only the database can tell."""
        return self.db.proofs.suspects()

    def worker_judge(self, asker: str | None = None) -> Judgement:
        """Who else may be dead, by proofs and leases; how much of the asker's own lease is left; whether jobs are in
        the hands of workers that are gone."""
        return store.workers.judge(self.db, asker)

    def worker_overdue(self) -> list[Verdict]:
        """Live workers whose lease is over, where this process can tell."""
        return store.workers.overdue(self.db)

    def worker_prune(self, before: int, limit: int = PRUNE_CHUNK) -> int:
        """Forgets at most `limit` workers that ended before an instant."""
        return store.workers.prune(self.db, before, limit)

    def job_rescue(self, verdicts: Sequence[Verdict], *, rng: Rng, limit: int = 1000) -> list[Rescued]:
        """Declares workers dead and takes back the jobs of all that are dead, stopped or unknown.

        A worker that renewed its lease after the verdict, or proves to be alive, is left alone. The attempt
        stays counted, the crash is counted, and the job runs again after a moment or ends as failed(crashed);
        where a cancel was requested it ends as cancelled(user). Needs no job code; safe to run twice, anywhere.
        """
        return store.workers.rescue(self.db, verdicts, limit, rng)

    # Duties

    def lease_take(self, duty: str, holder: str) -> int | None:
        """The term, if the duty was free (never held, resigned, its holder gone: a new one) or is held already."""
        return store.workers.take_lease(self.db, duty, holder)

    def lease_renew(self, duty: str, holder: str, term: int) -> bool:
        """Whether the duty is still held under this term."""
        return store.workers.renew_lease(self.db, duty, holder, term)

    def lease_resign(self, duty: str, holder: str, term: int) -> bool:
        """Gives the duty back. False: it had gone to somebody else."""
        return store.workers.resign_lease(self.db, duty, holder, term)

    def lease_held(self) -> list[Lease]:
        """The duties that a live worker has; all others are free."""
        return store.workers.held_leases(self.db)

    def lease_list(self) -> list[Lease]:
        """Who has which duty."""
        return store.workers.list_leases(self.db)

    # Where running bodies are

    def stack_ask(self, stack_id: str, job_id: str, claim: int) -> bool:
        """Asks the worker that runs a job where its body is; `announce` the queue, so that it looks. False: the job
        does not run under this claim."""
        return store.stacks.ask(self.db, stack_id, job_id, claim)

    def stack_read(self, stack_id: str) -> str | None:
        """The answer, empty if the body has not begun or is over; None: there is none yet."""
        return store.stacks.read(self.db, stack_id)

    def stack_answer(self, worker_id: str, stack_id: str, stack: str) -> bool:
        """Answers a question that `job_look` told of. False: nobody waits for it any more."""
        return store.stacks.answer(self.db, worker_id, stack_id, stack)

    def stack_drop(self, stack_id: str) -> None:
        """Takes a question back."""
        store.stacks.drop(self.db, stack_id)

    def stack_prune(self, before: int, limit: int = PRUNE_CHUNK) -> int:
        """Removes at most `limit` questions from before an instant, which nobody took back."""
        return store.stacks.prune(self.db, before, limit)

    # The file, where there is no server to look after it

    @property
    def has_file(self) -> bool:
        """Whether this database is a file that somebody has to look after."""
        return self.db.upkeep is not None

    def file_log(self) -> LogFile | None:
        """The write-ahead log as the file system shows it; it has been written if that differs."""
        return None if self.db.upkeep is None else self.db.upkeep.log()

    def file_checkpoint(self, *, waits: bool = False) -> Checkpoint | None:
        """Copies the write-ahead log back into the file. Waits: keeps writers out until the log can start over, if
        that takes no longer than a second."""
        return None if self.db.upkeep is None else self.db.upkeep.checkpoint(waits=waits)

    def file_vacuum(self, pages: int) -> bool:
        """Gives at most so many unused pages back if many are unused; whether there are more."""
        return self.db.upkeep is not None and self.db.upkeep.vacuum(pages)

    # Schedules

    def schedule_upsert(self, schedule: Schedule) -> bool:
        """Creates a schedule or changes its rule. False: it was the same, nothing was written."""
        return store.schedules.upsert(self.db, schedule)

    def schedule_get(self, name: str) -> Schedule | None:
        """One schedule."""
        return store.schedules.get(self.db, name)

    def schedule_list(self) -> list[Schedule]:
        """All schedules by name."""
        return store.schedules.list_schedules(self.db)

    def schedule_due(self, limit: int = 100) -> list[Schedule]:
        """Schedules whose `next_at` has come and that are not paused."""
        return store.schedules.due(self.db, limit)

    def schedule_change(self, stored: Schedule, wanted: Schedule) -> bool:
        """Makes a schedule what is wanted, `next_at` too, if it is still as it was read: a slot that is fired
        meanwhile cannot come again. False: it moved on, was edited or is gone; nothing was written."""
        return store.schedules.change(self.db, stored, wanted)

    def schedule_upcoming(self) -> tuple[int | None, int]:
        """When the earliest schedule is due, and the database's time."""
        return store.schedules.upcoming(self.db)

    def schedule_fire(
        self, schedule: Schedule, *, next_at: int | None, last_at: int | None, new: Sequence[NewJob]
    ) -> list[Enqueued] | None:
        """Moves a schedule from the `next_at` that was read and enqueues its slots' jobs, together.

        None: somebody else did, or it was paused or edited meanwhile; nothing was written. Jobs that the overlap rule
        forbids are left out.
        """
        return store.schedules.fire(self.db, schedule, next_at, last_at, new)

    def schedule_pause(self, name: str) -> bool:
        """False: unknown or paused already."""
        return store.schedules.pause(self.db, name)

    def schedule_resume(self, name: str, next_at: int | None) -> bool:
        """Goes on at `next_at`. False: unknown or not paused."""
        return store.schedules.resume(self.db, name, next_at)

    def schedule_delete(self, name: str) -> bool:
        """Forgets a schedule; its jobs stay."""
        return store.schedules.delete(self.db, name)

    # Graphs

    def job_fan_out(self, limit: int = FANOUT_CHUNK) -> FanOut:
        """Passes the end of parents on to at most `limit` children; the enders do it themselves, this goes on
        where they were cut off."""
        return store.graph.fan_out(self.db, limit)

    def job_reconcile(self, limit: int = FANOUT_CHUNK) -> Reconciled:
        """Repairs waiting jobs that nobody would free, at most `limit` of a kind. Anything it finds is a defect worth
        a loud line."""
        return store.graph.reconcile(self.db, limit)

    def edge_list(self, job_id: str) -> list[tuple[str, str, int]]:
        """(parent, child, satisfied) of every edge at a job."""
        return store.graph.edges_of(self.db, job_id)

    def workflow_get(self, workflow_id: str) -> tuple[Workflow, dict[str, int]] | None:
        """A workflow and how many of its jobs are in which state."""
        return store.workflows.get(self.db, workflow_id)

    def workflow_list(self, *, limit: int = 100, before: str = LAST_ID) -> list[Workflow]:
        """The newest workflows before an id."""
        return store.workflows.list_workflows(self.db, limit, before)

    def workflow_jobs(self, workflow_id: str, states: frozenset[str]) -> list[str]:
        """The ids of a workflow's jobs in these states."""
        return store.workflows.job_ids(self.db, workflow_id, states)

    def workflow_tallies(self, ids: Sequence[str]) -> dict[str, dict[str, int]]:
        """How many jobs of each of these workflows are in which state."""
        return store.workflows.tallies(self.db, ids)

    def workflow_find(self, part: str, limit: int = 10) -> list[str]:
        """The ids of workflows that contain a part (lower case), newest first."""
        return store.workflows.find(self.db, part, limit)

    def workflow_step(self, workflow_id: str, step: str) -> str | None:
        """The id of the job that is this step."""
        return store.workflows.step(self.db, workflow_id, step)

    def workflow_drawing(self, workflow_id: str) -> tuple[list[Node], list[tuple[str, str]]]:
        """The jobs of a workflow in the order they were made, and (parent, child) of its edges at one moment."""
        return store.workflows.drawing(self.db, workflow_id)

    def workflow_moved_by(self, workflow_id: str, limit: int = 500) -> list[str]:
        """Of a workflow whose live jobs all wait: the jobs whose end will move it. None: it is held."""
        return store.workflows.moved_by(self.db, workflow_id, limit)
