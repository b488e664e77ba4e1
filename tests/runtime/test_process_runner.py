"""Bodies in child processes: their outcomes, what they may report, and the children themselves."""

from __future__ import annotations

import importlib
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from dray.clock import SystemClock
from dray.model.bounds import LOG_LINES
from dray.runtime import loading
from dray.runtime.children import kernel
from dray.runtime.children.wire import SharedFlags
from dray.runtime.children.worker_side import ForkerHandle
from dray.runtime.execution import StopCause
from dray.runtime.runners import process
from dray.task.task import Task
from tests.runtime import child_bodies as bodies
from tests.runtime.stage import Link, Stage, await_file, await_that, descendants, is_alive, open_files

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def shared_stage(kept_forker: ForkerHandle) -> Generator[Stage]:
    """Shared by all tests that do not need their own, because it is slow to set up. It expects to leave the processes
    that there were before: the forker that tests share is one of them."""
    with Stage() as stage:
        yield stage


@pytest.fixture
def stage(shared_stage: Stage) -> Stage:
    shared_stage.link = Link()
    return shared_stage


# Outcomes


def test_a_body_runs_in_a_process_of_its_own_and_its_result_comes_back(stage: Stage) -> None:
    assert stage.result(bodies.add, a=1, b=2) == 3
    assert stage.result(bodies.who_am_i)["pid"] != os.getpid()


def test_a_coroutine_function_runs_there_too(stage: Stage) -> None:
    assert stage.result(bodies.add_in_a_coroutine, a=1, b=2) == 3


def test_the_bodys_time_counts_from_its_start(stage: Stage) -> None:
    before = stage.link.clock.steady()

    execution = stage.start(bodies.add, a=1, b=2)
    settlement = stage.settled()

    assert stage.link.begun == [execution]
    assert execution.started is not None
    assert before < execution.started == settlement.started <= settlement.finished
    assert execution.deadline == execution.started + 1_000_000
    assert execution.is_over


@pytest.mark.parametrize("name", ["ValueError", "SystemExit", "KeyboardInterrupt"])
def test_whatever_a_body_raises_is_its_outcome_and_the_child_lives_on(stage: Stage, name: str) -> None:
    before = stage.result(bodies.who_am_i)["pid"]

    settlement = stage.run(bodies.raise_this, name=name)

    assert (settlement.outcome, settlement.error_type) == ("error", name)
    assert "in raise_this" in (settlement.traceback or "")
    assert not settlement.counts_crash
    assert stage.result(bodies.who_am_i)["pid"] == before


def test_a_result_that_is_not_json_fails_the_job(stage: Stage) -> None:
    settlement = stage.run(bodies.not_json)

    assert (settlement.state, settlement.reason) == ("failed", "result")


def test_arguments_that_do_not_fit_are_put_back_without_a_start(stage: Stage) -> None:
    execution = stage.start(bodies.add, a=1, b=2)
    stage.end()
    execution = stage.execution(bodies.add)
    execution.claim = execution.claim._replace(args="not json")

    stage.runner.start([execution])

    assert stage.settled().reason == "arguments"
    assert execution.started is None


@pytest.mark.parametrize(
    ("task", "args", "said"),
    [
        (bodies.exit_at_once, {"status": 3}, "ended with exit status 3"),
        (bodies.exit_at_once, {"status": 0}, "ended with exit status 0"),
        (bodies.segfault, {}, "died of SIGSEGV"),
        (bodies.kill_myself, {"number": int(signal.SIGKILL)}, "died of SIGKILL"),
    ],
    ids=["exit 3", "exit 0", "SIGSEGV", "SIGKILL"],
)
def test_the_death_of_a_child_costs_one_attempt_and_nothing_else(
    stage: Stage, task: Task[..., Any], args: dict[str, int], said: str
) -> None:
    settlement = stage.run(task, **args)

    assert settlement.outcome == "crashed"
    assert settlement.counts_crash
    assert said in (settlement.error_message or "")
    assert stage.result(bodies.add, a=1, b=2) == 3


def test_a_segfault_is_recorded_with_the_stack(stage: Stage) -> None:
    assert "in segfault" in (stage.run(bodies.segfault).traceback or "")


# What a body reports


def test_lines_and_progress_come_while_the_body_runs(stage: Stage, tmp_path: Path) -> None:
    until = tmp_path / "until"

    execution = stage.start(bodies.talk, until=str(until))

    stage.link.until(lambda: execution.report is not None)
    assert stage.link.lines == ["from its own log", "from another"]
    assert execution.report == (50.0, "half")
    until.touch()
    assert stage.settled().state == "completed"


def test_lines_carry_the_job_and_the_time(stage: Stage) -> None:
    stage.link.note = lambda execution: None  # no notes are taken

    execution = stage.start(bodies.talk_a_lot, lines=1)
    settlement = stage.settled()

    assert execution.lines is not None
    (line,) = execution.lines
    assert (line.job_id, line.claim, line.level) == (execution.claim.id, 1, "INFO")
    assert line.logger == f"dray.task.{bodies.talk_a_lot.name}"
    assert settlement.started <= line.at <= settlement.finished


def test_of_very_many_lines_the_newest_are_kept_and_come_together(stage: Stage) -> None:
    stage.link.note = lambda execution: None

    execution = stage.start(bodies.talk_a_lot, lines=20_000)
    assert stage.settled().state == "completed"

    assert execution.lines is not None
    assert len(execution.lines) == LOG_LINES
    assert execution.lines[-1].message == "line 19999"


def test_masses_of_lines_do_not_come_one_by_one(stage: Stage) -> None:
    stage.run(bodies.talk_a_lot, lines=2_000)

    assert stage.link.lines[-1] == "line 1999"
    assert stage.link.notes < 500


def test_what_a_body_forks_neither_garbles_the_worker_nor_hears_its_orders(stage: Stage) -> None:
    assert stage.result(bodies.log_in_forks) == -signal.SIGTERM
    assert stage.link.lines == [f"mine {number}" for number in range(100)]


def test_what_a_body_forks_can_be_ended_before_it_has_begun(stage: Stage) -> None:
    assert stage.result(bodies.end_forks_at_once) == [-signal.SIGTERM] * 30


@pytest.mark.parametrize(
    "nonsense", ["\x00\x00\x00\x04oops", "\xff\xff\xff\xffx", "\x00\x00\x00\x02[]", '\x00\x00\x00\x0c{"began":[]}']
)
def test_a_child_that_says_what_cannot_be_understood_is_killed(stage: Stage, nonsense: str) -> None:
    pid = stage.result(bodies.who_am_i)["pid"]

    settlement = stage.run(bodies.write_nonsense, text=nonsense)

    assert settlement.outcome == "crashed"
    assert "cannot be understood" in (settlement.error_message or "")
    assert not is_alive(pid)
    assert stage.result(bodies.add, a=1, b=2) == 3


def message(text: str) -> str:
    """Returns a message in the wire format of a child."""
    return struct.pack("!I", len(text)).decode("latin-1") + text


END = '{"end":["job",1,%s],"is_written":false}'
UNHEARD = {
    "a percentage that is none": '{"report":[NaN,"x"]}',
    "more than all": '{"report":[1e999,"x"]}',
    "very much more": '{"report":[1' + "0" * 400 + ',"x"]}',
    "a percentage in words": '{"report":["half","x"]}',
    "a list of percentages": '{"report":[[1],"x"]}',
    "words that are none": '{"report":[1,{"a":1}]}',
    "a line that is none": '{"lines":[7],"is_shown":true}',
    "a line without words": '{"lines":[[1,"INFO","shop",null]],"is_shown":true}',
    "a line of a level that is none": '{"lines":[[1,7,"shop","x"]],"is_shown":true}',
    "a line at no time": '{"lines":[["now","INFO","shop","x"]],"is_shown":true}',
    "a beginning at no time": '{"began":"now"}',
    "a state that no body comes to": END % ('"running",null,1,1'),
    "a state that is none": END % ("[],null,1,1"),
    "an end at no time": END % ('"completed","completed","now",1'),
    "a result that is none": END % ('"completed","completed",1,1,null,0,false,{"a":1}'),
    "a truth that is none": END % ('"completed","completed",1,1,null,0,"yes"'),
}


@pytest.mark.parametrize("what", UNHEARD)
def test_a_child_that_says_what_no_body_says_is_killed(stage: Stage, what: str) -> None:
    execution = stage.execution(bodies.write_nonsense, text=message(UNHEARD[what]))
    execution.claim = execution.claim._replace(id="job")

    stage.runner.start([execution])
    settlement = stage.settled()

    assert settlement.outcome == "crashed"
    assert "cannot be understood" in (settlement.error_message or "")
    assert (execution.report, execution.lines) == (None, None)
    assert stage.result(bodies.add, a=1, b=2) == 3


def test_what_a_child_says_by_hand_is_made_fit_to_be_stored(stage: Stage) -> None:
    stage.link.note = lambda execution: None
    hostile = "a\\u0000b\\udc80" + "x" * 20_000
    line = f'[99999999999999999999,"{hostile}","{hostile}","{hostile}"]'
    said = message(f'{{"report":[50,"{hostile}"]}}') + message(f'{{"lines":[{line}],"is_shown":true}}')

    execution = stage.start(bodies.write_nonsense, text=said)
    await_that(lambda: execution.lines is not None and execution.report is not None)
    stage.stop(execution)
    stage.end()

    assert execution.report is not None
    assert execution.lines is not None
    percent, told = execution.report
    (kept,) = execution.lines
    assert percent == 50.0
    assert kept.at <= SystemClock().steady()
    for text in (told or "", kept.level, kept.logger, kept.message):
        assert text.startswith("a\ufffdb\\udc80x")
        assert len(text.encode()) <= 8 * 1024


# Children


def test_a_child_is_a_group_and_a_session_of_its_own_and_not_a_child_of_the_worker(stage: Stage) -> None:
    found = stage.result(bodies.who_am_i)

    assert found["pid"] == found["group"] == found["session"]
    assert found["parent"] != os.getpid()
    assert {found["pid"], found["parent"]} <= descendants()


def test_a_child_finds_what_the_worker_does_and_shows_nobody_how_that_was_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["dray", "worker", "--url", "postgresql://me:secret@host/db"])
    monkeypatch.setattr(sys, "path", [*sys.path, "/some/where"])

    with Stage() as stage:
        path, argv, folder, command = stage.result(bodies.surroundings)

    assert (path, argv, folder) == (sys.path, sys.argv, str(Path.cwd()))
    assert "secret" not in command


def test_a_child_is_used_again(stage: Stage) -> None:
    assert len({stage.result(bodies.who_am_i)["pid"] for _ in range(5)}) == 1


def test_what_a_body_sets_in_its_context_the_next_one_does_not_see(stage: Stage) -> None:
    assert [stage.result(bodies.serve, name=name) for name in ("first", "second")] == ["none", "none"]


def test_no_more_run_at_a_time_than_there_are_slots(tmp_path: Path) -> None:
    before = descendants()
    with Stage(size=2) as stage:
        until = tmp_path / "until"
        executions = [
            stage.execution(bodies.announce_and_wait, begun=str(tmp_path / name), until=str(until)) for name in "abc"
        ]

        stage.runner.start(executions)

        await_file(tmp_path / "a")
        await_file(tmp_path / "b")
        assert not (tmp_path / "c").exists()
        assert len(descendants() - before) == 3  # two and their forker
        until.touch()
        assert {stage.end()[0] for _ in executions} == set(executions)


@pytest.mark.usefixtures("shared_forker")
def test_what_has_not_started_can_be_taken_back(tmp_path: Path) -> None:
    with Stage(size=1) as stage:
        until, begun = tmp_path / "until", tmp_path / "begun"
        stage.start(bodies.announce_and_wait, begun=str(begun), until=str(until))
        await_file(begun)
        waiting = [stage.start(bodies.add, a=1, b=2) for _ in range(3)]

        assert stage.runner.take_back() == waiting

        until.touch()
        assert stage.settled().state == "completed"
        assert stage.result(bodies.add, a=1, b=2) == 3


def test_idle_children_end_but_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_IDLE", 0.05)
    before = descendants()
    with Stage(size=3) as stage:
        for _ in range(3):
            stage.start(bodies.add, a=1, b=2)
        for _ in range(3):
            stage.end()

        await_that(lambda: len(descendants() - before) == 2)  # the child and its forker

        assert stage.result(bodies.add, a=1, b=2) == 3


def test_a_busy_child_finishes_its_job_after_close_and_then_nothing_is_left(tmp_path: Path) -> None:
    before = descendants()
    with Stage(size=2) as stage:
        until, begun = tmp_path / "until", tmp_path / "begun"
        stage.start(bodies.announce_and_wait, begun=str(begun), until=str(until))
        stage.result(bodies.add, a=1, b=2)
        await_file(begun)

        stage.runner.close()
        until.touch()

        assert stage.settled().state == "completed"
        await_that(lambda: descendants() == before)


def test_a_child_has_no_descriptor_that_it_does_not_need(stage: Stage) -> None:
    with tempfile.TemporaryFile() as ours:
        os.set_inheritable(ours.fileno(), True)

        found = stage.result(bodies.descriptors)

    assert found["0"] == "/dev/null"
    kinds = sorted(target.partition(":")[0] for number, target in found.items() if int(number) > 2)
    assert kinds == ["/memfd", "socket", "socket"]


@pytest.mark.usefixtures("shared_forker")
def test_a_child_holds_the_workers_lock_while_it_has_a_job(tmp_path: Path) -> None:
    lock = tmp_path / "worker.lock"
    with lock.open("w") as file, Stage(lock=file.fileno()) as stage:
        assert str(lock) in stage.result(bodies.descriptors).values()

        pid = stage.result(bodies.who_am_i)["pid"]

        await_that(lambda: lock not in open_files(pid))


@pytest.mark.usefixtures("shared_forker")
@pytest.mark.parametrize("how", ["exec", "fork"])
def test_what_a_body_starts_holds_neither_the_lock_nor_the_socket(tmp_path: Path, how: str) -> None:
    lock = tmp_path / "worker.lock"
    with lock.open("w") as file, Stage(lock=file.fileno()) as stage:
        found = str(stage.result(bodies.descriptors_of_what_it_starts, how=how))

    assert found
    assert "worker.lock" not in found
    assert "memfd" not in found
    assert how == "fork" or "socket" not in found  # multiprocessing has its own


def test_children_start_anew_when_what_forks_them_is_killed(stage: Stage, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    forker = stage.result(bodies.who_am_i)["parent"]
    stage.start(bodies.sleep, begun=str(begun))
    await_file(begun)

    os.kill(forker, signal.SIGKILL)

    settlement = stage.settled()
    assert settlement.outcome == "crashed"
    assert "the one that had started it ended" in (settlement.error_message or "")
    assert stage.result(bodies.add, a=1, b=2) == 3


@pytest.mark.parametrize("killed", ["pid", "parent"])
def test_an_idle_child_that_has_died_costs_no_attempt(killed: str) -> None:
    with Stage(size=1) as stage:
        idle = stage.result(bodies.who_am_i)
        os.kill(idle[killed], signal.SIGKILL)
        await_that(lambda: not is_alive(idle["pid"]))

        assert stage.result(bodies.add, a=1, b=2) == 3


def test_an_idle_child_whose_death_is_not_told_yet_costs_no_attempt() -> None:
    with Stage(size=1) as stage:
        idle = stage.result(bodies.who_am_i)
        os.kill(idle["parent"], signal.SIGSTOP)  # it tells of deaths
        os.kill(idle["pid"], signal.SIGKILL)
        await_that(lambda: not is_alive(idle["pid"]))
        threading.Timer(0.5, os.kill, (idle["parent"], signal.SIGCONT)).start()

        assert stage.result(bodies.add, a=1, b=2) == 3


# Starting


def test_a_module_that_a_child_cannot_import_is_an_error_of_the_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stage() as stage:
        task = _module(tmp_path, monkeypatch, then="raise RuntimeError('no such luck')")

        settlement = stage.run(task)
        next_result = stage.result(bodies.add, a=1, b=2)

    assert settlement.outcome == "error"
    assert "could not load task" in (settlement.error_message or "")
    assert "RuntimeError: no such luck" in (settlement.error_message or "")
    assert "raise RuntimeError" in (settlement.traceback or "")
    assert next_result == 3


def test_a_task_that_is_not_there_in_a_child_is_an_error_of_the_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stage() as stage:
        settlement = stage.run(_module(tmp_path, monkeypatch, then="import dray; app = dray.App('sqlite:///x.db')"))

    assert settlement.outcome == "error"
    assert "no task shop.work" in (settlement.error_message or "")


def test_a_start_that_takes_too_long_is_an_error_of_the_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_START", 0.5)
    with Stage() as stage:
        task = _module(tmp_path, monkeypatch, then="import time; time.sleep(60)")

        settlement = stage.run(task)

        assert settlement.outcome == "error"
        assert "was not loaded within 0.5 s" in (settlement.error_message or "")
        assert stage.result(bodies.add, a=1, b=2) == 3


def test_without_a_child_a_job_is_refused_and_the_next_one_runs_once_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Stage(size=1) as stage:
        with monkeypatch.context() as nowhere:
            nowhere.setattr(sys, "executable", "/nowhere/python")
            execution = stage.start(bodies.add, a=1, b=2)
            await_that(lambda: stage.refused == [execution])
            assert (stage.runner.outage.is_on, stage.runner.capacity) == (True, 0)
            assert "/nowhere/python" in stage.runner.outage.reason
        await_that(lambda: not stage.runner.outage.is_on)

        assert stage.runner.capacity == 1
        assert stage.result(bodies.add, a=1, b=2) == 3
    assert stage.refused == [execution]


def test_a_runner_that_waits_for_a_child_can_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")

    with Stage(size=1) as stage:
        execution = stage.start(bodies.add, a=1, b=2)
        await_that(lambda: stage.refused == [execution])


@pytest.mark.usefixtures("shared_forker")
def test_a_lock_that_cannot_be_passed_on_is_an_error_of_the_attempt() -> None:
    with Stage(lock=1_000_000) as stage:
        settlement = stage.run(bodies.add, a=1, b=2)

    assert settlement.outcome == "error"
    assert "could not be given to a child process" in (settlement.error_message or "")


def test_what_a_body_prints_is_shown_when_it_ends(tmp_path: Path) -> None:
    program = """
import os
from tests.runtime import child_bodies as bodies
from tests.runtime.stage import Stage
with Stage() as stage:
    stage.result(bodies.say, text="hello")
    stage.run(bodies.exit_at_once, status=1)
"""
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)

    assert ran.stdout == "hello\n"


def _module(folder: Path, monkeypatch: pytest.MonkeyPatch, then: str) -> Task[..., Any]:
    """A task of a module whose content changes before a child imports it."""
    file = folder / "shop.py"
    file.write_text(
        "import dray\napp = dray.App('sqlite:///x.db')\n@app.task(runner='process')\ndef work() -> None: ...\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    shop = importlib.import_module("shop")
    monkeypatch.setitem(sys.modules, "shop", shop)
    file.write_text(then)
    return shop.work


# Which tasks can run here


def test_a_task_of_a_module_can_run_in_a_child() -> None:
    assert loading.locate(bodies.add) == loading.TaskLocation(bodies.__name__, bodies.__file__)


def test_a_task_that_is_made_in_a_function_cannot() -> None:
    import dray

    @dray.App("sqlite:///x.db").task(name="inner")
    def inner() -> None: ...

    assert "not to be found in module" in str(loading.locate(inner))


def test_a_task_from_a_prompt_cannot() -> None:
    program = """
import dray
from dray.runtime import loading
app = dray.App("sqlite:///x.db")
@app.task(name="work")
def work() -> None: ...
print(loading.locate(work))
"""
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert "put it into a file" in shown


@pytest.mark.parametrize("way", ["a path", "-m"])
@pytest.mark.parametrize("guard", ["if __name__ == '__main__':", "if True:"], ids=["guarded", "unguarded"])
def test_a_script_finds_its_own_tasks_in_children(tmp_path: Path, way: str, guard: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"""
import dray, os
from dray.runtime import loading
from tests.runtime.stage import Stage
app = dray.App("sqlite:///x.db")
@app.task(runner="process")
def work() -> list:
    return [os.getpid(), __name__]
{guard}
    loading.stop_here()  # as an App does before it writes, and a worker before it starts
    with Stage() as stage:
        pid, name = stage.result(work)
        print(work.name, pid != os.getpid(), name, stage.result(work)[0] == pid)
""")
    command = [str(script)] if way == "a path" else ["-m", "script"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}

    ran = subprocess.run(
        [sys.executable, *command], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert ran.stdout.split() == ["script.work", "True", "__mp_main__", "True"], ran.stderr


# Beginning, where a task is loaded already and its job has no timeout


def start_without_timeout(stage: Stage, task: Task[..., Any], **args: Any) -> None:
    execution = stage.execution(task, **args)
    execution.claim = execution.claim._replace(timeout=None)
    stage.runner.start([execution])


def test_a_child_that_takes_no_job_is_given_up_and_another_runs_the_job(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = stage.result(bodies.who_am_i)["pid"]
    monkeypatch.setattr(process, "_START", 0.5)
    os.kill(child, signal.SIGSTOP)

    start_without_timeout(stage, bodies.who_am_i)

    settlement = stage.settled()
    assert settlement.state == "completed"
    assert json.loads(settlement.result or "")["pid"] != child
    assert not is_alive(child)


def test_a_body_may_take_longer_than_a_start(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.run(bodies.nap, seconds=0)
    monkeypatch.setattr(process, "_START", 0.2)

    start_without_timeout(stage, bodies.nap, seconds=1)

    assert stage.settled().state == "completed"


def test_a_stack_that_was_dumped_before_a_job_is_not_taken_for_its_own(stage: Stage) -> None:
    child = stage.result(bodies.who_am_i)["pid"]
    assert kernel.STACK_SIGNAL is not None
    os.kill(child, kernel.STACK_SIGNAL)
    handle = stage.runner.slots[0].child
    assert handle is not None
    await_that(lambda: handle._flags.has_stack)

    assert stage.run(bodies.exit_at_once, status=3).traceback is None


def test_only_a_stack_makes_the_shared_bytes_longer() -> None:
    flags = SharedFlags.new()
    size = flags.size
    flags.order(7, StopCause.CANCEL)
    flags.begin(7, 5)

    assert (flags.size, flags.has_stack, flags.begun()) == (size, False, (7, 5))
    flags.close()
