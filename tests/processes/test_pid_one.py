"""`dray worker` as the first process of a container: it reaps what others leave behind, and hears signals."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dray import App
from dray.app_interface import core_of
from tests.runtime.stage import await_that

PATIENCE = 30.0
APART = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
TASKS = """
import os, time
import dray
app = dray.App()

@app.task
def orphan() -> tuple[bool, int]:
    # A process whose parent has ended goes to PID 1, and ends there. Until it is reaped it is to be seen.
    hears, tells = os.pipe()
    child = os.fork()
    if child == 0:
        grandchild = os.fork()
        if grandchild:
            os.write(tells, str(grandchild).encode())
        os._exit(0)
    os.waitpid(child, 0)
    pid = os.read(hears, 100).decode()
    deadline = time.monotonic() + 20
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.02)
    return not os.path.exists(f"/proc/{pid}"), os.getpid()

@app.task
def last() -> str:
    open("began", "w").close()
    time.sleep(1)
    return "done"
"""


def _why_not() -> str | None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "a PID namespace needs root and the program unshare"
    tried = subprocess.run([*APART, "true"], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"a PID namespace cannot be made here: {tried.stderr.strip()}"


@contextmanager
def contained(folder: Path, url: str, *words: str) -> Generator[subprocess.Popen[str]]:
    """A worker that is PID 1 of a namespace of its own; the process is what made that."""
    (folder / "tasks.py").write_text(TASKS)
    command = [*APART, sys.executable, "-m", "dray", "worker", "tasks:app", *words]
    environ = {**os.environ, "DRAY_URL": url}
    with subprocess.Popen(command, cwd=folder, env=environ, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def first_process(process: subprocess.Popen[str]) -> int:
    """PID 1 of the namespace, by its number outside."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(children[0])


def test_a_worker_as_pid_one_reaps_orphans_and_passes_signals_on(tmp_path: Path, url: str) -> None:
    reason = _why_not()
    if reason is not None:
        pytest.skip(reason)
    with App(url) as app:
        app.init()
        orphan = app.enqueue("tasks.orphan", {})
        with contained(tmp_path, url, "--grace", "20s") as process:
            is_reaped, pid = orphan.result(PATIENCE)
            assert is_reaped
            assert pid != 1  # PID 1 does nothing but this

            last = app.enqueue("tasks.last", {})
            await_that((tmp_path / "began").exists)
            os.kill(first_process(process), signal.SIGTERM)
            _, said = process.communicate(timeout=PATIENCE)
            assert last.result(PATIENCE) == "done"  # it was let end, within its grace
        assert process.returncode == 0
        assert "is stopping: 1 job may take 20 s to end" in said
        assert core_of(app).backend.workers.gone() == set()


def test_the_exit_code_is_the_workers(tmp_path: Path) -> None:
    reason = _why_not()
    if reason is not None:
        pytest.skip(reason)
    with contained(tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}", "--grace", "soon") as process:
        assert process.wait(PATIENCE) == 2


def test_it_ends_with_its_worker_also_where_the_ends_of_children_were_ignored() -> None:
    program = """
import os, signal
from dray.runtime.init_process import go_below
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.getpid = lambda: 1
go_below()
os._exit(7)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=PATIENCE, check=False).returncode == 7
