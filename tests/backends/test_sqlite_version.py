"""A SQLite library that is too old is refused with a clear error, before a file is created."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from dray.app import App
from dray.app_interface import core_of

OLD = """
    import json, os, sqlite3, sys
    sqlite3.sqlite_version_info, sqlite3.sqlite_version = (3, 36, 0), "3.36.0"
    from dray import App
    from dray.app_interface import core_of
    from dray.errors import DrayError

    def refused(call):
        try:
            call()
        except DrayError as error:
            return type(error).__name__, str(error)
        return "done", ""
"""
CALLS = """
    def body():
        pass

    app = App("sqlite:///jobs.db")
    app.task(name="task")(body)
    calls = {
        "enqueue": lambda: app.enqueue("task"),
        "list": app.jobs,
        "worker": lambda: app.worker().run_until_idle(),
        "stats": app.stats,
        "watch": core_of(app).backend.watch,
        "migrate": core_of(app).backend.migrate,
    }
    answers = {name: refused(call) for name, call in calls.items()}
    print(json.dumps({"answers": answers, "files": os.listdir()}))
"""
JOIN = """
    app = App("sqlite:///jobs.db")
    connection = sqlite3.connect("jobs.db")
    answer = refused(lambda: app.enqueue("task", connection=connection))
    print(json.dumps({"answer": answer, "in_transaction": connection.in_transaction}))
"""
DOCTOR = """
    sys.argv = ["dray", "doctor", "--url", "sqlite:///jobs.db", "--json"]
    from dray.cli import main
    main()
"""


def _run(body: str, folder: Path, *, code: int = 0) -> Any:
    script = textwrap.dedent(OLD) + textwrap.dedent(body)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=folder, check=False
    )
    assert (done.returncode, done.stderr) == (code, "")
    return json.loads(done.stdout)


def test_every_call_names_the_version_found_and_the_one_needed_and_no_file_is_made(tmp_path: Path) -> None:
    found = _run(CALLS, tmp_path)

    for kind, text in found["answers"].values():
        assert kind == "ConfigError"
        assert "SQLite 3.36.0" in text
        assert "3.37" in text
        assert str(tmp_path / "jobs.db") in text
    assert found["files"] == []


def test_a_users_own_transaction_is_left_as_it_was(tmp_path: Path) -> None:
    with App(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        core_of(app).backend.migrate()

    found = _run(JOIN, tmp_path)

    assert found["answer"][0] == "ConfigError"
    assert found["in_transaction"] is False


def test_the_doctor_says_so_and_goes_on(tmp_path: Path) -> None:
    with App(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        core_of(app).backend.migrate()

    found = {result["name"]: result for result in _run(DOCTOR, tmp_path, code=1)}

    assert found["sqlite"]["verdict"] == "failed"
    assert "3.36.0" in found["sqlite"]["text"]
