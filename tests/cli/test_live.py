"""``dray stats --watch``, ``dray workflows show --watch``, and the parts that live views are made of."""

from __future__ import annotations

import json
import os
import signal

import pytest

import dray
from dray.cli.live.screen import is_begun, keys
from dray.cli.terminal import Span, fold, rendered, wrap
from tests.cli.away import way
from tests.cli.shell import PATIENCE, Shell, until
from tests.cli.terminal import CTRL_C, terminal
from tests.forks import Forked

STATS = {
    *("at", "database", "states", "queues", "oldest_queued", "oldest_queued_age", "window", "finished", "throughput"),
    *("p50", "p95"),
}


def lines_of(process: Forked, count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().rstrip("\n") for _ in range(count)]


# dray stats --watch


def test_stats_are_a_json_object_a_line_again_and_again(shell: Shell) -> None:
    shell("db", "init")
    with shell.background("stats", "--watch", "0.1", "--json") as process:
        first = [json.loads(line) for line in lines_of(process, 2)]
        shell("enqueue", "tasks.add", "a=1", "b=2")
        until(lambda: json.loads(lines_of(process, 1)[0])["states"]["queued"] == 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0

    assert {frozenset(shape) for shape in first} == {frozenset(STATS)}
    assert first[0]["at"] < first[1]["at"]


def test_stats_in_a_pipe_are_blocks_with_an_empty_line_after_each(local: Shell) -> None:
    local("db", "init")
    with local.background("stats", "--watch", "0.1") as process:
        lines = lines_of(process, 60)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0

    blocks = "\n".join(lines).split("\n\n")
    assert len(blocks) >= 2
    assert [line.split("\t")[0] for line in blocks[0].splitlines()][:2] == ["at", "database"]
    assert "states.queued\t0" in blocks[1].splitlines()


def test_stats_end_when_their_reader_is_gone(local: Shell) -> None:
    local("db", "init")
    with local.background("stats", "--watch", "1h") as process:
        lines_of(process, 1)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(PATIENCE) == 0
        process.stdout = open(os.devnull)  # noqa: PTH123, SIM115 - for communicate()


def test_stats_on_a_terminal_are_written_over(shell: Shell) -> None:
    shell("db", "init")
    with terminal(shell, "stats", "--watch", "0.2", columns=80) as screen:
        before = screen.until(lambda text: "in the last" in text)
        shell("enqueue", "tasks.add", "a=1", "b=2")
        shown = screen.until(lambda text: "default" in text)
        screen.press(CTRL_C)
        assert screen.ends() == 0

    assert shown.count("in the last") == before.count("in the last") == 1
    assert shown.splitlines()[0].startswith(before.splitlines()[0])
    assert b"\x1b[?1049h" not in screen.sent


@pytest.mark.parametrize(("columns", "lines"), [(20, 5), (200, 50)])
def test_stats_fit_any_terminal(local: Shell, columns: int, lines: int) -> None:
    local("db", "init")
    with terminal(local, "stats", "--watch", "0.1", columns=columns, lines=lines) as screen:
        screen.until(lambda text: "queue" in text)
        local("enqueue", "tasks.add", "a=1", "b=2")
        screen.until(lambda text: "defau" in text)
        screen.resize(100, 30)
        screen.until(lambda text: "in the last 1h00m" in text and text.count("queued") == 1)


def test_watched_stats_outlive_the_database(shell: Shell) -> None:
    shell("db", "init")
    with way(shell.url) as there, terminal(Shell(shell.folder, there.url), "stats", "--watch", "0.2") as screen:
        screen.until(lambda text: "in the last" in text)
        there.close()
        screen.until(lambda text: "does not answer" in text)
        there.open()
        shell("enqueue", "tasks.add", "a=1", "b=2", "--queue", "new.queue")
        screen.until(lambda text: "new.queue" in text)


# dray workflows show --watch


def workflow(shell: Shell) -> str:
    with dray.App(shell.url) as app:
        add = app.task(name="tasks.add")(_add)
        wf = app.workflow("load")
        wf.add(add, 1, 2, after=wf.add(add, 1, 2, step="first"), step="second")
        return wf.enqueue().id


def _add(a: int, b: int) -> int:
    return a + b


def test_a_workflow_is_redrawn_until_it_has_ended(shell: Shell) -> None:
    run_id = workflow(shell)
    with terminal(shell, "workflows", "show", run_id, "--watch") as screen:
        screen.until(lambda text: "0 of 2 done" in text)
        shell("worker", "--burst")
        assert screen.ends() == 0

    shown = screen.text
    assert "completed  2 of 2 done" in shown
    assert shown.count("second (tasks.add)") == 1, "written over, not below"


def test_a_workflow_in_a_pipe_is_told_whenever_it_changes(shell: Shell) -> None:
    run_id = workflow(shell)
    with shell.background("workflows", "show", run_id, "--watch", "--json") as process:
        first = json.loads(lines_of(process, 1)[0])
        shell("worker", "--burst")
        assert process.stdout is not None
        rest = [json.loads(line) for line in process.stdout]
        assert process.wait(PATIENCE) == 0

    assert (first["done"], rest[-1]["done"], rest[-1]["state"]) == (0, 2, "completed")


def test_watching_a_workflow_can_be_ended(local: Shell) -> None:
    run_id = workflow(local)
    with local.background("workflows", "show", run_id, "--watch") as process:
        rows = [line.split("\t") for line in lines_of(process, 3)]
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0

    assert [row[1:4] for row in rows] == [["first", "tasks.add", "queued"], ["second", "tasks.add", "waiting"], []]


# Parts


@pytest.mark.parametrize(
    ("sent", "pressed"),
    [
        ("jk", ["j", "k"]),
        ("\x1b[A\x1b[B", ["up", "down"]),
        ("\x1bOA\x1b[5~\x1b[Z", ["up", "page up", "back tab"]),
        ("\x1b", ["escape"]),
        ("\t\r\n\x7f", ["tab", "enter", "enter", "backspace"]),
        ("\x1b[1;5Aq", ["q"]),
        ("\u00e4\x00", ["\u00e4"]),
    ],
)
def test_bytes_of_a_terminal_are_keys(sent: str, pressed: list[str]) -> None:
    assert keys(sent) == pressed


def test_a_key_may_come_in_pieces() -> None:
    assert is_begun("j\x1b")
    assert is_begun("\x1b[1;5")
    assert not is_begun("\x1b[A")


def test_lines_are_cut_where_the_terminal_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")

    assert rendered([Span("abc"), Span("def", "red")], 5) == "abc\x1b[31mde\x1b[0m"
    assert rendered([Span("\u4e16\u754c")], 3) == "\u4e16 "  # half of a wide character is none
    assert rendered([Span("a", "reverse")], 3) == "\x1b[7ma\x1b[0m\x1b[7m  \x1b[0m"


def test_no_colours_and_no_other_characters_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TERM": "xterm", "NO_COLOR": "1", "LC_ALL": "C"}.items():
        monkeypatch.setenv(name, value)

    assert rendered([Span("\u00e4", "bold red")], 10) == "\x1b[1m\\xe4\x1b[0m"
    assert rendered([Span("x", "red")], 10) == "x"


def test_words_are_folded_onto_lines_and_text_is_wrapped() -> None:
    folded = fold([Span("one"), Span("two"), Span("three")], 8, 2)

    assert ["".join(span.text for span in line) for line in folded] == ["one  two", "three"]
    assert [len(fold([Span("x" * 5)] * 9, 5, most)) for most in (1, 3)] == [1, 3]
    assert wrap("a sentence of some words", 12) == ["a sentence", "    of some", "    words"]
    assert wrap("x" * 25, 10) == ["x" * 10, "    " + "x" * 6, "    " + "x" * 6, "    xxx"]
    assert wrap("", 10) == [""]
