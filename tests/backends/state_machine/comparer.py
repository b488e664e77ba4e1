"""Calls a verb on the model and both databases, and compares the results, and all rows after each step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from operator import is_not
from typing import Any, ClassVar
from unittest.mock import patch

from hypothesis.stateful import RuleBasedStateMachine, invariant

from dray.backends.store.graph import FanOut, GraphStore
from dray.model.job import LIVE, Claim, Demand, State
from dray.model.new_job import NewJob
from dray.model.schedule import Schedule
from dray.model.settlement import Settlement
from dray.model.worker import DeathVerdict
from dray.model.workflow import Workflow
from tests.backends.reference import Reference
from tests.backends.state_machine.arguments import ENDINGS, LARGE, Wish
from tests.backends.state_machine.results import answer_of, differences, exchanged, wordless
from tests.backends.state_machine.sides import ATTEMPTS_KEPT, LOG_LINES, Sides


def _nothing(_: object) -> FanOut:
    """Replaces the fan-out that a dead process does not reach."""
    return FanOut(0, left=False)


class Comparer(RuleBasedStateMachine):
    """A state machine without rules: what they call, and what has been made so far, from which they choose."""

    sides: Sides  # set by the test that runs this
    calls: ClassVar[Counter[str]] = Counter()
    changed: ClassVar[int] = 0
    disagreements: ClassVar[list[str]] = []

    def __init__(self) -> None:
        super().__init__()
        self.sides.empty()
        self.clock = self.sides.clock
        self.reference = Reference(self.clock, attempts_kept=ATTEMPTS_KEPT, log_lines=LOG_LINES)
        self.before = self.reference.tables()
        self.found: dict[str, tuple[Any, Any]] = {}  # in both databases, by table; compared with the model
        self.numbers = self.turns = 0
        self.enqueues: list[tuple[list[NewJob], Workflow | None]] = []
        self.workers = [self.new_id()]  # the first is never registered
        self.claims: list[tuple[str, Claim]] = []
        self.verdicts: list[DeathVerdict] = []
        self.schedules: list[Schedule] = []
        self.terms: list[tuple[str, str, int]] = []

    # All three together

    def ask(self, verb: str, *given: Any, order: Callable[[Any], Any] | None = None, **named: Any) -> Any:
        """Returns the result of all three, which must be equal."""
        self.calls[verb] += 1
        returned = [
            answer_of(side, verb, given, named, order)
            for side in (self.reference, self.sides.sqlite, self.sides.postgres)
        ]
        self.compare(verb, *returned)
        return returned[0]

    def ask_for_work(
        self,
        verb: str,
        worker: str,
        demand: Demand,
        settlements: Sequence[Settlement] | None = None,
        **named: Any,
    ) -> None:
        """As `ask`, for a verb that claims: `work.exchange` or `verbs.claim`.

        Where jobs take turns, the model does not choose: it judges what SQLite has claimed, and PostgreSQL must have
        claimed the same. PostgreSQL's first claim after a limit or a key has come takes none of them, so it is told;
        and where too few jobs were there to take the place of those that ended, its next claim counts.
        """
        self.calls[verb] += 1
        given: tuple[Any, ...] = (worker, demand) if settlements is None else (worker, settlements, demand)
        if self.reference.has_turns() or any(each.key is not None for each in settlements or ()):
            self.calls["claims in turns"] += 1
            given = (*given[:-1], self.reference.fair(demand))
            self.sides.postgres.work._turns.is_needed = True
        sqlite, postgres = (
            answer_of(side, verb, given, named, order=None) for side in (self.sides.sqlite, self.sides.postgres)
        )
        if getattr(postgres, "goes_on", False) and len(postgres.claims) < len(sqlite.claims):
            missing = demand._replace(limit=demand.limit - len(postgres.claims))
            more = self.sides.postgres.work.exchange(worker, [], missing)
            postgres = postgres._replace(claims=postgres.claims + more.claims)
        self.reference.claimed = [claim.id for claim in getattr(sqlite, "claims", sqlite)]
        reference = answer_of(self.reference, verb, given, named, order=None)
        order = exchanged if verb == "work.exchange" else list
        self.compare(verb, order(reference), order(sqlite), order(postgres))
        claims: list[Claim] = getattr(reference, "claims", reference)
        self.claims += [(worker, claim) for claim in claims]

    def compare(self, what: str, reference: Any, sqlite: Any, postgres: Any) -> None:
        differing = [
            f"{side}: {answer}\n{' ' * len(side)}not {expected}"
            for side, theirs in (("SQLite", sqlite), ("PostgreSQL", postgres))
            for answer, expected in differences(theirs, reference)
        ]
        if differing:
            self.disagreements.append(f"{what}\n" + "\n".join(differing))
            raise AssertionError(self.disagreements[-1])

    @invariant()
    def all_tables_are_the_same(self) -> None:
        now = {**self.reference.tables(), "parked": self.reference.parked()}
        changed = {name for name, table in now.items() if table != self.before.get(name)}
        type(self).changed += bool(changed)
        self.before = now
        sqlite, postgres = self.sides.on_sqlite(), self.sides.on_postgres()
        for name, table in now.items():
            found = (sqlite[name], postgres[name])
            if name in changed or any(map(is_not, found, self.found.get(name, (None, None)))):
                expected = {key: wordless(row) for key, row in table.items()}
                self.compare(name, expected, *found)
                self.found[name] = found

    @contextmanager
    def cut_off(self, dies: bool) -> Generator[None]:
        """All three end a job and, if they die, do not reach its fan-out."""
        self.reference.is_cut_off = dies
        with (
            patch.object(GraphStore, "_fan_out_turn", _nothing)
            if dies
            else patch.object(GraphStore, "_", 0, create=True)
        ):
            yield
        self.reference.is_cut_off = False

    # What the arguments mean

    def new_id(self) -> str:
        self.numbers += 1
        return f"01900000-0000-7000-8000-{self.numbers:012x}"

    def job_ids(self, chosen: Iterable[int]) -> list[str]:
        there = sorted(self.reference.jobs, reverse=True)
        return [there[n % len(there)] if there and n < 31 else self.new_id() for n in chosen]

    def worker(self, n: int) -> str:
        """Returns mostly a live worker; from 26 on any, including one that never existed."""
        live = [worker for worker in self.workers if self.reference.is_live(worker)]
        among = live if live and n < 26 else self.workers
        return among[-1 - n % len(among)]

    def running(self) -> set[tuple[str, int]]:
        jobs = self.reference.jobs.values()
        return {(job.id, job.claim) for job in jobs if job.state == State.RUNNING}

    def ended(self) -> list[str]:
        return sorted(job.id for job in self.reference.jobs.values() if job.state not in LIVE)

    def held(self, n: int, is_stale: bool) -> tuple[str, Claim] | None:
        """Returns a claim that is held, or any past claim."""
        running = self.running()
        among = [(worker, claim) for worker, claim in self.claims if is_stale or (claim.id, claim.claim) in running]
        return among[-1 - n % len(among)] if among else None

    def settlements(
        self, chosen: list[tuple[int, str, tuple[int, int]]], is_stale: bool
    ) -> tuple[str, list[Settlement]]:
        """Returns outcomes for some claims, and the worker that reports them: that of the first claim."""
        given: dict[str, Settlement] = {}  # one per job: the result names jobs, not claims
        worker = self.worker(0)
        for n, ending, (ago, lasted) in chosen:
            held = self.held(n, is_stale)
            if held is None:
                continue
            worker = held[0] if not given else worker
            finished = self.clock.steady() - ago
            given[held[1].id] = ENDINGS[ending](held[1], finished - lasted, finished)
        return worker, list(given.values())

    def build(self, wishes: Sequence[Wish], backwards: bool = False, **also: Any) -> list[NewJob]:
        ids = [self.new_id() for _ in wishes]
        ids = ids[::-1] if backwards else ids
        now = self.clock.now()
        made: list[NewJob] = []
        for job_id, wish in zip(ids, wishes, strict=True):
            options = dict(wish.options)
            if options.pop("is_large", False):
                options["args"] = f'"{LARGE}"'
            if "in" in options:
                options["run_at"] = now + options.pop("in")
            if "expires_in" in options:
                options["expires_at"] = now + options.pop("expires_in")
            inside = [ids[n] for n in wish.inside if n < len(ids)]
            parents = tuple(dict.fromkeys([*self.job_ids(wish.outside), *inside]))
            made.append(
                NewJob(
                    id=job_id,
                    task=wish.task,
                    queue=wish.queue,
                    parents=parents,
                    on_parent_failure=wish.on_parent_failure,
                    **{**options, **also},
                )
            )
        return made

    def enqueue(self, new: list[NewJob], workflow: Workflow | None = None) -> None:
        self.enqueues.append((new, workflow))
        self.ask("jobs.enqueue", new, workflow=workflow)
