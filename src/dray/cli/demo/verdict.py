"""The accounts: what the database says became of every job, beside what the bodies noted down themselves.

A body may run to its end twice in one case only: its worker was killed after that and before the outcome was written.
Such a job shows an attempt that crashed in the hands of the killed worker. What a body writes in its
``ctx.transaction()`` is there once even then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dray.model.job import Outcome, State
from dray.wording import counted

if TYPE_CHECKING:
    from dray.backends import Backend
    from dray.model.job import Attempt, Job

_CHUNK = 500


@dataclass(slots=True)
class Kind:
    """What became of the jobs of one kind."""

    name: str
    jobs: int = 0
    completed: int = 0
    cancelled: int = 0
    retried: int = 0  # jobs that took more than one attempt
    crashed: int = 0  # attempts that were lost with a worker
    begun: int = 0  # bodies, by the ledger


@dataclass(slots=True)
class Verdict:
    kinds: list[Kind]
    problems: list[str] = field(default_factory=list[str])
    crashed: int = 0
    done_again: int = 0  # bodies that had run to their end when their worker was killed, and ran again


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that there is to compare."""

    expected: Mapping[str, Sequence[str]]  # kind -> ids, as enqueue() answered them
    cancelled: frozenset[str]  # those that are to end so; all others are to complete
    noted: Counter[tuple[str, str]]
    charges: Counter[str]  # job -> rows that its transaction has left
    killed: frozenset[str]  # workers


def reach(backend: Backend, evidence: Evidence) -> Verdict:
    """Goes through every job."""
    verdict = Verdict([Kind(name) for name in evidence.expected])
    for kind, ids in zip(verdict.kinds, evidence.expected.values(), strict=True):
        rows = {job.id: job for start in range(0, len(ids), _CHUNK) for job in backend.jobs.get(ids[start:][:_CHUNK])}
        for job_id in ids:
            if job_id in rows:
                # The attempts of a job that completed at its first are on its row alone.
                kept = backend.history.attempts(job_id) if rows[job_id].claim > 1 or rows[job_id].crashes else []
                _judge(verdict, kind, rows[job_id], kept, evidence)
            else:
                verdict.problems.append(f"{job_id} ({kind.name}) is not in the database: lost")
    _count_rows(verdict, backend, evidence)
    return verdict


def _judge(verdict: Verdict, kind: Kind, job: Job, attempts: Sequence[Attempt], evidence: Evidence) -> None:
    crashes = [each for each in attempts if each.outcome == Outcome.CRASHED]
    by_killed = [each for each in crashes if each.worker_id in evidence.killed]
    begun, done = evidence.noted[job.id, "begun"], evidence.noted[job.id, "done"]
    kind.jobs += 1
    kind.completed += job.state == State.COMPLETED
    kind.cancelled += job.state == State.CANCELLED
    kind.retried += job.attempt > 1
    kind.crashed += len(crashes)
    kind.begun += begun
    verdict.crashed += len(crashes)
    verdict.done_again += max(0, done - 1)

    should_be = State.CANCELLED if job.id in evidence.cancelled else State.COMPLETED
    owed = 0 if should_be == State.CANCELLED else 1
    charges = evidence.charges[job.id]
    checks = {
        f"ended as {job.state}, not {should_be}": job.state == should_be,
        "completed more than once": all(each.outcome != Outcome.COMPLETED for each in attempts),
        "crashed, though nobody killed its worker": len(by_killed) == len(crashes),
        f"was done {counted(done, 'time')}": owed <= done <= owed + len(by_killed),
        f"was begun {counted(begun, 'time')} in {counted(job.attempt, 'attempt')}": begun <= job.attempt,
        f"has left {counted(charges, 'charge')}": charges == (kind.name == "charge"),
    }
    verdict.problems += [f"{job.id} ({kind.name}) {problem}" for problem, holds in checks.items() if not holds]


def _count_rows(verdict: Verdict, backend: Backend, evidence: Evidence) -> None:
    expected = sum(map(len, evidence.expected.values()))
    counts = backend.history.stats(1).counts
    found = sum(sum(states.values()) for states in counts.values())
    if found != expected:
        verdict.problems.append(
            f"{counted(found, 'job is', 'jobs are')} in the database, and {expected:,} were enqueued"
        )
    strangers = {job_id for job_id, _ in evidence.noted} - {i for ids in evidence.expected.values() for i in ids}
    verdict.problems += [f"{job_id} ran, and nobody enqueued it" for job_id in sorted(strangers)]
