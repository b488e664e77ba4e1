"""The tests of examples/django_shop, with each way to run tests that Django's users have."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests_integrations.django.conftest import postgres, sqlite

SHOP = Path(__file__).parents[2] / "examples" / "django_shop"
PYTEST = [
    "-m",
    "pytest",
    "-q",
    "--rootdir",
    ".",
    "-c",
    os.devnull,
    "-p",
    "no:cacheprovider",
    "--ds",
    "project.settings",
]
WAYS = {
    "manage.py test, in memory": ("memory", ["manage.py", "test"]),
    "manage.py test --parallel, in files": ("sqlite", ["manage.py", "test", "--parallel", "2"]),
    "manage.py test, on PostgreSQL": ("postgres", ["manage.py", "test"]),
    "manage.py test --parallel, on PostgreSQL": ("postgres", ["manage.py", "test", "--parallel", "2"]),
    "pytest-django with xdist, on PostgreSQL": ("postgres", [*PYTEST, "-n", "2", "shop/tests.py"]),
    "pytest-django without migrations, in a file": ("sqlite", [*PYTEST, "--nomigrations", "shop/tests.py"]),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_same_tests_pass(way: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    kind, command = WAYS[way]
    if kind == "postgres":
        database: dict[str, Any] = postgres(request.getfixturevalue("postgres_server") + "&schema=public")
        name = f"{database['NAME']}_{list(WAYS).index(way)}"
        database |= {"OPTIONS": {}, "TEST": {"NAME": name}}
    else:
        # A log beside the file: only the file is copied for a parallel test process.
        database = sqlite(str(tmp_path / "db.sqlite3"), init_command="PRAGMA journal_mode = WAL")
        database["TEST"] = {"NAME": None if kind == "memory" else str(tmp_path / "test.sqlite3")}
    environment = {**os.environ, "SHOP_DATABASE": json.dumps({**database}), "PYTHONPATH": str(SHOP)}
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", *command],
        cwd=SHOP,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-4000:]
    assert re.search(r"Ran 6 tests|\b6 passed", said), said
    assert ("Cloning test database" in said) == ("--parallel" in command)
