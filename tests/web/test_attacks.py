"""What was tried against the dashboard, and got through once."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from dray import Access, App, StorageError, dashboard
from dray.app_interface import core_of
from dray.backends.postgres import PostgresDatabase
from tests.web.browsing import Visitor
from tests.web.hands import Hand


@pytest.fixture
def login(app: App) -> None:
    @app.task(name="login", queue="mail", redact=["password"])
    def login(user: str, password: str = "") -> None: ...


def write(app: App, column: str, text: str) -> None:
    """Writes a column of all jobs by hand."""
    backend = core_of(app).backend
    where = f"{backend.db.schema}.dray_jobs" if isinstance(backend.db, PostgresDatabase) else "dray_jobs"
    with backend.transaction() as connection:
        connection.cursor().execute(f"UPDATE {where} SET {column} = '{text}'")


# Hidden arguments


@pytest.mark.usefixtures("login")
@pytest.mark.parametrize("states", ["state:queued ", ""])
def test_how_far_a_search_looked_does_not_tell_what_is_hidden(
    app: App, visitor_as: Callable[..., Visitor], states: str
) -> None:
    job = app.enqueue("login", {"user": "bob", "password": "hunter2"})
    app.enqueue("login", {"user": "eve", "password": "other"})
    viewer = visitor_as("viewer")

    def told(text: str) -> object:
        return viewer.json(f"/jobs.json?q={states}{text}".replace(" ", "+"))

    for path in ("args.password", "args.user", f"id:{job.id} args.password"):
        assert told(f"{path}:hunter2") == told(f"{path}:winter9")
    assert [each["id"] for each in told("args.user:bob")["jobs"]] == [job.id]  # pyright: ignore[reportIndexIssue]


# Rows that were written by hand


@pytest.mark.usefixtures("login")
@pytest.mark.parametrize("column", ["args", "result"])
@pytest.mark.parametrize("text", ["no JSON", "[1]", '{"user": NaN}', "[" * 3_000])
def test_a_job_whose_values_cannot_be_read_is_shown(app: App, visitor: Visitor, column: str, text: str) -> None:
    job = app.enqueue("login", {"user": "bob"})
    write(app, column, text)

    assert visitor.json("/jobs.json")["jobs"][0]["id"] == job.id
    visitor.page("/jobs")
    visitor.page(f"/jobs/{job.id}")
    shape = visitor.json(f"/jobs/{job.id}.json")
    saved = visitor.client.get(f"/jobs/{job.id}/{column}")

    is_readable = (column, text) == ("result", "[1]")
    assert shape[column] == ([1] if is_readable else None)
    assert saved.status_code == (200 if is_readable else 404)


@pytest.mark.usefixtures("login")
def test_arguments_that_are_no_object_are_not_revealed(app: App, visitor: Visitor) -> None:
    job = app.enqueue("login", {"user": "bob"})
    write(app, "args", "[1]")

    refused = visitor.post(f"/jobs/{job.id}/reveal", 409)

    assert "expected an object of arguments by name" in refused.text


# Queues that a visitor may not see


def test_a_worker_is_not_asked_about_a_job_that_the_visitor_may_not_see(
    app: App, visitor_as: Callable[..., Visitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = app.enqueue("send", {}, queue="payroll")
    Hand(app).claim("payroll")
    visitor = visitor_as("operator", queues=["mail"])
    asked: list[str] = []

    def ask(_: object, job_id: str) -> None:
        asked.append(job_id)

    monkeypatch.setattr(visitor.site.asker, "ask", ask)

    visitor.post(f"/jobs/{job.id}/ask", 404)

    assert asked == []


@pytest.mark.usefixtures("login")
def test_names_of_other_queues_are_not_told(app: App, visitor_as: Callable[..., Visitor]) -> None:
    job = app.enqueue("login", {"user": "bob"})
    Hand(app, queues=["payroll"])
    visitor = visitor_as("viewer", queues=["mail"])

    assert "No live worker serves queue mail." in visitor.words(f"/jobs/{job.id}")
    assert "No worker serves queue mail" in visitor.words("/")
    for path in ("/", "/overview.json", f"/jobs/{job.id}", f"/jobs/{job.id}.json", "/queues", "/queues/mail"):
        assert "payroll" not in visitor.page(path), path


@pytest.mark.usefixtures("login")
def test_a_selection_of_all_queues_is_worth_nothing_to_one_who_may_see_none_any_more(
    app: App, visitor_as: Callable[..., Visitor]
) -> None:
    job = app.enqueue("login", {"user": "bob"})
    selection = selected(visitor_as("operator").page("/bulk?verb=cancel&all=1"))

    refused = visitor_as("operator", queues=[]).post("/bulk/cancel", 409, selection=selection)

    assert "This selection was not made here" in refused.text
    assert job.refresh().state == "queued"


@pytest.mark.usefixtures("login")
def test_a_bulk_action_on_all_queues_is_not_shown_to_one_of_the_same_name_who_may_see_some(app: App) -> None:
    """Visitors without a name all have the same."""
    access = Access("operator")
    visitor = Visitor(dashboard(app, access=lambda _: access), access)
    app.enqueue("login", {"user": "bob"})
    selection = selected(visitor.page("/bulk?verb=cancel&all=1"))
    where = visitor.post("/bulk/cancel", selection=selection).headers["location"].partition("?")[0]
    visitor.page(where)

    access = Access("operator", queues=["payroll"])

    visitor.page(where, 404)
    visitor.post(f"{where}/stop", 404)


# What tabs share


@pytest.mark.usefixtures("login")
def test_two_selections_of_ticked_rows_are_not_taken_for_each_other(
    app: App, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(_: object) -> str:
        return "the same"

    monkeypatch.setattr(visitor.site.feed, "version", version)
    first, second, last = (app.enqueue("login", {"user": "bob"}).id for _ in range(3))

    def preview(*ids: str) -> str:
        query = "&".join(f"id={each}" for each in ids)
        return visitor.client.get(f"/bulk?verb=cancel&{query}", headers={"hx-request": "true"}).text

    assert f"/jobs/{first}" in preview(first, last)
    assert f"/jobs/{second}" in preview(second, last)


# A database that cannot be read


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_file_that_cannot_be_begun_is_an_error_and_no_empty_file(
    app: App, visitor: Visitor, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def is_away(*_: object, **__: object) -> None:
        raise StorageError("the database cannot be reached")

    monkeypatch.setattr(core_of(app).backend.search, "page", is_away)

    answer = visitor.client.get(f"/jobs/export.{kind}")

    assert answer.status_code == 503
    assert "the database cannot be reached" in answer.text
    assert "content-disposition" not in answer.headers


def selected(page: str) -> str:
    found = re.search('name="selection" value="([^"]+)"', page)
    assert found is not None, page
    return found[1]
