"""The measurements run; their numbers are for `make bench`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import psycopg
import pytest

from tests.server import in_database

ROOT = Path(__file__).parents[1]


def run(module: str, *options: str) -> list[str]:
    """Runs a measurement without an error, and returns the lines of its last part."""
    command = [sys.executable, "-W", "error", "-m", f"benchmarks.{module}", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.rpartition("\n\n")[2].splitlines()


@pytest.fixture
def server(postgres_server: str, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """A database on the server of the tests: to start one takes longer than the measurements."""
    name = f"bench_{os.getpid()}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        monkeypatch.setenv("DRAY_BENCH_URL", in_database(postgres_server, name))
        yield
        connection.execute(f"DROP DATABASE {name}".encode())


def names(summary: list[str]) -> list[str]:
    """The figures of a closing summary, each of which says whether it meets its bar."""
    assert summary[0].split() == ["name", "measured", "bar"]
    assert all(line.endswith(("ok", "NOT")) for line in summary[1:])
    return [line.split("  ")[0] for line in summary[1:]]


def test_a_section_runs_and_ends_with_a_summary_and_no_error() -> None:
    found = names(run("worker", "--quick", "--only", "imports"))
    assert [name.split(",")[0] for name in found] == [
        "import dray",
        "dray --help",
        "dray jobs --json",
        "dray jobs --json",
    ]


def test_the_summary_of_workers_and_producers_has_a_line_for_each_bar() -> None:
    sections = [f"--only={name}" for name in ("enqueue", "drain", "workers", "producer", "idle")]
    found = names(run("worker", "--quick", "--on", "sqlite", *sections))
    assert found == [
        "enqueue one, SQLite",
        "bulk, SQLite",
        "8 threads enqueueing, SQLite",
        "drain, threads, SQLite",
        "drain, async, SQLite",
        "drain, processes, two children, SQLite",
        "2 worker processes, SQLite",
        "4 worker processes, SQLite",
        "producer beside a worker that runs its jobs, SQLite",
        "producer beside a worker on 300 jobs, SQLite",
        "idle worker, SQLite, CPU",
        "idle worker, SQLite, resident",
        "idle worker, SQLite, wake-ups",
    ]


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(("database", "name"), [("sqlite", "SQLite"), ("postgres", "PostgreSQL")])
def test_limits_have_a_line_for_each_bar(database: str, name: str) -> None:
    found = names(run("limits", "--quick", "--on", database))
    assert found == [
        f"300 keys, by 100, {name}",
        f"other queues, {name}",
        f"500 jobs of blocked keys in front, {name}",
        f"300 closed keys, a claim, {name}",
        f"300 closed keys, a new key, {name}",
        f"a limit equal to all slots, {name}",
        f"heavy and light tenants, {name}",
        f"light tenants' p99, {name}",
        f"uneven shares of 100 tenants, {name}",
    ]


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_every_kind_of_depth_is_measured(database: str) -> None:
    counts = ("--sizes", "50,100", "--others", "100", "--finished", "100")
    last = run("depth", "--quick", "--on", database, *counts)
    assert ", 100 finished, next to 50 queued" in last[0]
    assert [line.split("  ")[1] for line in last[1:]] == [
        "bytes a job",
        "bulk enqueue",
        "settle+claim of 100",
        "enqueue one",
        "pick-up: look and claim of one",
        "app.jobs(), 100 of them",
        "prune, one step, each job",
        "app.stats()",
    ]


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_constant_load_is_compared_with_itself(database: str) -> None:
    times = ("--minutes", "0.05", "--every", "0.5", "--keep", "0.7")
    found = names(run("steady", "--rate", "50", "--model-rows", "1000", "--on", database, *times))
    what = [name.split(", ")[2] for name in found]
    files = ["file MB", "WAL MB"] if database == "sqlite" else ["table MB", "index MB", "dead rows"]
    assert what == ["served/s", "p50 ms", "p95 ms", *files]


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_the_reads_of_the_dashboard_are_compared_with_their_bars(database: str) -> None:
    found = names(run("dashboard", "--quick", "--jobs", "2000", "--on", database))
    assert [name.partition(",")[0] for name in found] == [
        "slowest p95 of a read",
        "slowest statement",
        "p95 of the slowest page",
        "p95 of the slowest fragment",
        "p95 of the slowest statement of a page",
        "first load",
        "of a core at rest",
    ]
