"""Jobs of another queue are written whole, once, after the jobs that they run after."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from dray.instants import HOUR
from dray.model.carried import Carried, Execution, derived_id, recorded
from dray.model.job import Attempt, LogLine, Outcome, Reason, State
from dray.model.new_job import NewJob
from dray.ops.audit import audit
from tests.backends.world import World


def carried(world: World, key: str, state: State | None = None, *parents: Carried, **given: Any) -> Carried:
    at = world.backend.now() - HOUR
    job_id = derived_id("theirs", key, at)
    policy = "hold" if parents else "cancel"
    after = tuple(parent.job.id for parent in parents)
    job = NewJob(id=job_id, task="t", run_at=at, parents=after, on_parent_failure=policy)
    if state is not None:
        given = {"finished_at": at + 1, "started_at": at, "attempt": 1, "claim": 1} | given
    if state is State.FAILED:
        record = recorded(job_id, [Execution(Outcome.ERROR, at, at + 1, "ValueError", "no")], 1)
        given |= {"reason": Reason.ERROR, "error": "ValueError: no", "attempts": record.attempts}
    return Carried(job=job, created_at=at, state=state, **given)


def states(world: World, *jobs: Carried) -> list[str]:
    found = {job.id: job.state for job in world.backend.jobs.get([each.job.id for each in jobs])}
    return [found.get(each.job.id, "gone") for each in jobs]


def test_a_job_keeps_its_times_its_result_its_attempts_and_its_log(world: World) -> None:
    at = world.backend.now() - HOUR
    done = carried(world, "done", State.COMPLETED, result='"' + "x" * 3_000 + '"', attempt=2, claim=2, progress=50.0)
    tried = Attempt(done.job.id, 1, 1, None, "error", "ValueError", "no", "Traceback", at, at + 1)
    line = LogLine(done.job.id, 2, at, "INFO", "theirs", "hello")
    done = replace(done, attempts=(tried,), logs=(line,))

    assert world.backend.imports.write([done]).fresh == {done.job.id}

    (job,) = world.backend.jobs.get([done.job.id])
    assert (job.state, job.result, job.attempt, job.progress) == (State.COMPLETED, done.result, 2, 50)
    assert (job.created_at, job.started_at, job.finished_at) == (at, at, at + 1)
    assert [each.error_message for each in world.backend.history.attempts(done.job.id)] == ["no"]
    assert [each.message for _, each in world.backend.history.log_lines(done.job.id)] == ["hello"]
    assert audit(world.backend).broken == ()


def test_a_second_write_leaves_a_job_as_it_has_become(world: World) -> None:
    waits = carried(world, "waits")
    world.backend.imports.write([waits])
    world.backend.jobs.cancel([waits.job.id])

    again = world.backend.imports.write([waits])

    assert (again.fresh, again.orphans, states(world, waits)) == (set(), set(), ["cancelled"])


def test_children_wait_for_what_has_not_completed(world: World) -> None:
    """Whatever their order in a batch: a parent that has ended is placed as ended before its child is."""
    done, failed, waits = (
        carried(world, "done", State.COMPLETED),
        carried(world, "failed", State.FAILED),
        carried(world, "waits"),
    )
    of_done, of_failed, of_both = (
        carried(world, "of done", None, done),
        carried(world, "of failed", None, failed),
        carried(world, "of both", None, done, waits),
    )

    written = world.backend.imports.write([of_both, of_failed, of_done, waits, failed, done])

    assert (len(written.fresh), written.orphans) == (6, set())
    assert states(world, of_done, of_failed, of_both) == ["queued", "waiting", "waiting"]
    assert audit(world.backend).broken == ()
    world.backend.jobs.retry([failed.job.id])
    assert states(world, failed, of_failed) == ["queued", "waiting"]
    assert audit(world.backend).broken == ()


def test_a_job_whose_parent_is_not_here_is_left_out_and_so_are_circles(world: World) -> None:
    missing = carried(world, "missing")
    orphan = carried(world, "orphan", None, missing)
    its_child = carried(world, "its child", None, orphan)
    first = carried(world, "first")
    second = carried(world, "second", None, first)
    first = carried(world, "first", None, second)
    fine = carried(world, "fine")

    written = world.backend.imports.write([orphan, its_child, first, second, fine])

    assert written.fresh == {fine.job.id}
    assert written.orphans == {each.job.id for each in (orphan, its_child, first, second)}
    assert audit(world.backend).broken == ()


def test_an_id_is_the_same_every_time_and_in_the_order_of_time() -> None:
    early, late = derived_id("gigq", "a", 1_000_000), derived_id("gigq", "a", 9_000_000)

    assert early == derived_id("gigq", "a", 1_000_000)
    assert early < late
    assert len({early, derived_id("lilota", "a", 1_000_000), derived_id("gigq", "b", 1_000_000)}) == 3
    assert early[14] == "7"
    assert early[19] in "89ab"


def test_attempts_are_numbered_as_they_count() -> None:
    """Of three executions, one was made before the job was started over."""
    made = [Execution(Outcome.ERROR, 5, 1), Execution(Outcome.ERROR, 2, 3), Execution(Outcome.COMPLETED, 4, 5)]

    failed, completed, lost = recorded("x", made, 2), recorded("x", made, 2, completed=True), recorded("x", made, 5)

    assert [(each.claim, each.attempt) for each in failed.attempts] == [(1, 1), (2, 1), (3, 2)]
    assert [(each.claim, each.attempt) for each in completed.attempts] == [(1, 1), (2, 1)]
    assert (failed.claim, completed.claim, lost.claim) == (3, 3, 5)
    assert [(each.claim, each.attempt) for each in lost.attempts] == [(3, 3), (4, 4), (5, 5)]
    assert failed.attempts[0].finished_at == 5  # not before it started


def test_two_imports_at_once_write_each_job_once(world: World) -> None:
    batch = [carried(world, f"job {number}", State.FAILED) for number in range(20)]
    batch += [carried(world, f"child {number}", None, parent) for number, parent in enumerate(batch)]

    with ThreadPoolExecutor(4) as pool:
        writes = [pool.submit(world.backend.imports.write, batch) for _ in range(4)]

    assert sorted(len(each.result().fresh) for each in writes) == [0, 0, 0, 40]
    assert audit(world.backend).broken == ()
