from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.shell import Shell, project


@pytest.fixture
def shell(tmp_path: Path, url: str) -> Shell:
    """A project with a tasks.py, on each database in turn."""
    return project(tmp_path, url)


@pytest.fixture
def local(tmp_path: Path) -> Shell:
    """The same on a SQLite file that is not there yet, where the database makes no difference."""
    return project(tmp_path)
