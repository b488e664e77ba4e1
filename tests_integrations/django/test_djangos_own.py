"""Django's own tests of tasks, out of its sdists, against Dray's backend."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests_integrations.django.conftest import postgres, sqlite

# They say what the two backends of Django cannot do, and Dray's can; or they set the status of a result by hand.
INAPPLICABLE = {
    "tasks.test_dummy_backend.DummyBackendTestCase.test_refresh_result",
    "tasks.test_dummy_backend.DummyBackendTestCase.test_refresh_result_async",
    "tasks.test_immediate_backend.ImmediateBackendTestCase.test_cannot_get_result",
    "tasks.test_immediate_backend.ImmediateBackendTestCase.test_cannot_refresh_result",
    "tasks.test_immediate_backend.ImmediateBackendTestCase.test_cannot_pass_run_after",
}
LEAST = {"6.0": 70, "6.1": 80}  # tests: a suite that is not found would pass too
_CACHE = Path(sys.prefix, "django-sdists")  # below .venv-integrations, which git ignores
_OWN = Path(__file__).with_name("own_suite.py")


def unpacked(version: str) -> Path:
    """The newest Django of a version, with its tests; fetched once."""
    _CACHE.mkdir(exist_ok=True)
    folder = _CACHE / version
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "django"]
            subprocess.run([*fetch, "-d", _CACHE / f"{version}.sdist", f"django~={version}.0"], check=True)
            (file,) = (_CACHE / f"{version}.sdist").iterdir()
            with tarfile.open(file) as archive:
                members = [each for each in archive if _is_wanted(each.name)]
                archive.extractall(_CACHE / f"{version}.part", members, filter="data")
            (top,) = (_CACHE / f"{version}.part").iterdir()
            top.rename(folder)
    return folder


def _is_wanted(name: str) -> bool:
    path = name.partition("/")[2]
    is_text = "/locale/" in path and "/locale/en/" not in path and not path.startswith("django/conf/locale/__init__")
    return path.startswith(("django/", "tests/tasks/")) and not is_text


@pytest.mark.parametrize("version", ["6.0", "6.1"])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_they_pass(version: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if kind == "sqlite":
        database = sqlite(str(tmp_path / "db.sqlite3")) | {"TEST": {"NAME": str(tmp_path / "test.sqlite3")}}
    else:
        database = postgres(request.getfixturevalue("postgres_url"))
        database |= {"OPTIONS": {}, "TEST": {"NAME": f"{database['NAME']}_own_{version.replace('.', '_')}"}}
    command = [sys.executable, _OWN, unpacked(version), json.dumps({"default": database})]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])

    assert ".".join(map(str, found["version"])) == version
    assert found["ran"] >= LEAST[version]
    assert found["skipped"] == []
    unexpected = {name: text for name, text in found["failed"].items() if name not in INAPPLICABLE}
    assert not unexpected, "\n\n".join(f"{name}\n{text}" for name, text in unexpected.items())
    assert set(found["failed"]) == INAPPLICABLE
