from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.shell import TASKS, Shell


@pytest.fixture
def shell(tmp_path: Path, url: str) -> Shell:
    """A project with a tasks.py, on each database in turn."""
    folder = tmp_path / "project"
    folder.mkdir()
    made = Shell(folder, url)
    made.write("tasks.py", TASKS)
    return made


@pytest.fixture
def local(tmp_path: Path) -> Shell:
    """The same on a SQLite file that is not there yet, where the database makes no difference."""
    folder = tmp_path / "project"
    folder.mkdir()
    made = Shell(folder, f"sqlite:///{folder / 'dray.db'}")
    made.write("tasks.py", TASKS)
    return made
