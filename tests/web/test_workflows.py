"""The pages of workflows: the list, the graph, the steps, and what can be done there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dray import App
from dray.app_interface import core_of
from dray.backends.store import pages
from dray.handle.run import Run
from dray.task.task import Task
from dray.testing import drain
from tests.web.browsing import Visitor
from tests.web.executed import page_statements

HOSTILE = "<script>alert(1)</script>\u202e{{7*7}}"


@pytest.fixture
def step(app: App) -> Task[..., Any]:
    @app.task(name="etl.load", max_attempts=1)
    def load(part: int = 0) -> int:
        if part < 0:
            raise ValueError(f"part {part} is broken")
        return part

    return load


@pytest.fixture
def quarterly(app: App, step: Task[..., Any]) -> Run:
    """extract -> clean, stats -> report; stats fails."""
    workflow = app.workflow("quarterly")
    extract = workflow.add(step, step="extract")
    clean = workflow.add(step, 1, step="clean", after=extract)
    stats = workflow.add(step, -1, step="stats", after=extract)
    workflow.add(step, 2, step="report", after=[clean, stats])
    return workflow.enqueue()


def test_the_list_shows_how_far_each_workflow_is(app: App, quarterly: Run, visitor: Visitor) -> None:
    drain(app)

    assert "failed quarterly" in visitor.words("/workflows")
    assert "4 of 4 1 0" in visitor.words("/workflows")  # done, failed, running
    listed = visitor.json("/workflows.json")
    assert [(each["id"], each["state"], each["done"]) for each in listed["workflows"]] == [
        (quarterly.id, "failed", 4)
    ]
    assert listed["next"] is None


def test_without_workflows_the_list_says_how_to_make_one(visitor: Visitor) -> None:
    assert "No workflow was enqueued yet." in visitor.words("/workflows")


def test_workflows_are_found_by_a_part_of_their_name_and_read_on(
    app: App, step: Task[..., Any], visitor: Visitor
) -> None:
    for number in range(30):
        workflow = app.workflow(f"Nightly 100% {number}")
        workflow.add(step)
        workflow.enqueue()
    other = app.workflow("weekly")
    other.add(step)
    other.enqueue()

    first = visitor.json("/workflows.json?name=100%25")
    rest = visitor.json(f"/workflows.json?name=nightly&before={first['next']}")

    names = [each["name"] for each in first["workflows"] + rest["workflows"]]
    assert names == [f"Nightly 100% {number}" for number in reversed(range(30))]
    assert rest["next"] is None
    assert "No workflow has this in its name." in visitor.words("/workflows?name=_eekly")
    assert "is no id" in visitor.page("/workflows?before=first", 400)


def test_a_search_says_how_far_it_looked_and_goes_on(
    app: App, step: Task[..., Any], visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "WINDOW", 3)
    for name in ("wanted", "a", "b", "c"):
        workflow = app.workflow(name)
        workflow.add(step)
        workflow.enqueue()

    first = visitor.json("/workflows.json?name=wanted")
    second = visitor.json(f"/workflows.json?name=wanted&before={first['next']}")

    assert first["workflows"] == []
    assert "Look further" in visitor.words("/workflows?name=wanted")
    assert [each["name"] for each in second["workflows"]] == ["wanted"]


def test_workflows_that_there_is_no_room_to_count_say_so(
    app: App, step: Task[..., Any], visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "COUNTED", 4)
    for name in ("old", "new"):
        workflow = app.workflow(name)
        for _ in range(3):
            workflow.add(step)
        workflow.enqueue()

    new, old = visitor.json("/workflows.json")["workflows"]

    assert (new["name"], new["total"]) == ("new", 3)
    assert (old["name"], old["total"], old["state"]) == ("old", None, None)
    assert "not counted old" in visitor.words("/workflows")


def test_a_workflow_is_drawn_with_its_steps_and_what_failed(app: App, quarterly: Run, visitor: Visitor) -> None:
    drain(app)
    words = visitor.words(f"/workflows/{quarterly.id}")

    assert "quarterly Failed" in words
    assert "4 of 4 steps have ended. 1 failed , 2 completed , 1 cancelled" in words
    assert "Failed steps 1 stats etl.load" in words
    assert "ValueError: part -1 is broken" in words
    assert "then clean (completed" in words
    assert "report (cancelled (parent)" in words
    assert visitor.page(f"/workflows/{quarterly.id}").count('class="node ') == 4


def test_a_workflow_as_json_is_as_the_command_line_has_it(app: App, quarterly: Run, visitor: Visitor) -> None:
    drain(app)
    whole = visitor.json(f"/workflows/{quarterly.id}.json")

    by_step = {each["step"]: each for each in whole["steps"]}
    assert list(by_step) == ["extract", "clean", "stats", "report"]
    assert by_step["report"]["after"] == [by_step["clean"]["id"], by_step["stats"]["id"]]
    assert (by_step["stats"]["reason"], by_step["stats"]["error"]) == ("error", "ValueError: part -1 is broken")
    assert (whole["state"], whole["total"], whole["is_cut"], whole["next"]) == ("failed", 4, False, None)


def test_the_state_is_that_of_the_command_line_where_failures_are_tolerated(
    app: App, step: Task[..., Any], visitor: Visitor
) -> None:
    workflow = app.workflow("tolerant")
    first = workflow.add(step, -1, step="may-fail")
    workflow.add(step, after=first, step="runs-anyway", on_parent_failure="run")
    run = workflow.enqueue()
    drain(app)

    assert run.state == "completed"
    assert visitor.json(f"/workflows/{run.id}.json")["state"] == "completed"


def test_a_part_of_an_id_leads_to_the_workflow(quarterly: Run, visitor: Visitor) -> None:
    assert visitor.client.get(f"/workflows/{quarterly.id[-8:]}").url.path == f"/workflows/{quarterly.id}"
    assert "no workflow" in visitor.page("/workflows/ffffffff-ffff", 404)
    assert "There is no workflow" in visitor.page("/workflows/00000000-0000-7000-8000-000000000000", 404)


def test_many_steps_are_one_node_and_a_table_by_pages(app: App, step: Task[..., Any], visitor: Visitor) -> None:
    workflow = app.workflow("wide")
    start = workflow.add(step, step="start")
    for number in range(400):
        workflow.add(step, number, step=f"load-{number}", after=start)
    run = workflow.enqueue()

    words = visitor.words(f"/workflows/{run.id}")
    first = visitor.json(f"/workflows/{run.id}.json?state=waiting")
    second = visitor.json(f"/workflows/{run.id}.json?state=waiting&after={first['next']}")

    assert "1 node stands for 400 steps that are alike." in words
    assert "load · 400 steps 400 waiting" in words
    assert "50 of 401 shown." in words
    assert [each["step"] for each in first["steps"] + second["steps"]] == [f"load-{n}" for n in range(100)]
    assert len(visitor.page(f"/workflows/{run.id}")) < 80_000


def test_what_is_too_large_to_read_is_said_not_to_be_shown(
    app: App, quarterly: Run, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "STEPS", 3)

    assert "Only the first 3 steps are drawn." in visitor.words(f"/workflows/{quarterly.id}")
    assert "0 of 3+ steps have ended." in visitor.words(f"/workflows/{quarterly.id}")
    assert visitor.json(f"/workflows/{quarterly.id}.json")["is_cut"] is True


def test_a_job_elsewhere_that_a_step_runs_after_is_drawn(app: App, step: Task[..., Any], visitor: Visitor) -> None:
    outside = step.enqueue(9)
    workflow = app.workflow("joined")
    workflow.add(step, step="last", after=outside)
    run = workflow.enqueue()

    words = visitor.words(f"/workflows/{run.id}")
    assert f"job {outside.id[-8:]} (elsewhere); then last (waiting)." in words
    assert "1 job that steps run after is not of this workflow." in words


def test_many_jobs_elsewhere_are_one_node(app: App, step: Task[..., Any], visitor: Visitor) -> None:
    outside = [step.enqueue(number) for number in range(40)]
    workflow = app.workflow("joined")
    workflow.add(step, step="last", after=outside)
    run = workflow.enqueue()

    words = visitor.words(f"/workflows/{run.id}")
    assert "jobs elsewhere · 40 steps 40 elsewhere" in words
    assert "and 37 more" in words


def test_failed_steps_are_retried_all_or_one(app: App, quarterly: Run, visitor: Visitor) -> None:
    drain(app)
    stats = quarterly.job("stats")

    answer = visitor.post(f"/workflows/{quarterly.id}/retry", job=stats.id)

    assert answer.headers["location"].startswith(f"/workflows/{quarterly.id}?said=1+step+started+over")
    assert stats.refresh().state == "queued"
    drain(app)
    visitor.post(f"/workflows/{quarterly.id}/retry")
    assert stats.refresh().state == "queued"
    assert [(each.verb, each.kind, each.who, each.via) for each in core_of(app).backend.actions.newest()] == [
        ("retry", "workflow", "ann", "web"),
        ("retry", "job", "ann", "web"),
    ]


def test_a_step_of_another_workflow_is_not_retried(app: App, quarterly: Run, visitor: Visitor) -> None:
    other = app.enqueue("etl.load", {"part": -1})
    drain(app)

    assert "has no such step" in visitor.post(f"/workflows/{quarterly.id}/retry", 404, job=other.id).text
    assert other.refresh().state == "failed"


def test_a_workflow_is_cancelled_after_it_was_asked_for(app: App, quarterly: Run, visitor: Visitor) -> None:
    assert "Every step that has not started is cancelled" in visitor.words(f"/workflows/{quarterly.id}")

    visitor.post(f"/workflows/{quarterly.id}/cancel")

    assert quarterly.counts == {"cancelled": 4}
    assert "All its steps had ended already." in visitor.post(f"/workflows/{quarterly.id}/cancel", 409).text
    assert "Cancel…" not in visitor.words(f"/workflows/{quarterly.id}")


def test_an_operator_may_act_on_a_thousand_jobs_of_a_workflow_and_an_admin_on_more(
    app: App, quarterly: Run, visitor_as: Callable[..., Visitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, admin, path = visitor_as("operator"), visitor_as("admin"), f"/workflows/{quarterly.id}"
    monkeypatch.setattr("dray.web.pages.workflows.OPERATORS_BULK", 3)

    answer = operator.post(f"{path}/cancel", 409)
    assert "This would cancel 4 jobs, and the most is 3; ask an admin." in answer.text
    assert quarterly.counts == {"queued": 1, "waiting": 3}
    drain(app)
    monkeypatch.setattr("dray.web.pages.workflows.OPERATORS_BULK", 0)
    assert "This would retry 1 job, and the most is 0; ask an admin." in operator.post(f"{path}/retry", 409).text
    assert quarterly.job("stats").state == "failed"
    assert core_of(app).backend.actions.newest() == []

    admin.post(f"{path}/retry")
    admin.post(f"{path}/cancel")
    assert [(each.verb, each.done) for each in core_of(app).backend.actions.newest()] == [("cancel", 2), ("retry", 1)]


def test_the_bound_of_an_operator_is_a_thousand(app: App, visitor_as: Callable[..., Visitor]) -> None:
    @app.task(name="etl.part")
    def part() -> None: ...

    def made(steps: int) -> Run:
        workflow = app.workflow("wide")
        for _ in range(steps):
            workflow.add(part)
        return workflow.enqueue()

    most, more = made(1_000), made(1_001)
    operator = visitor_as("operator")

    operator.post(f"/workflows/{more.id}/cancel", 409)
    operator.post(f"/workflows/{most.id}/cancel")

    assert (more.counts, most.counts) == ({"queued": 1_001}, {"cancelled": 1_000})


def test_a_viewer_sees_no_button_and_is_refused(app: App, quarterly: Run, visitor_as: Callable[..., Visitor]) -> None:
    drain(app)
    viewer = visitor_as("viewer")

    assert 'method="post"' not in viewer.page(f"/workflows/{quarterly.id}").partition("<main")[2]
    viewer.post(f"/workflows/{quarterly.id}/retry", 403)
    viewer.post(f"/workflows/{quarterly.id}/cancel", 403)
    assert quarterly.state == "failed"
    assert core_of(app).backend.actions.newest() == []


def test_a_visitor_of_some_queues_sees_no_workflow(quarterly: Run, visitor_as: Callable[..., Visitor]) -> None:
    someone = visitor_as("admin", queues=["mail"])

    for path in ("/workflows", f"/workflows/{quarterly.id}"):
        assert "whole database" in someone.page(path, 403)
    someone.post(f"/workflows/{quarterly.id}/cancel", 403)
    assert quarterly.state == "running"


def test_hostile_names_are_text(app: App, visitor: Visitor) -> None:
    @app.task(name="bad", max_attempts=1)
    def bad() -> None:
        raise ValueError(HOSTILE)

    workflow = app.workflow(HOSTILE.replace("\u202e", ""))
    workflow.add(bad, step="one")
    run = workflow.enqueue()
    drain(app)

    for path in ("/workflows", f"/workflows/{run.id}", "/workflows?name=<script>"):
        page = visitor.page(path)
        assert "<script>alert" not in page
        assert "\u202e" not in page
        assert "49" not in page.partition("<main")[2].partition("{{7")[2][:3]


def test_the_pages_take_few_reads(app: App, quarterly: Run, visitor: Visitor) -> None:
    assert page_statements(visitor, "/workflows") <= 4
    assert page_statements(visitor, f"/workflows/{quarterly.id}") <= 5
