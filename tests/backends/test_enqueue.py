"""Enqueueing: what is written reads back, all or nothing, and only once however often it is repeated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dray import codec
from dray.backends import Backend
from dray.backends.store.insert import insert
from dray.errors import DrayError
from dray.instants import DAY, HOUR, SECOND
from dray.model import settlement as model
from dray.model.bounds import ARGS_BYTES
from dray.model.job import CancelResult, Enqueued, Job, Outcome
from dray.model.new_job import MANY, AlikeJobs
from dray.model.workflow import Workflow
from tests import verbs
from tests.backends import beside
from tests.backends.world import World

UNICODE = "naïve ✓ 日本 😀 \u2028\u2029 \x7f ' \" \\ %s ? :name"

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)))
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**100), 2**100)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.sampled_from(["\\u0000", '\\"\\u0000', "\u2028", "\x1f", "\x7f", "😀", "%s", "?1", ":id", "$now"])
)
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner))


# What is written


def test_every_field_reads_back_equal(world: World) -> None:
    now = world.clock.now()
    parent = world.enqueue()
    workflow = Workflow(world.ids.new(), "etl", now)
    new = world.new(
        "report",
        queue="slow",
        args='{"a":[1,2.5,null]}',
        priority=-5,
        run_at=now + HOUR + 1,
        max_attempts=7,
        max_crashes=2,
        timeout=2.5,
        expires_at=now + DAY + 3,
        unique_key="report:42",
        unique_scope="queued",
        unique_us=HOUR,
        parents=(parent,),
        on_parent_failure="hold",
        workflow_id=workflow.id,
        step="extract",
        schedule="nightly",
        slot=now - 1,
        name="Report 42",
        description="All of it",
        tags=("x", "y"),
        headers='{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}',
        retry='{"policy":["fixed",5.0],"on":["builtins.OSError"]}',
        keep_us=3_600_000_000,
        key="acct:7",
    )

    assert world.backend.jobs.enqueue([new], workflow=workflow) == [Enqueued(new.id, duplicate=False)]

    assert world.job(new.id) == Job(
        id=new.id,
        task="report",
        queue="slow",
        state="waiting",
        reason=None,
        priority=-5,
        run_at=now + HOUR + 1,
        args='{"a":[1,2.5,null]}',
        result=None,
        error=None,
        attempt=0,
        max_attempts=7,
        crashes=0,
        max_crashes=2,
        claim=0,
        worker_id=None,
        timeout=2.5,
        expires_at=now + DAY + 3,
        unique_key="report:42",
        unique_lock="report:42",
        unique_until=now + HOUR,
        unique_scope="queued",
        workflow_id=workflow.id,
        step="extract",
        waiting_on=1,
        on_parent_failure="hold",
        fanout_pending=False,
        schedule="nightly",
        slot=now - 1,
        progress=None,
        progress_message=None,
        cancel_requested_at=None,
        name="Report 42",
        description="All of it",
        tags=("x", "y"),
        headers='{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}',
        retry='{"policy":["fixed",5.0],"on":["builtins.OSError"]}',
        keep_us=3_600_000_000,
        key="acct:7",
        created_at=now,
        updated_at=now,
        started_at=None,
        finished_at=None,
    )
    assert world.backend.workflows.get(workflow.id) == (workflow, ({"waiting": 1}, {}))


def test_a_bare_job_is_queued_now_with_the_defaults(world: World) -> None:
    job = world.job(world.enqueue())

    assert (job.state, job.queue, job.args, job.priority, job.run_at) == (
        "queued",
        "default",
        "{}",
        0,
        world.clock.now(),
    )
    assert (job.max_attempts, job.max_crashes, job.timeout, job.expires_at, job.tags) == (3, 3, None, None, ())
    assert (job.unique_key, job.unique_lock, job.unique_scope, job.workflow_id) == (None, None, None, None)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=values)
def test_any_json_value_reads_back_equal(world: World, value: Any) -> None:
    text = codec.encode({"value": value}, limit=ARGS_BYTES)

    job_id = world.enqueue(args=text)

    stored = world.job(job_id).args or ""
    assert stored == text
    assert codec.decode(stored) == {"value": value}


@pytest.mark.parametrize("size", [1_000, 1_024, 1_025, 2_000, 20_000, 250_000])
def test_arguments_of_any_size_reach_lists_and_claims_unchanged(world: World, size: int) -> None:
    filler = (UNICODE * (size // len(UNICODE) + 1))[: size // 2]
    text = codec.encode({"value": filler + "x" * (size - len(filler))}, limit=ARGS_BYTES * 4)
    job_id = world.enqueue(args=text)

    assert world.job(job_id).args == text
    assert [job.args for job in world.backend.jobs.newest()] == [text]
    assert world.claim_one(world.worker()).args == text


def test_text_of_any_script_reads_back_in_every_field(world: World) -> None:
    job_id = world.enqueue(name=UNICODE, description=UNICODE, tags=(UNICODE, "b"), retry=UNICODE, unique_key=UNICODE)

    job = world.job(job_id)
    assert (job.name, job.description, job.retry, job.unique_key) == (UNICODE,) * 4
    assert job.tags == (UNICODE, "b")


def test_text_that_is_no_text_is_refused_with_nothing_written(world: World, url: str) -> None:
    with pytest.raises(DrayError):
        world.backend.jobs.enqueue([world.new(), world.new(description="half a character: \ud83d")])

    assert beside.count(url, "dray_jobs") == 0


# When it may run


def test_a_delay_counts_from_the_databases_time(world: World) -> None:
    job = world.job(world.enqueue(delay_us=5 * SECOND, expires_us=9 * SECOND))

    assert (job.state, job.run_at) == ("scheduled", world.clock.now() + 5 * SECOND)
    assert job.expires_at == world.clock.now() + 9 * SECOND


@pytest.mark.parametrize(
    ("from_now", "state"),
    [(1, "scheduled"), (DAY, "scheduled"), (0, "queued"), (-1, "queued"), (-DAY, "queued")],
)
def test_a_job_is_scheduled_only_if_its_time_is_still_to_come(world: World, from_now: int, state: str) -> None:
    run_at = world.clock.now() + from_now

    job = world.job(world.enqueue(run_at=run_at))

    assert (job.state, job.run_at) == (state, run_at)


def test_an_instant_wins_over_a_delay(world: World) -> None:
    job = world.job(world.enqueue(run_at=world.clock.now(), delay_us=HOUR))

    assert (job.state, job.run_at) == ("queued", world.clock.now())


def test_the_queues_priority_counts_where_the_job_names_none(world: World) -> None:
    world.backend.queues.upsert("mail", 7)

    assert world.job(world.enqueue(queue="mail")).priority == 7
    assert world.job(world.enqueue(queue="mail", priority=0)).priority == 0
    assert world.job(world.enqueue(queue="other")).priority == 0


def test_every_queue_that_was_enqueued_to_is_listed(world: World) -> None:
    world.backend.jobs.enqueue([world.new(queue=name) for name in ("b", "a", "b", "c")])
    world.backend.queues.pause("a")
    world.enqueue(queue="a")

    assert [(queue.name, queue.priority) for queue in world.backend.queues.all()] == [
        ("a", 0),
        ("b", 0),
        ("c", 0),
    ]
    assert world.backend.queues.all()[0].paused_at == world.clock.now()


# All or nothing


def test_five_thousand_jobs_go_in_with_one_call(world: World) -> None:
    jobs = [world.new(args=f'{{"n":{n}}}') for n in range(5_000)]

    answer = world.backend.jobs.enqueue(jobs)

    assert answer == [Enqueued(job.id, duplicate=False) for job in jobs]
    assert world.backend.history.stats(DAY).counts == {"default": {"queued": 5_000}}
    assert [job.args for job in world.backend.jobs.get([job.id for job in jobs[4_990:]])] == [
        job.args for job in jobs[4_990:]
    ]


def test_no_jobs_are_no_work(world: World) -> None:
    assert world.backend.jobs.enqueue([]) == []


def test_one_job_that_cannot_be_stored_keeps_the_whole_batch_out(world: World, url: str) -> None:
    batch = [world.new(queue=f"q{n}", args='"' + "x" * 2_000 + '"') for n in range(50)]
    batch.insert(25, replace(world.new(), id="no id"))
    workflow = Workflow(world.ids.new(), "etl", 0)

    with pytest.raises(DrayError):
        world.backend.jobs.enqueue(batch, workflow=workflow)

    assert beside.count(url, "dray_jobs") == 0
    assert world.backend.queues.all() == []
    assert world.backend.workflows.get(workflow.id) is None


def test_a_queue_is_still_made_after_an_enqueue_that_failed(world: World) -> None:
    with pytest.raises(DrayError):
        world.backend.jobs.enqueue([replace(world.new(queue="mail"), id="no id")])

    world.enqueue(queue="mail")

    assert [queue.name for queue in world.backend.queues.all()] == ["mail"]


# Many alike


def alike(world: World, count: int = 3, **options: Any) -> AlikeJobs:
    args = [f'{{"n":{n}}}' for n in range(count)]
    return AlikeJobs(world.new(**options), world.ids.many(count), args)


def one_by_one(world: World, jobs: AlikeJobs) -> list[Job]:
    """The rows that these jobs have if each is written by itself, under an id of its own, as those are that have
    parents or a unique key."""
    made = [jobs.pattern.like(world.ids.new(), args) for args in jobs.args]
    written = [world.backend.db.write(lambda tx, new=new: insert(tx, [new]))[0].id for new in made]
    return [replace(job, id=job_id) for job, job_id in zip(world.backend.jobs.get(written), jobs.ids, strict=True)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"priority": 7, "max_attempts": 1, "max_crashes": 9, "timeout": 2.5, "queue": "slow"},
        {"delay_us": HOUR},
        {"run_at": 5},
        {"expires_us": HOUR},
        {"expires_at": 7_000_000},
        {"name": UNICODE, "description": "a\tb\nc\rd\\N\\.\b\f\v", "tags": ("a", "b"), "retry": "\\t"},
    ],
    ids=str,
)
@pytest.mark.parametrize("count", [1, 3, MANY])
def test_many_alike_are_written_as_each_by_itself(world: World, options: dict[str, Any], count: int) -> None:
    world.backend.queues.upsert("default", 3)
    jobs = alike(world, count, **options)

    world.backend.jobs.enqueue_alike(jobs)

    assert world.backend.jobs.get(jobs.ids) == one_by_one(world, jobs)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(st.lists(st.dictionaries(texts, values, max_size=3), min_size=1, max_size=5))
def test_the_arguments_of_many_read_back(world: World, given: list[Any]) -> None:
    args = [codec.encode(each, limit=ARGS_BYTES) for each in given]
    jobs = AlikeJobs(world.new(), world.ids.many(len(args)), args)

    world.backend.jobs.enqueue_alike(jobs)

    assert [job.args for job in world.backend.jobs.get(jobs.ids)] == args


def test_large_arguments_of_many_read_back(world: World) -> None:
    args = [f'"{"x" * size}"' for size in (1_021, 1_022, 1_023, 1_024, 200_000)]
    jobs = AlikeJobs(world.new(), world.ids.many(len(args)), args)

    world.backend.jobs.enqueue_alike(jobs)

    assert [job.args for job in world.backend.jobs.get(jobs.ids)] == args


def test_many_that_are_repeated_stay_as_they_are(world: World) -> None:
    jobs = alike(world, 3)
    world.backend.jobs.enqueue_alike(jobs._replace(ids=jobs.ids[:2], args=jobs.args[:2]))
    claim = world.claim_one(world.worker())

    world.backend.jobs.enqueue_alike(jobs)

    assert [job.state for job in world.backend.jobs.get(jobs.ids)] == ["running", "queued", "queued"]
    assert claim.id == jobs.ids[0]


def test_one_that_cannot_be_stored_keeps_many_out(world: World, url: str) -> None:
    jobs = alike(world, 3, queue="new")

    with pytest.raises(DrayError):
        world.backend.jobs.enqueue_alike(jobs._replace(args=[*jobs.args[:2], "\ud800"]))

    assert beside.count(url, "dray_jobs") == 0
    assert world.backend.queues.all() == []


# Repeated


def test_a_repeated_enqueue_leaves_one_job_each(world: World, url: str) -> None:
    parent = world.enqueue()
    jobs = [
        world.new(args='"' + "x" * 3_000 + '"'),
        world.new(unique_key="k"),
        world.new(parents=(parent,)),
        world.new(),
    ]

    first = world.backend.jobs.enqueue(jobs)
    before = world.backend.jobs.newest()
    world.clock.advance(SECOND)
    again = world.backend.jobs.enqueue([*jobs, world.new()])

    assert first == again[:4] == [Enqueued(job.id, duplicate=False) for job in jobs]
    assert [job for job in world.backend.jobs.newest() if job.id != again[4].id] == before
    assert beside.count(url, "dray_edges") == 1


def test_a_repeated_enqueue_leaves_a_job_that_has_ended_since_alone(world: World) -> None:
    new = world.new(unique_key="k")
    world.backend.jobs.enqueue([new])
    worker = world.worker()
    world.complete(worker, world.claim_one(worker), '"done"')

    assert world.backend.jobs.enqueue([new]) == [Enqueued(new.id, duplicate=False)]

    job = world.job(new.id)
    assert (job.state, job.result, job.unique_lock) == ("completed", '"done"', None)


@pytest.fixture(params=["a connection that was used before", "a fresh connection"])
def connection_age(request: pytest.FixtureRequest, backend: Backend) -> None:
    if request.param == "a fresh connection":
        backend.close()


@pytest.mark.usefixtures("connection_age")
def test_a_lost_answer_to_an_enqueue_leaves_one_job(world: World, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [world.new(), world.new(unique_key="k"), world.new(args='"' + "x" * 3_000 + '"')]
    beside.lose_next_answer(world.backend, monkeypatch)

    answer = beside.insist(lambda: world.backend.jobs.enqueue(jobs))

    assert answer == [Enqueued(job.id, duplicate=False) for job in jobs]
    assert beside.count(url, "dray_jobs") == 3


def test_a_lost_answer_to_a_completion_leaves_one_outcome(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id, worker = world.enqueue(), world.worker()
    child = world.enqueue(parents=(job_id,))
    settlement = model.completed(world.claim_one(worker), world.clock.steady(), world.clock.steady(), '"one"')
    beside.lose_next_answer(world.backend, monkeypatch)

    settled = beside.insist(lambda: verbs.settle(world.backend, worker, [settlement]))
    world.backend.graph.fan_out()

    assert (settled.already, settled.stale, settled.locked, settled.refused) == ([job_id], [], [], [])
    job = world.job(job_id)
    assert (job.state, job.result, job.attempt) == ("completed", '"one"', 1)
    assert (world.job(child).state, world.job(child).waiting_on) == ("queued", 0)


def test_a_lost_answer_to_a_failure_leaves_one_attempt(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id, worker = world.enqueue(), world.worker()
    now = world.clock.steady()
    settlement = model.errored(world.claim_one(worker), now, now, Outcome.ERROR, SECOND, "ValueError", "no", None)
    beside.lose_next_answer(world.backend, monkeypatch)

    settled = beside.insist(lambda: verbs.settle(world.backend, worker, [settlement]))

    assert (settled.already, settled.stale) == ([job_id], [])
    assert [(a.claim, a.attempt, a.outcome) for a in world.backend.history.attempts(job_id)] == [(1, 1, "error")]
    job = world.job(job_id)
    assert (job.state, job.attempt, job.run_at) == ("scheduled", 1, world.clock.now() + SECOND)


# Ids


def test_an_id_that_no_job_has_finds_nothing_whatever_it_looks_like(world: World) -> None:
    job_id = world.enqueue()

    assert [job.id for job in world.backend.jobs.get([world.ids.new(), job_id])] == [job_id]
    assert world.backend.jobs.get(["nonsense"]) == []
    assert world.backend.jobs.cancel(["nonsense"]) == {"nonsense": CancelResult.UNKNOWN}
    assert world.backend.jobs.retry(["nonsense"]) == []
    assert world.backend.jobs.delete(["nonsense"]) == []
    assert world.backend.history.attempts("nonsense") == []
