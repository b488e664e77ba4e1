"""SQLite, PostgreSQL and a plain Python model take the same steps, in any order, and must stay the same.

Each rule calls one verb with the same arguments on all three, under one clock that the test controls, and compares
the results; after each step all rows of all tables are compared. Where the contract leaves an order open, results
are sorted; no other difference is allowed. `DRAY_SOAK_STEPS=100000` runs until that many steps changed a row.

The rules are in `state_machine/`, the model is in `reference.py`.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Generator
from functools import cached_property
from inspect import isfunction
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from dray.backends import Backend
from dray.clock import Ids
from dray.model.new_job import NewJob
from tests import verbs
from tests.backends.state_machine.operator_rules import OperatorRules
from tests.backends.state_machine.sides import Sides
from tests.backends.state_machine.work_rules import WorkRules

STEPS = int(os.environ.get("DRAY_SOAK_STEPS", "2000"))  # that changed a row
CALLS = 20  # of every verb, at least
PATIENCE_S = max(300, STEPS / 10)  # it takes 30 s on a quiet machine


class Machine(WorkRules, OperatorRules):
    """Calls every verb, with arguments that are right, stale, wrong or repeated."""


# Not about rows, or a variant of another verb: each has its own tests.
ASIDE = {
    *(
        "seen_by",
        "read_async",
        "transaction",
        "atransaction",
        "jobs.enqueue_async",
        "work.complete",
        "work.complete_async",
    ),
    "jobs.enqueue_alike_async",
    *(
        "work.look",
        "jobs.ended",
        "jobs.find",
        "graph.neighbours",
        "jobs.upcoming",
        "work.completed_by",
        "leases.held",
    ),  # other ways to read the same rows
    *(
        "why.circumstances",
        "why.standstill",
        "why.of_each_kind",
        "history.prunable",
        "history.prune_steps",
        "verbs.prune_some",
        "workflows.find",
    ),
    *("search.page", "search.places", "search.among", "search.newest"),
    *("overview.around", "overview.taken_back", "overview.ended_workers"),
    *("overview.worker", "overview.newest_of_queue", "overview.tasks_of"),
    *("live.queues_like", "live.queues_named"),
    *("live.changes", "live.newest_times", "live.last_line", "live.panels", "live.numbers", "live.pulse"),
    *("examine", "note_once", "noted", "audit.part", "audit.whole", "audit.orphans"),
    *("pages.workflows", "pages.tallies", "pages.sketch", "pages.jobs"),
    *("pages.schedules", "pages.schedule_jobs", "pages.actions"),
    *("workers.judge", "workers.gone"),
    *("imports.write", "imports.there"),
    *("actions.note", "actions.end", "actions.newest", "actions.get", "actions.prune"),
    *("rollups.mark", "rollups.next_end", "rollups.ended", "rollups.write", "rollups.prune"),
    *(
        "rollups.one",
        "rollups.each",
        "rollups.minutes",
        "failures.groups",
        "failures.group",
        "failures.give_keys",
        "failures.clear_keys",
    ),
    *("stacks.ask", "stacks.read", "stacks.answer", "stacks.drop", "stacks.prune"),
    *("limits.add", "limits.use", "limits.queues_of", "work.take"),  # of `limits.say`, reads, and for tests alone
    *("graph.fan_out_all", "limits.park_all", "outcomes.find", "outcomes.write"),  # parts of other verbs
}


def _verbs() -> Generator[str]:
    small = [verb for verb in vars(verbs).values() if isfunction(verb) and verb.__module__ == verbs.__name__]
    yield from (f"verbs.{verb.__name__}" for verb in small if not verb.__name__.startswith("_"))
    for name, value in vars(Backend).items():
        if name == "transfer":  # its verbs move whole tables
            continue
        if isinstance(value, cached_property):
            noun = type(value.func(SimpleNamespace(db=None)))
            yield from (f"{name}.{verb}" for verb in vars(noun) if not verb.startswith("_"))
        elif not name.startswith("_"):
            yield name


VERBS = sorted({*_verbs()} - ASIDE)


def test_both_databases_do_what_the_model_does(sides: Sides, capsys: pytest.CaptureFixture[str]) -> None:
    Machine.sides, Machine.calls, Machine.changed, Machine.disagreements = sides, Counter(), 0, []
    chosen, began, rounds = random.getrandbits(32), time.monotonic(), 0
    long = settings(
        max_examples=4,
        stateful_step_count=100,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )

    def is_enough() -> bool:
        return Machine.changed >= STEPS and all(Machine.calls[verb] >= CALLS for verb in VERBS)

    while not is_enough() and time.monotonic() - began < PATIENCE_S:
        try:
            run_state_machine_as_test(seed(chosen + rounds)(Machine), settings=long)
        except BaseException as error:
            # Hypothesis does not show failures that it cannot repeat, and these are the most valuable.
            error.add_note(
                f"seed {chosen + rounds}, at first: {next(iter(Machine.disagreements), 'no disagreement')}"
            )
            raise
        rounds += 1
    with capsys.disabled():
        took = time.monotonic() - began
        counted = ", ".join(f"{verb} {Machine.calls[verb]}" for verb in VERBS)
        print(f"\n{Machine.changed} steps changed a row ({rounds} rounds from seed {chosen}, {took:.0f} s)")
        print(f"calls: {counted}")
    assert Machine.calls["claims in turns"] >= CALLS
    assert [verb for verb in VERBS if Machine.calls[verb] < CALLS] == []
    assert is_enough()


def test_a_look_at_the_tables_misses_no_write_and_reads_nothing_twice(sides: Sides) -> None:
    """Otherwise the machine would compare rows of an earlier step."""
    for backend, look in ((sides.sqlite, sides.on_sqlite), (sides.postgres, sides.on_postgres)):
        assert look()["jobs"] == {}
        job = NewJob(id=Ids(sides.clock).new(), task="send")
        backend.jobs.enqueue([job])
        before = look()
        assert before["jobs"][job.id].priority == 0
        assert all(now is table for now, table in zip(look().values(), before.values(), strict=True))
    for change, left in (
        ("UPDATE {} SET priority = 7", [7]),
        ("UPDATE {} SET priority = 8", [8]),
        ("DELETE FROM {}", []),
    ):
        sides.sqlite_user.execute(change.format("dray_jobs"))
        sides.sqlite_user.commit()
        sides.postgres_user.execute(change.format(f'"{sides.schema}".dray_jobs').encode())
        sides.postgres_user.commit()
        for look in (sides.on_sqlite, sides.on_postgres):
            before = look()
            assert [row.priority for row in before["jobs"].values()] == left
            assert look()["jobs"] is before["jobs"]
            assert look()["queues"] is before["queues"]
