"""A database that a move has closed says so, wherever it is looked at, and gives no advice that it would refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

import dray
from dray.backends import open_backend
from dray.ops import move, move_plan
from dray.settings import Settings
from tests.cli.shell import Shell


class Cut(Exception):
    """The power is off."""


@pytest.fixture
def other(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'other.db'}"


def fill(url: str) -> tuple[str, str]:
    """The ids of a job that waits in a paused queue, and of one that has ended."""
    with dray.App(url, migrate=True) as app:
        waiting = app.enqueue("tasks.add", {"a": 1, "b": 2}, queue="mail")
        app.pause("mail")
        ended = app.enqueue("tasks.add", {"a": 1, "b": 2})
        ended.cancel()
    return waiting.id, ended.id


def carry(source: str, target: str, *, is_cut: bool = False) -> None:
    def tell(step: move.Progress) -> None:
        if is_cut and step.is_left:
            raise Cut

    here, there = (move.Side(open_backend(url, create=False), Settings.of(url).place) for url in (source, target))
    try:
        move.carry(move_plan.plan(here, there), tell=tell)
    finally:
        here.backend.close()
        there.backend.close()


def all_said(shell: Shell, waiting: str, ended: str, words: str) -> None:
    """Each command that looks at the whole says the same, and none to start a worker or to resume a queue."""
    (first,) = shell("why", waiting, "--json").json["causes"]
    assert first["kind"] == "moved"
    assert words in first["text"]
    assert [each["kind"] for each in shell("why", ended, "--json").json["causes"]] == ["cancelled", "moved"]

    status, health, doctor = (shell.try_(*line) for line in (["db", "status"], ["health"], ["doctor"]))

    assert (status.code, health.code, doctor.code) == (6, 1, 1)
    assert words in status.err
    assert health.out.startswith("not healthy: ")
    assert words in health.out
    checks = {row[0]: row for row in doctor.rows}
    _, verdict, text, fix = checks["moved"]
    assert (verdict, words in text, bool(fix)) == ("failed", True, True)
    assert not checks.keys() & {"workers", "dead-workers", "duties", "paused-queues", "backlog", "history"}
    assert "dray worker" not in doctor.out
    assert "resume" not in doctor.out


def test_a_source_says_where_the_queue_is(shell: Shell, other: str) -> None:
    waiting, ended = fill(shell.url)
    assert {row[0]: row[1] for row in shell.try_("doctor").rows}["moved"] == "ok"

    carry(shell.url, other)

    all_said(shell, waiting, ended, f"this queue has moved to {other}")
    assert shell("why", waiting, "--json").json["causes"][0]["target"] == other
    assert "paused" in [each["kind"] for each in shell("why", waiting, "--json", DRAY_URL=other).json["causes"]]


def test_a_target_says_that_it_is_being_filled(shell: Shell, other: str) -> None:
    waiting, ended = fill(other)
    with pytest.raises(Cut):
        carry(other, shell.url, is_cut=True)

    all_said(shell, waiting, ended, f"this database is being filled by `dray db move` from {other}")

    carry(other, shell.url)
    assert shell("why", waiting, "--json").json["causes"][0]["kind"] == "paused"
    assert shell("db", "status").code == 0
