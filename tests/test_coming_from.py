"""The right columns of the pages for people who come from another queue run as shown, all in one process."""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest

import dray
from dray.cli.root import root

PAGES = Path(__file__).parent.parent / "docs" / "how-to" / "coming-from"
SYSTEMS = ["apscheduler", "celery", "gigq", "huey", "lilota", "procrastinate", "rq"]
BLOCK = re.compile(r"```python\n(.+?)```", re.S)
COLUMNS = re.compile(r"<tr><td>\n(.+?)\n</td><td>\n(.+?)\n</td></tr>", re.S)


def ours(page: str) -> Iterator[str]:
    for theirs, right in COLUMNS.findall((PAGES / f"{page}.md").read_text()):
        (left,), (code,) = BLOCK.findall(theirs), BLOCK.findall(right)
        assert "dray" not in left
        yield code


def test_there_is_a_page_for_each() -> None:
    assert sorted(page.stem for page in PAGES.glob("*.md")) == sorted(["index", *SYSTEMS])
    index = (PAGES / "index.md").read_text()
    assert sorted(set(re.findall(r"\]\((\w+)\.md\)", index))) == SYSTEMS


@pytest.mark.parametrize("page", SYSTEMS)
def test_our_column_runs_as_shown(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What declares tasks comes first, as it does in a program; the rest runs beside a worker."""
    monkeypatch.chdir(tmp_path)
    module = ModuleType(f"coming_from_{page}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    blocks = list(ours(page))
    assert len(blocks) > 5
    declaring = [code for code in blocks if "@app." in code or "dray.App(" in code]
    for code in declaring:
        exec(compile(code, f"{page}.md", "exec"), module.__dict__)
    app: dray.App = module.__dict__["app"]
    calling = [code for code in blocks if code not in declaring]
    if page == "celery":
        calling += ['assert sums().wait(timeout=30) == "completed"', 'app.remove_schedule("nightly")']
    elif page == "gigq":
        calling += ['assert sums().wait(timeout=30) == "completed"']
    elif page == "huey":
        calling += ['assert pipe().job("second").result(timeout=30) == 6']
    with app.worker():
        for code in calling:
            exec(compile(code, f"{page}.md", "exec"), module.__dict__)
    app.close()
    for value in vars(module).values():
        if isinstance(value, sqlite3.Connection):
            value.close()  # as a program's end does: Python 3.13 warns of it, in whatever test comes next


def test_every_command_that_is_shown_exists() -> None:
    lines = [
        (page, line) for page in PAGES.glob("*.md") for line in re.findall(r"^\$ dray (.+)", page.read_text(), re.M)
    ]
    assert len(lines) > 8
    for page, line in lines:
        context = click.Context(root)
        found: click.Command | None = root
        for word in line.split():
            if not isinstance(found, click.Group):
                break
            found = found.get_command(context, word)
            assert found is not None, (page, line)
        options = {name for each in found.params for name in each.opts} if found else set[str]()
        assert {word for word in line.split() if word.startswith("--")} <= options, line


def test_every_link_leads_somewhere() -> None:
    for page in PAGES.glob("*.md"):
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            assert (page.parent / link).exists(), (page.name, link)
