"""``dray top`` on a real terminal: what it shows, what its keys do, and how it leaves the terminal."""

from __future__ import annotations

import re
import signal
import sys
import termios
from collections.abc import Callable, Generator

import pytest

from dray.app import App
from dray.app_interface import core_of
from dray.clock import Ids, SystemClock
from dray.instants import MINUTE
from dray.model import settlement
from dray.model.job import Claim, Demand, LogLine, Outcome
from dray.model.worker import NewWorker
from tests import verbs
from tests.cli.away import way
from tests.cli.shell import Shell
from tests.cli.terminal import CTRL_C, CTRL_Z, DOWN, ESCAPE, SHIFT_TAB, UP, Terminal, terminal

UNKIND = "sneaky\x1b[2J\x07\u202e"


class Stage:
    """A queue with something of everything in it, and a worker that is this test."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.app = App(shell.url)
        self.worker = Ids(SystemClock()).new()
        self.app.enqueue("tasks.add", {"a": 1, "b": 2}, queue="mail")
        self.running = self.app.enqueue("tasks.sleep", {"seconds": 60}).id
        self.failed = self.app.enqueue("tasks.fail", {"word": "no"}, max_attempts=1).id
        new = NewWorker(
            id=self.worker,
            name="hands",
            host="here",
            pid=1,
            boot=SystemClock().boot,
            queues=("default",),
            concurrency=4,
        )
        core_of(self.app).backend.workers.register(new, MINUTE)
        claim = self._claim("tasks.sleep")
        verbs.progress(core_of(self.app).backend, self.worker, [(self.running, claim.claim, 40.0, "half\x1b[2J")])
        lines = [LogLine(self.running, claim.claim, SystemClock().steady(), "INFO", "shop", "a \x1b[31mline")]
        verbs.write_logs(core_of(self.app).backend, self.worker, lines)
        self._fail(self._claim("tasks.fail"), UNKIND)

    def _claim(self, task: str) -> Claim:
        (claim,) = verbs.claim(core_of(self.app).backend, self.worker, Demand(("default",), (task,), 1))
        return claim

    def _fail(self, claim: Claim, message: str) -> None:
        now = SystemClock().steady()
        ended = settlement.errored(claim, now, now, Outcome.ERROR, 0, "ValueError", f"{message}\nmore", "trace")
        verbs.settle(core_of(self.app).backend, self.worker, [ended])

    def is_paused(self, queue: str) -> bool:
        return self.app.queue(queue).is_paused


@pytest.fixture
def stage(shell: Shell) -> Generator[Stage]:
    made = Stage(shell)
    with made.app:
        yield made


@pytest.fixture
def near(local: Shell) -> Generator[Stage]:
    """The same where the database makes no difference."""
    made = Stage(local)
    with made.app:
        yield made


def is_there(text: str) -> bool:
    """Whether the first screen is complete."""
    return all(word in text for word in ("mail", "tasks.sleep", "tasks.fail", "hands"))


def selected(text: str) -> str:
    """The row in hand."""
    return next(line for line in text.splitlines() if line.startswith(">"))


def test_the_step_of_a_job_is_shown_where_there_is_one(stage: Stage) -> None:
    with terminal(stage.shell, "top", columns=150) as screen:
        assert " step " not in screen.until(is_there)
    sleep = stage.app.task(name="tasks.sleep")(_sleep)
    wf = stage.app.workflow("etl")
    wf.add(sleep, 60, step="extract")
    wf.enqueue()
    stage._claim("tasks.sleep")
    with terminal(stage.shell, "top", columns=150) as screen:
        assert " step " in screen.until(lambda text: "etl / extract" in text)


def _sleep(seconds: float) -> None: ...


def test_the_first_screen_shows_queues_jobs_failures_workers_and_numbers(stage: Stage) -> None:
    with terminal(stage.shell, "top", columns=120) as screen:
        shown = screen.until(is_there)

    assert re.search(r"^\d\d:\d\d:\d\d dray top (sqlite|postgresql):", shown)
    assert "***" in shown or "sqlite" in shown
    assert "queued 1  running 1  failed 1  now: enqueued 18 a minute" in shown
    assert re.search(r"^ mail +1 +0 ", shown, re.M)
    assert re.search(rf"^>{stage.running[-8:]}  tasks.sleep +\S+ +━━━━──────  40%", shown, re.M)
    assert re.search(rf"^ {stage.failed[-8:]}  tasks.fail .* ValueError: sneaky\\x1b\[2J\\x07\\u202e", shown, re.M)
    assert re.search(rf"^ {stage.worker[-8:]}  hands +1/4 +active +default", shown, re.M)
    assert b"\x1b[36m" in screen.sent


def test_keys_select_lists_and_rows(near: Stage) -> None:
    with terminal(near.shell, "top") as screen:
        assert near.running[-8:] in selected(screen.until(is_there))
        screen.press("\t")
        screen.until(lambda text: near.failed[-8:] in selected(text))
        screen.press(SHIFT_TAB + SHIFT_TAB)
        screen.until(lambda text: selected(text).startswith(">default"))
        screen.press(DOWN)
        screen.until(lambda text: selected(text).startswith(">mail"))
        screen.press("j")
        screen.press(UP)
        screen.until(lambda text: selected(text).startswith(">default"))
        screen.press("G")
        screen.until(lambda text: selected(text).startswith(">mail"))


def test_p_pauses_the_selected_queue_and_lets_it_go_on(stage: Stage) -> None:
    with terminal(stage.shell, "top") as screen:
        screen.until(is_there)
        screen.press(f"{SHIFT_TAB}G")
        screen.until(lambda text: selected(text).startswith(">mail"))
        screen.press("p")
        screen.until(lambda text: "queue mail is paused" in text and "paused" in selected(text))
        assert stage.is_paused("mail")
        assert not stage.is_paused("default")
        screen.press("p")
        screen.until(lambda text: "queue mail goes on" in text and "paused" not in selected(text))
    assert not stage.is_paused("mail")


def test_r_starts_the_failed_job_over(stage: Stage) -> None:
    with terminal(stage.shell, "top") as screen:
        screen.until(is_there)
        screen.press("r")
        screen.until(lambda text: "select a failed job" in text)
        screen.press("\tr")
        screen.until(lambda text: f"job {stage.failed[-8:]} starts over" in text and "failures 0" in text)

    assert stage.app.job(stage.failed).state == "queued"


def test_c_asks_before_it_cancels(stage: Stage) -> None:
    def is_asked_to_stop() -> bool:
        return stage.app.job(stage.running).row.cancel_requested_at is not None

    with terminal(stage.shell, "top") as screen:
        screen.until(is_there)
        screen.press("c")
        screen.until(lambda text: f"Cancel job {stage.running[-8:]} (tasks.sleep)? y/n" in text)
        screen.press("n")
        screen.until(lambda text: "nothing was done" in text)
        assert not is_asked_to_stop()
        screen.press("cy")
        screen.until(lambda text: f"job {stage.running[-8:]} is asked to stop" in text)
    assert is_asked_to_stop()


def test_a_read_only_view_changes_nothing(near: Stage) -> None:
    with terminal(near.shell, "top", "--read-only") as screen:
        shown = screen.until(is_there)
        for key in ("c", "p", "\tr"):
            screen.press(f"\x0c{key}")
            screen.until(lambda text: "this view is read-only" in text)
            screen.press("g")

    assert "p pause" not in shown
    assert near.app.job(near.failed).state == "failed"
    assert not near.is_paused("default")


def test_enter_shows_the_job_and_why_and_l_what_it_logged(stage: Stage) -> None:
    with terminal(stage.shell, "top", columns=100, lines=40) as screen:
        screen.until(is_there)
        screen.press("\t\n")
        shown = screen.until(lambda text: "attempt 1 error" in text)
        screen.press("q\t\t\tl")
        logged = screen.until(lambda text: "a \\x1b[31mline" in text)
        screen.press(ESCAPE)
        screen.until(is_there)

    assert re.search(r"^state +failed\(error\)", shown, re.M)
    assert "It failed" in shown
    assert "    trace" in shown
    assert f"logs of job {stage.running}" in logged
    assert "info    shop: a \\x1b[31mline" in logged


def test_what_is_read_can_be_scrolled(near: Stage) -> None:
    with terminal(near.shell, "top", lines=9) as screen:
        screen.until(lambda text: "tasks.sleep" in text)
        screen.press("\nG")
        last = screen.until(lambda text: "args" in text)
        screen.press("g")
        screen.until(lambda text: f"job {near.running}" in text and "args" not in text)

    assert '{"seconds": 60}' in last


def test_the_list_can_be_narrowed_by_a_text(near: Stage) -> None:
    with terminal(near.shell, "top") as screen:
        screen.until(is_there)
        screen.press("/mail")
        screen.until(lambda text: "/mail_" in text and "running 0 with mail" in text and "queues 1" in text)
        screen.press("\n")
        screen.press(ESCAPE)
        screen.until(is_there)


def test_help_names_the_keys(near: Stage) -> None:
    with terminal(near.shell, "top") as screen:
        screen.until(is_there)
        screen.press("?")
        screen.until(lambda text: "cancel the job (asks)" in text)
        screen.press("q")
        screen.until(is_there)


@pytest.mark.parametrize(("columns", "lines"), [(20, 5), (24, 8), (40, 12), (80, 24), (300, 90)])
def test_any_size_will_do(near: Stage, columns: int, lines: int) -> None:
    with terminal(near.shell, "top", columns=columns, lines=lines) as screen:
        shown = screen.until(lambda text: re.search(rf"^>{near.running[-8:]}  tasks\.", text, re.M))
        assert "queued 1" in shown
        if lines >= 24:
            screen.until(lambda text: "hands" in text)
        screen.press("q")
        assert screen.ends() == 0


def test_a_resized_terminal_is_redrawn(near: Stage) -> None:
    with terminal(near.shell, "top", columns=120, lines=30) as screen:
        screen.until(is_there)
        for columns, lines in ((30, 6), (100, 40), (20, 5)):
            screen.resize(columns, lines)
            screen.until(lambda text: re.search(r"^>\S{8}  tasks\.", text, re.M))
            screen.until(lambda text, wide=lines > 20: is_there(text) is wide)


def leaves_by_key(key: str) -> Callable[[Terminal], None]:
    return lambda screen: screen.press(key)


def leaves_by_signal(number: signal.Signals) -> Callable[[Terminal], None]:
    def leave(screen: Terminal) -> None:
        assert screen.process is not None
        screen.process.send_signal(number)

    return leave


@pytest.mark.parametrize(
    "leave",
    [
        leaves_by_key("q"),
        leaves_by_key(CTRL_C),
        leaves_by_signal(signal.SIGTERM),
        leaves_by_signal(signal.SIGHUP),
    ],
    ids=["q", "ctrl-c", "SIGTERM", "SIGHUP"],
)
def test_it_leaves_the_terminal_as_it_was(near: Stage, leave: Callable[[Terminal], None]) -> None:
    with terminal(near.shell, "top") as screen:
        screen.until(is_there)
        assert screen.is_other_screen
        assert not screen.modes[3] & (termios.ECHO | termios.ICANON)
        leave(screen)
        assert screen.ends() == 0
        assert_as_before(screen)


def assert_as_before(screen: Terminal) -> None:
    fresh = Terminal(80, 24)
    try:
        assert screen.modes == fresh.modes
    finally:
        fresh.close()
    assert not screen.is_other_screen
    assert screen.sent.rfind(b"\x1b[?25h") > screen.sent.rfind(b"\x1b[?25l"), "the cursor is there again"
    assert screen.sent.rfind(b"\x1b[?7h") > screen.sent.rfind(b"\x1b[?7l"), "lines wrap again"


def test_it_leaves_the_terminal_as_it_was_when_it_breaks(near: Stage) -> None:
    broken = (
        "import dray.cli.live.layout as layout, dray.cli\n"
        "shows, left = layout.screen, [3]\n"
        "def screen(*given):\n"
        "    left[0] -= 1\n"
        "    return shows(*given) if left[0] else 1 / 0\n"
        "layout.screen = screen\n"
        "dray.cli.main(['top'])"
    )
    with terminal(near.shell, program=[sys.executable, "-c", broken]) as screen:
        assert screen.ends() == 1
        assert b"ZeroDivisionError" in screen.sent
        assert_as_before(screen)


def test_ctrl_z_leaves_the_terminal_until_it_goes_on(near: Stage) -> None:
    shell = (
        "import os, signal, subprocess, sys\n"
        "signal.signal(signal.SIGTTOU, signal.SIG_IGN)\n"
        "child = subprocess.Popen(sys.argv[1:], process_group=0, restore_signals=True,\n"
        "    preexec_fn=lambda: signal.signal(signal.SIGTTOU, signal.SIG_DFL))\n"
        "os.tcsetpgrp(0, child.pid)\n"
        "_, status = os.waitpid(child.pid, os.WUNTRACED)\n"
        "assert os.WIFSTOPPED(status), status\n"
        "os.tcsetpgrp(0, os.getpgrp())\n"
        "print('it stands still', flush=True)\n"
        "sys.stdin.readline()\n"
        "os.tcsetpgrp(0, child.pid)\n"
        "os.kill(child.pid, signal.SIGCONT)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]))"
    )
    with terminal(near.shell, program=[sys.executable, "-c", shell, *near.shell.command("top")]) as screen:
        screen.until(is_there)
        screen.press(CTRL_Z)
        screen.until(lambda text: "it stands still" in text)
        assert_as_before(screen)
        screen.press("\n")
        screen.until(lambda _: screen.is_other_screen)
        screen.until(is_there)
        screen.press("q")
        assert screen.ends() == 0
        assert_as_before(screen)


def test_plain_characters_where_the_locale_has_no_others(near: Stage) -> None:
    near.app.enqueue("tasks.add", {"a": 1, "b": 2}, queue="mail", name="\u00e4")
    with terminal(near.shell, "top", LANG="C", LC_ALL=None, NO_COLOR="1") as screen:
        screen.until(lambda text: is_there(text) and "####------  40%" in text)

    assert screen.sent.isascii()
    assert b"\x1b[36m" not in screen.sent
    assert b"\x1b[7m" in screen.sent


def test_nothing_in_the_database_can_steer_the_terminal(near: Stage) -> None:
    with terminal(near.shell, "top", columns=160) as screen:
        screen.until(lambda text: is_there(text) and "half\\x1b[2J" in text)

    assert screen.sent.count(b"\x1b[2J") == 2  # when it took the screen and drew it first
    assert b"\x07" not in screen.sent
    assert "\u202e".encode() not in screen.sent


def test_it_says_so_when_the_database_is_away_and_goes_on_when_it_is_back(stage: Stage) -> None:
    with way(stage.shell.url) as there, terminal(Shell(stage.shell.folder, there.url), "top", columns=160) as screen:
        screen.until(is_there)
        there.close()
        shown = screen.until(lambda text: "! no answer for" in text)
        assert is_there(shown), "the last numbers stay"
        there.open()
        stage.app.enqueue("tasks.add", {"a": 1, "b": 2}, queue="new.queue")
        back = screen.until(lambda text: "new.queue" in text)
        assert "no answer" not in back
        screen.press("q")
        assert screen.ends() == 0


def test_what_has_not_changed_is_not_sent_again(near: Stage) -> None:
    with terminal(near.shell, "top", columns=200, lines=60) as screen:
        screen.until(is_there)
        clock = screen.lines[0][:8]
        before = len(screen.sent)
        screen.until(lambda text: text[:8] not in {clock, "00:00:00"})
        assert len(screen.sent) - before < before, "a second later the clock and the ages, not the screen"


def test_a_terminal_whose_cursor_cannot_be_moved_will_not_do(near: Stage) -> None:
    done = near.shell.on_terminal("top", TERM="dumb")

    assert (done.code, len(done.out.splitlines())) == (2, 1)
    assert "stats --watch" in done.out


def test_json_is_for_other_commands(near: Stage) -> None:
    done = near.shell.on_terminal("top", "--json")

    assert (done.code, len(done.out.splitlines())) == (2, 1)
    assert "stats --json" in done.out


def test_without_a_terminal_it_names_the_commands_for_programs(near: Stage) -> None:
    done = near.shell.try_("top")

    assert (done.code, done.out) == (2, "")
    assert "dray stats --json" in done.err
    assert "dray tail --jsonl" in done.err
    assert len(done.err.splitlines()) == 1


def test_a_missing_database_is_said_before_the_screen_is_taken(local: Shell) -> None:
    done = local.on_terminal("top")

    assert done.code == 6
    assert "\x1b[?1049h" not in done.out
    assert not (local.folder / "dray.db").exists()
