"""``dray tail``: what happens, told once, in pipes and on terminals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import dray
from tests.cli.away import Way, way
from tests.cli.shell import PATIENCE, Shell, plain, until
from tests.cli.terminal import CTRL_C, terminal
from tests.forks import Forked

JOB = {
    *(
        "at",
        "event",
        "job",
        "task",
        "queue",
        "state",
        "reason",
        "attempt",
        "max_attempts",
        "claim",
        "worker",
        "error",
    ),
    *("run_at", "seconds"),
}
LOG = {"at", "event", "job", "task", "queue", "seq", "level", "logger", "message"}
WORKER = {"at", "event", "worker", "name", "host", "pid"}
QUEUE = {"at", "event", "queue"}


class Tailing:
    """A ``dray tail --jsonl`` that runs beside."""

    def __init__(self, process: Forked, out: Path, err: Path) -> None:
        self.process = process
        self._out = out.open("rb")
        self._err = err
        self._events: list[dict[str, Any]] = []
        self._rest = b""

    @property
    def events(self) -> list[dict[str, Any]]:
        """What it has told so far, of the lines that are whole."""
        if not self._out.closed:
            *lines, self._rest = (self._rest + self._out.read()).split(b"\n")
            self._events += [json.loads(line) for line in lines]
        return self._events

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        self._out.close()

    @property
    def said(self) -> str:
        return self._err.read_text()

    def until_told(self, *events: str) -> None:
        until(lambda: {event["event"] for event in self.events}.issuperset(events))

    def ends(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@contextmanager
def tailing(shell: Shell, *words: str) -> Generator[Tailing]:
    """It follows from here on: events of ours have been told."""
    out, err = shell.folder / "tail.out", shell.folder / "tail.err"
    with out.open("wb") as stdout, err.open("wb") as stderr, Path(os.devnull).open() as nothing:
        streams = (nothing.fileno(), stdout.fileno(), stderr.fileno())
        process = shell.start(("tail", "--jsonl", *words), streams)
    made = Tailing(process, out, err)
    try:
        with dray.App(shell.url) as app:
            # Each state lasts until the next look here: of a pause that is over at once, tail may see nothing.
            until(lambda: (app.pause("sign") or app.resume("sign"), made.events)[1])
            app.resume("sign")
        yield made
        made.process.wait(PATIENCE)
        assert made.events
    finally:
        made.close()


@pytest.fixture
def used(shell: Shell) -> Shell:
    """Jobs that completed, failed, said something and wait."""
    return _used(shell)


@pytest.fixture
def near(local: Shell) -> Shell:
    """The same where the database makes no difference."""
    return _used(local)


def _used(shell: Shell) -> Shell:
    with dray.App(shell.url) as app:
        app.enqueue("tasks.add", {"a": 1, "b": 2})
        app.enqueue("tasks.fail", {"word": "too \x1b[2Jbad"}, max_attempts=1)
        app.enqueue("tasks.talk")
        shell("worker", "--burst")
        app.enqueue("tasks.mail", {"to": "ann", "token": "t"}, queue="mail", delay=3600)
        app.pause("mail")
    return shell


def past(shell: Shell, *words: str) -> list[dict[str, Any]]:
    """What it tells of the last hour."""
    done = shell("tail", "--since", "1h", "--until-idle", "--jsonl", *words)
    return [json.loads(line) for line in done.out.splitlines()]


def test_every_end_is_told_exactly_once_while_workers_work(shell: Shell) -> None:
    shell("db", "init")
    with (
        tailing(shell) as tail,
        shell.background("worker", "-c", "8", "--log-level", "error"),
        shell.background("worker", "-c", "8", "--log-level", "error"),
        dray.App(shell.url) as app,
    ):
        add = app.task(name="tasks.add")(_add)
        fail = app.task(name="tasks.fail", max_attempts=2, retry=0.05)(_fail)
        ids: list[str] = []
        for _ in range(6):
            ids += [job.id for job in add.enqueue_many([(1, 2)] * 200)]
            ids += [fail.enqueue(word="no").id for _ in range(3)]
            held = add.using(delay=3600).enqueue(1, 2)
            held.cancel()
            ids.append(held.id)
        ends = {"completed", "failed", "cancelled"}
        until(lambda: len([event for event in tail.events if event["event"] in ends]) >= len(ids))
        tail.until_told("worker_started")
        assert tail.ends() == 0
    told = Counter(event["job"] for event in tail.events if event["event"] in ends)
    assert told == Counter(ids)
    assert Counter(event["job"] for event in tail.events if event["event"] == "enqueued") == Counter(ids)
    states = Counter(event["event"] for event in tail.events if event["event"] in ends)
    assert states == {"completed": 1200, "failed": 18, "cancelled": 6}


def _add(a: int, b: int) -> int:
    return a + b


def _fail(word: str) -> None: ...


def test_json_lines_have_the_documented_names(used: Shell) -> None:
    told = past(used)

    shapes = {event["event"]: set(event) for event in told}
    assert shapes == {
        "enqueued": JOB,
        "completed": JOB,
        "failed": JOB,
        "log": LOG,
        "worker_started": WORKER,
        "worker_stopped": WORKER,
        "queue_paused": QUEUE,
    }
    failed = next(event for event in told if event["event"] == "failed")
    assert (failed["task"], failed["state"], failed["reason"], failed["attempt"]) == (
        "tasks.fail",
        "failed",
        "error",
        1,
    )
    assert failed["error"] == "ValueError: too \x1b[2Jbad"
    assert failed["at"].endswith("Z")
    assert [event["message"] for event in told if event["event"] == "log"] == ["first \x1b[31mline", "second line"]
    assert [event["at"] for event in told] == sorted(event["at"] for event in told)


def test_it_tells_what_is_asked_for(used: Shell) -> None:
    asked: list[tuple[list[str], dict[str, int]]] = [
        (["--state", "failed"], {"failed": 1}),
        (["--queue", "mail"], {"enqueued": 1, "queue_paused": 1}),
        (["--task", "tasks.talk"], {"enqueued": 1, "completed": 1, "log": 2}),
        (["--task", "tasks.talk", "--no-logs"], {"enqueued": 1, "completed": 1}),
        (["--no-events"], {"log": 2}),
        (["--state", "timeout"], {}),
        (["-n", "1"], {"queue_paused": 1}),
    ]
    for words, told in asked:
        assert Counter(event["event"] for event in past(used, *words)) == told, words


def test_one_job_can_be_followed_by_a_part_of_its_id(near: Shell) -> None:
    job_id = near("jobs", "--state", "failed").rows[0][0]

    assert {event["job"] for event in past(near, "--job", job_id[-8:])} == {job_id}


def test_in_a_pipe_it_is_tab_separated(near: Shell) -> None:
    job_id = near("jobs", "--state", "failed").rows[0][0]

    rows = near("tail", "--since", "1h", "--until-idle", "--state", "failed").rows

    assert [row[1:5] for row in rows] == [["failed", job_id, "tasks.fail", "default"]]
    assert rows[0][6] == "ValueError: too \\x1b[2Jbad"


def test_the_last_events_can_come_first(near: Shell) -> None:
    rows = near("tail", "-n", "2", "--until-idle").rows

    assert [row[1] for row in rows] == ["enqueued", "queue_paused"]


def test_on_a_terminal_it_is_words_in_colours_until_ctrl_c(near: Shell) -> None:
    with terminal(near, "tail", "--since", "1h", columns=160) as screen:
        screen.until(lambda text: "Ctrl-C ends" in text)
        shown = screen.text
        screen.press(CTRL_C)
        assert screen.ends() == 0

    assert "failed" in shown
    assert "tasks.fail (error) after" in shown
    assert "ValueError: too \\x1b[2Jbad" in shown
    assert "info dray.task.tasks.talk: first \\x1b[31mline" in shown
    assert b"\x1b[31m" in screen.sent
    assert b"\x1b[2J" not in screen.sent


def test_no_colours_where_none_are_wanted(near: Shell) -> None:
    done = near.on_terminal("tail", "--since", "1h", "--until-idle", NO_COLOR="1")

    assert done.out == plain(done.out)
    assert "failed" in done.out


def test_what_happens_is_told_as_it_happens_and_nothing_of_the_past(used: Shell) -> None:
    with tailing(used) as tail:
        job_id = used("enqueue", "tasks.talk").value
        used("queues", "resume", "mail")
        used("worker", "--burst", "-q", "default")
        tail.until_told("enqueued", "log", "completed", "queue_resumed", "worker_started", "worker_stopped")
        assert tail.ends(signal.SIGINT) == 0

    assert {event["job"] for event in tail.events if "job" in event} == {job_id}


def test_it_ends_when_its_reader_is_gone(local: Shell) -> None:
    local("db", "init")
    read, write = os.pipe()
    process = subprocess.Popen(local.command("tail"), cwd=local.folder, env=local._with({}), stdout=write)
    os.close(write)
    try:
        until(lambda: "tail" in Path(f"/proc/{process.pid}/cmdline").read_text())
        os.close(read)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("words", "number", "code"),
    [
        (["tail", "--since", "1h", "--jsonl"], signal.SIGTERM, 0),
        (["jobs", "--limit", "1000"], signal.SIGINT, 130),
    ],
)
def test_it_can_be_ended_while_its_output_is_not_read(
    local: Shell, words: list[str], number: signal.Signals, code: int
) -> None:
    local("db", "init")
    with dray.App(local.url) as app:
        app.task(name="tasks.add")(_add).enqueue_many([(1, 2)] * 1000)
    read, write = os.pipe()
    process = subprocess.Popen(local.command(*words), cwd=local.folder, env=local._with({}), stdout=write)
    os.close(write)
    try:
        until(lambda: "pipe" in Path(f"/proc/{process.pid}/wchan").read_text())  # the pipe is full
        process.send_signal(number)
        assert process.wait(PATIENCE) == code
    finally:
        os.close(read)
        process.kill()
        process.wait()


def test_it_goes_on_when_the_database_is_back(shell: Shell) -> None:
    shell("db", "init")
    with way(shell.url) as there, tailing(Shell(shell.folder, there.url)) as tail:
        _interrupt(there, tail, shell)
        assert tail.ends() == 0

    assert "the database is back" in tail.said


def _interrupt(there: Way, tail: Tailing, shell: Shell) -> None:
    there.close()
    until(lambda: "the database does not answer" in tail.said)
    there.open()
    shell("enqueue", "tasks.add", "a=1", "b=2")
    tail.until_told("enqueued")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--no-events", "--no-logs"], 2, "leave nothing to follow"),
        (["--since", "yesterday"], 2, "neither a duration"),
        (["--state", "done"], 2, "no job state"),
        (["--job", "ffffffff"], 5, "no job's id contains"),
        (["--queue", "a,b"], 2, "a,b"),
    ],
)
def test_a_mistake_is_one_sentence(local: Shell, words: list[str], code: int, said: str) -> None:
    local("db", "init")

    done = local.try_("tail", *words)

    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert len(done.err.splitlines()) == 1


def test_no_file_is_made(local: Shell) -> None:
    assert local.try_("tail").code == 6
    assert not (local.folder / "dray.db").exists()
