"""What agents do where they may act: each with its row in Actions."""

from __future__ import annotations

from typing import Any

from dray import App
from tests.web.tables import everything
from tests_integrations.mcp.agent import Agent
from tests_integrations.mcp.conftest import seed


def told(agent: Agent) -> list[tuple[Any, ...]]:
    """Returns what was done, oldest first."""
    found = agent.ask("actions", limit=50)["actions"][::-1]
    assert {action["via"] for action in found} <= {"mcp"}
    assert {action["who"] for action in found} <= {"ann (robot)"}
    return [tuple(action[name] for name in ("verb", "kind", "target", "note", "done", "refused")) for action in found]


def work(app: App) -> None:
    app.worker(concurrency=1).run_until_idle()


def test_a_job_that_an_agent_enqueues_runs_and_its_result_is_read(app: App, actor: Agent) -> None:
    made = actor.ask("enqueue", task="shop.add", args={"a": 40}, tags=["x"], priority=7, max_attempts=2, timeout=30)
    job = made["job"]["id"]
    assert made["duplicate"] is False
    assert "No worker is alive" in made["says"][0]
    assert (made["job"]["state"], made["job"]["priority"], made["job"]["tags"]) == ("queued", 7, ["x"])

    work(app)

    assert actor.ask("status", job=job)["job"]["state"] == "completed"
    assert actor.ask("result", job=job)["result"] == 42
    assert told(actor) == [("enqueue", "job", job, "shop.add", 1, 0)]


def test_a_job_can_wait_for_its_time_and_be_unique(app: App, actor: Agent) -> None:
    delayed = actor.ask("enqueue", task="shop.add", args={"a": 1}, delay=60, unique="k")
    timed = actor.ask("enqueue", task="shop.add", args={"a": 1}, run_at="2100-01-01T00:00:00Z")
    again = actor.ask("enqueue", task="shop.add", args={"a": 2}, unique="k")
    assert delayed["job"]["state"] == timed["job"]["state"] == "scheduled"
    assert timed["job"]["run_at"] == "2100-01-01T00:00:00.000000Z"
    assert again["duplicate"] is True
    assert again["job"]["id"] == delayed["job"]["id"]
    assert "nothing was enqueued" in again["note"]


UNFIT: tuple[tuple[dict[str, Any], str], ...] = (
    ({"task": "shop.ad"}, "did you mean shop.add"),
    ({"task": "os.system", "args": {"command": "true"}}, "no task is named 'os.system' here"),
    ({"task": "shop.add"}, "missing 'a'"),
    ({"task": "shop.add", "args": {"a": "one"}}, "args.a"),
    ({"task": "shop.add", "args": {"a": 1, "c": 1}}, "tasks(task='shop.add') shows its arguments"),
    ({"task": "shop.add", "args": [1]}, "args: Input should be a valid dictionary"),
    ({"task": "shop.add", "args": {"a": 1}, "queue": "a\nb"}, "queue name"),
    ({"task": "shop.add", "args": {"a": 1}, "delay": -1}, "delay"),
    ({"task": "shop.add", "args": {"a": 1}, "delay": 1, "run_at": "2100-01-01T00:00:00Z"}, "give only one"),
    ({"task": "shop.add", "args": {"a": 1}, "run_at": "soon"}, "run_at: Input should be a valid datetime"),
    ({"task": "shop.add", "args": {"a": 1}, "tags": ["x" * 500]}, "tag"),
    ({"task": "shop.add", "args": {"a": 1}, "key": "x" * 201}, "key"),
    ({"task": "other.x", "unchecked": True, "args": {"x": "y" * 300_000}}, "args"),
    ({"task": "other.x", "unchecked": True, "args": {"x": "\0"}}, "args.x"),
    ({"task": "\0", "unchecked": True}, "task name"),
)


def test_what_cannot_be_enqueued_is_refused_before_anything_is_written(app: App, actor: Agent) -> None:
    before = everything(app)
    told = [(actor.refused("enqueue", **given), words) for given, words in UNFIT]
    assert not [text for text, words in told if words not in text]
    assert everything(app) == before


def test_a_task_of_other_code_is_enqueued_on_request_and_said_to_be_unchecked(app: App, actor: Agent) -> None:
    made = actor.ask("enqueue", task="other.task", args={"x": 1}, unchecked=True)
    assert "neither its name nor its arguments were checked" in made["note"]


def test_an_agent_gives_jobs_and_steps_their_keys(actor: Agent) -> None:
    made = actor.ask("enqueue", task="shop.add", args={"a": 1}, key="acct:7")
    assert made["job"]["key"] == "acct:7"

    steps = [{"id": "one", "task": "shop.add", "args": {"a": 1}, "key": "acct:8"}]
    ids = actor.ask("enqueue_workflow", name="keyed", steps=steps)["steps"]
    assert actor.ask("job", job=ids["one"])["key"] == "acct:8"


def test_a_workflow_runs_its_steps_in_order_and_passes_results_on(app: App, actor: Agent) -> None:
    steps = [
        {"id": "sum", "task": "shop.total", "after": ["one", "two"]},  # before those that it comes after
        {"id": "one", "task": "shop.add", "args": {"a": 1}},
        {"id": "two", "task": "shop.add", "args": {"a": 2}, "queue": "mail", "max_attempts": 1},
    ]
    made = actor.ask("enqueue_workflow", name="adding up", steps=steps)
    work(app)

    assert made["steps"].keys() == {"sum", "one", "two"}
    assert "No worker is alive" in made["says"][0]
    assert actor.ask("result", job=made["steps"]["sum"])["result"] == 7
    assert actor.ask("workflow", workflow=made["id"])["state"] == "completed"
    assert told(actor)[0][:5] == ("enqueue", "workflow", made["id"], "adding up", 3)


BROKEN: tuple[tuple[list[Any], str], ...] = (
    ([], "at least 1 item"),
    (["shop.add"], "steps.0"),
    ([{"id": "a"}], "steps.0.task: Field required"),
    ([{"task": "shop.add", "args": {"a": 1}, "depends_on": ["a"]}], "steps.0.depends_on"),
    ([{"id": "a", "task": "shop.ad"}], "step 'a': no task is named 'shop.ad' here"),
    ([{"id": "a", "task": "shop.add"}], "step 'a': shop.add: missing 'a'"),
    ([{"id": "a", "task": "shop.add", "args": {"a": 1}}] * 2, "there is a step 'a' in this workflow already"),
    ([{"task": "shop.add", "args": {"a": 1}, "after": ["nowhere"]}], "nowhere"),
    ([{"id": "a", "task": "shop.add", "args": {"a": 1}, "after": ["a"]}], "a"),
    (
        [
            {"id": "a", "task": "shop.add", "args": {"a": 1}, "after": ["b"]},
            {"id": "b", "task": "shop.add", "args": {"a": 1}, "after": ["a"]},
        ],
        "b",
    ),
    ([{"id": "a\nb", "task": "shop.add", "args": {"a": 1}}], "step name"),
    ([{"task": "shop.add", "args": {"a": 1}, "priority": 10**12}], "priority"),
)


def test_a_workflow_that_cannot_run_is_refused_whole(app: App, actor: Agent) -> None:
    before = everything(app)
    told = [(actor.refused("enqueue_workflow", name="w", steps=given), words) for given, words in BROKEN]
    assert not [text for text, words in told if words not in text]
    assert everything(app) == before


def test_jobs_are_cancelled_and_retried_by_their_ids(app: App, actor: Agent) -> None:
    ids = seed(app)
    cancelled = actor.ask("cancel", jobs=[ids["queued"][-8:], ids["completed"]])
    retried = actor.ask("retry", jobs=[ids["queued"], ids["failed"], ids["scheduled"]])

    assert cancelled["cancelled"] == [ids["queued"]]
    assert cancelled["refused"] == {ids["completed"]: "it had ended already"}
    assert sorted(retried["retried"]) == sorted([ids["queued"], ids["failed"]])
    assert "it has not ended" in retried["refused"][ids["scheduled"]]
    assert [row[0:2] + row[4:] for row in told(actor)] == [("cancel", "jobs", 1, 1), ("retry", "jobs", 2, 1)]


def test_one_unknown_job_among_others_stops_all_of_it(app: App, actor: Agent) -> None:
    ids = seed(app)
    before = everything(app)
    assert "find it with `jobs`" in actor.refused(
        "cancel", jobs=[ids["queued"], "01a1ebfa-0000-7000-8000-000000000000"]
    )
    assert "no job's id contains 'zzz'" in actor.refused("retry", jobs=[ids["failed"], "zzz"])
    assert "at least 1 item" in actor.refused("cancel", jobs=[])
    assert "part of several" in actor.refused("cancel", jobs=["-"])
    assert everything(app) == before


def test_all_that_a_search_finds_is_changed_only_if_it_is_as_many_as_expected(app: App, actor: Agent) -> None:
    for number in range(7):
        app.enqueue("shop.charge", {"amount": number})
    work(app)
    before = everything(app)

    refusal = actor.refused("retry_all", search="task:shop.*", expected=5)
    assert "this would retry 7 jobs, not 5; nothing was done" in refusal
    assert "pass expected=7" in refusal
    assert "strict" not in refusal
    assert "expected" in actor.refused("retry_all", search="task:shop.*", expected=True)
    assert "Field required" in actor.refused("retry_all", search="task:shop.*")
    assert "0 jobs" in actor.refused("cancel_all", search="queue:nowhere", expected=1)
    assert everything(app) == before

    assert actor.ask("retry_all", search="task:shop.*", expected=7)["retried"] == 7
    assert actor.ask("cancel_all", search="task:shop.charge", expected=7)["cancelled"] == 7
    assert told(actor) == [
        ("retry", "jobs", "task:shop.* state:failed", None, 7, 0),
        ("cancel", "jobs", "task:shop.charge state:waiting state:scheduled state:queued state:running", None, 7, 0),
    ]


def test_workflows_queues_and_schedules_are_acted_on(app: App, actor: Agent) -> None:
    made = actor.ask("enqueue_workflow", name="w", steps=[{"id": "a", "task": "shop.charge", "args": {"amount": 1}}])
    work(app)
    app.schedule("shop.nightly", "shop.add", every=3600, args={"a": 1})

    assert actor.ask("retry_workflow", workflow=made["id"])["retried"] == 1
    assert actor.ask("cancel_workflow", workflow=made["id"])["cancelled"] == 1
    assert actor.ask("retry_workflow", workflow=made["id"], cancelled=True)["retried"] == 1
    assert actor.ask("pause_queue", queue="default", note="the bank is away")["note"] == ""
    assert actor.ask("pause_queue", queue="default")["note"] == "it was paused already"
    assert actor.ask("pause_queue", queue="new")["note"] == "it has not been used so far"
    assert actor.ask("resume_queue", queue="default")["paused"] is False
    assert actor.ask("pause_schedule", schedule="nightly")["schedule"] == "shop.nightly"
    assert actor.ask("resume_schedule", schedule="nightly")["note"] == ""
    ran = actor.ask("run_schedule", schedule="nightly")
    assert ran["job"]["schedule"] == "shop.nightly"
    assert "`schedules` lists them" in actor.refused("run_schedule", schedule="weekly")
    assert "`workflows` lists them" in actor.refused("cancel_workflow", workflow="zzz")
    assert "queue name" in actor.refused("pause_queue", queue="")

    assert told(actor)[1:] == [
        ("retry", "workflow", made["id"], None, 1, 0),
        ("cancel", "workflow", made["id"], None, 1, 0),
        ("retry", "workflow", made["id"], None, 1, 0),
        ("pause", "queue", "default", "the bank is away", 1, 0),
        ("pause", "queue", "default", None, 0, 1),
        ("pause", "queue", "new", None, 1, 0),
        ("resume", "queue", "default", None, 1, 0),
        ("pause", "schedule", "shop.nightly", None, 1, 0),
        ("resume", "schedule", "shop.nightly", None, 1, 0),
        ("run", "schedule", "shop.nightly", f"job {ran['job']['id']}", 1, 0),
    ]


def test_what_a_client_calls_itself_is_only_text(app: App) -> None:
    rude = Agent(app, write=True, who="bob", client="evil\n\x1b[31m" + "x" * 500)
    rude.ask("pause_queue", queue="default")
    (action,) = rude.ask("actions")["actions"]
    assert action["who"].startswith("bob (evil\\n\\x1b[31mxxx")
    assert len(action["who"]) < 80


def test_a_client_of_an_older_protocol_is_known_by_its_name_too(app: App) -> None:
    old = Agent(app, write=True, client="old robot", mode="legacy")
    assert old.ask("enqueue", task="shop.add", args={"a": 1})["job"]["state"] == "queued"
    assert old.ask("actions")["actions"][0]["who"] == "ann (old robot)"
