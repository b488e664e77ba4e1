"""A process with more than 1,000 open files: waiting for descriptors is not limited to the first 1,024."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

MODULE = """
    import os

    import dray

    app = dray.App(os.environ["URL"], migrate=True)

    @app.task(name="plain")
    def plain(word: str) -> str:
        return word

    @app.task(name="child", runner="process")
    def child(word: str) -> str:
        return word

    @app.task(name="loop")
    async def loop(word: str) -> str:
        return word
"""
FULL = """
    import os, resource, sys

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096 if hard == resource.RLIM_INFINITY else hard, hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    assert held[-1] > 1_023
"""
EMBEDDED = """
    import work
    jobs = [task.enqueue("x") for task in (work.plain, work.child, work.loop)]
    with work.app.worker(concurrency=2):
        assert [job.result(timeout=60) for job in jobs] == ["x"] * 3
        assert work.plain.enqueue("y").result(timeout=60) == "y"
    print("done")
"""
FOREGROUND = """
    import work
    job = work.plain.enqueue("x")
    work.app.worker(concurrency=1).run(until_idle=True)
    print("done" if job.refresh().state == "completed" else job.state)
"""
SUPERVISED = """
    import work
    job = work.plain.enqueue("x")
    sys.argv = ["dray", "worker", "work:app", "--processes", "2", "--burst"]
    from dray.cli import main
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
    print("done" if job.refresh().state == "completed" else job.state)
"""


@pytest.mark.parametrize("use", [EMBEDDED, FOREGROUND, SUPERVISED], ids=["embedded", "foreground", "supervised"])
def test_a_worker_runs_in_a_process_with_eleven_hundred_files_open(url: str, tmp_path: Path, use: str) -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 2_048
    (tmp_path / "work.py").write_text(textwrap.dedent(MODULE), encoding="utf-8")
    script = textwrap.dedent(FULL) + textwrap.dedent(use)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "URL": url, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.stdout.splitlines()[-1:] == ["done"], done.stderr
    assert "Traceback" not in done.stderr
