"""examples/django_shop as its developer runs it: `manage.py migrate`, `dray_worker`, `dray …`, in real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests_integrations.django.conftest import postgres, sqlite
from tests_integrations.django.test_runners import SHOP


class Shell:
    """The project in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "shop"
        shutil.copytree(SHOP, self.folder, ignore=shutil.ignore_patterns("__pycache__", "*.sqlite3*"))
        self.environment = {**os.environ, "SHOP_DATABASE": json.dumps(sqlite(str(folder / "db.sqlite3")))}
        self.environment.pop("DJANGO_SETTINGS_MODULE", None)

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "manage.py", *words]
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, text=True, **options)

    def run(self, *words: str, code: int = 0) -> str:
        running = self.start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            out, told = running.communicate(timeout=100)
        except subprocess.TimeoutExpired:
            running.kill()
            raise AssertionError(running.communicate()) from None
        assert running.returncode == code, out + told
        return out if code == 0 else told


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path)
    shell.run("migrate", "-v0")
    return shell


def test_a_worker_runs_what_the_shop_has_enqueued(shell: Shell) -> None:
    """Plain, coroutine and process bodies; then every command of `dray` on the same App."""
    lines = (
        "from shop.models import Order; from shop import tasks; o = Order.objects.create(what='tea'); "
        "print(tasks.send_receipt.enqueue(o.pk).id, tasks.count_orders.enqueue().id, tasks.digest.enqueue('x').id)"
    )
    receipt, count, digest = shell.run("shell", "-v0", "-c", lines).split()
    shell.run("dray_worker", "--burst", "--concurrency", "2", "--settings", "project.settings")

    jobs = {job["id"]: job for job in json.loads(shell.run("dray", "jobs", "--json"))}
    assert {job["state"] for job in jobs.values()} == {"completed"}, jobs
    shown = json.loads(shell.run("dray", "job", "show", receipt, count, digest, "--json"))
    by_id = {job["id"]: job for job in shown}
    assert (by_id[receipt]["result"], by_id[receipt]["max_attempts"]) == ("1 tea", 5)
    assert by_id[count]["result"] == 1
    assert by_id[digest]["result"][0].startswith("2d711642")
    workers = json.loads(shell.run("dray", "workers", "--json"))
    assert by_id[digest]["result"][1] not in {worker["pid"] for worker in workers}  # in a child process


SLOW = """

@task
def slow() -> None:
    import pathlib, time
    deadline = time.monotonic() + 60
    while not pathlib.Path("go").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
"""


def test_reload_lets_running_jobs_end(shell: Shell) -> None:
    """Django's own reloader would kill the body, and leave a job that crashed."""
    tasks = shell.folder / "shop" / "tasks.py"
    tasks.write_text(tasks.read_text() + SLOW)
    shell.run("shell", "-v0", "-c", "from shop.tasks import slow; slow.enqueue()")
    worker = shell.start("dray_worker", "--reload", "--no-web", "--grace", "60s", stderr=subprocess.PIPE)
    assert worker.stderr is not None
    lines: list[str] = []
    try:
        until(worker.stderr, lines, lambda line: "shop.tasks.slow: started" in line)
        tasks.write_text(tasks.read_text() + "\n\n@task\ndef added() -> int:\n    return 1\n")
        until(worker.stderr, lines, lambda line: "shop/tasks.py changed" in line)
        (shell.folder / "go").touch()
        until(worker.stderr, lines, lambda line: "shop.tasks.slow: completed" in line)
        until(worker.stderr, lines, lambda line: "reloaded: shop/tasks.py changed; 5 tasks" in line)
    finally:
        worker.send_signal(signal.SIGINT)
        _, rest = worker.communicate(timeout=60)
    assert worker.returncode in {0, 130}, "".join(lines) + rest


def until(stream: Any, lines: list[str], fits: Callable[[str], bool]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        line = stream.readline()
        lines.append(line)
        if fits(line):
            return
        if not line:
            break
    raise AssertionError("".join(lines))


@pytest.mark.parametrize("kind", ["no file", "sqlite", "postgres"])
@pytest.mark.parametrize("words", [["dray_worker", "--burst"], ["dray", "jobs"]], ids=["dray_worker", "dray jobs"])
def test_without_tables_it_says_to_migrate(
    kind: str, words: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    shell = Shell(tmp_path)
    if kind == "sqlite":
        sqlite3.connect(tmp_path / "db.sqlite3").executescript("CREATE TABLE theirs (n); VACUUM").close()
    if kind == "postgres":
        url = request.getfixturevalue("postgres_url")  # of a schema that is not there yet
        shell.environment["SHOP_DATABASE"] = json.dumps(postgres(url))

    told = shell.run(*words, code=6)
    assert told.endswith("; with Django: python manage.py migrate\n"), told
    assert "dray db init" in told


def test_what_is_wrong_with_the_settings_is_said_in_a_sentence(shell: Shell) -> None:
    shell.environment["SHOP_DATABASE"] = json.dumps(sqlite(":memory:"))
    assert "in memory" in shell.run("dray_worker", "--burst", code=2)


def test_a_settings_module_that_is_not_there_is_said_in_a_sentence(tmp_path: Path) -> None:
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "projct.settings"}
    command = [sys.executable, "-m", "dray", "--app", "dray.integrations.django:app", "jobs"]

    done = subprocess.run(
        command, check=False, cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=100
    )

    assert done.returncode != 0
    assert "there is no module projct, which DJANGO_SETTINGS_MODULE=projct.settings names" in done.stderr
    assert len(done.stderr.splitlines()) == 1
