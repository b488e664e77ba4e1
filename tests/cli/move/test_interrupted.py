"""A move that is cut off goes on or is taken back; of two moves of one source, one wins."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from pathlib import Path
from unittest.mock import patch

import psycopg
import pytest

import dray
from dray.backends.store.transfer import Transfer
from dray.clock import SystemClock
from dray.ops import move, move_plan
from tests.backends.whole import everything, path_of, sql
from tests.cli.move.contents import fill
from tests.cli.move.moves import Cut, close_both, half_fill, is_closed, moved, sides
from tests.cli.shell import Shell, until
from tests.forks import Forked
from tests.manual_clock import ManualClock

# Cut off, and begun again


def test_killed_at_any_moment_it_goes_on(shell: Shell, source: str, target: str) -> None:
    fill(source, jobs=400)
    before = everything(source)
    words = ["db", "move", source, target, "--chunk", "5"]
    reached, kills = "", 0

    for _ in range(4):
        with shell.background(*words) as process:
            reached = _further(process, target, than=reached)
            kills += process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.wait(30)
    with shell.background(*words) as process:  # once more, when the source is closed and the target not yet open
        until(lambda: is_closed(source) or process.poll() is not None)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    done = moved(shell, source, target, "--chunk", "5")

    assert kills >= 2
    assert done.code == 0, done.err
    assert everything(target) == before
    assert not is_closed(target)


def _further(process: Forked, url: str, *, than: str) -> str:
    """Waits until a move has got further, or is over; how far."""
    while process.poll() is None:
        time.sleep(0.002)  # less than a portion takes: without it, the looks took more of the processor than the move
        # A statement that fails would end its session, and a new one costs the server more than a step of the move.
        if url.startswith("postgres") and sql(url, "SELECT to_regclass('dray_meta')") == [(None,)]:
            continue
        try:
            found = sql(url, "SELECT value FROM dray_meta WHERE name = 'move'")
        except (sqlite3.Error, psycopg.Error):  # there are no tables yet
            continue
        reached = json.dumps(json.loads(found[0][0])["reached"]) if found else ""
        if reached not in {than, "{}", ""}:
            return reached
    return than


def test_what_has_changed_between_two_runs_is_carried(shell: Shell, source: str, target: str) -> None:
    fill(source)
    half_fill(source, target, steps=11)
    with dray.App(source, migrate=False) as app:
        first, second, *_ = app.jobs(state="queued", limit=100)
        app.cancel(first.id)
        second.delete()
        for job in app.jobs(state="completed", limit=100)[:5]:
            job.retry()
        app.enqueue("tasks.add", {"a": 1, "b": 1}, after=[app.jobs(state="completed")[0]])
        app.prune(older_than=0)
        app.resume("held")

    done = moved(shell, source, target, "--chunk", "3")

    assert done.code == 0, done.err
    assert "going on with an interrupted move" in done.err
    assert everything(target) == everything(source)


def test_a_key_that_has_changed_hands_is_carried(shell: Shell, postgres_url: str) -> None:
    with dray.App(shell.url) as app:
        held = app.enqueue("tasks.add", {"a": 1, "b": 1}, unique="one")
        for number in range(30):
            app.enqueue("tasks.add", {"a": number, "b": 1})
        half_fill(shell.url, postgres_url, steps=6)
        app.cancel(held.id)
        app.enqueue("tasks.add", {"a": 1, "b": 1}, unique="one")

    assert moved(shell, shell.url, postgres_url).code == 0
    assert everything(postgres_url) == everything(shell.url)


def test_so_is_one_that_went_to_a_job_made_by_a_clock_that_is_behind(shell: Shell, source: str, target: str) -> None:
    """The new holder comes first, while the row of the old one still has the key in the target."""
    late = ManualClock(SystemClock().now() - 3_600_000_000)
    with dray.App(source, migrate=True) as app, dray.App(source, clock=late) as behind:
        for number in range(30):
            app.enqueue("tasks.add", {"a": number, "b": 1})
        held = app.enqueue("tasks.add", {"a": 1, "b": 1}, unique="one")
        half_fill(source, target, steps=11)
        assert sql(target, "SELECT count(*) FROM dray_jobs WHERE unique_lock IS NOT NULL") == [(1,)]
        app.cancel(held.id)
        assert behind.enqueue("tasks.add", {"a": 1, "b": 1}, unique="one").id < held.id

    done = moved(shell, source, target, "--chunk", "5")

    assert done.code == 0, done.err
    assert everything(target) == everything(source)


def test_no_worker_runs_half_of_it(shell: Shell, source: str, target: str) -> None:
    fill(source)
    half_fill(source, target)
    before = everything(target)
    on_target = {"DRAY_URL": target}

    worker = shell.try_("worker", "--burst", **on_target)
    enqueue = shell.try_("enqueue", "tasks.add", "a=1", "b=2", **on_target)

    for said in (worker, enqueue):
        assert said.code == 6
        assert "is being filled by `dray db move` from" in said.err
        assert f"{target.removeprefix('sqlite:///').rpartition('&')[2]}: is being filled" in said.err
    assert everything(target) == before
    shell("enqueue", "tasks.add", "a=1", "b=2", DRAY_URL=source)  # which goes on meanwhile


def test_an_unfinished_move_is_taken_back(shell: Shell, source: str, target: str) -> None:
    fill(source)
    before = everything(source)
    half_fill(source, target)

    done = moved(shell, source, target, "--abandon")

    assert done.code == 0, done.err
    assert everything(source) == before
    assert not any(everything(target).values())
    for url in (source, target):
        shell("enqueue", "tasks.add", "a=1", "b=2", DRAY_URL=url)


def test_a_source_that_is_closed_comes_back_until_the_target_is_open(shell: Shell, postgres_url: str) -> None:
    fill(shell.url)
    close_both(shell.url, postgres_url)

    assert moved(shell, shell.url, postgres_url, "--abandon").code == 0
    shell("enqueue", "tasks.add", "a=1", "b=2")
    assert moved(shell, shell.url, postgres_url).code == 0
    late = moved(shell, shell.url, postgres_url, "--abandon")

    assert (late.code, "cannot be taken back" in late.err) == (1, True)
    assert is_closed(shell.url)
    assert everything(postgres_url) == everything(shell.url)


# Two moves of one source


@pytest.fixture(params=["sqlite", "postgres"])
def two_targets(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Addresses where nothing is yet: the first in either database, the second a file."""
    file = f"sqlite:///{tmp_path / 'first.db'}"
    first = file if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    return first, f"sqlite:///{tmp_path / 'second.db'}"


def test_taking_back_a_stale_move_leaves_a_source_closed_that_has_moved_elsewhere(
    shell: Shell, two_targets: tuple[str, str]
) -> None:
    for won, stale in (two_targets, two_targets[::-1]):
        fill(shell.url)
        half_fill(shell.url, won)
        half_fill(shell.url, stale)
        assert moved(shell, shell.url, won).code == 0

        done = moved(shell, shell.url, stale, "--abandon")

        assert done.code == 0, done.err
        assert "stays closed" in done.err
        assert "goes on as before" not in done.err
        assert not any(everything(stale).values())
        assert not is_closed(stale)
        late = shell.try_("enqueue", "tasks.add", "a=1", "b=2")
        assert (late.code, "this queue has moved to" in late.err) == (6, True)
        assert moved(shell, shell.url, stale, "--abandon").code == 1
        assert is_closed(shell.url)
        assert everything(won) == everything(shell.url)
        path_of(shell.url).unlink()
        for url in (won, stale):
            if url.startswith("sqlite"):
                path_of(url).unlink()
            else:
                sql(url, f"DROP SCHEMA {url.rpartition('=')[2]} CASCADE")


def test_of_two_moves_of_one_source_one_wins_and_the_other_can_be_taken_back(
    shell: Shell, two_targets: tuple[str, str]
) -> None:
    fill(shell.url)
    won, lost = two_targets

    def tell(_: move.Progress) -> None:
        if not is_closed(shell.url):
            assert moved(shell, shell.url, won).code == 0

    with sides(shell.url, lost) as (here, there), pytest.raises(dray.MoveError) as refused:
        move.carry(move_plan.plan(here, there), tell=tell)
    again = moved(shell, shell.url, lost)

    for said in (str(refused.value), again.err):
        assert "has moved to" in said
        assert "--abandon" in said
        assert len(said.splitlines()) == 1
    assert again.code == 1
    assert is_closed(lost)
    assert moved(shell, shell.url, lost, "--abandon").code == 0
    assert (is_closed(shell.url), is_closed(won), is_closed(lost)) == (True, False, False)
    assert everything(won) == everything(shell.url)


def test_who_comes_second_to_an_empty_target_is_told_so(shell: Shell, two_targets: tuple[str, str]) -> None:
    fill(shell.url)
    target = two_targets[0]
    with sides(shell.url, target) as (here, there):
        plan = move_plan.plan(here, there)  # before the other has begun
        half_fill(shell.url, target)
        with pytest.raises(dray.MoveError, match="another `dray db move` has begun to fill") as refused:
            move.carry(plan)
    assert len(str(refused.value).splitlines()) == 1
    assert moved(shell, shell.url, target).code == 0
    assert everything(target) == everything(shell.url)


def test_a_taking_back_that_was_cut_off_is_ended(shell: Shell, two_targets: tuple[str, str]) -> None:
    fill(shell.url)
    target = two_targets[0]
    close_both(shell.url, target)
    cut = patch.object(Transfer, "come_back", side_effect=Cut)
    with sides(shell.url, target) as (here, there), cut, pytest.raises(Cut):
        move.abandon(here, there)
    assert (is_closed(shell.url), is_closed(target)) == (True, False)

    assert moved(shell, shell.url, target, "--abandon").code == 0
    assert not is_closed(shell.url)


def test_a_source_is_opened_without_proof_by_force_alone(shell: Shell, two_targets: tuple[str, str]) -> None:
    """The target may have been emptied and filled from elsewhere, or lost; it may also be another database of the
    same address."""
    fill(shell.url)
    target, elsewhere = two_targets
    assert moved(shell, shell.url, target).code == 0
    if target.startswith("sqlite"):
        path_of(target).unlink()
    else:
        sql(target, f"DROP SCHEMA {target.rpartition('=')[2]} CASCADE")

    for words in ([], ["--force"]):
        assert moved(shell, shell.url, elsewhere, "--abandon", *words).code == 1
    refused = moved(shell, shell.url, target, "--abandon")
    assert (refused.code, "--force" in refused.err, is_closed(shell.url)) == (1, True, True)

    assert moved(shell, shell.url, target, "--abandon", "--force").code == 0
    assert not is_closed(shell.url)
