"""One action on all jobs that a search finds, and jobs as a file; on both databases."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from dray.app import App
from dray.app_interface import core_of
from dray.core import AppCore
from dray.errors import ConfigError
from dray.handle.job import Job
from dray.instants import MINUTE, SECOND
from dray.model import settlement as model
from dray.model.action import By
from dray.model.job import Claim, Reason
from dray.model.search import parse
from dray.ops import bulk, export
from dray.ops.bulk import Bulk, BulkVerb, Progress, Selection
from tests.app.hands import Hands
from tests.backends import raw
from tests.manual_clock import ManualClock

ANN = By("ann", "web")
SECRET = b"0123456789abcdef"


@pytest.fixture
def core(app: App) -> AppCore:
    return core_of(app)


def failed(app: App, hands: Hands, count: int, **options: Any) -> list[Job[Any]]:
    jobs = [app.enqueue("x", {"n": n}, **options) for n in range(count)]
    for job in jobs:
        hands.fail(job)
    hands.clock.advance(SECOND)
    return jobs


def run(core: AppCore, text: str, verb: BulkVerb) -> Progress:
    return to_its_end(Bulk(core, bulk.freeze(core, parse(text)), verb, ANN))


def to_its_end(action: Bulk) -> Progress:
    while not (progress := action.step()).is_over:
        pass
    return progress


def states(app: App) -> list[str]:
    return [job.state for job in reversed(app.jobs())]


def test_all_that_fit_are_retried_and_leave_one_row(
    app: App, core: AppCore, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "STEP", 2)
    failed(app, hands, 5)
    failed(app, hands, 2, queue="other")
    progress = run(core, "queue:default", "retry")
    assert progress == (5, 0, 0, True, {}, False)
    assert states(app) == ["queued"] * 5 + ["failed"] * 2
    (action,) = core.backend.actions.newest(10)
    assert (action.who, action.via, action.verb, action.kind, action.target, action.done, action.refused) == (
        *("ann", "web", "retry", "jobs", "queue:default state:failed", 5, 0),
    )


@pytest.mark.parametrize(("verb", "left"), [("retry", "queued queued queued"), ("delete", "queued queued")])
def test_a_verb_means_its_states_unless_the_search_names_some(
    app: App, core: AppCore, hands: Hands, verb: BulkVerb, left: str
) -> None:
    for _ in range(2):
        app.enqueue("live")
    failed(app, hands, 1)
    run(core, "", verb)
    assert states(app) == left.split()
    run(core, "state:queued", "cancel")
    assert set(states(app)) == {"cancelled"}


def test_nothing_newer_than_the_preview_is_touched(app: App, core: AppCore, hands: Hands, clock: ManualClock) -> None:
    old, running_then = failed(app, hands, 1)[0], app.enqueue("y")
    claim = hands.claim(running_then)
    selection = bulk.freeze(core, parse(""))
    assert bulk.preview(core, selection, "retry").count == 1
    clock.advance(SECOND)
    (newer,) = failed(app, hands, 1)
    hands.settle(_failed(hands, claim))

    assert to_its_end(Bulk(core, selection, "retry", ANN)).done == 1
    assert [job.refresh().state for job in (old, newer, running_then)] == ["queued", "failed", "failed"]


def _failed(hands: Hands, claim: Claim) -> model.Settlement:
    from dray.model import settlement as model

    now = hands.clock.steady()
    return model.failed(claim, now, now, Reason.ERROR, "ValueError", "no", None)


def test_a_job_that_has_changed_since_it_was_chosen_is_left_alone(
    app: App, core: AppCore, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "STEP", 1)
    first, second = failed(app, hands, 2)
    action = Bulk(core, bulk.freeze(core, parse("state:failed")), "retry", ANN)
    assert action.step().left_known == 2
    second.retry()
    hands.clock.advance(SECOND)
    hands.fail(second)
    progress = to_its_end(action)
    assert (progress.done, progress.refused) == (1, 1)
    assert progress.first_refusals == {second.id: "it has changed since it was chosen"}
    assert [first.refresh().state, second.refresh().state] == ["queued", "failed"]


def test_an_action_can_be_stopped_and_what_was_done_stays(
    app: App, core: AppCore, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "STEP", 2)
    failed(app, hands, 5)
    action = Bulk(core, bulk.freeze(core, parse("state:failed")), "retry", ANN)
    assert action.step() == (0, 0, 5, False, {}, False)
    assert action.step().done == 2
    action.stop()
    assert action.step()[:4] == (2, 0, 3, True)
    assert action.step().done == 2
    assert states(app).count("failed") == 3
    (row,) = core.backend.actions.newest(10)
    assert (row.done, row.refused) == (2, 0)


def test_refusals_are_counted_and_the_first_are_told_in_words(
    app: App, core: AppCore, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_REFUSALS", 2)
    jobs = failed(app, hands, 4)
    for job in jobs[1:]:
        raw.run(core.backend, "UPDATE dray_jobs SET args = NULL WHERE id = ?", job.id)
    progress = run(core, "state:failed", "retry")
    assert (progress.done, progress.refused) == (1, 3)
    assert set(progress.first_refusals.values()) == {"its arguments were not kept; enqueue it again"}
    assert len(progress.first_refusals) == 2
    (row,) = core.backend.actions.newest(10)
    assert (row.done, row.refused) == (1, 3)


def test_parents_are_retried_before_their_children(
    app: App, core: AppCore, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "STEP", 1)
    parent = app.enqueue("x")
    child = app.enqueue("y", after=[parent])
    hands.fail(parent)
    assert child.refresh().state == "cancelled"
    hands.clock.advance(SECOND)
    progress = run(core, "state:failed state:cancelled", "retry")
    assert [parent.refresh().state, child.refresh().state] == ["queued", "waiting"]
    assert progress.done >= 1


def test_children_are_deleted_before_their_parents(
    app: App, core: AppCore, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "STEP", 1)  # each job in a transaction of its own
    parent = app.enqueue("send")
    children = [app.enqueue("send", after=[parent]) for _ in range(2)]
    children[0].cancel()
    hands.fail(parent)
    hands.clock.advance(SECOND)

    assert run(core, "state:failed state:cancelled", "delete").done == 3


def test_an_action_that_finds_nothing_leaves_a_row(core: AppCore) -> None:
    assert run(core, "task:nope", "delete") == (0, 0, 0, True, {}, False)
    (row,) = core.backend.actions.newest(10)
    assert (row.target, row.done, row.refused) == (*("task:nope state:completed state:failed state:cancelled", 0, 0),)


def test_more_jobs_than_a_person_may_act_on_are_refused_before_any_is_touched(
    app: App, core: AppCore, hands: Hands
) -> None:
    failed(app, hands, 3)
    action = Bulk(core, bulk.freeze(core, parse("")), "retry", ANN, most=2)
    with pytest.raises(ConfigError, match=r"would retry more than 2 jobs, .* nothing was done: narrow the search"):
        action.step()
    assert action.step().is_over
    assert states(app) == ["failed"] * 3
    assert core.backend.actions.newest(10) == []


def test_a_visitor_acts_on_jobs_of_their_queues_alone(app: App, core: AppCore, hands: Hands) -> None:
    failed(app, hands, 2)
    failed(app, hands, 1, queue="mine")
    selection = bulk.freeze(core, parse("state:failed"), queues=frozenset({"mine"}))
    again = Selection.from_token(selection.token(SECRET), SECRET)
    assert again.queues == {"mine"}
    assert bulk.preview(core, again, "retry").count == 1
    assert to_its_end(Bulk(core, again, "retry", ANN)).done == 1
    assert states(app) == ["failed", "failed", "queued"]


def test_a_preview_counts_up_to_a_bound_and_shows_some(
    app: App, core: AppCore, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "COUNTED", 3)
    jobs = failed(app, hands, 4)
    found = bulk.preview(core, bulk.freeze(core, parse("")), "retry")
    assert (found.count, found.is_capped) == (3, True)
    assert found.jobs == jobs[:0:-1]


# Tokens


def chosen() -> Selection:
    search = parse('state:failed error:"a b" since:1h')
    return Selection(search, "01890000-0000-7000-8000-000000000000", 1_800_000_000 * SECOND)


def test_a_selection_comes_back_as_it_was_for_ten_minutes() -> None:
    token = chosen().token(SECRET, now=0)
    for minutes in (0, 10):
        again = Selection.from_token(token, SECRET, now=minutes * MINUTE)
        assert (again.search.text(), again.as_of_id, again.as_of_at) == (
            *(chosen().search.text(), chosen().as_of_id, chosen().as_of_at),
        )
    with pytest.raises(ConfigError, match="older than 10 minutes; choose the jobs again"):
        Selection.from_token(token, SECRET, now=10 * MINUTE + 1)


def test_a_selection_that_was_not_signed_here_is_refused() -> None:
    token = chosen().token(SECRET)
    made, _, signature = token.partition(".")
    other = chosen().token(b"another secret..")
    cut = [made, f"{made}.", f".{signature}", f"{made[:-2]}AA.{signature}"]
    for bad in ("", ".", "a.b", *cut, other, "é.é", "x" * 99_999):
        with pytest.raises(ConfigError, match="was not made here, or has been changed"):
            Selection.from_token(bad, SECRET)


# Files


@pytest.mark.usefixtures("core")
def test_jobs_are_exported_as_csv_that_no_spreadsheet_runs(app: App, core: AppCore, hands: Hands) -> None:
    @app.task(name="login", redact=["password"])
    def login(user: str, password: str) -> None: ...

    login.using(name="=1+1", tags=["a", "b"], priority=-5).enqueue("ann", "hunter2")
    hands.fail(app.enqueue("x", name="+x"), '@sum, "quoted"\nand more')
    text = "".join(export.export(core, "", "csv"))
    assert "hunter2" not in text
    last, first = csv.DictReader(io.StringIO(text, newline=""))
    assert (first["name"], first["priority"], first["tags"]) == ("'=1+1", "-5", "a,b")
    assert json.loads(first["args"]) == {"user": "ann", "password": "***"}
    assert (last["name"], last["state"], last["created_at"][-1]) == ("'+x", "failed", "Z")
    assert "quoted" in last["error"]


@pytest.mark.parametrize("value", ["=a", "+a", "-a", "@a", "\ta", "\ra"])
def test_a_cell_that_could_be_a_formula_is_text(value: str) -> None:
    assert export.cell(value) == f"'{value}"


def test_jobs_are_exported_as_json_lines_page_by_page(
    app: App, core: AppCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_PAGE", 2)
    jobs = [app.enqueue("x", {"n": n}) for n in range(5)]
    raw.run(core.backend, "UPDATE dray_jobs SET args = ? WHERE id = ?", "{", jobs[1].id)
    found = [json.loads(line) for part in export.export(core, "", "jsonl") for line in part.splitlines()]
    assert [row["id"] for row in found] == [job.id for job in jobs[::-1]]
    assert [row["args"] for row in found] == [{"n": 4}, {"n": 3}, {"n": 2}, None, {"n": 0}]
    assert len("".join(export.export(core, "", "jsonl", limit=3)).splitlines()) == 3
    monkeypatch.setattr(export, "ROWS", 4)
    assert len("".join(export.export(core, "", "jsonl", limit=10**9)).splitlines()) == 4
    assert "".join(export.export(core, "", "jsonl", queues=frozenset())) == ""
