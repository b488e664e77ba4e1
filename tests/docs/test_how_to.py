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
FOUND = [3, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1]  # rows, query by query
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
            try:
                yield {SHOWN_FAILED: failed.id, SHOWN_CHILD: child.id}
            finally:
                finish.set()


def test_the_queries_of_the_page_about_sql_run_in_the_sqlite3_module_and_shell(tmp_path: Path) -> None:
    path = tmp_path / "dray.db"
    with _busy_shop(f"sqlite:///{path}") as ids, closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE dray_jobs SET run_at = run_at - 600000000 WHERE queue = 'slow'")
        connection.commit()
        questions = _questions("SQLite", ids)
        found = [connection.execute(sql).fetchall() for sql in questions]
        assert [len(rows) for rows in found] == FOUND

        if program := shutil.which("sqlite3"):
            command = [program, "-bail", "-list", path]
            done = subprocess.run(command, input="\n".join(questions), capture_output=True, text=True, check=False)
            assert (done.stdout.count("\n"), done.stderr) == (sum(FOUND), "")


def test_the_queries_of_the_page_about_sql_run_in_psycopg_and_psql(postgres_url: str) -> None:
    address, _, schema = postgres_url.partition("&schema=")
    with _busy_shop(postgres_url) as ids, psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"SET search_path TO {schema}".encode())
        connection.execute("UPDATE dray_jobs SET run_at = run_at - interval '10 minutes' WHERE queue = 'slow'")
        questions = _questions("PostgreSQL", ids)
        found = [connection.execute(sql.encode()).fetchall() for sql in questions]
        assert [len(rows) for rows in found] == FOUND

        if program := shutil.which("psql"):
            script = "\n".join([f"SET search_path TO {schema};", *questions])
            command = [program, "--no-psqlrc", "-v", "ON_ERROR_STOP=1", "-qtA", address]
            done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
            assert (done.stdout.count("\n"), done.stderr) == (sum(FOUND), "")
