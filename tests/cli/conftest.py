from __future__ import annotations

import itertools
import re
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.cli.shell import Shell, project

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def folder_on_disk(request: pytest.FixtureRequest) -> Generator[Path]:
    """A folder that is not in memory, where a tail of a file that comes back took ten times as long."""
    folder = Path(tempfile.mkdtemp(prefix="dray-cli-"))
    yield folder
    if not request.session.testsfailed:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, folder_on_disk: Path) -> Path:
    name = re.sub(r"\W", "_", request.node.name)[:30]
    path = folder_on_disk / f"{name}{next(_numbers)}"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def shell(tmp_path: Path, url: str) -> Shell:
    """A project with a tasks.py, on each database in turn."""
    return project(tmp_path, url)


@pytest.fixture
def local(tmp_path: Path) -> Shell:
    """The same on a SQLite file that is not there yet, where the database makes no difference."""
    return project(tmp_path)
