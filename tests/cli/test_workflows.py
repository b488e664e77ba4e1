"""``dray workflows``: what it prints in a pipe, as JSON and on a terminal, and what it does."""

from __future__ import annotations

import pytest

from dray.app import App
from tests.cli.shell import Shell, plain

WORKFLOW = {
    *("id", "name", "state", "done", "total", "created_at"),
    *("waiting", "scheduled", "queued", "running", "completed", "failed", "cancelled"),
}
STEP = {"id", "step", "task", "state", "reason", "error", "after"}


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


@pytest.fixture
def downloads(shell: Shell) -> str:
    """The id of a workflow of 50 downloads, of which two failed, and a tolerant load."""
    with App(shell.url) as app:

        @app.task(name="tasks.download", max_attempts=1)
        def download(n: int) -> int:
            if n in {7, 8}:
                raise ValueError(f"no file {n}\nsecond line")
            return n

        load = app.task(name="tasks.load")(_load)
        wf = app.workflow("etl")
        steps = [wf.add(download, n, step=f"download-{n}") for n in range(50)]
        wf.add(load, after=steps, step="load", on_parent_failure="run")
        run = wf.enqueue()
        app.worker().run_until_idle()
        return run.id


def _load() -> None: ...


def test_failed_steps_in_one_row_are_named_with_their_errors_and_what_retries_them(
    shell: Shell, downloads: str
) -> None:
    failed = {row[14]: row[0] for row in shell("jobs", "--workflow", downloads[-8:], "--state", "failed").rows}
    assert sorted(failed) == ["download-7", "download-8"]

    shown = plain(shell.on_terminal("workflows", "show", downloads, LANG="C.UTF-8", LC_ALL=None, columns=120).out)

    lines = [line.rstrip() for line in shown.splitlines()]
    assert lines[0] == f"etl  {downloads}  completed  51 of 51 done"
    assert lines[2].split(None, 1)[1].split("  ")[0] == "tasks.download x 50"
    assert "48 completed, 2 failed(error)" in lines[2]
    assert lines[3:5] == [
        f"│    download-{n} (tasks.download) {failed[f'download-{n}'][-8:]}  failed(error)  ValueError: no file {n}"
        for n in (7, 8)
    ]
    assert f"2 failed steps: `dray workflows retry {downloads[-8:]}` retries" in lines[-1]
    assert shell("workflows", "show", downloads, "--json").json["failed"] == 2
    assert [row[2] for row in shell("workflows").rows] == ["completed"]
    assert shell("workflows", "retry", downloads[-8:]).rows == [[downloads, "2"]]
    assert [row[2] for row in shell("workflows").rows] == ["running"]


def test_jobs_show_workflow_and_step_where_there_is_one(shell: Shell, downloads: str) -> None:
    (load,) = shell("jobs", "--workflow", "etl", "--task", "tasks.load", "--json").json
    assert (load["workflow"], load["workflow_name"], load["step"], load["schedule"]) == (
        downloads,
        "etl",
        "load",
        None,
    )
    assert "etl / load" in plain(shell.on_terminal("jobs", "--limit", "1", columns=200).out)
    shown = plain(shell.on_terminal("job", "show", load["id"], columns=200).out)
    assert f"workflow     etl {downloads}" in shown
    assert "step         load" in shown
    assert "waits for" not in shown

    shell("enqueue", "tasks.add", "a=1", "b=2")
    assert "step" not in plain(shell.on_terminal("jobs", "--task", "tasks.add", columns=200).out)

    unknown = shell.try_("jobs", "--workflow", "nope")
    assert (unknown.code, "no workflow is named 'nope', and no workflow's id contains it" in unknown.err) == (5, True)
    assert shell("job", "retry", "--all", "--workflow", "etl", "--yes").rows == [["retried 2 of 2 jobs"]]


def test_a_step_cancelled_with_its_parent_is_refused_a_retry_and_the_advice_works(shell: Shell, run_id: str) -> None:
    shell("worker", "--burst")
    first, second, _ = (row[0] for row in shell("workflows", "show", run_id).rows)

    refused = shell.try_("job", "retry", second)

    assert refused.code == 1
    assert f"job {second[-8:]} was not retried: it runs after job {first[-8:]} (first), which failed" in refused.err
    assert f"`dray workflows retry {run_id[-8:]}`" in refused.err
    assert f"`dray job retry {first[-8:]}`" in refused.err
    shell("job", "retry", first[-8:])
    assert [row[3] for row in shell("workflows", "show", run_id).rows] == ["queued", "waiting", "waiting"]
    assert "it has not ended: it is waiting" in shell.try_("job", "retry", second).err


def test_a_large_cancelled_workflow_is_retried_whole_parents_first(shell: Shell) -> None:
    with App(shell.url) as app:
        add = app.task(name="tasks.add")(_add)
        wf = app.workflow("wide")
        first = wf.add(add, 1, 2, step="first")
        for _ in range(501):
            wf.add(add, 1, 2, after=first)
        run = wf.enqueue()
        run.cancel()
        assert run.state == "cancelled"

        refused = shell.try_("workflows", "retry", run.id)
        assert (refused.code, "--cancelled also retries" in refused.err) == (1, True)
        done = shell("job", "retry", "--all", "--workflow", "wide", "--state", "cancelled", "--yes").out

        assert done == "retried 502 of 502 jobs\n"
        assert run.counts == {"queued": 1, "waiting": 501}
