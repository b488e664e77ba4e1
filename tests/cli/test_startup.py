"""What is loaded before it is needed: nothing. Counted in modules, because time depends on who else is running."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import walk
from tests.cli.shell import PATIENCE, Shell

# Of Python's own, but expensive, and nothing to do with a list of jobs in a file.
COSTLY = {
    "asyncio",
    "ssl",
    "socket",
    "http",
    "email",
    "multiprocessing",
    "concurrent",
    "tomllib",
    "shutil",
    "zoneinfo",
    "pdb",
}

_LOADED = """
import json, sys
before = set(sys.modules)
{code}
sys.stderr.write("\\n" + json.dumps(sorted(set(sys.modules) - before)))
"""


def loaded_by(code: str, folder: Path, *arguments: str, **environment: str) -> set[str]:
    """The modules that a program has loaded at its end."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", _PATHS + _LOADED.format(code=code), *arguments],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


# Without site: what it loads for an editable install is none of ours.
_PATHS = f"import sys; sys.path[:] = {[path for path in sys.path if path]!r}\n"
_RUN = "from dray.cli.run import run; run(sys.argv[1:])"


def packages(modules: set[str]) -> set[str]:
    """Third-party packages among them."""
    roots = {name.partition(".")[0] for name in modules if not name.startswith("_sysconfigdata")}
    return roots - sys.stdlib_module_names - {"dray"}


def test_import_dray_loads_nothing_but_itself(tmp_path: Path) -> None:
    loaded = loaded_by("import dray", tmp_path)

    assert packages(loaded) == set()
    assert {name for name in loaded if name.startswith("dray")} == {"dray"}
    assert loaded & COSTLY == set()


def test_the_forker_loads_no_other_package_and_nothing_that_only_workers_or_coroutines_need(tmp_path: Path) -> None:
    loaded = loaded_by("import dray; from dray.runtime.children import child, forker", tmp_path)

    assert packages(loaded) == set()
    assert "asyncio" not in loaded
    assert {name for name in loaded if name.startswith(("dray.maintenance", "dray.runtime.runners"))} == set()


def test_the_forker_is_not_told_to_load_what_only_workers_need(tmp_path: Path) -> None:
    code = """
import dray.cli, dray.handle.job, dray.maintenance.rescuer, dray.runtime.engine
from dray.runtime.children import worker_side
told = worker_side._surroundings()["modules"]
for name in [name for name in sys.modules if name.startswith("dray") and name not in told]:
    del sys.modules[name]
"""
    loaded = loaded_by(code, tmp_path)

    assert "dray.handle.job" in loaded
    only_of_workers = ("dray.cli", "dray.maintenance", "dray.runtime")
    assert {name for name in loaded if name.startswith(only_of_workers)} == set()


def test_a_worker_does_not_load_what_few_workers_need(tmp_path: Path) -> None:
    """Each is half a megabyte or more of every idle worker's memory."""
    loaded = loaded_by(
        "import dray.cli.commands.worker, dray.runtime.worker, dray.backends.sqlite.database", tmp_path
    )

    assert loaded & {"zoneinfo", "sysconfig", "calendar", "decimal", "subprocess", "asyncio", "ssl"} == set()
    assert loaded & {"dray.model.cron", "dray.model.circumstances", "dray.runtime.supervisor"} == set()


def test_a_worker_on_postgres_does_not_load_sqlite(tmp_path: Path) -> None:
    loaded = loaded_by("import dray.cli.commands.worker, dray.runtime.worker, dray.backends.postgres", tmp_path)

    assert "psycopg" in loaded
    assert {name for name in loaded if "sqlite" in name} == {"dray.backends.sqlite"}


def test_an_app_with_tasks_loads_no_other_package_and_no_database(tmp_path: Path) -> None:
    code = "import dray\napp = dray.App('sqlite:///x.db')\n@app.task\ndef add(a: int) -> int: return a"

    loaded = loaded_by(code, tmp_path)

    assert packages(loaded) == set()
    assert loaded & {"sqlite3", "dray.backends", "dray.runtime.worker", "asyncio", "ssl"} == set()


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["nosuch"], []], ids=" ".join)
def test_help_loads_click_and_no_command(tmp_path: Path, words: list[str]) -> None:
    loaded = loaded_by(_RUN, tmp_path, *words)

    assert packages(loaded) == {"click"}
    assert {name for name in loaded if name.startswith("dray.cli.commands.")} == set()
    # click wants to know how wide the terminal is
    assert loaded & (COSTLY - {"shutil"} | {"sqlite3", "dray.app", "dray.backends", "json", "logging"}) == set()


def test_the_help_of_a_command_loads_no_other_and_no_database(tmp_path: Path) -> None:
    code = """
from dray.cli.run import run
for path in {paths!r}:
    run([*path, "--help"])
"""
    loaded = loaded_by(code.format(paths=sorted(walk.COMMANDS)), tmp_path)

    assert packages(loaded) == {"click"}
    assert loaded & {"sqlite3", "dray.backends.base", "dray.runtime.worker", "asyncio", "ssl"} == set()


@pytest.mark.parametrize(
    "more", [[], ["--json"], ["--state", "failed"], ["--queue", "mail", "--since", "1h"]], ids=" ".join
)
def test_a_list_loads_what_a_list_needs(local: Shell, more: list[str]) -> None:
    local("enqueue", "tasks.add", "a=1", "b=2")

    loaded = loaded_by(_RUN, local.folder, "jobs", "--url", local.url, *more)

    assert packages(loaded) == {"click"}
    assert "sqlite3" in loaded
    assert loaded & COSTLY == set()
    # Tasks, schedules, workflows, workers, watches and other nouns are for other commands.
    others = {
        "task",
        "doctor",
        "live",
        "why",
        "history",
        "schedules",
        "workers",
        "workflows",
        "transfer",
        "watch",
    }
    found = {f"dray.{prefix}.{name}" for name in others for prefix in ("backends.store", "task", "ops", "model")}
    assert (
        loaded & (found | {"dray.backends.sqlite.watch", "dray.schedules", "dray.workflow", "dray.runtime.worker"})
        == set()
    )
    assert len({name for name in loaded if name.startswith("dray")}) <= 85


@pytest.mark.parametrize("words", [["jobs"], ["stats"], ["queues"], ["workers"], ["db", "status"]], ids=" ".join)
def test_rich_is_for_terminals(local: Shell, words: list[str]) -> None:
    local("db", "init")

    assert "rich" not in packages(loaded_by(_RUN, local.folder, *words, "--url", local.url))


def test_psycopg_is_for_postgresql(local: Shell) -> None:
    local("db", "init")

    loaded = loaded_by(_RUN, local.folder, "jobs", DRAY_URL=local.url)

    assert "psycopg" not in packages(loaded)
    unreachable = "postgresql://127.0.0.1:1/x?connect_timeout=1"
    assert "psycopg" in packages(loaded_by(_RUN, local.folder, "jobs", "--url", unreachable))
