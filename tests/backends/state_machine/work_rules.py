"""Rules: jobs are enqueued, workers claim and settle them, time passes and duties are done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from dray.instants import HOUR, MINUTE, SECOND
from dray.model import settlement as model
from dray.model.job import LIVE, Demand, LogLine, State
from dray.model.new_job import AlikeJobs
from dray.model.retention import Retention
from dray.model.worker import NewWorker
from dray.model.workflow import Workflow
from tests.backends.state_machine.arguments import (
    DUTIES,
    ENDINGS,
    EVERYTHING,
    LEASE_US,
    QUEUES,
    RETENTIONS,
    TASKS,
    Chance,
    Wish,
    demands,
    endings,
    limits,
    rarely,
    single,
    some,
    wishes,
)
from tests.backends.state_machine.comparer import Comparer
from tests.backends.state_machine.results import answer_of, fair, settled


class WorkRules(Comparer):
    """What programs, workers and duties do."""

    # Enqueue

    @initialize(wishes=st.lists(single, min_size=3, max_size=5))
    def start(self, wishes: list[Wish]) -> None:
        self.register_worker(LEASE_US)
        self.enqueue(self.build(wishes))
        for _ in range(4):
            self.carry_on()

    @rule(wishes=st.lists(single, min_size=1, max_size=3), backwards=rarely())
    def enqueue_jobs(self, wishes: list[Wish], backwards: bool) -> None:
        self.enqueue(self.build(wishes, backwards))

    @rule(wish=single, count=st.integers(1, 4), is_again=rarely())
    def enqueue_alike(self, wish: Wish, count: int, is_again: bool) -> None:
        plain = {name: value for name, value in wish.options.items() if not name.startswith(("unique", "expires"))}
        (pattern,) = self.build([wish._replace(options=plain, on_parent_failure="cancel")])
        assert pattern.is_plain
        ids = [self.new_id() for _ in range(count)]
        if is_again and self.enqueues:
            ids[-1] = self.enqueues[-1][0][0].id
        args = [f'{{"n":{n}}}' for n in range(count)]
        self.ask("jobs.enqueue_alike", AlikeJobs(pattern, ids, args))

    @rule(wishes=st.lists(wishes, min_size=1, max_size=4))
    def enqueue_children(self, wishes: list[Wish]) -> None:
        self.enqueue(self.build(wishes))

    @rule(
        wishes=st.lists(wishes, min_size=1, max_size=4), steps=st.lists(st.sampled_from("abcd"), max_size=4), n=some
    )
    def enqueue_workflow(self, wishes: list[Wish], steps: list[str], n: int) -> None:
        there = sorted(self.reference.workflows, reverse=True)
        workflow = Workflow(there[n] if n < len(there) else self.new_id(), "etl", 0)
        for wish in wishes:
            wish.options.pop("unique_key", None)
        new = self.build(wishes, workflow_id=workflow.id)
        new = [replace(job, step=step) for job, step in zip(new, [*steps, *[None] * 4], strict=False)]
        self.enqueue(new, workflow)

    @rule(wishes=st.lists(wishes, min_size=1, max_size=2), commits=st.booleans())
    def enqueue_in_the_users_transaction(self, wishes: list[Wish], commits: bool) -> None:
        self.calls["jobs.enqueue"] += 1
        new = self.build(wishes)
        sides, users = [self.sides.sqlite, self.sides.postgres], [self.sides.sqlite_user, self.sides.postgres_user]
        returned: list[Any] = []
        with self.reference.transaction(commits=commits):
            returned.append(answer_of(self.reference, "jobs.enqueue", (new,), {"connection": "theirs"}, None))
        for side, user in zip(sides, users, strict=True):
            returned.append(answer_of(side, "jobs.enqueue", (new,), {"connection": user}, None))
            user.commit() if commits else user.rollback()
        self.compare("jobs.enqueue", *returned)

    @rule(n=some)
    def enqueue_again(self, n: int) -> None:
        if not self.enqueues:
            return
        new, workflow = self.enqueues[-1 - n % len(self.enqueues)]
        self.ask("jobs.enqueue", new, workflow=workflow)

    # Work

    @rule()
    def carry_on(self) -> None:
        """The ordinary life of a queue between unusual steps: jobs end, in each way in turn, are claimed or come."""
        if len(self.running()) > 3:
            self.turns += 1
            self.settle([(self.turns, tuple(ENDINGS)[self.turns % len(ENDINGS)], (0, SECOND))], dies=False)
            return
        worker = self.worker(0)
        if not self.reference.is_live(worker):
            self.register_worker(LEASE_US)
        elif paused := [queue.name for queue in self.reference.queues_all() if queue.paused_at is not None]:
            self.ask("queues.resume", paused[0])
        elif self.reference.verbs_probe(EVERYTHING):
            self.ask_for_work("verbs.claim", worker, EVERYTHING)
        else:
            policy = ("cancel", "run", "hold")[self.numbers % 3]
            parent, child = Wish("mail", "send", {}, [], [], "cancel"), Wish("bulk", "scan", {}, [], [0], policy)
            self.enqueue(self.build([parent, child]))

    @rule(n=some, demand=demands)
    def claim(self, n: int, demand: Demand) -> None:
        self.ask_for_work("verbs.claim", self.worker(n), demand)

    @precondition(lambda self: self.reference.verbs_probe(EVERYTHING))
    @rule(n=st.integers(0, 1), limit=st.integers(1, 4))
    def claim_anything(self, n: int, limit: int) -> None:
        self.ask_for_work("verbs.claim", self.worker(n), Demand(QUEUES, TASKS, limit))

    @precondition(lambda self: self.running())
    @rule(chosen=endings, dies=rarely())
    def settle(self, chosen: list[tuple[int, str, tuple[int, int]]], dies: bool) -> None:
        worker, settlements = self.settlements(chosen, is_stale=False)
        with self.cut_off(dies):
            self.ask("verbs.settle", worker, settlements, order=settled)

    @precondition(lambda self: self.claims)
    @rule(chosen=endings, is_stale=rarely())
    def leave(self, chosen: list[tuple[int, str, tuple[int, int]]], is_stale: bool) -> None:
        """The worker may still settle differently: the outcome it left counts only if the job is rescued."""
        worker, settlements = self.settlements(chosen, is_stale)
        self.ask("outcomes.leave", worker, [(each, ()) for each in settlements])

    @precondition(lambda self: self.claims)
    @rule(n=some, wishes=st.lists(wishes, max_size=3), step=st.sampled_from("abcd"), is_stale=rarely(), dies=rarely())
    def grow(self, n: int, wishes: list[Wish], step: str, is_stale: bool, dies: bool) -> None:
        """A step completes and adds others, sometimes after itself, sometimes the same ones again."""
        held = self.held(n, is_stale)
        if held is None:
            return
        worker, claim = held
        new = self.build(wishes, workflow_id=claim.workflow_id)
        first = {"step": step} if claim.workflow_id else {}
        new = [replace(job, **first, parents=(claim.id, *job.parents)) for job in new[:1]] + new[1:]
        finished = self.clock.steady()
        ended = model.completed(claim, finished - SECOND, finished, '"grown"')
        with self.cut_off(dies):
            self.ask("work.grow", worker, ended, new, order=settled)
        if n % 3 == 0:
            self.ask("work.grow", worker, ended, new, order=settled)

    @precondition(lambda self: self.claims)
    @rule(chosen=endings, n=some, is_other=rarely())
    def settle_what_was_lost(self, chosen: list[tuple[int, str, tuple[int, int]]], n: int, is_other: bool) -> None:
        worker, settlements = self.settlements(chosen, is_stale=True)
        self.ask("verbs.settle", self.worker(n) if is_other else worker, settlements, order=settled)

    @rule(chosen=endings, demand=demands, is_stale=rarely(), durable=st.booleans(), dies=rarely())
    def exchange(
        self,
        chosen: list[tuple[int, str, tuple[int, int]]],
        demand: Demand,
        is_stale: bool,
        durable: bool,
        dies: bool,
    ) -> None:
        worker, settlements = self.settlements(chosen, is_stale)
        # Existing outcomes are judged after the exchange, which may have claimed the job again: not compared.
        settlements = [each for each in settlements if not self.reference.stands(worker, each)]
        with self.cut_off(dies):
            self.ask_for_work("work.exchange", worker, demand, settlements, durable=durable)

    @precondition(lambda self: self.running())
    @rule(
        chosen=st.lists(st.tuples(some, rarely()), min_size=1, max_size=3),
        percent=st.sampled_from((None, 0.0, 12.5, 100.0)),
        n=some,
        is_other=rarely(),
    )
    def report_progress(self, chosen: list[tuple[int, bool]], percent: float | None, n: int, is_other: bool) -> None:
        held = [each for each in (self.held(*one) for one in chosen) if each is not None]
        worker = self.worker(n) if is_other or not held else held[0][0]
        reports = [(claim.id, claim.claim, percent, "so far") for _, claim in held]
        self.ask("verbs.progress", worker, reports)

    @precondition(lambda self: self.running())
    @rule(chosen=st.lists(st.tuples(some, rarely()), min_size=1, max_size=6), n=some, is_other=rarely())
    def write_logs(self, chosen: list[tuple[int, bool]], n: int, is_other: bool) -> None:
        held = [each for each in (self.held(*one) for one in chosen) if each is not None]
        worker = self.worker(n) if is_other or not held else held[0][0]
        at = self.clock.steady()
        lines = [
            LogLine(claim.id, claim.claim, at - place, "INFO", "body", f"line {place}")
            for place, (_, claim) in enumerate(held)
        ]
        self.ask("verbs.write_logs", worker, lines)

    # Duties

    @rule(us=st.sampled_from((1, SECOND, 3 * SECOND, 6 * SECOND, 16 * SECOND, 2 * HOUR)))
    def time_passes(self, us: int) -> None:
        self.clock.advance(us)

    @rule(us=st.sampled_from((-HOUR, -SECOND, SECOND, HOUR)))
    def the_clock_is_set(self, us: int) -> None:
        self.clock.step(us)

    @rule(limit=limits, dies=rarely())
    def promote_and_expire(self, limit: int, dies: bool) -> None:
        jobs = self.reference.jobs.values()
        due = [job.run_at for job in jobs if job.state == State.SCHEDULED]
        self.ask("jobs.promote", fair(limit, due), order=sorted)
        over = [job.expires_at for job in jobs if job.state in LIVE and job.expires_at is not None]
        with self.cut_off(dies):
            self.ask("jobs.expire", fair(limit, over), order=sorted)

    @precondition(lambda self: self.ended())
    @rule(retention=st.sampled_from(RETENTIONS))
    def prune(self, retention: Retention) -> None:
        self.clock.advance(1)
        self.ask("verbs.prune", retention)

    @rule(limit=limits)
    def fan_out(self, limit: int) -> None:
        self.ask("graph.fan_out", limit)
        self.ask("graph.reconcile")

    @precondition(lambda self: self.running())
    @rule(n=some, chance=st.sampled_from((0.0, 0.9)))
    def lose_a_worker(self, n: int, chance: float) -> None:
        """A worker's lease expires while the others renew theirs; it is declared dead and its jobs are rescued."""
        held = self.held(n, is_stale=False)
        lost = self.worker(n) if held is None else held[0]
        self.clock.advance(LEASE_US + 1)
        for worker in self.workers:
            if worker != lost and self.reference.is_live(worker):
                self.ask("workers.beat", worker, LEASE_US)
        self.judge()
        verdicts = [verdict for verdict in self.verdicts if verdict.worker_id == lost]
        self.ask("workers.rescue", verdicts, rng=Chance(chance), order=sorted)

    @rule(lease_us=st.sampled_from((LEASE_US, 5 * SECOND)))
    def register_worker(self, lease_us: int) -> None:
        self.workers.append(self.new_id())
        worker = NewWorker(
            id=self.workers[-1],
            name="w",
            host="here",
            pid=7,
            boot=self.clock.boot,
            queues=QUEUES,
            tasks=TASKS,
            concurrency=4,
        )
        self.ask("workers.register", worker, lease_us)

    @rule(n=some, lease_us=st.sampled_from((LEASE_US, 5 * SECOND)), state=st.sampled_from(("active", "draining")))
    def beat(self, n: int, lease_us: int, state: str) -> None:
        self.ask("workers.beat", self.worker(n), lease_us, state)

    @rule(n=some)
    def deregister_worker(self, n: int) -> None:
        self.ask("workers.deregister", self.worker(n))

    @precondition(lambda self: any(worker.stopped_at for worker in self.reference.workers.values()))
    @rule(ago_us=st.sampled_from((0, -SECOND, MINUTE)))
    def prune_workers(self, ago_us: int) -> None:
        self.ask("workers.prune", self.clock.now() - ago_us)

    def judge(self) -> None:
        self.verdicts += self.ask("verbs.overdue", order=sorted)

    @rule(
        chosen=st.lists(some, max_size=3),
        chance=st.sampled_from((0.0, 0.3, 0.9)),
        limit=limits,
        dies=rarely(),
    )
    def rescue(self, chosen: list[int], chance: float, limit: int, dies: bool) -> None:
        """Rescues with current or old verdicts. None has a lease that still holds: only SQLite has such verdicts."""
        self.judge()
        verdicts = list(dict.fromkeys(self.verdicts[-1 - n % len(self.verdicts)] for n in chosen if self.verdicts))
        with self.cut_off(dies):
            # Which jobs come first is undefined. Compared are their number, and the rows after all are rescued.
            self.ask("workers.rescue", verdicts, rng=Chance(chance), limit=limit, order=len)
            self.ask("workers.rescue", [], rng=Chance(chance), order=len)

    @rule(duty=st.sampled_from(DUTIES), n=some, resigns=st.booleans())
    def take_lease(self, duty: str, n: int, resigns: bool) -> None:
        """Takes a duty, and checks one that was taken before."""
        term = self.ask("leases.take", duty, self.worker(n))
        if term is not None:
            self.terms.append((duty, self.worker(n), term))
        held = self.terms[-1 - n % len(self.terms)]
        self.ask("verbs.is_held", *held)
        if resigns:
            self.ask("leases.resign", *held)
