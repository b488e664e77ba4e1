"""Systems that lack what Linux has (macOS): every module can be imported, and jobs run in child processes.

Every interpreter started here lacks what they lack: real-time signals, /proc, prctl, inotify, epoll, event
descriptors, waitid and more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

LACKING = """
    import builtins, ctypes, io, os, select, signal, socket, sys, sysconfig, time, types

    dyld = types.ModuleType("ctypes.macholib.dyld")  # ctypes.util needs it there, and Debian's Python is without
    dyld.dyld_find = lambda name: name
    sys.modules.update({"ctypes.macholib": types.ModuleType("ctypes.macholib"), dyld.__name__: dyld})
    sysconfig.get_config_vars()  # it looks for a file that is named after the platform
    sys.platform = "darwin"
    taken = {
        signal: ("SIGRTMIN", "SIGRTMAX", "SIGPWR", "sigwaitinfo", "sigtimedwait"),
        os: ("eventfd", "eventfd_read", "eventfd_write", "EFD_NONBLOCK", "EFD_CLOEXEC", "pipe2", "memfd_create",
            "waitid", "P_PID", "WNOWAIT", "pidfd_open", "sched_getaffinity", "O_PATH", "O_TMPFILE"),
        select: ("epoll",),
        socket: ("MSG_CMSG_CLOEXEC", "SO_PEERCRED", "TCP_USER_TIMEOUT"),
        time: ("CLOCK_BOOTTIME",),
    }
    for module, names in taken.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)

    def hiding(call):
        def hidden(path=".", *args, **options):
            if isinstance(path, (str, bytes, os.PathLike)) and os.fsdecode(path).startswith("/proc"):
                raise FileNotFoundError(2, "No such file or directory", path)
            return call(path, *args, **options)
        return hidden

    readers = {os: ("listdir", "scandir", "stat", "open", "readlink"), builtins: ("open",), io: ("open",)}
    for module, names in readers.items():
        for name in names:
            setattr(module, name, hiding(getattr(module, name)))

    class Library:
        def __init__(self, *args, **options):
            self._found = load(*args, **options)
        def __getattr__(self, name):
            if name in {"prctl", "inotify_init1", "inotify_add_watch", "inotify_rm_watch"}:
                raise AttributeError(name)
            return getattr(self._found, name)

    load, ctypes.CDLL = ctypes.CDLL, Library
"""

IMPORT_ALL = """
    import importlib, json, pkgutil
    import dray

    names = [module.name for module in pkgutil.walk_packages(dray.__path__, "dray.") if "__main__" not in module.name]
    need_frameworks = tuple(f"dray.integrations.{name}" for name in ("django", "fastapi", "flask", "mcp", "otel"))
    found = [name for name in names if not name.startswith(need_frameworks)]
    refused = {}
    for name in found:
        try:
            importlib.import_module(name)
        except Exception as error:
            refused[name] = repr(error)
    print(json.dumps({"modules": len(found), "refused": refused}))
"""

BODIES = """
    import os, signal, time
    from pathlib import Path
    import dray

    app = dray.App(os.environ["URL"], migrate=True)
    trace = Path("trace")

    @app.task(name="add", runner="process")
    def add(a: int, b: int, ctx: dray.Context) -> int:
        ctx.log.info("adding")
        return a + b

    @app.task(name="die", runner="process", max_attempts=1)
    def die() -> None:
        os._exit(7)

    @app.task(name="hang", runner="process", max_attempts=1, timeout=0.5)
    def hang() -> None:
        time.sleep(60)

    @app.task(name="orphaned", runner="process", max_attempts=2, retry=0)
    def orphaned(ctx: dray.Context) -> str:
        if ctx.attempt == 1:
            trace.touch()
            os.kill(os.getppid(), signal.SIGKILL)
            while True:
                with trace.open("a") as file:
                    file.write(".")
                time.sleep(0.01)
        before = trace.stat().st_size
        time.sleep(0.5)
        return "it lives on" if trace.stat().st_size > before else "it is gone"

    @app.task(name="plain")
    def plain() -> str:
        return "plain"
"""

RUN_ALL = """
    import json
    import bodies
    from dray.runtime.children import kernel

    def outcome(job):
        try:
            return job.result(timeout=60)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    with bodies.app.worker(concurrency=2):
        made = {name: getattr(bodies, name).enqueue() for name in ("plain", "die", "hang")}
        made["add"] = bodies.add.enqueue(1, 2)
        results = {name: outcome(job) for name, job in made.items()}
        results["orphaned"] = outcome(bodies.orphaned.enqueue())  # it kills what starts the others' processes
        reasons = {name: job.refresh().reason for name, job in made.items() if job.refresh().reason}
        lines = [line.message for line in made["add"].logs()]
    lacks = [kernel.STACK_SIGNAL is None, not kernel.HAS_DEATH_SIGNAL]
    print(json.dumps({"results": results, "reasons": reasons, "lines": lines, "lacks": lacks}))
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Returns a folder that makes Python believe that it runs on another system."""
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(LACKING), encoding="utf-8")
    (tmp_path / "bodies.py").write_text(textwrap.dedent(BODIES), encoding="utf-8")
    return tmp_path


def _run(script: str, folder: Path, **variables: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": str(folder), **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_module_can_be_imported(elsewhere: Path) -> None:
    found = _run(IMPORT_ALL, elsewhere)

    assert found["refused"] == {}
    assert found["modules"] > 200


def test_jobs_run_in_child_processes_that_end_when_they_have_to(elsewhere: Path, url: str) -> None:
    found = _run(RUN_ALL, elsewhere, URL=url)

    assert found["lacks"] == [True, True]
    failures = {name: found["results"].pop(name).partition(":")[0] for name in ("die", "hang")}
    assert failures == {"die": "JobFailed", "hang": "JobFailed"}
    assert found["results"] == {"plain": "plain", "add": 3, "orphaned": "it is gone"}
    assert found["reasons"] == {"die": "crashed", "hang": "timeout"}
    assert found["lines"] == ["adding"]


def test_the_doctor_says_what_is_missing_and_what_is_done_instead(elsewhere: Path) -> None:
    script = """
        import dray
        from dray.cli import main

        dray.App("sqlite:///jobs.db").init()
        main(["doctor", "--json", "--url", "jobs.db"])
    """
    found = {each["name"]: each for each in _run(script, elsewhere)}

    assert found["system"]["verdict"] == "note"
    assert found["system"]["text"].startswith(
        "macOS has no inotify: on SQLite workers poll, 20 times a second when idle"
    )
    assert "no /proc" in found["system"]["text"]
    assert "inotify" not in found
    assert [each for each in found.values() if each["verdict"] == "failed"] == []


def test_a_worker_finds_new_jobs_by_polling(elsewhere: Path) -> None:
    script = """
        import json, dray
        from dray.backends.sqlite import inotify

        app = dray.App("sqlite:///jobs.db")

        @app.task
        def add(a: int, b: int) -> int:
            return a + b

        with app.worker() as worker, dray.App("sqlite:///jobs.db") as producer:
            assert add.enqueue(1, 2).result(timeout=30) == 3
            name = add.name
            jobs = [producer.enqueue(name, {"a": n, "b": n}) for n in range(3)]
            print(json.dumps([app.job(job.id).result(timeout=30) for job in jobs] + [inotify.is_there()]))
    """
    assert _run(script, elsewhere) == [0, 2, 4, False]
