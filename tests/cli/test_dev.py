"""``dray dev``: real processes on a real terminal, while the code is edited."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from dray.cli.reloading import Notified, Polled, places_of
from tests.cli.session import CTRL_C, Session, fresh_session, session
from tests.cli.shell import Shell, until

CODE = """
import asyncio, logging, pathlib, time
import dray

app = dray.App()
here = pathlib.Path(__file__).parent

@app.task
def note(n: int) -> str:
    with (here / "ledger").open("a") as file:
        file.write(f"{n} v1\\n")
    time.sleep(0.02)
    return "v1"

@app.task(max_attempts=2, retry=0.01)
def fail(ctx: dray.Context) -> None:
    ctx.log.warning("about to fail")
    raise ValueError("too [bold]bad[/bold] \\x1b[2J")

@app.task
async def sleep() -> str:
    (here / "sleeping").touch()
    await asyncio.sleep(3600)
    return "slept"

@app.task
def hold() -> None:
    (here / "held").touch()
    while not (here / "go").exists():
        time.sleep(0.02)
"""


def dev(shell: Shell, *words: str, **environment: str) -> Session:
    shell.write("tasks.py", CODE)
    return session(shell, "dev", *words, **{"DRAY_DEV_NO_WEB": "1", **environment})


def edit(shell: Shell, old: str, new: str) -> None:
    path = shell.folder / "tasks.py"
    changed = path.read_text().replace(old, new)
    saved = shell.write("tasks.py.new", changed)
    saved.rename(path)  # as editors save


def state(shell: Shell, job_id: str) -> str:
    return shell("job", "show", job_id, "--json").json["state"]


def worker_of(shell: Shell) -> int:
    return int(until(lambda: shell.try_("workers").rows)[0][4])


def test_the_next_job_runs_the_new_code_and_none_is_lost_or_run_twice(shell: Shell) -> None:
    with dev(shell) as terminal:
        terminal.sees("tasks     tasks.fail, tasks.hold, tasks.note, tasks.sleep")
        for times, (old, new) in enumerate([("v1", "v22"), ("v22", "v333")], 1):
            for n in range(5):
                shell("enqueue", "tasks.note", f"n={n}")
            edit(shell, old, new)
            terminal.sees("reloaded: tasks.py changed; 4 tasks", times)
            assert shell("enqueue", "tasks.note", "n=99", "--wait").out == f'"{new}"\n'
        terminal.press(CTRL_C)
        assert terminal.ended() == 0

    jobs = shell("jobs", "--json").json
    assert {job["state"] for job in jobs} == {"completed"}
    assert len((shell.folder / "ledger").read_text().splitlines()) == len(jobs) == 12


def test_it_says_where_it_works_and_what_jobs_do(local: Shell) -> None:
    with dev(local, "-q", "default", "-c", "2") as terminal:
        terminal.sees("app       tasks:app\n")
        terminal.sees(f"database  {local.url}\n")
        terminal.sees("queues    default\n")
        note = local("enqueue", "tasks.note", "n=1").value[-8:]
        terminal.sees(f"{note} tasks.note: completed in ")
        fail = local("enqueue", "tasks.fail").value[-8:]
        terminal.sees(f"{fail} tasks.fail: failed after ")
        colours = terminal.raw
        said = terminal.text
        terminal.press(CTRL_C)
        assert terminal.ended() == 0

    assert f"info    {note} tasks.note: started\n" in said
    assert f"warning {fail} tasks.fail: about to fail\n" in said
    assert re.search(rf"warning {fail} tasks.fail: raised after \S+; runs again in 1\dms: ValueError: too", said)
    assert f"info    {fail} tasks.fail: started, attempt 2 of 2\n" in said
    assert re.search(
        rf"error   {fail} tasks.fail: failed after \S+: ValueError: too \[bold\]bad\[/bold\] \\x1b\[2J\n", said
    )
    assert said.count('    raise ValueError("too') == 2, "a traceback for each attempt"
    assert said.count("too [bold]bad") == 2 + 4, "each failure is told once"
    assert "\x1b[32mcompleted" in colours
    assert "\x1b[2J" not in colours


def test_no_color_is_honoured(local: Shell) -> None:
    with dev(local, NO_COLOR="1") as terminal:
        terminal.sees("tasks     tasks.fail")
        assert "\x1b" not in terminal.raw


def test_a_job_that_runs_at_a_change_is_handed_back_unburned(shell: Shell) -> None:
    with dev(shell, "--grace", "0.1") as terminal:
        job_id = shell("enqueue", "tasks.sleep").value
        until((shell.folder / "sleeping").exists)
        edit(shell, "await asyncio.sleep(3600)", "await asyncio.sleep(0)")
        until(lambda: state(shell, job_id) == "completed")
        terminal.press(CTRL_C)
        assert terminal.ended() == 0

    found = shell("job", "show", job_id, "--json").json
    assert (found["attempt"], found["result"]) == (1, "slept")
    assert [attempt["outcome"] for attempt in found["attempts"]] == ["completed"]


def test_a_second_change_while_the_worker_stops_does_not_pile_up(local: Shell) -> None:
    with dev(local, "--grace", "1h") as terminal:
        local("enqueue", "tasks.hold")
        until((local.folder / "held").exists)
        edit(local, "v1", "v22")
        terminal.sees("tasks.py changed\n", 1)
        edit(local, "v22", "v333")
        terminal.sees("tasks.py changed\n", 2)
        (local.folder / "go").touch()
        terminal.sees("reloaded: tasks.py changed")
        assert local("enqueue", "tasks.note", "n=1", "--wait").out == '"v333"\n'
        assert terminal.text.count("reloaded") == 1
        terminal.press(CTRL_C)
        assert terminal.ended() == 0

    assert len(local("workers", "--all").rows) == 2


def test_code_that_cannot_be_imported_is_shown_and_its_repair_is_picked_up(shell: Shell) -> None:
    with dev(shell) as terminal:
        terminal.sees("tasks     tasks.fail")
        edit(shell, "async def sleep()", "async def sleep(")
        terminal.sees("SyntaxError: ")
        terminal.sees("it restarts when something changes")
        assert re.search(r'    File "\S+/tasks.py", line \d+\n +async def sleep\(', terminal.text)
        edit(shell, "async def sleep(", "async def sleep()")
        assert shell("enqueue", "tasks.note", "n=1", "--wait").out == '"v1"\n'
        edit(shell, "import dray", "import nosuchmodule")
        terminal.sees("ModuleNotFoundError: No module named 'nosuchmodule'")
        terminal.sees("it restarts when something changes", 2)
        terminal.press(CTRL_C)
        assert terminal.ended() == 0


def test_code_that_is_broken_from_the_start_is_waited_for_too(local: Shell) -> None:
    local.write("tasks.py", "import dray\nx = 1 / 0\n")
    with session(local, "dev", "--no-web") as terminal:
        terminal.sees("ZeroDivisionError: division by zero")
        terminal.sees("it restarts when something changes")
        local.write("tasks.py", CODE)
        terminal.sees("reloaded: tasks.py changed; 4 tasks")


def test_ctrl_c_hands_running_jobs_back(shell: Shell) -> None:
    shell.write("tasks.py", CODE)
    with fresh_session(
        shell.command("dev", "--no-web", "--grace", "0.1"), shell.folder, shell.environment
    ) as terminal:
        job_id = shell("enqueue", "tasks.sleep").value
        until((shell.folder / "sleeping").exists)
        terminal.press(CTRL_C)
        assert terminal.ended() == 0

    found = shell("job", "show", job_id, "--json").json
    assert (found["state"], found["attempt"]) == ("queued", 0)
    assert [row[2] for row in shell("workers", "--all").rows] == ["stopped"]


def test_a_second_ctrl_c_ends_it_at_once(local: Shell) -> None:
    with dev(local, "--grace", "1h") as terminal:
        local("enqueue", "tasks.sleep")
        until((local.folder / "sleeping").exists)
        terminal.press(CTRL_C)
        until(lambda: "draining" in local("workers").out)
        terminal.press(CTRL_C)
        assert terminal.ended() == 128 + signal.SIGINT


def test_the_worker_does_not_outlive_its_parent(local: Shell) -> None:
    with dev(local) as terminal:
        worker = worker_of(local)
        assert worker != terminal.process.pid
        terminal.process.kill()
        until(lambda: not Path(f"/proc/{worker}").exists())


def test_without_reload_there_is_one_process_and_ctrl_c_ends_it(local: Shell) -> None:
    with dev(local, "--no-reload") as terminal:
        assert worker_of(local) == terminal.process.pid
        terminal.press(CTRL_C)
        assert terminal.ended() == 0


@pytest.mark.parametrize("words", [["nosuch:app"], ["-c", "0"], ["-q", "a\tb"]], ids=["app", "-c", "-q"])
def test_wrong_usage_is_not_waited_for(local: Shell, words: list[str]) -> None:
    done = local.try_("dev", *words)

    assert done.code == 2
    assert "dray: " in done.err


def test_a_database_out_of_reach_is_not_waited_for(local: Shell) -> None:
    assert local.try_("dev", DRAY_URL="sqlite:////nosuch/place/dray.db").code == 6


def test_changes_are_seen_without_watchfiles_too(local: Shell) -> None:
    (local.folder.parent / "without").mkdir()
    (local.folder.parent / "without" / "sitecustomize.py").write_text("import sys; sys.modules['watchfiles'] = None")
    local.write("tasks.py", CODE)
    without = {**local.environment, "PYTHONPATH": str(local.folder.parent / "without")}
    with fresh_session(local.command("dev", "--no-web"), local.folder, without) as terminal:
        terminal.sees("(once a second; with watchfiles at once: pip install 'dray[watch]')")
        terminal.sees("tasks     tasks.fail")
        edit(local, "v1", "v22")
        terminal.sees("reloaded: tasks.py changed")


# Files


@pytest.fixture(params=[Polled, Notified])
def watching(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Polled | Notified]:
    (tmp_path / "shop" / "deep").mkdir(parents=True)
    for name in (".venv", ".git", "node_modules", "__pycache__"):
        (tmp_path / name).mkdir()
    (tmp_path / "tasks.py").touch()
    return lambda: request.param([tmp_path])


def changes(files: Polled | Notified, wanted: set[str]) -> None:
    seen: set[str] = set()

    def are_seen() -> bool:
        seen.update(Path(path).name for path in files.changed())
        return wanted <= seen

    until(are_seen)
    assert seen == wanted


def test_python_files_that_are_written_made_and_removed_are_seen(
    watching: Callable[[], Polled | Notified], tmp_path: Path
) -> None:
    files = watching()
    assert files.changed() == set()

    (tmp_path / "tasks.py").write_text("x = 1")
    (tmp_path / "shop" / "deep" / "new.py").touch()
    (tmp_path / "shop" / "notes.txt").touch()
    changes(files, {"tasks.py", "new.py"})

    (tmp_path / "shop" / "deep" / "new.py").unlink()
    changes(files, {"new.py"})

    (tmp_path / "later").mkdir()
    files.changed()
    (tmp_path / "later" / "more.py").touch()
    changes(files, {"more.py"})


def test_what_others_have_written_is_not_looked_at(watching: Callable[[], Polled | Notified], tmp_path: Path) -> None:
    files = watching()
    for name in (".venv", ".git", "node_modules", "__pycache__"):
        (tmp_path / name / "x.py").touch()
    (tmp_path / "tasks.py").write_text("last")

    changes(files, {"tasks.py"})


def test_the_number_of_files_that_are_polled_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dray.cli.reloading._MOST", 10)
    for n in range(30):
        (tmp_path / f"m{n}.py").touch()
    looked_at: list[str] = []
    stat = os.stat
    polled = Polled([tmp_path])

    def noted(path: str) -> os.stat_result:
        looked_at.append(path)
        return stat(path)

    monkeypatch.setattr(os, "stat", noted)
    polled.changed()
    monkeypatch.undo()

    assert 5 <= len(looked_at) <= 10


def test_modules_elsewhere_are_watched_unless_they_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    (there / "shop").mkdir(parents=True)
    here.mkdir()
    for module in ("shop/__init__.py", "shop/jobs.py", "single.py"):
        (there / module).touch()
    (here / "tasks.py").write_text('import dray\napp = dray.App(imports=["shop.jobs", "click", "json"])\n')
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(there)

    assert places_of(None, ["single"]) == [here, there / "single.py", there / "shop"]
