"""`dray import`, run in this process against an app of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import dray
from dray.app_interface import core_of
from dray.cli.run import run
from dray.ops.audit import audit

TASKS = """
import dray

app = dray.App()


@app.task(name="theirs.add")
def add(a, b):
    return a + b


@app.task(name="theirs.total")
def total(parent_results):
    return sorted(parent_results.values())


@app.task(name="greet", max_attempts=4, timeout=20)
def greet(person):
    return f"hello {person['name']}"


@app.task(name="pair")
def pair(left, right):
    return [left, right]
"""


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def states(self) -> dict[tuple[str, str | None], int]:
        return {(each["state"], each["becomes"]): each["jobs"] for each in self.json["states"]}


Import = Callable[..., Said]


@pytest.fixture
def target(made_url: str) -> Generator[dray.App]:
    """A Dray database with its tables, and nothing in them."""
    app = dray.App(made_url)
    yield app
    app.close()


@pytest.fixture
def dray_import(
    target: dray.App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Generator[Import]:
    """Runs `dray import WORDS --json` in a folder with a tasks.py, and audits the tables afterwards."""
    (tmp_path / "tasks.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def do(*words: str, json_too: bool = True) -> Said:
        sys.modules.pop("tasks", None)
        capsys.readouterr()
        code = run(["import", *words, "--url", core_of(target).settings.url, *(["--json"] if json_too else [])])
        said = capsys.readouterr()
        assert audit(core_of(target).backend).broken == ()
        return Said(code, said.out, said.err)

    yield do
    sys.modules.pop("tasks", None)


def jobs_by_name(app: dray.App) -> dict[str | None, Any]:
    return {job.row.name: job for job in app.jobs(limit=1_000)}
