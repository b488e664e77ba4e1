"""The how-to guides: their code and commands run as shown, on both databases."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest

import dray
from dray.app_interface import core_of
from dray.model.action import By
from dray.ops import acting
from dray.testing import drain
from tests.cli.shell import Shell
from tests.docs.play import Player, text_of

SQL_PAGE = "docs/how-to/query-with-sql.md"
SHOWN_FAILED, SHOWN_CHILD = (f"01a1ec9c-0000-7000-8000-00000000000{n}" for n in (1, 2))
FOUND = [4, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1]  # rows, query by query
PAGES = ("idempotent-tasks", "long-jobs", "timeouts", "unique-jobs", "cron-and-dst", "back-up-and-restore", "upgrade")


@pytest.fixture
def modules() -> Generator[None]:
    """The modules that a page has written are forgotten."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name in {"tasks", "shop", "video"}:
            del sys.modules[name]


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize("page", PAGES)
def test_a_guide_runs_as_shown(page: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_sqlite = url.startswith("sqlite")
    if page == "back-up-and-restore" and not is_sqlite:
        return  # the page is about a file; tests/cli/test_db.py makes backups of a server
    folder = tmp_path / "shop"
    folder.mkdir()
    if page == "back-up-and-restore":
        url = f"sqlite:///{folder / 'dray.db'}"
    monkeypatch.chdir(folder)
    replace = [("sqlite:///shop.db", url)]
    if not is_sqlite:
        replace.append(("VALUES (?)", "VALUES (%s)"))

    Player(f"docs/how-to/{page}.md", Shell(folder, url), replace=tuple(replace)).play()


def _questions(kind: str, ids: dict[str, str]) -> list[str]:
    """The queries of the page about SQL, as this database has them."""
    return [
        re.sub("|".join(ids), lambda shown: ids[shown[0]], sql)
        for title, sql in re.findall(r"^```sql(?: title=\"(\w+)\")?\n(.+?)^```", text_of(SQL_PAGE), re.M | re.S)
        if title in {"", kind}
    ]


@contextmanager
def _busy_shop(url: str) -> Generator[dict[str, str]]:
    """A queue in which most queries find something; gives the ids of two jobs in it, by those that the page shows."""
    started, finish = threading.Event(), threading.Event()
    with dray.App(url, migrate=True) as app:

        @app.task(name="shop.add")
        def add(a: int) -> int:
            return a

        @app.task(name="shop.fail", max_attempts=1)
        def fail(ctx: dray.Context) -> None:
            ctx.log.warning("about to fail")
            raise ValueError("no such customer: 42")

        @app.task(name="shop.hold")
        def hold() -> None:
            started.set()
            finish.wait(60)

        add.enqueue(1)
        failed = fail.enqueue()
        assert drain(app) == 2
        child = add.using(after=[add.using(delay=600).enqueue(2)]).enqueue(3)
        app.schedule("nightly", add, cron="0 3 * * *", args={"a": 1})
        acting.pause_queue(core_of(app), "mail", By("ann", "cli"))
        with app.worker(queues=["default"], concurrency=1):
            hold.enqueue()
            assert started.wait(60)
            add.using(queue="slow").enqueue(4)
            app.queue("capped", limit=0)
            add.using(queue="capped").enqueue(5)
            try:
                yield {SHOWN_FAILED: failed.id, SHOWN_CHILD: child.id}
            finally:
                finish.set()


def _program(name: str) -> str:
    """A shell for SQL; the queries have run in the driver by then."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: make test installs it as root on Debian, or names its package")
    return found


def test_a_job_is_inserted_with_the_sql_that_the_page_about_tables_shows(url: str) -> None:
    kind = "SQLite" if url.startswith("sqlite") else "PostgreSQL"
    page = text_of("docs/reference/tables.md").partition("## Insert a job with plain SQL")[2]
    ((_, sql),) = [
        block for block in re.findall(r"^```sql title=\"(\w+)\"\n(.+?)^```", page, re.M | re.S) if block[0] == kind
    ]
    with dray.App(url, migrate=True) as app:

        @app.task(name="mail.send")
        def send(to: str) -> str:
            return f"sent to {to}"

        app.init()
        if kind == "SQLite":
            with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
                connection.execute(sql)
                connection.commit()
        else:
            address, _, schema = url.partition("&schema=")
            with psycopg.connect(address, options=f"-c search_path={schema}") as server:
                server.execute(sql.encode())
        (job,) = app.jobs(task=send)
        assert app.worker().run_until_idle() == 1
        assert job.result() == "sent to ann@example.com"


def test_the_queries_of_the_page_about_sql_run_in_the_sqlite3_module_and_shell(tmp_path: Path) -> None:
    path = tmp_path / "dray.db"
    with _busy_shop(f"sqlite:///{path}") as ids, closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE dray_jobs SET run_at = run_at - 600000000 WHERE queue IN ('slow', 'capped')")
        connection.commit()
        questions = _questions("SQLite", ids)
        found = [connection.execute(sql).fetchall() for sql in questions]
        assert [len(rows) for rows in found] == FOUND

        command = [_program("sqlite3"), "-bail", "-list", str(path)]
        done = subprocess.run(command, input="\n".join(questions), capture_output=True, text=True, check=False)
        assert (done.stdout.count("\n"), done.stderr) == (sum(FOUND), "")


def test_the_queries_of_the_page_about_sql_run_in_psycopg_and_psql(postgres_url: str) -> None:
    address, _, schema = postgres_url.partition("&schema=")
    with _busy_shop(postgres_url) as ids, psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"SET search_path TO {schema}".encode())
        connection.execute(
            "UPDATE dray_jobs SET run_at = run_at - interval '10 minutes' WHERE queue IN ('slow', 'capped')"
        )
        questions = _questions("PostgreSQL", ids)
        found = [connection.execute(sql.encode()).fetchall() for sql in questions]
        assert [len(rows) for rows in found] == FOUND

        script = "\n".join([f"SET search_path TO {schema};", *questions])
        command = [_program("psql"), "--no-psqlrc", "-v", "ON_ERROR_STOP=1", "-qtA", address]
        done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
        assert (done.stdout.count("\n"), done.stderr) == (sum(FOUND), "")
