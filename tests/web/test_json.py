"""Every page as JSON has the shapes of the command line, as docs/reference/json.schema.json describes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dray import App, Context
from dray.app_interface import core_of
from dray.model.action import By
from dray.ops import acting
from dray.testing import drain
from dray.web import pages
from tests.json_schema import DOCUMENT, faults
from tests.web.browsing import Visitor
from tests.web.hands import Hand

# What a page does not count: no index has the jobs of a queue in these states.
UNCOUNTED = ("waiting", "scheduled", "completed", "failed", "cancelled")
# Pages that the command line has nothing like, and files.
OWN = {
    *("/", "/metrics", "/failures", "/bulk/{id}"),
    *("/tasks/{name}/enqueue", "/jobs/export.csv", "/jobs/export.jsonl", "/jobs/{id}/args", "/jobs/{id}/result"),
}


@pytest.fixture
def given(app: App) -> dict[str, str]:
    """A database with something of every kind. What the parts of paths stand for."""

    @app.task(name="mail.send", queue="mail", max_attempts=1)
    def send(ctx: Context, to: str = "ann", *, fails: bool = False) -> str:
        ctx.log.info("to %s", to)
        if fails:
            raise ValueError("no answer")
        return to

    @app.task(name="send", queue="mail")  # what the workers below know; of a task without code all options are None
    def known() -> None: ...

    core = core_of(app)
    app.schedule("nightly", send, cron="0 3 * * *")
    core.declare_schedules(core.backend)
    workflow = app.workflow("etl")
    workflow.add(send, after=workflow.add(send, step="first"), step="second")
    run, failed = workflow.enqueue(), send.enqueue(fails=True)
    drain(app)
    workers = [Hand(app, name) for name in ("app-1", "app-2", "app-3")]
    for hand in workers:
        app.enqueue("send", {}, queue="mail")
        hand.claim("mail")
    workers[0].die()
    workers[1].stop()
    app.queue("mail", limit=5)
    acting.pause_queue(core, "mail", By("ann", "cli"), "for a while")
    return {
        "jobs": failed.id,
        "workflows": run.id,
        "queues": "mail",
        "schedules": "nightly",
        "tasks": "mail.send",
        "workers": workers[2].id,
        "actions": core.backend.actions.newest(1)[0].id,
    }


def all_of(kind: str, found: Any) -> Iterator[str]:
    """What is wrong with a thing; pages may say more of it than the command line."""
    schema = DOCUMENT["$defs"][kind]
    yield from faults(schema, {name: value for name, value in found.items() if name in schema["properties"]})


def each_of(kind: str, found: list[Any]) -> Iterator[str]:
    assert found, f"there is no {kind}"
    for one in found:
        yield from all_of(kind, one)


def queue(found: Any) -> Iterator[str]:
    assert [found[state] for state in UNCOUNTED] == [None] * len(UNCOUNTED)
    yield from all_of("queue", {**found, **dict.fromkeys(UNCOUNTED, 0)})


def job(found: Any) -> Iterator[str]:
    yield from all_of("whole_job", found)
    yield from all_of("why", found)


def system(found: Any) -> Iterator[str]:
    yield from faults(DOCUMENT["commands"]["health"], found["health"])
    yield from faults(DOCUMENT["commands"]["doctor"], found["checks"])


CHECKS: dict[str, Callable[[Any], Iterator[str]]] = {
    "/jobs": lambda found: each_of("job", found["jobs"]),
    "/jobs/{id}": job,
    "/jobs/{id}/log": lambda found: each_of("log_line", found),
    "/bulk": lambda found: each_of("job", found["jobs"]),
    "/failures/{key}": lambda found: each_of("job", found["jobs"]),
    "/queues": lambda found: (fault for each in found["queues"] for fault in queue(each)),
    "/queues/{name}": queue,
    "/workflows": lambda found: each_of("workflow", found["workflows"]),
    "/workflows/{id}": lambda found: all_of("whole_workflow", found),
    "/schedules": lambda found: each_of("schedule", found["schedules"]),
    "/schedules/{name}": lambda found: all_of("schedule", found),
    "/tasks": lambda found: each_of("task", found["tasks"]),
    "/tasks/{name}": lambda found: all_of("task", found),
    "/workers": lambda found: each_of("worker", [*found["live"], *found["ended"]]),
    "/workers/{id}": lambda found: all_of("worker", found),
    "/actions": lambda found: each_of("action", found["actions"]),
    "/system": system,
}
QUERIES = {"/bulk": "?verb=retry&all=1&q=state:failed"}


def test_every_page_has_the_shapes_of_the_command_line(given: dict[str, str], visitor: Visitor) -> None:
    given["failures"] = visitor.json("/failures.json")[0]["key"]
    wrong = list[str]()
    for page in pages.PAGES:
        if page.path in OWN:
            continue
        start, brace, rest = page.path.partition("{")
        path = f"{start}{given[page.path.split('/')[1]]}{rest.partition('}')[2]}" if brace else page.path
        found = visitor.json(f"{path}.json{QUERIES.get(page.path, '')}")
        wrong += [f"{page.path}: {each}" for each in CHECKS[page.path](found)]

    assert wrong == []


def test_the_queues_of_the_overview_are_queues(given: dict[str, str], visitor: Visitor) -> None:
    assert given["queues"] == "mail"

    assert [fault for each in visitor.json("/overview.json")["queues"] for fault in queue(each)] == []
