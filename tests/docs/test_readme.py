"""The README, followed to the letter in an empty folder; and what it must not lack."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.compare.entrants import ENTRANTS
from tests.cli.shell import Shell
from tests.docs.play import Player, text_of


def test_the_readme_runs_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shell = Shell(tmp_path, f"sqlite:///{tmp_path / 'dray.db'}")

    Player("README.md", shell).play()

    assert sorted(path.name for path in tmp_path.glob("*.py")) == ["shop.py", "tasks.py"]


def test_the_readme_is_short() -> None:
    assert text_of("README.md").count("\n") < 180


def test_the_rates_in_the_readme_and_the_docs_are_those_that_were_measured() -> None:
    measured = text_of("docs/explanation/performance.md").partition("## Measured")[2].partition("## ")[0]
    for page in ("README.md", "docs/explanation/guarantees.md"):
        for rate in ("1,914", "78,408", "18,058", "1,901", "64,316", "13,308"):
            assert rate in measured
            assert rate in text_of(page)


def test_the_comparison_says_what_the_benchmark_knows_of_each_queue() -> None:
    table = text_of("README.md").partition("## Beside other queues")[2].partition("\nSpeed")[0]
    rows = {
        name.strip("* ").partition(" ")[0].lower(): row for name, row in re.findall(r"^\|([^|]+)\|(.+)$", table, re.M)
    }

    compared = {each.name.lower() for each in ENTRANTS if each.name not in {"litequeue", "Dramatiq"}}
    assert compared <= set(rows)
    for each in ENTRANTS:
        if (row := rows.get(each.name.lower())) and each.guarantees.fenced != "-":
            assert row.rstrip(" |").endswith(each.guarantees.fenced)
