"""Which workers are dead: by proof if there is one, otherwise by the lease, on both databases."""

from __future__ import annotations

import os
import random
import signal
from contextlib import closing

import psycopg
import pytest

from dray.backends import Backend, open_backend
from dray.clock import Ids
from dray.instants import SECOND
from dray.model.worker import DeathVerdict, Judgement, NewWorker
from tests import verbs
from tests.backends import raw
from tests.backends.lives import live, until
from tests.backends.processes import Process, enqueue
from tests.backends.world import LEASE_US, World
from tests.manual_clock import ManualClock

NOBODY_IS_DEAD = Judgement([], [], [], None, has_orphans=False, clock_at=0)


def _verdict(backend: Backend, worker_id: str) -> DeathVerdict:
    (row,) = [row for row in backend.workers.all() if row.id == worker_id]
    return DeathVerdict(row.id, row.lease_until)


def _dead(backend: Backend) -> list[str]:
    judgement = backend.workers.judge()
    return [verdict.worker_id for verdict in (*judgement.dead, *judgement.overdue, *judgement.strangers)]


def _judged(world: World, asker: str | None = None) -> Judgement:
    """Returns the verdicts, at any time."""
    return world.backend.workers.judge(asker)._replace(clock_at=0)


# By the lease


def test_a_worker_without_a_proof_is_judged_by_its_lease(world: World) -> None:
    worker = world.worker()
    world.clock.advance(LEASE_US)
    in_time = _judged(world)

    world.clock.advance(1)

    assert in_time == NOBODY_IS_DEAD
    assert _judged(world) == NOBODY_IS_DEAD._replace(overdue=[_verdict(world.backend, worker)])


def test_a_worker_that_renewed_its_lease_lives(world: World) -> None:
    worker = world.worker()
    world.clock.advance(2 * LEASE_US)
    world.backend.workers.beat(worker, LEASE_US)

    assert _judged(world) == NOBODY_IS_DEAD


def test_workers_that_ended_are_judged_no_more(world: World) -> None:
    left, buried = world.worker(), world.worker()
    world.backend.workers.deregister(left)
    world.bury(buried)
    world.clock.advance(10 * LEASE_US)

    assert _judged(world) == NOBODY_IS_DEAD


def test_who_asks_is_not_judged_but_told_what_is_left_of_its_own_lease(world: World) -> None:
    asker, other = world.worker(), world.worker()
    world.clock.advance(10 * SECOND)
    early = _judged(world, asker)
    world.clock.advance(10 * SECOND)

    late = _judged(world, asker)

    assert early == NOBODY_IS_DEAD._replace(left_us=5 * SECOND)
    assert late == NOBODY_IS_DEAD._replace(overdue=[_verdict(world.backend, other)], left_us=-5 * SECOND)


def test_an_asker_that_was_declared_dead_has_no_lease_left(world: World) -> None:
    asker = world.worker()
    world.bury(asker)

    assert world.backend.workers.judge(asker).left_us is None


@pytest.mark.parametrize("step", [3_600 * SECOND, -3_600 * SECOND])
def test_steps_of_the_wall_clock_do_not_matter(world: World, step: int) -> None:
    world.worker()

    world.clock.step(step)

    judgement = world.backend.workers.judge()
    assert (judgement.dead, judgement.overdue) == ([], [])


# By proof, with real processes


def test_a_worker_that_proves_its_life_is_alive_long_after_its_lease(url: str) -> None:
    with closing(open_backend(url)) as backend, Process(live, url, 0) as worker:
        told = worker.hear()

        assert told["is_held"]
        assert _dead(backend) == []


def test_a_stopped_worker_is_alive(url: str) -> None:
    with closing(open_backend(url)) as backend, Process(live, url, 0) as worker:
        worker.hear()
        os.kill(worker.pid, signal.SIGSTOP)

        assert _dead(backend) == []

        os.kill(worker.pid, signal.SIGCONT)
        worker.say("beat")
        assert worker.hear()


def test_a_killed_worker_whose_lease_is_over_is_dead(url: str) -> None:
    with closing(open_backend(url)) as backend, Process(live, url, 0) as worker:
        told = worker.hear()
        worker.kill()

        until(lambda: _dead(backend) == [told["id"]])


def test_a_worker_that_gave_its_proof_up_is_judged_by_its_lease(url: str) -> None:
    with closing(open_backend(url)) as backend, Process(live, url, 1_000_000) as worker:
        told = worker.hear()
        worker.say("close")
        worker.hear()
        early = _dead(backend)

        until(lambda: _dead(backend) == [told["id"]])

        assert early == []


def test_a_child_that_thinks_the_proof_is_its_own_does_no_harm(url: str) -> None:
    with closing(open_backend(url)) as backend, Process(live, url, 0) as worker:
        worker.hear()
        worker.say("child_closes")
        ended = worker.hear()
        worker.say("check")

        assert (ended, worker.hear()) == (3, [True, True])
        assert _dead(backend) == []


def test_a_rescue_takes_the_jobs_of_a_killed_worker_and_of_no_other(url: str) -> None:
    with closing(open_backend(url)) as backend:
        ids = [enqueue(backend) for _ in range(4)]
        with Process(live, url, 0, 2) as killed, Process(live, url, 0, 2) as stopped:
            mourned, _ = killed.hear(), stopped.hear()
            os.kill(stopped.pid, signal.SIGSTOP)
            killed.kill()
            until(lambda: mourned["id"] in _dead(backend))
            judgement = backend.workers.judge()

            rescued = backend.workers.rescue([*judgement.dead, *judgement.overdue], rng=random.Random(7))

            states = {job.id: job.state for job in backend.jobs.get(ids)}
            assert {job.worker_id for job in rescued} == {mourned["id"]}
            assert sorted(states.values()) == ["running", "running", "scheduled", "scheduled"]
            assert _dead(backend) == []


# Orphans


def test_there_are_no_orphans_while_workers_live(world: World) -> None:
    world.enqueue()
    world.claim_one(world.worker())
    world.enqueue()

    assert not world.backend.workers.judge().has_orphans


@pytest.mark.parametrize("ending", ["stopped", "unknown"])
def test_a_running_job_whose_worker_is_gone_is_an_orphan_until_it_is_rescued(world: World, ending: str) -> None:
    world.enqueue()
    worker = world.worker()
    world.claim_one(worker)
    if ending == "stopped":
        world.backend.workers.deregister(worker)
    else:
        raw.forget_worker(world.backend, worker)

    was_orphaned = world.backend.workers.judge().has_orphans
    world.backend.workers.rescue([], rng=world.rng)

    assert was_orphaned
    assert not world.backend.workers.judge().has_orphans


# PostgreSQL only


def test_a_worker_cut_off_by_a_restart_of_the_server_has_one_whole_lease_from_then_on(shared_url: str) -> None:
    with closing(open_backend(shared_url)) as backend:
        backend.migrate()
        ids = Ids(ManualClock())
        early, late = (NewWorker(id=ids.new(), name="w", host="h", pid=1, boot="b") for _ in range(2))
        for worker in (early, late):
            backend.workers.register(worker, 0)
        # As if they had renewed their leases long ago, one for a day, the other for a moment.
        sql = "UPDATE dray_workers SET last_seen_at = last_seen_at - interval '{}', lease_until = lease_until - {}"
        raw.run(backend, sql.format("2000 days", "interval '1999 days'") + " WHERE id = ?", early.id)
        raw.run(backend, sql.format("1000 days", "interval '1000 days'") + " WHERE id = ?", late.id)

        judgement = backend.workers.judge()
        buried = backend.workers.rescue(verbs.overdue(backend), rng=random.Random(7))

        assert [verdict.worker_id for verdict in judgement.overdue] == [late.id]
        assert buried == []
        assert {row.id: row.state for row in backend.workers.all()} == {early.id: "active", late.id: "dead"}


def test_a_dropped_session_gives_the_lock_back_and_the_next_check_takes_it_again(shared_url: str) -> None:
    with closing(open_backend(shared_url)) as backend:
        backend.migrate()
        with closing(backend.watch()) as watch:
            worker_id = Ids(ManualClock()).new()
            proof = backend.proofs.prove(worker_id, watch)
            with psycopg.connect(shared_url.partition("&schema=")[0], autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                    " WHERE application_name = 'dray listen' AND datname = current_database()"
                )
            first = proof.check()

            until(lambda: proof.check() and proof.is_held)

            proof.close()
            assert first
            assert not proof.is_held
