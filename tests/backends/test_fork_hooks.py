"""Fork hooks of thousands of Apps, databases, workers and watches: called at a fork, removed when closed."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

MANY_APPS = """
    import gc, json, os, sys, tracemalloc
    hooks, register = [], os.register_at_fork

    def counting(**given):
        hooks.append(given)
        register(**given)

    os.register_at_fork = counting
    from dray.app import App
    from dray.app_interface import core_of
    from dray.backends.statements import blocks

    url, made, used, served = sys.argv[1], *map(int, sys.argv[2:])

    def body():
        pass

    def one(*, uses=False, serves=False):
        app = App(url, migrate=True)
        app.task(name="task")(body)
        if uses:
            catalogue = core_of(app).backend.db._catalogue
            for name in blocks(catalogue._dialect):  # made once for the process, when first needed
                catalogue[name]
            app.enqueue("task")
            core_of(app).backend.watch().close()
        if serves:
            with app.worker(concurrency=1):
                pass
        app.close()

    def tracked():
        gc.collect()
        return sum(str(type(each).__module__).startswith("dray") for each in gc.get_objects())

    def state():
        found = len(hooks), tracked(), len(os.listdir("/proc/self/fd"))
        return *found, tracemalloc.get_traced_memory()[0]

    for _ in range(3):
        one(uses=True, serves=True)
    tracemalloc.start()
    before = state()
    for _ in range(made):
        one()
    for _ in range(used):
        one(uses=True)
    for _ in range(served):
        one(uses=True, serves=True)
    after = state()
    names = ("hooks", "objects", "descriptors", "bytes")
    print(json.dumps({name: late - early for name, early, late in zip(names, before, after)}))
"""


def _run(script: str, *args: object, cwd: Path) -> Any:
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_thousands_of_apps_that_were_closed_leave_nothing_behind(url: str, tmp_path: Path) -> None:
    grown = _run(MANY_APPS, url, 2_000, 20, 3, cwd=tmp_path)

    assert grown["hooks"] == 0
    assert grown["objects"] <= 0
    assert grown["descriptors"] <= 0
    assert grown["bytes"] < 3_000_000  # it was 3,400 bytes per App; the interpreter may double one of its own tables


RACE = """
    import json, os, sys, threading, warnings
    warnings.simplefilter("ignore")  # of forks beside threads, from Python 3.12 on
    sys.setswitchinterval(1e-6)
    from dray import forks

    class Database:
        told = 0
        def before_fork(self): self.told += 1
        def after_fork_in_parent(self): self.told += 10_000
        def after_fork_in_child(self): pass

    kept = [Database() for _ in range(50)]
    for each in kept:
        forks.watch(each)
    is_over = False

    def open_and_close():
        while not is_over:
            some = [Database() for _ in range(20)]
            for each in some:
                forks.watch(each)

    failed = []
    sys.unraisablehook = lambda found: failed.append(repr(found.exc_value))
    threads = [threading.Thread(target=open_and_close) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    is_over = True
    for thread in threads:
        thread.join()
    print(json.dumps({"failed": failed, "told": sorted({each.told for each in kept})}))
"""


def test_every_fork_is_told_to_all_while_other_threads_open_and_close_databases(tmp_path: Path) -> None:
    assert _run(RACE, cwd=tmp_path) == {"failed": [], "told": [100 * 10_001]}
