"""``dray bench``: figures on a scratch file or schema that is gone afterwards, whatever happens."""

from __future__ import annotations

import signal
from pathlib import Path

import psycopg
import pytest

from dray.backends import open_backend
from dray.cli import measuring
from dray.cli.measuring import Rate, drain_rate, rate_of, spread
from tests.cli.session import CTRL_C, session
from tests.cli.shell import Shell, until


def leftovers(shell: Shell, url: str) -> list[str]:
    """Scratch files and schemas that are there."""
    if url.startswith("sqlite"):
        return [str(path) for path in Path(url.removeprefix("sqlite:///")).parent.rglob("dray_bench_*")]
    with psycopg.connect(url.partition("&schema=")[0]) as connection:
        found = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'dray!_bench%' ESCAPE '!'")
        return [name for (name,) in found.fetchall()]


def test_it_measures_beside_the_database_and_leaves_nothing(shell: Shell) -> None:
    job_id = shell("enqueue", "tasks.add", "a=1", "b=2").value

    done = shell("bench", "--seconds", "1", "--jobs", "200", "--json")

    found = done.json
    assert list(found) == ["database", "scratch", "raw", "enqueue", "enqueue_many", "drain", "pick_up"]
    assert "dray_bench_" in found["scratch"]
    assert "which is removed at the end" in done.err
    sqlite = shell.url.startswith("sqlite")
    assert set(found["raw"]) == ({"fsync"} if sqlite else {"round_trip", "commit"})
    for name in ("enqueue", "enqueue_many", "drain"):
        assert set(found[name]) == {"per_second", "count", "seconds", "to_raw"}
        assert found[name]["per_second"] > 0
    assert found["enqueue_many"]["count"] == 200
    assert 0 <= found["pick_up"]["p50"] <= found["pick_up"]["p99"]
    assert leftovers(shell, shell.url) == []
    assert [job["id"] for job in shell("jobs", "--json").json] == [job_id], "the user's tables are as they were"
    assert shell("workers", "--all").out == ""


def test_the_database_need_not_be_there(local: Shell) -> None:
    local("bench", "--seconds", "1", "--jobs", "10")

    assert {path.name for path in local.folder.iterdir()} <= {"tasks.py", "__pycache__"}


def test_in_a_pipe_it_is_a_line_each_and_on_a_terminal_a_table(local: Shell) -> None:
    rows = dict(local("bench", "--seconds", "1", "--jobs", "10").rows)
    assert {"raw.fsync.per_second", "enqueue.to_raw", "pick_up.p99"} <= set(rows)

    shown = local.on_terminal("bench", "--seconds", "1", "--jobs", "10", NO_COLOR="1").out
    assert "to fsync of a page" in shown
    assert "run, one worker process" in shown
    assert "pick-up by an idle worker, after the commit: p50 " in shown


@pytest.mark.parametrize("how", ["ctrl-c", "SIGTERM"])
def test_an_interrupt_leaves_nothing(shell: Shell, how: str) -> None:
    with session(shell, "bench", "--seconds", "10") as terminal:
        until(lambda: leftovers(shell, shell.url))
        terminal.sees("pick-up: an idle worker")
        if how == "SIGTERM":
            terminal.process.send_signal(signal.SIGTERM)
        else:
            terminal.press(CTRL_C)
        assert terminal.ended() == 130

    assert leftovers(shell, shell.url) == []


def test_a_role_that_may_not_make_a_schema_is_told_in_one_sentence(shell: Shell, postgres_server: str) -> None:
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS bench_guest")
        connection.execute("CREATE ROLE bench_guest LOGIN")
    guest = postgres_server.replace("postgres:@", "bench_guest@")

    done = shell.try_("bench", DRAY_URL=guest)

    assert done.code == 1
    assert done.err.splitlines()[-1].startswith("dray: cannot create a scratch schema: ")
    assert "permission denied" in done.err
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute("DROP ROLE bench_guest")


@pytest.mark.parametrize(
    "url", ["sqlite:////nosuch/place/dray.db", "postgresql://user:canary@127.0.0.1:1/db?connect_timeout=2"]
)
def test_a_database_out_of_reach_is_exit_code_6(local: Shell, url: str) -> None:
    done = local.try_("bench", DRAY_URL=url)

    assert done.code == 6
    assert "canary" not in done.err


@pytest.mark.parametrize("words", [["--seconds", "0.5"], ["--jobs", "0"]], ids=" ".join)
def test_too_little_is_wrong_usage(local: Shell, words: list[str]) -> None:
    assert local.try_("bench", *words).code == 2


# Measuring


def test_a_rate_is_what_was_done_by_the_time_it_took() -> None:
    assert Rate(10, 2.0).per_second == 5
    found = rate_of(lambda: 3, seconds=60, limit=10)
    assert found.count == 12


def test_a_spread_is_of_all_samples() -> None:
    assert spread([n / 100 for n in range(101)]) == {"p50": 0.5, "p99": 0.99, "samples": 101}
    assert spread([0.25]) == {"p50": 0.25, "p99": 0.25, "samples": 1}


def test_a_drain_counts_from_its_start_and_ends_with_the_last_job_or_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = [5]
    assert drain_rate(lambda: counts[-1], lambda: counts.append(15), 10, seconds=60, pause=0).count == 10
    assert drain_rate(lambda: counts[-1], lambda: counts.append(16), 10, seconds=0.01, pause=0).count == 1
    monkeypatch.setattr(measuring, "_FIRST_JOB", 0.02)
    assert drain_rate(lambda: 5, lambda: None, 10, seconds=0.01, pause=0).count == 0


def test_only_scratch_places_are_ever_removed(tmp_path: Path) -> None:
    from dray.backends.scratch import removed_at_the_end

    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    open_backend(url).migrate()

    with pytest.raises(AssertionError), removed_at_the_end(url):
        pass
    assert (tmp_path / "jobs.db").exists()
