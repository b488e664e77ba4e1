"""Rules: operators cancel, retry, delete and look; schedules are set, changed and fired."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from dray.backends.store.jobs import Filter
from dray.instants import DAY, HOUR, MINUTE, SECOND
from dray.model.job import Reason, State
from dray.model.limit import Kind, Scope, Source, bounds_of
from dray.model.schedule import Schedule
from tests.backends.state_machine.arguments import (
    BOUNDS,
    EVERYTHING,
    QUEUES,
    SCHEDULES,
    TASKS,
    Wish,
    limits,
    rarely,
    single,
    some,
)
from tests.backends.state_machine.comparer import Comparer
from tests.backends.state_machine.results import by_name, wordless


class OperatorRules(Comparer):
    """What operators do, schedules, and reads."""

    # Operators

    @rule(chosen=st.lists(some, min_size=1, max_size=3), dies=rarely())
    def cancel(self, chosen: list[int], dies: bool) -> None:
        with self.cut_off(dies):
            self.ask("jobs.cancel", self.job_ids(chosen))

    @precondition(lambda self: self.running())
    @rule(n=some)
    def cancel_what_runs(self, n: int) -> None:
        held = self.held(n, is_stale=False)
        if held is not None:
            self.ask("jobs.cancel", [held[1].id])

    @rule(chosen=st.lists(some, min_size=1, max_size=4))
    def retry(self, chosen: list[int]) -> None:
        self.retry_all(self.job_ids(chosen))

    @precondition(lambda self: self.ended())
    @rule(chosen=st.lists(some, min_size=1, max_size=3))
    def retry_what_ended(self, chosen: list[int]) -> None:
        ended = self.ended()
        self.retry_all(ended[-1 - n % len(ended)] for n in chosen)

    @precondition(lambda self: -1 in self.reference.edges.values())
    @rule(n=some)
    def retry_a_lost_parent(self, n: int) -> None:
        lost = sorted(parent for (parent, _), satisfied in self.reference.edges.items() if satisfied == -1)
        self.retry_all([lost[-1 - n % len(lost)]])

    @precondition(lambda self: self.cancelled_with_a_parent())
    @rule(chosen=st.lists(some, min_size=1, max_size=3), with_all=st.booleans())
    def retry_what_a_parent_took_along(self, chosen: list[int], with_all: bool) -> None:
        """Alone it is refused; together with the parents that did not complete, all start over."""
        lost = self.cancelled_with_a_parent()
        ids = {lost[-1 - n % len(lost)] for n in chosen}
        if with_all:
            ids |= {each.id for job_id in ids for each in self.reference.graph_lost(job_id).culprits}
        self.retry_all(sorted(ids))

    def cancelled_with_a_parent(self) -> list[str]:
        return sorted(job.id for job in self.reference.jobs.values() if job.reason == Reason.PARENT)

    def retry_all(self, ids: Iterable[str]) -> None:
        # DEFECT has_args: SQLite retries a job whose arguments were dropped, if they or its result were large.
        dropped = {job.id for job in self.reference.jobs.values() if job.args is None}
        self.ask("jobs.retry", [job_id for job_id in ids if job_id not in dropped], order=sorted)

    @rule(chosen=st.lists(some, min_size=1, max_size=3))
    def delete(self, chosen: list[int]) -> None:
        self.ask("jobs.delete", self.job_ids(chosen), order=sorted)

    @rule(
        verb=st.sampled_from(("queues.upsert", "queues.pause", "queues.resume")),
        name=st.sampled_from(("unused", "unused", *QUEUES)),
        priority=st.sampled_from((0, 7, -7)),
    )
    def change_queue(self, verb: str, name: str, priority: int) -> None:
        self.ask(verb, name, *([priority] if verb == "queues.upsert" else []))

    @rule(
        scope=st.sampled_from(("task", "queue")),
        n=st.integers(0, 2),
        source=st.sampled_from((Source.DECLARED, Source.DECLARED, Source.OVERRIDE)),
        bounds=st.sampled_from(BOUNDS),
        lifts=st.sampled_from((None, None, *Kind)),
    )
    def set_limits(self, scope: Scope, n: int, source: Source, bounds: dict[str, Any], lifts: Kind | None) -> None:
        """Code or an operator says what holds from now on; sometimes nothing, or that a limit of code is lifted."""
        said = bounds_of("limits", bounds)
        if lifts is not None and source == Source.OVERRIDE:
            said[lifts] = ()
        self.ask("limits.say", scope, (TASKS if scope == "task" else QUEUES)[n], source, said)
        self.ask("limits.all")

    @precondition(lambda self: self.reference.limits)
    @rule(n=some)
    def lift_limits(self, n: int) -> None:
        rules = self.reference.limits_all()
        rule = rules[n % len(rules)]
        self.ask("limits.say", rule.scope, rule.name, rule.source, {})
        self.tend_limits()

    @rule()
    def tend_limits(self) -> None:
        self.ask("limits.prune_starts", 1000)
        self.ask("limits.park", 1000)

    # Schedules

    @rule(
        name=st.sampled_from(SCHEDULES),
        every_us=st.sampled_from((10 * SECOND, MINUTE)),
        overlap=st.sampled_from(("allow", "skip", "queue")),
        next_us=st.sampled_from((None, -SECOND, 0, 10 * SECOND)),
    )
    def set_schedule(self, name: str, every_us: int, overlap: str, next_us: int | None) -> None:
        now = self.clock.now()
        schedule = Schedule(
            name=name,
            task="sync",
            queue=None,
            args="{}",
            cron=None,
            every_us=every_us,
            tz="UTC",
            misfire="last",
            misfire_limit=10,
            overlap=overlap,
            priority=None,
            next_at=None if next_us is None else now + next_us,
            last_at=None,
            created_at=now,
            updated_at=now,
            paused_at=None,
        )
        self.ask("schedules.upsert", schedule)

    @rule(
        n=st.integers(0, 5),
        wishes=st.lists(single, max_size=2),
        next_us=st.sampled_from((None, 10 * SECOND)),
        is_last=st.booleans(),
    )
    def fire(self, n: int, wishes: list[Wish], next_us: int | None, is_last: bool) -> None:
        """Fires a schedule as it is, or as it was when it was read."""
        if not self.reference.schedules:
            self.set_schedule("beat", MINUTE, "queue", next_us=0)
        known = [*self.schedules, *self.reference.schedules_all()]
        schedule, now = known[-1 - n % len(known)], self.clock.now()
        new = self.build(wishes, schedule=schedule.name, slot=schedule.next_at)
        next_at, last_at = None if next_us is None else now + next_us, now if is_last else None
        self.ask("schedules.fire", schedule, next_at=next_at, last_at=last_at, new=new)
        self.schedules.append(self.ask("schedules.get", schedule.name) or schedule)

    @rule(n=st.integers(0, 5), every_us=st.sampled_from((10 * SECOND, HOUR)), next_us=st.sampled_from((None, SECOND)))
    def reschedule(self, n: int, every_us: int, next_us: int | None) -> None:
        """Changes a schedule as it is, or as it was before it fired."""
        known = [*self.schedules, *self.reference.schedules_all()]
        if known:
            stored = known[-1 - n % len(known)]
            next_at = None if next_us is None else self.clock.now() + next_us
            self.ask("schedules.change", stored, replace(stored, every_us=every_us, next_at=next_at))

    @rule(
        changes=st.lists(
            st.tuples(
                st.sampled_from(("schedules.pause", "schedules.resume", "schedules.delete")),
                st.sampled_from((*SCHEDULES, "unknown")),
            ),
            min_size=1,
            max_size=4,
        ),
        next_us=st.sampled_from((None, 0, SECOND)),
    )
    def change_schedules(self, changes: list[tuple[str, str]], next_us: int | None) -> None:
        next_at = None if next_us is None else self.clock.now() + next_us
        for verb, name in changes:
            self.ask(verb, name, *([next_at] if verb == "schedules.resume" else []))

    # Reads

    @rule(chosen=st.lists(some, min_size=1, max_size=3))
    def look_at_jobs(self, chosen: list[int]) -> None:
        ids = self.job_ids(chosen)
        self.ask("verbs.probe", EVERYTHING)
        self.ask("jobs.get", ids, order=wordless)
        self.ask("history.attempts", ids[0], order=wordless)
        self.ask("graph.edges", ids[0])
        self.ask("graph.lost", ids[0], order=lambda lost: [sorted(part) for part in lost])
        self.ask("history.log_lines", ids[0], order=lambda lines: [line for _, line in lines])

    @rule(window_us=st.sampled_from((0, MINUTE, DAY)), limit=limits)
    def look_around(self, window_us: int, limit: int) -> None:
        self.ask("history.stats", window_us, order=astuple)
        self.ask("verbs.next_due")
        self.ask("queues.all")
        self.ask("workers.all", limit)
        self.ask("leases.all")
        self.ask("schedules.all")
        self.ask("schedules.due", order=by_name)
        self.ask("schedules.upcoming")

    @rule(
        named=st.sampled_from(
            (
                {},
                {"queue": "mail"},
                {"task": "scan", "states": frozenset({State.QUEUED, State.FAILED})},
                {"tag": "y"},
                {"reason": "user"},
                {"schedule": "beat"},
                {"states": frozenset[State]()},
            )
        ),
        n=some,
        limit=limits,
        since_us=st.sampled_from((None, 0, MINUTE)),
    )
    def look_for_jobs(self, named: dict[str, Any], n: int, limit: int, since_us: int | None) -> None:
        fit = Filter(**named, since=None if since_us is None else self.clock.now() - since_us)
        before = self.job_ids([n])[0] if n % 2 else None
        self.ask("jobs.newest", fit, limit=limit, before=before, order=wordless)

    @rule(n=some, limit=limits)
    def look_at_workflows(self, n: int, limit: int) -> None:
        there = sorted(self.reference.workflows, reverse=True)
        chosen = there[n % len(there)] if there and n < 31 else self.new_id()
        self.ask("workflows.get", chosen)
        self.ask("workflows.jobs", chosen, frozenset({State.COMPLETED, State.QUEUED, State.WAITING}))
        self.ask("workflows.newest", limit=limit)
        self.ask("workflows.newest", before=chosen)
        self.ask("jobs.newest", Filter(workflow_id=chosen), order=wordless)
        self.ask("workflows.names", [*there[:limit], chosen])
        name = self.reference.workflows[there[0]].name if there else "none"
        self.ask("workflows.has_name", name)
        self.ask("jobs.newest", Filter(workflow=name), limit=limit, order=wordless)
        self.ask("workflows.tallies", [*there[:limit], chosen])
        self.ask("workflows.step", chosen, "abcd"[n % 4])
        self.ask("workflows.drawing", chosen, order=wordless)
        self.ask("workflows.moved_by", chosen, limit)
