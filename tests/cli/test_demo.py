"""``dray demo``: the play, its accounts, and what is left afterwards."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dray.backends import Backend, open_backend
from dray.cli.demo.accounts import Accounts, Evidence, compare, put_accounts
from dray.clock import Ids, SystemClock
from dray.model.job import Demand
from dray.model.new_job import NewJob
from dray.model.settlement import completed
from dray.model.worker import NewWorker
from tests import verbs
from tests.cli.shell import Done, Shell, plain, project, until

README = Path(__file__).parents[2] / "README.md"
SMALL = ("demo", "--jobs", "300", "--concurrency", "2")


def folders(shell: Shell) -> list[Path]:
    return list(shell.folder.glob("dray-demo-*"))


def processes_of(shell: Shell) -> list[int]:
    """Processes that have the shell's folder in their environment."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if entry.name.isdigit() and f"TMPDIR={shell.folder}".encode() in environment:
            found.append(int(entry.name))
    return found


def test_it_kills_a_worker_loses_nothing_leaves_nothing_and_says_what_the_readme_shows(local: Shell) -> None:
    done = local.fresh(*SMALL, TMPDIR=str(local.folder))

    assert done.code == 0, done.out + done.err
    for line in (
        "two workers have started",
        "kill -9",
        "rescued its",
        "cancelled",
        "delayed",
        "unique",
        "a workflow made an album of 5 pictures after them, and added a cover: 7 of 7 steps done",
        "a schedule of every 0.5 s fired",
        "each slot once, none was missed",
        "All is well",
    ):
        assert line in done.out
    assert folders(local) == []
    assert processes_of(local) == []
    shown = README.read_text().partition("$ make demo")[2].partition("```")[0].splitlines()
    told = [without_numbers(line) for line in shown if line and line != "…"]
    assert len(told) > 5
    assert set(told) - {without_numbers(line) for line in done.out.splitlines()} == set()


def without_numbers(line: str) -> str:
    return re.sub(r"[\d.,]*\d(ms|s)?\b", "#", line).strip()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shell, Done]:
    """A demo on a terminal that keeps its files; its errors go elsewhere."""
    shell = project(tmp_path_factory.mktemp("kept"))
    return shell, shell.on_terminal_but_errors(*SMALL, "--keep", TMPDIR=str(shell.folder))


def test_on_a_terminal_there_is_a_bar_and_a_table(kept: tuple[Shell, Done]) -> None:
    _, done = kept

    assert done.code == 0, plain(done.out)
    assert "\x1b[" in done.out
    assert "311/311" in plain(done.out)
    assert re.search(r"^task +jobs +completed", plain(done.out), re.M)


def test_kept_files_can_be_looked_at(kept: tuple[Shell, Done]) -> None:
    shell, done = kept

    (folder,) = folders(shell)
    assert str(folder) in done.err
    rows = shell("jobs", "--url", f"{folder}/demo.db", "--limit", "1000").rows
    assert len([row for row in rows if row[1] != "tick"]) == 311


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_cleans_up(local: Shell, number: signal.Signals) -> None:
    with local.background("demo", TMPDIR=str(local.folder)) as process:
        assert process.stdout is not None
        process.stdout.readline()
        os.kill(process.pid, number)
        code = process.wait(30)
        assert code == 130, process.stderr.read() if process.stderr is not None else code

    assert folders(local) == []
    until(lambda: not processes_of(local))


def test_too_little_time_is_a_failure(local: Shell) -> None:
    done = local.try_("demo", "--seconds", "5", "--jobs", "20000", "--concurrency", "1", TMPDIR=str(local.folder))

    assert (done.code, "after 5 seconds" in done.err) == (1, True)
    assert folders(local) == []


# The accounts


class Books:
    """One job that completed in the hands of a worker, and what was noted of it."""

    def __init__(self, path: Path) -> None:
        clock = SystemClock()
        ids = Ids(clock)
        self.backend: Backend = open_backend(f"sqlite:///{path}")
        self.job = self.backend.jobs.enqueue([NewJob(id=ids.new(), task="resize")])[0].id
        self.worker = ids.new()
        self.backend.workers.register(
            NewWorker(id=self.worker, name="w", host="h", pid=1, boot=clock.boot), lease_us=60_000_000
        )
        (claim,) = verbs.claim(self.backend, self.worker, Demand(("default",), ("resize",), 1))
        verbs.settle(self.backend, self.worker, [completed(claim, clock.steady(), clock.steady(), None)])
        self.noted = Counter({(self.job, "begun"): 1, (self.job, "done"): 1})

    def problems(self, **changes: Any) -> list[str]:
        return self.compared(**changes).problems

    def compared(self, **changes: Any) -> Accounts:
        evidence: dict[str, Any] = {
            "expected": {"resize": [self.job]},
            "cancelled": frozenset[str](),
            "noted": self.noted,
            "charges": Counter[str](),
            "killed": frozenset[str](),
            **changes,
        }
        return compare(self.backend, Evidence(**evidence))


@pytest.fixture
def books(tmp_path: Path) -> Any:
    made = Books(tmp_path / "books.db")
    yield made
    made.backend.close()


def test_accounts_that_agree_show_no_problem(books: Books) -> None:
    assert books.problems() == []


def test_a_job_that_is_not_there_is_lost(books: Books) -> None:
    other = "01a1e083-5ed4-704a-ae25-a11872c7f5d4"

    (lost, counted) = books.problems(expected={"resize": [books.job, other]})

    assert (other in lost, "lost" in lost) == (True, True)
    assert "1 job is in the database, but 2" in counted


def test_a_job_that_was_not_enqueued_is_told(books: Books) -> None:
    found = books.problems(expected={"resize": []})

    assert any("was not enqueued" in problem and books.job in problem for problem in found)


@pytest.mark.parametrize("done", [0, 2])
def test_a_body_that_did_not_run_to_its_end_once_is_told(books: Books, done: int) -> None:
    (problem,) = books.problems(noted=Counter({(books.job, "begun"): 1, (books.job, "done"): done}))

    assert f"was done {done} times" in problem


def test_a_body_cut_short_after_its_transaction_has_completed_the_job_is_no_problem(books: Books) -> None:
    """A worker was killed between the commit and the note that the body is done: it had done its work once."""
    told = {"noted": Counter({(books.job, "begun"): 1}), "charges": Counter({books.job: 1})}

    found = books.problems(expected={"charge": [books.job]}, killed=frozenset({books.worker}), **told)
    (problem,) = books.problems(expected={"charge": [books.job]}, **told)

    assert found == []
    assert "was done 0 times" in problem


def test_the_table_shows_numbers(books: Books, capsys: pytest.CaptureFixture[str]) -> None:
    put_accounts(books.compared(), [])

    assert capsys.readouterr().out.split("\n")[2].split() == ["resize", "1", "1", "0", "0", "0", "1"]


def test_a_body_begun_more_often_than_it_was_claimed_is_told(books: Books) -> None:
    (problem,) = books.problems(noted=Counter({(books.job, "begun"): 2, (books.job, "done"): 1}))

    assert "was begun 2 times in 1 attempt" in problem


def test_another_end_than_expected_is_told(books: Books) -> None:
    assert any(
        "ended as completed, not cancelled" in each for each in books.problems(cancelled=frozenset({books.job}))
    )


def test_an_effect_too_many_is_told(books: Books) -> None:
    (problem,) = books.problems(charges=Counter({books.job: 1}))

    assert "has left 1 charge" in problem
