"""``dray db move`` refuses: a target in use, a source that has moved, other versions, addresses of nothing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import dray
from dray.app_interface import core_of
from dray.model.new_job import NewJob
from dray.model.workflow import Workflow
from tests.backends.whole import everything, path_of, sql
from tests.cli.move.contents import fill
from tests.cli.move.moves import half_fill, is_closed, moved
from tests.cli.shell import Shell, until


def test_a_target_that_is_in_use_is_refused(shell: Shell, source: str, target: str) -> None:
    fill(source)
    shell("db", "init", DRAY_URL=target)
    shell("enqueue", "tasks.add", "a=1", "b=2", DRAY_URL=target)
    before = everything(target)

    done = moved(shell, source, target)

    assert (done.code, "is not empty (1 job)" in done.err) == (1, True)
    assert everything(target) == before
    assert not is_closed(target)


@pytest.mark.parametrize("table", ["schedules", "workflows"])
def test_so_is_one_that_has_no_job_but_something_else(shell: Shell, source: str, target: str, table: str) -> None:
    fill(source)
    with dray.App(target, migrate=True) as app:
        if table == "schedules":
            app.schedule("beat", "tasks.add", every=3_600, args={"a": 1, "b": 2})
        else:
            only = NewJob(id=core_of(app).new_id(), task="tasks.add", workflow_id=core_of(app).new_id())
            core_of(app).backend.jobs.enqueue([only], workflow=Workflow(str(only.workflow_id), "etl", 0))
            core_of(app).backend.jobs.delete([only.id])
    before = everything(target)
    assert {name for name, rows in before.items() if rows} - {"queues"} == {table}

    done = moved(shell, source, target)

    assert (done.code, f"is not empty (1 {table.removesuffix('s')})" in done.err) == (1, True), done.err
    assert everything(target) == before
    assert not is_closed(target)


def test_a_target_with_workers_is_refused(shell: Shell, postgres_url: str) -> None:
    fill(shell.url)
    shell("db", "migrate", DRAY_URL=postgres_url)
    with shell.background("worker", DRAY_URL=postgres_url):
        until(lambda: shell.try_("workers", DRAY_URL=postgres_url).rows)
        done = moved(shell, shell.url, postgres_url)
    assert (done.code, "has workers at work" in done.err) == (1, True)
    assert not is_closed(postgres_url)


def test_a_target_that_only_knows_queues_is_empty(shell: Shell, source: str, target: str) -> None:
    fill(source)
    shell("db", "init", DRAY_URL=target)
    shell("queues", "set", "mail", "--priority", "1", DRAY_URL=target)
    shell("queues", "set", "other", "--priority", "1", DRAY_URL=target)
    assert moved(shell, source, target).code == 0
    assert everything(target) == everything(source)


def test_another_source_is_refused(shell: Shell, source: str, target: str, tmp_path: Path) -> None:
    fill(source)
    half_fill(source, target)
    other = f"sqlite:///{tmp_path / 'other.db'}"
    fill(other)
    done = moved(shell, other, target)
    assert (done.code, "is being filled from" in done.err) == (1, True)
    assert moved(shell, other, target, "--abandon").code == 1
    assert moved(shell, source, target).code == 0


def test_what_has_moved_cannot_be_moved_elsewhere_nor_into(shell: Shell, postgres_url: str, tmp_path: Path) -> None:
    fill(shell.url)
    assert moved(shell, shell.url, postgres_url).code == 0
    third = f"sqlite:///{tmp_path / 'third.db'}"
    away = moved(shell, shell.url, third)
    assert (away.code, "has moved to postgresql://" in away.err) == (1, True)
    fill(third)
    into = moved(shell, third, shell.url)
    assert (into.code, "has moved to postgresql://" in into.err) == (1, True)
    half_fill(third, f"sqlite:///{tmp_path / 'fourth.db'}")
    half = moved(shell, f"sqlite:///{tmp_path / 'fourth.db'}", f"sqlite:///{tmp_path / 'fifth.db'}")
    assert (half.code, "is itself being filled" in half.err) == (1, True)


def test_the_same_database_twice_is_refused(shell: Shell, source: str) -> None:
    fill(source)
    link = shell.folder / "link.db"
    again = source
    if source.startswith("sqlite"):
        link.hardlink_to(path_of(source))
        again = f"sqlite:///{link}"
    else:
        again = source.replace("postgresql://", "postgres://")
    done = moved(shell, source, again)
    assert (done.code, "are the same database" in done.err) == (2, True)
    assert not is_closed(source)


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize(("version", "advice"), [("1", "run `dray db migrate"), ("99", "upgrade Dray here")])
def test_other_versions_of_the_tables_are_refused(
    shell: Shell, postgres_url: str, side: str, version: str, advice: str
) -> None:
    fill(shell.url)
    shell("db", "migrate", DRAY_URL=postgres_url)
    changed = {"source": shell.url, "target": postgres_url}[side]
    sql(changed, f"UPDATE dray_meta SET value = '{version}' WHERE name = 'version'")
    done = moved(shell, shell.url, postgres_url)
    assert (done.code, advice in done.err, len(done.err.splitlines())) == (6, True, 1), done.err


MISTAKES = {
    "a missing file": (["sqlite:////nowhere/jobs.db", "TARGET"], 6, "no such file"),
    "a file of something else": (["tasks.py", "TARGET"], 6, "is not a SQLite database"),
    "a server out of reach": (["SOURCE", "postgresql://nobody@127.0.0.1:1/none"], 6, "cannot be reached"),
    "an address of nothing": (["SOURCE", "mysql://here/db"], 2, "is no database address"),
    "one address": (["SOURCE"], 2, "Missing argument"),
    "three": (["SOURCE", "TARGET", "x"], 2, "unexpected extra argument"),
    "no rows at a time": (["SOURCE", "TARGET", "--chunk", "0"], 2, "--chunk"),
    "nothing to take back": (["SOURCE", "TARGET", "--abandon"], 1, "there is no move from"),
}


@pytest.mark.parametrize(("words", "code", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_sentence(shell: Shell, tmp_path: Path, words: list[str], code: int, said: str) -> None:
    shell("db", "init")
    places = {"SOURCE": shell.url, "TARGET": f"sqlite:///{tmp_path / 'target.db'}"}
    done = shell.try_("db", "move", *(places.get(word, word) for word in words))
    assert (done.code, said in done.err, len(done.err.splitlines()), done.out) == (code, True, 1, ""), done.err
    assert not (tmp_path / "target.db").exists()


def test_a_source_without_tables_is_refused(shell: Shell, postgres_url: str) -> None:
    with closing(sqlite3.connect(shell.folder / "plain.db")) as connection, connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    done = moved(shell, "plain.db", postgres_url)
    assert (done.code, "no tables" in done.err) == (6, True), done.err
