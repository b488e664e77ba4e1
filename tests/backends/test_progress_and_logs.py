"""What a running job reports: progress and log lines."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from dray.backends import Backend
from dray.backends.postgres.session import PostgresSession
from dray.backends.store.work import NOTHING, SILENCE, Notes, Report
from dray.instants import HOUR, SECOND
from dray.model import settlement as model
from dray.model.job import Claim, LogLine, Reason
from dray.model.settlement import Settlement
from tests import verbs
from tests.backends import raw
from tests.backends.world import World


def _claimed(world: World) -> tuple[str, Claim]:
    world.enqueue()
    worker = world.worker()
    return worker, world.claim_one(worker)


def _line(world: World, claim: Claim, message: str) -> LogLine:
    return LogLine(claim.id, claim.claim, world.clock.steady(), "INFO", "app.mail", message)


def _messages(world: World, claim: Claim, *, after: int = 0, limit: int = 5_000) -> list[str]:
    return [line.message for _, line in world.backend.history.log_lines(claim.id, after=after, limit=limit)]


# Progress


def test_progress_is_shown_on_the_running_job(world: World) -> None:
    worker, claim = _claimed(world)
    world.clock.advance(SECOND)

    noted = verbs.progress(world.backend, worker, [(claim.id, claim.claim, 12.5, "třetina 🐎")])

    assert noted == [True]
    job = world.job(claim.id)
    assert (job.progress, job.progress_message) == (12.5, "třetina 🐎")
    assert (job.state, job.updated_at) == ("running", world.clock.now())


def test_the_latest_progress_replaces_the_one_before(world: World) -> None:
    worker, claim = _claimed(world)
    verbs.progress(world.backend, worker, [(claim.id, claim.claim, 10.0, "first")])

    verbs.progress(world.backend, worker, [(claim.id, claim.claim, None, "second")])

    assert (world.job(claim.id).progress, world.job(claim.id).progress_message) == (None, "second")


def test_each_report_of_a_batch_has_its_own_answer(world: World) -> None:
    worker = world.worker()
    ids = [world.enqueue() for _ in range(3)]
    claims = world.claim(worker, 3)
    world.fail(worker, claims[1])

    noted = verbs.progress(world.backend, worker, [(claim.id, claim.claim, 50.0, None) for claim in claims])

    assert noted == [True, False, True]
    assert [job.progress for job in world.backend.jobs.get(ids)] == [50.0, None, 50.0]


def test_no_report_is_no_work(world: World) -> None:
    assert verbs.progress(world.backend, world.worker(), []) == []


def test_progress_stays_when_the_job_ends_and_starts_over_when_it_runs_again(world: World) -> None:
    worker, claim = _claimed(world)
    verbs.progress(world.backend, worker, [(claim.id, claim.claim, 90.0, "nearly")])
    world.fail(worker, claim)
    put_back = world.job(claim.id)
    again = world.claim_one(worker)
    verbs.progress(world.backend, worker, [(again.id, again.claim, 99.0, "last")])
    world.complete(worker, again)
    ended = world.job(claim.id)

    assert (put_back.progress, put_back.progress_message) == (None, None)
    assert (ended.progress, ended.progress_message) == (99.0, "last")


# Logs


def test_a_log_line_reads_back_as_it_was_written(world: World) -> None:
    worker, claim = _claimed(world)
    message = 'příliš 🐎\nsecond line "quoted" %s :name'

    kept = verbs.write_logs(world.backend, worker, [_line(world, claim, message)])

    assert kept == [True]
    ((_, line),) = world.backend.history.log_lines(claim.id)
    assert line == LogLine(claim.id, claim.claim, world.clock.now(), "INFO", "app.mail", message)


def test_a_line_has_the_time_it_was_logged_though_it_was_written_late_and_the_clock_stepped(
    world: World,
) -> None:
    worker, claim = _claimed(world)
    line = _line(world, claim, "early")
    world.clock.step(HOUR)
    world.clock.advance(30 * SECOND)

    verbs.write_logs(world.backend, worker, [line])

    ((_, kept),) = world.backend.history.log_lines(claim.id)
    assert kept.at == world.clock.now() - 30 * SECOND


def test_lines_stay_in_the_order_they_were_written(world: World) -> None:
    worker, claim = _claimed(world)
    messages = [str(n) for n in range(50)]

    verbs.write_logs(world.backend, worker, [_line(world, claim, message) for message in messages])

    assert _messages(world, claim) == messages


def test_a_reader_goes_on_after_the_last_line_it_saw(world: World) -> None:
    worker, claim = _claimed(world)
    verbs.write_logs(world.backend, worker, [_line(world, claim, str(n)) for n in range(5)])

    page = world.backend.history.log_lines(claim.id, limit=2)
    cursor = page[-1][0]
    verbs.write_logs(world.backend, worker, [_line(world, claim, "new")])

    assert [line.message for _, line in page] == ["0", "1"]
    assert _messages(world, claim, after=cursor) == ["2", "3", "4", "new"]
    last, _ = world.backend.history.log_lines(claim.id)[-1]
    assert world.backend.history.log_lines(claim.id, after=last) == []


def test_the_newest_1000_lines_of_a_job_are_kept(world: World) -> None:
    worker, claim = _claimed(world)
    verbs.write_logs(world.backend, worker, [_line(world, claim, str(n)) for n in range(990)])
    seen, _ = world.backend.history.log_lines(claim.id, limit=2_000)[-1]

    verbs.write_logs(world.backend, worker, [_line(world, claim, str(n)) for n in range(990, 1_005)])

    assert _messages(world, claim) == [str(n) for n in range(5, 1_005)]
    assert _messages(world, claim, after=seen) == [str(n) for n in range(990, 1_005)]


def test_one_jobs_many_lines_cost_another_none(world: World) -> None:
    worker = world.worker()
    world.enqueue()
    world.enqueue()
    quiet, loud = world.claim(worker, 2)
    verbs.write_logs(world.backend, worker, [_line(world, quiet, "kept")])

    verbs.write_logs(world.backend, worker, [_line(world, loud, str(n)) for n in range(1_001)])

    assert _messages(world, quiet) == ["kept"]
    assert len(_messages(world, loud)) == 1_000


def test_each_line_of_a_batch_has_its_own_answer(world: World) -> None:
    worker = world.worker()
    for _ in range(3):
        world.enqueue()
    claims = world.claim(worker, 3)
    world.fail(worker, claims[1])

    kept = verbs.write_logs(world.backend, worker, [_line(world, claim, "here") for claim in claims])

    assert kept == [True, False, True]
    assert [_messages(world, claim) for claim in claims] == [["here"], [], ["here"]]


def test_no_line_is_no_work(world: World) -> None:
    assert verbs.write_logs(world.backend, world.worker(), []) == []


def test_the_lines_of_every_attempt_are_kept_under_its_claim(world: World) -> None:
    worker, claim = _claimed(world)
    verbs.write_logs(world.backend, worker, [_line(world, claim, "first")])
    now = world.clock.steady()
    verbs.settle(world.backend, worker, [model.snoozed(claim, now, now, 0)])
    again = world.claim_one(worker)
    verbs.write_logs(world.backend, worker, [_line(world, again, "second")])

    lines = [(line.claim, line.message) for _, line in world.backend.history.log_lines(claim.id)]

    assert lines == [(1, "first"), (2, "second")]


# On PostgreSQL, where other transactions may lock the row


@pytest.fixture
def pool() -> Generator[ThreadPoolExecutor]:
    """For calls that may wait: a failing test first releases what they wait for."""
    with ThreadPoolExecutor(1) as opened:
        yield opened


@contextmanager
def _child_under_way(backend: Backend, parent: str) -> Generator[None]:
    """An uncommitted enqueue of a job that runs after another."""
    with raw.transaction(backend) as execute:
        execute("SELECT 1 FROM dray_jobs WHERE id = ? FOR SHARE", parent)
        yield


@contextmanager
def _deletion_under_way(backend: Backend, job_id: str) -> Generator[None]:
    """A delete or retry that has locked the row and waits for another."""
    with raw.transaction(backend) as execute:
        execute("SELECT 1 FROM dray_jobs WHERE id = ? FOR UPDATE", job_id)
        yield


HOLDERS = {"a change": raw.job_held, "a child": _child_under_way, "a deletion": _deletion_under_way}


def _notes(world: World, *claims: Claim) -> Notes:
    return Notes(
        [_line(world, claim, "still here") for claim in claims],
        [Report(claim.id, claim.claim, 50.0, "half") for claim in claims],
    )


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_row_that_somebody_holds_holds_nothing_up_and_its_notes_are_late(
    server: World, pool: ThreadPoolExecutor, holder: str
) -> None:
    worker = server.worker()
    server.enqueue()
    server.enqueue()
    held, free = server.claim(worker, 2)
    notes = _notes(server, held, free)

    with HOLDERS[holder](server.backend, held.id):
        late = pool.submit(server.backend.work.exchange, worker, (), NOTHING, notes).result(timeout=10).late
        assert server.job(free.id).progress == 50.0
        assert late.reports == notes.reports[:1]
        assert late.lines == (notes.lines[:1] if holder == "a deletion" else [])
    again = server.backend.work.exchange(worker, (), NOTHING, late).late

    assert again == SILENCE
    assert [server.job(claim.id).progress for claim in (held, free)] == [50.0, 50.0]
    assert [_messages(server, claim) for claim in (held, free)] == [["still here"]] * 2


@pytest.mark.parametrize("outcome", ["completed", "failed"])
def test_an_outcome_waits_for_the_last_words_of_its_body(
    server: World, pool: ThreadPoolExecutor, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other transaction releases the row between the two statements."""
    worker, claim = _claimed(server)
    ends: dict[str, Settlement] = {
        "completed": model.completed(claim, 0, 0),
        "failed": model.failed(claim, 0, 0, Reason.ERROR, "ValueError", "no", None),
    }
    notes, end = _notes(server, claim), (ends[outcome],)
    each = PostgresSession.each

    def let_go(session: PostgresSession, name: str, rows: Any) -> list[bool]:
        changed = each(session, name, rows)
        if name == "progress_set":
            holder.close()
        return changed

    monkeypatch.setattr(PostgresSession, "each", let_go)
    with ExitStack() as holder:
        holder.enter_context(_deletion_under_way(server.backend, claim.id))
        first = pool.submit(server.backend.work.exchange, worker, end, NOTHING, notes).result(timeout=10)
    second = server.backend.work.exchange(worker, end, NOTHING, first.late)

    assert (first.settled.locked, first.late) == ([claim.id], notes)
    assert (second.settled.locked, second.late) == ([], SILENCE)
    job = server.job(claim.id)
    assert (job.state, job.progress, job.progress_message) == (outcome, 50.0, "half")
    assert _messages(server, claim) == ["still here"]


def test_the_last_words_of_a_body_that_has_completed_its_job_are_late_and_not_lost(
    server: World, pool: ThreadPoolExecutor
) -> None:
    worker, claim = _claimed(server)
    server.complete(worker, claim)

    with _child_under_way(server.backend, claim.id):
        notes = _notes(server, claim)
        late = pool.submit(server.backend.work.exchange, worker, (), NOTHING, notes).result(timeout=10).late
    server.backend.work.exchange(worker, (), NOTHING, late)

    assert server.job(claim.id).progress == 50.0


def test_an_end_that_another_has_written_is_not_waited_for(server: World, pool: ThreadPoolExecutor) -> None:
    """Its fan-out is pending, and another transaction is adding one more child."""
    worker, claim = _claimed(server)
    server.enqueue("child", parents=(claim.id,))
    raw.run(
        server.backend, "UPDATE dray_jobs SET state = 'completed', finished_at = updated_at WHERE id = ?", claim.id
    )

    with _child_under_way(server.backend, claim.id):
        settled = pool.submit(server.complete, worker, claim).result(timeout=10)

    assert settled.already == [claim.id]


def test_what_has_lost_its_claim_is_not_late(world: World) -> None:
    worker, claim = _claimed(world)
    world.fail(worker, claim)

    assert world.backend.work.exchange(worker, (), NOTHING, _notes(world, claim)).late.ids == set()
