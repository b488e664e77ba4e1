"""``dray workflows``: what it prints in a pipe, as JSON and on a terminal, and what it does."""

from __future__ import annotations

import pytest

from dray.app import App
from tests.cli.shell import Shell, plain

WORKFLOW = {
    *("id", "name", "state", "done", "total", "created_at"),
    *("waiting", "scheduled", "queued", "running", "completed", "failed", "cancelled"),
}
STEP = {"id", "step", "task", "state", "reason", "after"}


@pytest.fixture
def run_id(shell: Shell) -> str:
    """The id of a workflow whose first step fails when it is run."""
    with App(shell.url) as app:
        fail = app.task(name="tasks.fail", max_attempts=1)(_fail)
        add = app.task(name="tasks.add")(_add)
        wf = app.workflow("nightly load")
        first = wf.add(fail, "no", step="first")
        wf.add(add, 1, 2, after=first, step="second")
        wf.add(add, 1, 2, after=first)
        return wf.enqueue().id


def _fail(word: str) -> None: ...


def _add(a: int, b: int) -> int:
    return a + b


def test_workflows_are_listed_with_their_progress(shell: Shell, run_id: str) -> None:
    (row,) = shell("workflows").rows
    assert row[:5] == [run_id, "nightly load", "running", "0", "3"]
    assert row[5].endswith("Z")
    assert shell("workflows", "list").rows == [row]
    (shape,) = shell("workflows", "--json").json
    assert set(shape) == WORKFLOW
    assert (shape["queued"], shape["waiting"]) == (1, 2)
    assert "0 of 3" in plain(shell.on_terminal("workflows").out)


def test_nothing_is_an_empty_list(shell: Shell) -> None:
    shell("db", "init")
    assert shell("workflows").rows == []
    assert shell("workflows", "--json").json == []


def test_a_workflow_is_shown_as_rows_json_and_a_drawing(shell: Shell, run_id: str) -> None:
    rows = shell("workflows", "show", run_id[-8:]).rows
    first = rows[0][0]
    assert [row[1:5] for row in rows] == [
        ["first", "tasks.fail", "queued", ""],
        ["second", "tasks.add", "waiting", ""],
        ["", "tasks.add", "waiting", ""],
    ]
    assert [row[5] for row in rows] == ["", first, first]
    shape = shell("workflows", "show", run_id, "--json").json
    assert set(shape) == {*WORKFLOW, "steps"}
    assert {frozenset(step) for step in shape["steps"]} == {frozenset(STEP)}
    drawing = plain(shell.on_terminal("workflows", "show", run_id, LANG="C.UTF-8", LC_ALL=None).out)
    assert drawing.splitlines()[2:4] == [f"○    first (tasks.fail) {first[-8:]}  queued", "├─┐"]
    assert f"nightly load  {run_id}  running  0 of 3 done" in drawing
    assert shell("workflows", "show", run_id, "--graph", LANG="C", LC_ALL=None).out.isascii()


def test_a_failed_workflow_is_retried_and_cancelled(shell: Shell, run_id: str) -> None:
    assert "has no failed steps" in shell.try_("workflows", "retry", run_id).err
    shell("worker", "--burst")
    assert [row[3] for row in shell("workflows", "show", run_id).rows] == ["failed", "cancelled", "cancelled"]
    assert shell("workflows", "retry", run_id[-8:]).rows == [[run_id, "1"]]
    assert [row[3] for row in shell("workflows", "show", run_id).rows] == ["queued", "waiting", "waiting"]
    assert shell("workflows", "cancel", run_id, "--json").json == [{"id": run_id, "cancelled": 3}]
    again = shell.try_("workflows", "cancel", run_id)
    assert (again.code, "had ended already" in again.err) == (1, True)
    assert shell("workflows", "retry", run_id, "--cancelled").rows == [[run_id, "3"]]


def test_an_unknown_workflow_is_not_found(shell: Shell) -> None:
    shell("db", "init")
    for command in ("show", "cancel", "retry"):
        for given in ("nobody", "00000000-0000-7000-8000-000000000000"):
            assert shell.try_("workflows", command, given).code == 5
