"""In every reachable state of the tables, each job gets exactly the causes that apply.

The state machine of test_machine drives both databases and the model through all verbs. After each step, the causes
of every job are compared with the model's rows, by rules that this module states again. `DRAY_SOAK_JOBS` is how many
are explained at least.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from dray.backends import Backend
from dray.instants import SECOND, to_datetime
from dray.model import settlement as model
from dray.model.cause import Cause, Kind
from dray.model.causes import explain
from dray.model.job import FINAL, LIVE, UNSTARTED, Job, Reason
from dray.model.limit import StoredRule
from dray.model.worker import NewWorker, Worker
from tests.backends.reference import Reference
from tests.backends.state_machine.arguments import LEASE_US, QUEUES, TASKS, some
from tests.backends.state_machine.sides import Sides
from tests.backends.test_machine import Machine
from tests.backends.turns import Limits
from tests.backends.world import World

CHECKED = int(os.environ.get("DRAY_SOAK_JOBS", "5000"))  # jobs explained, at least
PATIENCE_S = max(240, CHECKED / 20)
MISFIT = "since 2026-11-15T08:00:00Z: no such argument"
WORKERS: tuple[tuple[tuple[str, ...], tuple[str, ...], int], ...] = (
    (QUEUES, TASKS, 4),
    ((), TASKS, 1),
    (("mail",), ("send",), 1),
    (("bulk", "Default"), ("scn", "sink"), 2),
)


class Oracle:
    """Knows what is true of a job from the model's rows alone."""

    def __init__(self, reference: Reference, job: Job) -> None:
        self.tables = reference
        self.job = job
        self.now, self.steady = reference.clock.now(), reference.clock.steady()
        self.edges = {parent: s for (parent, child), s in reference.edges.items() if child == job.id and s != 1}
        self.alive = [w for w in reference.workers.values() if w.state in {"active", "draining"}]
        self.alive = [w for w in self.alive if w.lease_until >= self.steady]
        self.serving = [w for w in self.alive if w.state == "active" and (not w.queues or job.queue in w.queues)]
        self.able = [w for w in self.serving if job.task in w.tasks]
        in_force = [rule for rule in reference.limits.values() if rule.in_force]
        self.limits = Limits(in_force, reference.jobs.values(), reference.starts, self.now)
        self.rules = list(self.limits.of(job))

    def kinds(self) -> set[str]:
        """Returns exactly the kinds of causes that must be reported."""
        if self.job.state in UNSTARTED:
            held = {kind for kind, holds in self._unstarted().items() if holds}
            return held if held - {"expires"} or self._is_expired else {*held, "ready"}
        if self.job.state == "running":
            return {kind for kind, holds in self._running().items() if holds}
        return {kind for kind, holds in self._ended().items() if holds}

    def _unstarted(self) -> dict[str, bool]:
        job, parents = self.job, self.tables.jobs
        waits, is_queued = job.state == "waiting", job.state == "queued"
        to_come = job.state == "scheduled" and job.run_at > self.now
        last = self.tables.attempts.get((job.id, job.claim))
        is_retry = last is not None and 0 < job.attempt == last.attempt
        queue = self.tables.queues.get(job.queue)
        return {
            "expires": job.expires_at is not None,
            "held": waits and any(s == -1 and parents[p].state in FINAL for p, s in self.edges.items()),
            "fanout": waits
            and (not self.edges or any(s == 0 and parents[p].state in FINAL for p, s in self.edges.items())),
            "parents": waits and any(parents[p].state in LIVE for p in self.edges),
            "retry": to_come and is_retry,
            "snoozed": to_come and not is_retry and last is None and job.claim > 0,
            "scheduled": (to_come and not is_retry and (last is not None or job.claim == 0))
            or (waits and job.run_at > self.now),
            "due": job.state == "scheduled" and job.run_at <= self.now,
            "arguments": (job.error or "").startswith("Misfit: since "),
            "paused": queue is not None and queue.paused_at is not None,
            "stopped": any(rule.most == 0 for rule, _ in self.rules),
            "limit": is_queued and any(self.is_reached(rule, key) for rule, key in self.rules if not rule.period_us),
            "rate": is_queued and any(self.is_reached(rule, key) for rule, key in self.rules if rule.period_us),
            "turn": is_queued and self.turn() != (0, 0, 0),
            "no_worker": not self.serving,
            "unknown_task": bool(self.serving) and not self.able,
            "slots": is_queued and bool(self.able) and all(self.load(w) >= w.concurrency for w in self.able),
            "behind": is_queued and bool(self.able) and self.ahead() > 0,
        }

    @property
    def _is_expired(self) -> bool:
        return self.job.expires_at is not None and self.job.expires_at <= self.now

    def load(self, worker: Worker) -> int:
        return sum(job.state == "running" and job.worker_id == worker.id for job in self.tables.jobs.values())

    def is_reached(self, rule: StoredRule, key: str) -> bool:
        return 0 < (rule.most or 0) <= self.limits.used(rule, key)

    def turn(self) -> tuple[int, int, int]:
        """Returns how many other keys, jobs of its own key and jobs of a higher priority come before it."""
        own = self.job
        if own.key is None:
            return 0, 0, 0
        line = [
            job
            for job in self.tables.jobs.values()
            if job.state == "queued" and (job.queue, job.task) == (own.queue, own.task) and job.key is not None
        ]
        beside = [job for job in line if job.priority == own.priority]
        earlier = [job for job in beside if job.key == own.key and (job.run_at, job.id) < (own.run_at, own.id)]
        higher = [job for job in line if job.priority > own.priority]
        return len({job.key for job in beside} - {own.key}), len(earlier), len(higher)

    def ahead(self) -> int:
        known = {task for worker in self.able for task in worker.tasks}
        place = (-self.job.priority, self.job.run_at, self.job.id)
        ready = [
            job
            for job in self.tables.jobs.values()
            if job.state == "queued" and job.queue == self.job.queue and job.task in known
        ]
        plain = [job for job in ready if job.key is None and (-job.priority, job.run_at, job.id) < place]
        return len(plain) + self.ahead_with_keys(ready)

    def ahead_with_keys(self, ready: Iterable[Job]) -> int:
        """Of those of its own task its turn tells."""
        own = None if self.job.key is None else self.job.task
        return sum(job.key is not None and job.task != own and job.priority > self.job.priority for job in ready)

    def _running(self) -> dict[str, bool]:
        job = self.job
        worker = self.tables.workers.get(job.worker_id or "")
        is_gone = worker is None or worker.state not in {"active", "draining"}
        is_late = job.timeout is not None and (job.started_at or 0) + job.timeout * SECOND < self.now
        return {
            "worker_gone": is_gone,
            "worker_silent": worker is not None and not is_gone and worker.lease_until < self.steady,
            "overdue": is_late,
            "cancel_requested": job.cancel_requested_at is not None,
            "running": not is_gone,
        }

    def _ended(self) -> dict[str, bool]:
        job = self.job
        is_kept_out = job.unique_until is None or job.unique_until > self.now
        words = {"user": "cancelled"}
        kind = "completed" if job.state == "completed" else words.get(job.reason or "", job.reason or "")
        return {
            kind: True,
            "fanout": job.fanout_pending,
            "unique": job.unique_lock is not None and is_kept_out,
        }

    def check_facts(self, cause: Cause) -> None:
        """Checks that the facts of each cause are true."""
        job, facts = self.job, cause.facts
        parents: Iterable[dict[str, Any]] = facts.get("parents") or filter(None, [facts.get("parent")])
        for parent in parents:
            row = self.tables.jobs[parent["id"]]
            assert (parent["task"], parent["state"], parent["reason"]) == (row.task, row.state, row.reason)
            assert self.edges[row.id] == {"held": -1, "parent": -1, "fanout": 0}.get(cause.kind, self.edges[row.id])
        for name in ("run_at", "expires_at", "cancel_requested_at", "finished_at", "started_at"):
            if name in facts:
                at = getattr(job, name)
                assert facts[name] == (None if at is None else to_datetime(at))
        for name in ("attempt", "max_attempts", "crashes", "waiting_on"):
            assert facts.get(name, getattr(job, name)) == getattr(job, name)
        if cause.kind is Kind.PARENTS:
            assert facts["waiting_on"] == len(self.edges)
            assert {p["id"] for p in facts["parents"]} == {p for p in self.edges if self.tables.jobs[p].state in LIVE}
        elif cause.kind is Kind.BEHIND:
            assert facts["ahead"] == self.ahead()
        elif cause.kind is Kind.TURN:
            assert (facts["keys"], facts["of_key"], facts["higher"]) == self.turn()
        elif cause.kind in (Kind.LIMIT, Kind.RATE):
            uses = {
                (rule.scope, rule.kind, rule.most, self.limits.used(rule, key))
                for rule, key in self.rules
                if self.is_reached(rule, key)
            }
            assert (facts["scope"], facts["option"], facts["most"], facts["used"]) in uses
        elif cause.kind is Kind.PAUSED:
            assert facts["paused_at"] == to_datetime(self.tables.queues[job.queue].paused_at or 0)
        elif cause.kind is Kind.SLOTS:
            assert facts["running"] == sum(map(self.load, self.able))
        elif cause.kind in (Kind.RUNNING, Kind.WORKER_SILENT):
            assert facts["worker"]["id"] == job.worker_id
        elif cause.kind is Kind.RETRY:
            assert facts["outcome"] == self.tables.attempts[job.id, job.claim].outcome


class Explained(Machine):
    """The machine with several kinds of workers; explains every job after each step."""

    kinds: ClassVar[Counter[str]] = Counter()
    checked: ClassVar[int] = 0
    moment: tuple[Any, ...] = ()  # all rows and clocks
    explained: set[tuple[str, str]]  # at that moment, by database and job

    @rule(lease_us=st.sampled_from((LEASE_US, 5 * SECOND)), shape=st.sampled_from(WORKERS))
    def register_worker(
        self, lease_us: int, shape: tuple[tuple[str, ...], tuple[str, ...], int] = WORKERS[0]
    ) -> None:
        self.workers.append(self.new_id())
        queues, tasks, concurrency = shape
        worker = NewWorker(
            id=self.workers[-1],
            name="w",
            host="here",
            pid=7,
            boot=self.clock.boot,
            queues=queues,
            tasks=tasks,
            concurrency=concurrency,
        )
        self.ask("workers.register", worker, lease_us)

    @precondition(lambda self: self.running())
    @rule(n=some)
    def misfit(self, n: int) -> None:
        """A worker finds that the arguments do not fit its code."""
        held = self.held(n, is_stale=False)
        if held is not None:
            self.ask("verbs.settle", held[0], [model.misfit(held[1], self.clock.steady(), 5 * SECOND, MISFIT)])

    @precondition(lambda self: self.running())
    @rule(n=some, reason=st.sampled_from((Reason.ERROR, Reason.TIMEOUT, Reason.CRASHED, Reason.RESULT)))
    def fail_for_good(self, n: int, reason: Reason) -> None:
        held = self.held(n, is_stale=False)
        if held is not None:
            now = self.clock.steady()
            self.ask("verbs.settle", held[0], [model.failed(held[1], now, now, reason, "Kind", "words", None)])

    @invariant()
    def every_job_is_explained(self) -> None:
        now = self.reference.tables(), self.clock.now(), self.clock.steady()
        if now != self.moment:
            self.moment, self.explained = now, set()
        for number, job in enumerate(self.reference.jobs.values()):
            self.explain(self.sides.sqlite, job)
            if (number + self.numbers) % 5 == 0:  # the same result for the same rows, ten times as slow
                self.explain(self.sides.postgres, job)

    def explain(self, backend: Backend, job: Job) -> None:
        """Not again if no row has changed since, as `all_tables_are_the_same` has seen, and no clock."""
        type(self).checked += 1
        if (backend.db.place, job.id) in self.explained:
            return
        self.explained.add((backend.db.place, job.id))
        around = backend.why.circumstances(job.id)
        assert around is not None
        causes = explain(around)
        oracle = Oracle(self.reference, job)
        said = [each.kind.value for each in causes]
        assert set(said) == oracle.kinds(), (said, oracle.kinds(), job)
        for each in causes:
            oracle.check_facts(each)
            assert not each.text[0].islower()
            assert "\n" not in each.text
        self.kinds.update(said)


# Kinds that come from a worker's reply, from a newer release, or from a moved database; and two to which the machine
# comes too seldom to be waited for, which tests/app/test_limits_why.py has.
ELSEWHERE = {"moved", "not_begun", "no_answer", "not_asked", "other", "limit", "rate"}


def test_every_job_gets_all_causes_that_hold_and_no_other(sides: Sides) -> None:
    Explained.sides, Explained.calls, Explained.kinds, Explained.checked = sides, Counter(), Counter(), 0
    wanted = {kind.value for kind in Kind} - ELSEWHERE
    chosen, began, rounds = random.getrandbits(32), time.monotonic(), 0
    short = settings(
        max_examples=3,
        stateful_step_count=50,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )

    def is_enough() -> bool:
        return Explained.checked >= CHECKED and wanted <= Explained.kinds.keys()

    while not is_enough() and time.monotonic() - began < PATIENCE_S:
        try:
            run_state_machine_as_test(seed(chosen + rounds)(Explained), settings=short)
        except BaseException as error:
            error.add_note(f"seed {chosen + rounds}")
            raise
        rounds += 1
    assert is_enough(), (Explained.checked, wanted - Explained.kinds.keys())


def test_a_state_of_a_newer_release_is_named(world: World) -> None:
    around = world.backend.why.circumstances(world.enqueue())
    assert around is not None

    (only,) = explain(replace(around, job=replace(around.job, state="parked")))

    assert (only.kind, only.facts) == (Kind.OTHER, {"state": "parked"})
