"""The README, followed to the letter in an empty folder; and what it must not lack."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.compare.entrants import ENTRANTS
from tests.cli.shell import Shell
from tests.docs.play import Player, blocks_of, text_of


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """In an empty folder, with no address in the environment."""
    monkeypatch.chdir(tmp_path)
    shell = Shell(tmp_path, f"sqlite:///{tmp_path / 'dray.db'}")
    del shell.environment["DRAY_URL"]
    return shell


def test_the_readme_runs_as_shown_and_a_second_time(reader: Shell) -> None:
    player = Player("README.md", reader)
    player.play()

    assert sorted(path.name for path in reader.folder.glob("*.py")) == ["shop.py", "tasks.py"]
    assert [row[0] for row in reader("schedules").rows] == ["tasks.report"]  # by the `dray worker` that it starts

    again = subprocess.run(
        [sys.executable, "shop.py"],
        cwd=reader.folder,
        env=reader.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert again.stdout == "completed\n"
    assert {row[3] for row in reader("jobs").rows} == {"completed"}


def test_the_first_program_of_the_readme_has_six_lines_at_most() -> None:
    first = blocks_of("README.md", "python")[0]
    assert len([line for line in first.splitlines() if line.strip()]) <= 6


def test_cron_workflows_and_transactions_are_at_the_top_of_the_readme() -> None:
    screen = "\n".join(text_of("README.md").splitlines()[:55])  # before the pictures
    for word in ("cron=", "app.workflow(", "using(connection="):
        assert word in screen


def test_the_readme_installs_from_the_clone() -> None:
    """The name that `pip install` knows belongs to another package."""
    for page in ("README.md", "docs/tutorial/1-first-job.md", "docs/index.md"):
        assert not re.search(r"pip install '?dray\b", text_of(page))
    assert blocks_of("README.md", "console")[0].startswith("$ pip install '.[web]'")


def test_the_readme_is_short() -> None:
    assert text_of("README.md").count("\n") < 180


def test_the_rates_in_the_readme_and_the_docs_are_those_that_were_measured() -> None:
    measured = text_of("docs/explanation/performance.md").partition("## Measured")[2].partition("## ")[0]
    for page in ("README.md", "docs/explanation/guarantees.md"):
        for rate in ("4,806", "127,595", "51,059", "3,476", "105,124", "40,759"):
            assert rate in measured
            assert rate in text_of(page)


def test_the_rates_beside_other_queues_are_those_of_the_run_that_is_kept() -> None:
    kept = re.findall(
        r"^\| (.+?) [\d.]+, (\w+) \| ([\d,]+) \| \S+ \| ([\d,.]+) \|", text_of("benchmarks/results/compare.md"), re.M
    )
    found = {(name, store): (one, drain) for name, store, one, drain in kept}
    stores = {"PG": "PostgreSQL", "": ""}
    table = text_of("README.md").partition("Beside the others")[2].partition("\n\n`make bench`")[0]
    names, _, one, drain, _ = (row.strip("| ").split(" | ") for row in re.findall(r"^\|.+", table, re.M))

    for place, title in enumerate(names):
        name, _, store = title.partition(", ")
        rates = [
            value for key, value in found.items() if key[0] == name and key[1].startswith(stores.get(store, store))
        ]
        drained = float(rates[0][1].replace(",", ""))
        assert (one[place + 1], drain[place + 1]) == (rates[0][0], f"{drained:,.0f}"), title


def test_the_comparison_says_what_the_benchmark_knows_of_each_queue() -> None:
    table = text_of("README.md").partition("## Compared with other queues")[2].partition("\nSpeed")[0]
    rows = {
        name.strip("* ").partition(" ")[0].lower(): row for name, row in re.findall(r"^\|([^|]+)\|(.+)$", table, re.M)
    }

    compared = {each.name.lower() for each in ENTRANTS if each.name not in {"litequeue", "Dramatiq"}}
    assert compared <= set(rows)
    for each in ENTRANTS:
        if (row := rows.get(each.name.lower())) and each.guarantees.fenced != "-":
            assert row.rstrip(" |").endswith(each.guarantees.fenced)
