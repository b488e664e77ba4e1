"""Commands of the tests run one after another in one process: each finds it as new."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli import reused
from tests.cli.shell import Shell

MEDDLES = """
import json, logging, os, pathlib, signal, sys, time, warnings
import dray

app = dray.App()

@app.task
def {task}() -> None: ...

meddler, ours = logging.getLogger("meddler"), logging.getLogger("dray")
found = {{
    "modules": "beside" in sys.modules,
    "path": sys.path,
    "handlers": [len(meddler.handlers), len(logging.root.handlers)],
    "levels": [ours.level, logging.root.manager.disable],
    "signal": str(signal.getsignal(signal.SIGTERM)),
    "filters": str(warnings.filters),
    "environment": sorted(os.environ.items()),
    "zone": time.tzname,
    "folder": os.getcwd(),
}}
pathlib.Path("found.json").write_text(json.dumps(found))

import beside
meddler.addHandler(logging.StreamHandler())
logging.root.addHandler(logging.StreamHandler())
ours.setLevel("ERROR")
logging.disable()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
warnings.simplefilter("ignore")
sys.path.insert(0, "/nowhere")
os.environ.update(MEDDLED="1", TZ="Asia/Tokyo")
time.tzset()
os.chdir("/")
"""


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No process that has run commands of other tests: it may be near its last."""
    monkeypatch.setattr(reused, "_idle", [])
    yield
    reused.end_all()


def pids() -> set[int]:
    """Of the idle processes."""
    return {each.forked.pid for each in reused._idle}


def test_whatever_code_has_meddled_with_the_next_command_finds_all_as_it_was(local: Shell) -> None:
    local.write("beside.py", "")
    seen: list[object] = []
    local("config")
    before = pids()
    for task in ("one", "two", "three"):
        local.write("tasks.py", MEDDLES.format(task=task))

        assert local("tasks").rows[0][0] == f"tasks.{task}"

        seen.append(json.loads((local.folder / "found.json").read_text()))
    assert seen == [seen[0]] * 3
    assert pids() == before


LEFT = {
    "a thread": "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "a child": "import subprocess; child = subprocess.Popen(['true'])",
    "a descriptor": "import os; os.open('tasks.py', os.O_RDONLY)",
    "an exit handler": "import atexit; atexit.register(print)",
}


@pytest.mark.parametrize("left", LEFT)
def test_a_process_in_which_something_was_left_runs_no_other_command(local: Shell, left: str) -> None:
    local("config")
    before = pids()
    local.write("tasks.py", f"import dray\napp = dray.App()\n@app.task\ndef t() -> None: ...\n{LEFT[left]}\n")

    local("tasks")

    assert len(before - pids()) == 1


def test_a_command_that_ends_its_process_has_the_code_of_that(local: Shell) -> None:
    for statement, code in (("os._exit(7)", 7), ("os.kill(os.getpid(), 9)", -9)):
        local.write("tasks.py", f"import dray, os\n{statement}\n")
        assert local.try_("tasks").code == code
    (local.folder / "tasks.py").unlink()
    assert local.try_("config").code == 0


def test_one_that_does_not_end_is_killed(local: Shell) -> None:
    local.write("tasks.py", "import dray, threading\nthreading.Event().wait()\n")
    with Path(os.devnull).open("r+") as nowhere:
        command = reused.Command(["tasks"], local.folder, local.environment, [nowhere.fileno()] * 3)

    with pytest.raises(subprocess.TimeoutExpired):
        command.wait(0.5)

    assert command.process.forked.wait() == -signal.SIGKILL
    assert command.process.forked.pid not in pids()


def test_a_traceback_is_where_python_would_write_it(local: Shell) -> None:
    """A test that an error is a sentence would not notice otherwise."""
    local.write("tasks.py", "import dray\nclass Odd(BaseException): ...\nraise Odd\n")

    done = local.run("tasks")

    assert done.code == 1
    assert done.err.splitlines()[0] == "Traceback (most recent call last):"
    assert done.err.splitlines()[-1] == "tasks.Odd"
