"""The accounts: what the database says about every job, compared with the ledger that the bodies wrote.

A body may run to its end twice in one case only: its worker was killed after that, before the outcome was written.
Such a job has a crashed attempt of the killed worker. Even then, what its ``ctx.transaction()`` writes is there once.
A worker may also be killed between the commit of that transaction, which completes the job, and the body's end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from dray.backends import Backend
from dray.cli.exits import say
from dray.cli.output import Column, put, table
from dray.model.job import Attempt, Job, Outcome, State
from dray.wording import counted

_CHUNK = 500
_SHOWN = 20  # problems
_COLUMNS = (
    Column("task", "name"),
    Column("jobs", "jobs", is_number=True),
    Column("completed", "completed", is_number=True),
    Column("cancelled", "cancelled", is_number=True),
    Column("retried", "retried", is_number=True),
    Column("lost with a worker", "crashed", is_number=True),
    Column("bodies begun", "begun", is_number=True),
)


@dataclass(slots=True)
class TaskAccount:
    name: str
    jobs: int = 0
    completed: int = 0
    cancelled: int = 0
    retried: int = 0  # jobs that took more than one attempt
    crashed: int = 0  # attempts that were lost with a worker
    begun: int = 0  # bodies in the ledger


@dataclass(slots=True)
class Accounts:
    """All jobs, and what is wrong with them."""

    tasks: list[TaskAccount]
    problems: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    expected: Mapping[str, Sequence[str]]  # task -> ids, as enqueue() returned them
    cancelled: frozenset[str]  # must end as cancelled; all others must complete
    noted: Counter[tuple[str, str]]
    charges: Counter[str]  # job -> rows that its transaction wrote
    killed: frozenset[str]  # workers


def compare(backend: Backend, evidence: Evidence) -> Accounts:
    accounts = Accounts([TaskAccount(name) for name in evidence.expected])
    for task, ids in zip(accounts.tasks, evidence.expected.values(), strict=True):
        rows = {job.id: job for start in range(0, len(ids), _CHUNK) for job in backend.jobs.get(ids[start:][:_CHUNK])}
        for job_id in ids:
            if job_id in rows:
                # A job that completed at its first attempt has no rows of attempts.
                kept = backend.history.attempts(job_id) if rows[job_id].claim > 1 or rows[job_id].crashes else []
                _check(accounts, task, rows[job_id], kept, evidence)
            else:
                accounts.problems.append(f"{job_id} ({task.name}) is not in the database: lost")
    expected = sum(map(len, evidence.expected.values()))
    counts = backend.history.stats(1).counts
    found = sum(sum(states.values()) for states in counts.values())
    if found != expected:
        accounts.problems.append(
            f"{counted(found, 'job is', 'jobs are')} in the database, but {expected:,} were enqueued"
        )
    strangers = {job_id for job_id, _ in evidence.noted} - {i for ids in evidence.expected.values() for i in ids}
    accounts.problems += [f"{job_id} ran, but was not enqueued" for job_id in sorted(strangers)]
    return accounts


def _check(accounts: Accounts, task: TaskAccount, job: Job, attempts: Sequence[Attempt], evidence: Evidence) -> None:
    crashes = [each for each in attempts if each.outcome == Outcome.CRASHED]
    by_killed = [each for each in crashes if each.worker_id in evidence.killed]
    begun, done = evidence.noted[job.id, "begun"], evidence.noted[job.id, "done"]
    task.jobs += 1
    task.completed += job.state == State.COMPLETED
    task.cancelled += job.state == State.CANCELLED
    task.retried += job.attempt > 1
    task.crashed += len(crashes)
    task.begun += begun

    should_be = State.CANCELLED if job.id in evidence.cancelled else State.COMPLETED
    charges = evidence.charges[job.id]
    was_cut_short = charges > 0 and job.worker_id in evidence.killed
    owed = 0 if should_be == State.CANCELLED else 1
    checks = {
        f"ended as {job.state}, not {should_be}": job.state == should_be,
        "completed more than once": all(each.outcome != Outcome.COMPLETED for each in attempts),
        "crashed, though its worker was not killed": len(by_killed) == len(crashes),
        f"was done {counted(done, 'time')}": owed - was_cut_short <= done <= owed + len(by_killed),
        f"was begun {counted(begun, 'time')} in {counted(job.attempt, 'attempt')}": begun <= job.attempt,
        f"has left {counted(charges, 'charge')}": charges == (task.name == "charge"),
    }
    accounts.problems += [f"{job.id} ({task.name}) {problem}" for problem, holds in checks.items() if not holds]


def put_accounts(accounts: Accounts, remarks: Sequence[str]) -> None:
    """Writes the table at the end, what was remarkable, and whether all is well."""
    drawn = table([asdict(task) for task in accounts.tasks], _COLUMNS)
    put("\n".join(["", *drawn, "", *(f"- {remark}" for remark in remarks)]))
    if accounts.problems:
        for problem in accounts.problems[:_SHOWN]:
            say(problem)
        wrong = counted(len(accounts.problems), "thing is wrong", "things are wrong")
        say(f"{wrong}; run it again with --keep and look at the database")
        return
    jobs = sum(task.jobs for task in accounts.tasks)
    crashed = sum(task.crashed for task in accounts.tasks)
    died = counted(crashed, "attempt died with its worker and was", "attempts died with their worker and were")
    put(f"- {died} repeated; no other body ran twice")
    put(f"All is well: {jobs:,} jobs, none lost, none completed twice; the ledger of the bodies agrees.")
