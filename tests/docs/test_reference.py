"""The reference of commands and settings is what the program has, and its examples run as shown."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import dray
from checks import reference
from dray.model.job import Reason, State
from tests.cli.shell import Shell
from tests.docs.play import ELSEWHERE, Player

ROOT = Path(__file__).parents[2]
MIGRATIONS = ROOT / "src" / "dray" / "backends" / "migrations"
# In the order of a shop's day: what one page enqueues, the next ones show.
PAGES = (
    *("index", "enqueue", "jobs", "why", "tasks", "run", "worker", "job", "queues", "limits", "workers", "workflows"),
    *("schedules", "stats", "tail", "actions", "config", "completion", "audit", "doctor", "health", "db"),
    *("demo", "dev", "web", "mcp", "top", "bench", "import"),
)


@pytest.mark.parametrize(("name", "part"), reference.parts().items())
def test_a_page_has_what_is_generated_for_it(name: str, part: str) -> None:
    page = (reference.REFERENCE / name).read_text()
    assert reference.with_part(page, part) == page, "run: python checks/reference.py"


def test_every_command_has_a_page_with_an_example() -> None:
    pages = {path.stem: path.read_text() for path in (ROOT / "docs" / "reference" / "cli").glob("*.md")}

    assert set(pages) == set(PAGES)
    assert [name for name, page in pages.items() if f"\n$ dray {name}" not in page and name != "index"] == []


def test_the_examples_of_the_commands_run_as_shown(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shell = Shell(tmp_path, f"sqlite:///{tmp_path / 'dray.db'}")
    ids: dict[str, str] = {}
    dray.App(postgres_url).init()
    server = (f"postgresql://shop@{ELSEWHERE}/shop", shlex.quote(postgres_url))
    for page in PAGES:
        Player(f"docs/reference/cli/{page}.md", shell, ids=ids, replace=(server,)).play()


def test_the_diagrams_and_pages_have_every_state_reason_and_table() -> None:
    states = (ROOT / "docs" / "images" / "states.svg").read_text()
    assert [state for state in State if f">{state}<" not in states] == []

    described = (ROOT / "docs" / "reference" / "states.md").read_text()
    assert [word for word in (*State, *Reason) if f"`{word}`" not in described] == []

    made = set(
        re.findall(r"CREATE TABLE (dray_\w+)", "".join(each.read_text() for each in MIGRATIONS.rglob("*.sql")))
    )
    drawn = (ROOT / "docs" / "images" / "tables.svg").read_text()
    listed = (ROOT / "docs" / "reference" / "tables.md").read_text()
    assert [table for table in made if f">{table}<" not in drawn or f"| `{table}` |" not in listed] == []
