"""Limits, rates and turns over several worker processes, judged by what their bodies have recorded.

A body's interval is taken from inside it, by one clock for all processes: its first line and its last one. That of a
body whose worker was killed ends when the signal was sent. So two intervals that overlap are two bodies that ran at
the same time, and no moment between two looks is missed.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean, median
from typing import NamedTuple

from dray.app_interface import core_of
from dray.instants import SECOND
from dray.model.job import Job
from dray.model.new_job import NewJob
from tests.processes import apps_gated
from tests.processes.harness import Fleet, Process, side_by_side
from tests.processes.ledger import Entry
from tests.processes.places import Together, on_both

IS_LONG = "DRAY_SOAK_SECONDS" in os.environ
SECONDS = float(os.environ.get("DRAY_SOAK_SECONDS", "4"))
PROCESSES, KILLS = (8, 100) if IS_LONG else (4, 8)
LEASE = 1.0
KEYS = ("a", "b", "c", "d", "e")
BACKLOG = {"default": 120, "single": 60, "api": 20}  # jobs that are kept waiting while workers are killed

# Bodies, by what they have recorded


class Interval(NamedTuple):
    label: str
    key: str
    began: float
    ended: float
    attempt: int
    pid: int


def intervals(fleet: Fleet, killed_at: Mapping[int, float], *, pid: int | None = None) -> list[Interval]:
    """Of all bodies so far, or those in one process. One that still runs has no end yet."""
    open_: dict[tuple[str, int, int], Entry] = {}
    found: list[Interval] = []
    for entry in fleet.ledger.entries():
        if pid not in {None, entry.pid} or entry.what == "claimed":
            continue
        body = entry.label, entry.attempt, entry.pid
        if entry.what == "start":
            assert body not in open_, f"attempt {entry.attempt} of {entry.label} has two bodies"
            open_[body] = entry
        else:
            found.append(_interval(open_.pop(body), entry.at))
    return found + [_interval(each, killed_at.get(each.pid, float("inf"))) for each in open_.values()]


def _interval(start: Entry, ended: float) -> Interval:
    return Interval(start.label, start.more, start.at, ended, start.attempt, start.pid)


def most_at_once(some: Iterable[Interval]) -> int:
    """The largest number that ran at the same time."""
    steps = sorted(step for each in some for step in ((each.began, 1), (each.ended, -1)))
    return max(itertools.accumulate(change for _, change in steps), default=0)


def most_by_key(some: Iterable[Interval]) -> dict[str, int]:
    ranked = sorted(some, key=lambda each: each.key)
    return {key: most_at_once(part) for key, part in itertools.groupby(ranked, key=lambda each: each.key)}


def died_with(fleet: Fleet) -> dict[tuple[str, int], int]:
    """The pid of the worker that was killed under each attempt that crashed, by the job's label and the attempt."""
    crashed = fleet.sql(
        "SELECT j.args, a.attempt, w.pid FROM dray_attempts AS a JOIN dray_jobs AS j ON j.id = a.job_id "
        "JOIN dray_workers AS w ON w.id = a.worker_id WHERE a.outcome = 'crashed'"
    )
    return {(json.loads(args)["label"], attempt): pid for args, attempt, pid in crashed}


def cut_off(each: Interval, workers: Mapping[tuple[str, int], int], killed_at: Mapping[int, float]) -> Interval:
    """A job that was lost with a worker runs in a child process the next time, which ends with its worker."""
    if each.ended < float("inf"):
        return each
    return each._replace(ended=killed_at.get(workers.get((each.label, each.attempt), each.pid), float("inf")))


def overlapping(some: Iterable[Interval]) -> list[tuple[Interval, Interval]]:
    """Bodies of one key that ran at the same time."""
    ranked = sorted((each for each in some if each.key), key=lambda each: (each.key, each.began))
    return [(one, two) for one, two in itertools.pairwise(ranked) if one.key == two.key and two.began < one.ended]


def enqueue(fleet: Fleet, task: str, args: Sequence[Mapping[str, object]], **using: object) -> list[str]:
    """As a producer that has the code would; `using` may hold a function of the arguments for each option."""
    made = [
        NewJob(
            id=core_of(fleet.app).new_id(),
            task=f"{apps_gated.NAME}.{task}",
            args=json.dumps(each),
            **{name: value(each) if callable(value) else value for name, value in using.items()},  # pyright: ignore[reportArgumentType]
        )
        for each in args
    ]
    return [each.id for each in core_of(fleet.app).backend.jobs.enqueue(made)]


def jobs(fleet: Fleet, ids: Sequence[str]) -> list[Job]:
    return core_of(fleet.app).backend.jobs.get(ids)


def start(fleet: Fleet, weakened: str = "", **options: object) -> Process:
    environment = {apps_gated.WEAKENED: weakened}
    return fleet.start(apps_gated.NAME, environment=environment, lease=LEASE, **options)


# Never over a limit


def test_no_limit_is_ever_exceeded_while_workers_are_killed_and_stopped(fleets: list[Fleet]) -> None:
    side_by_side(fleets, storm)


def storm(fleet: Fleet) -> None:
    """Half of the workers serve keys, a limit of a task, and a queue with a limit and a rate; the others a queue in
    which each job takes the place of another."""
    rng = random.Random(16)
    numbers = itertools.count()
    fleet.app.queue("api", limit=3, rate="40/s")
    queues = [["default", "api"] if number % 2 else ["single"] for number in range(PROCESSES)]

    def launch(number: int) -> Process:
        return fleet.launch(apps_gated.NAME, lease=LEASE, concurrency=4, queues=queues[number])

    workers = [launch(number) for number in range(PROCESSES)]
    fleet.until(lambda: len(fleet.live_workers()) == PROCESSES, "all workers")
    killed_at: dict[int, float] = {}
    ids: list[str] = []
    for number in range(KILLS):
        ids += top_up(fleet, rng, numbers)
        time.sleep(rng.uniform(0.2, 1.2) * SECONDS / KILLS)
        at, stopped = rng.sample(range(PROCESSES), 2)
        if number % 8 == 4:
            fleet.still(workers[stopped])
            time.sleep(LEASE * 1.5)  # its jobs are its own: it lives
            workers[stopped].go_on()
        elif rng.random() < 0.4:
            fleet.still(workers[stopped])
            time.sleep(rng.uniform(0.05, 0.3))
            workers[stopped].go_on()
        if number % 2:  # anywhere at all is not enough: on a busy machine no kill may meet a body
            while (found := stopped_in_a_body(fleet, rng.choice(workers))) is None:
                ids += top_up(fleet, rng, numbers)
            at = workers.index(found)
        killed_at[workers[at].pid] = time.monotonic()
        workers[at].kill()
        workers[at] = launch(at)
    fleet.until(lambda: fleet.states() == {"completed": len(ids)}, "all jobs to complete", seconds=SECONDS + 90)

    some = [cut_off(each, died_with(fleet), killed_at) for each in intervals(fleet, killed_at)]
    by_key = most_by_key(some)
    assert by_key.pop("") == 4  # no more, and they ran at the same time
    of_queue = most_at_once(each for each in some if each.key in {"call", "ping"})
    found = by_key.pop("single"), by_key.pop("call"), by_key.pop("ping"), of_queue
    assert all(most <= limit for most, limit in zip(found, (3, 2, 3, 3), strict=True)), found
    assert not IS_LONG or found[::3] == (3, 3)
    claimed = sorted(entry.more for entry in fleet.ledger.entries() if entry.what == "claimed")
    assert most_in_a_window(claimed, SECOND) <= 40
    assert by_key == dict.fromkeys(KEYS, 1), (overlapping(some), killed_at)
    assert {each.label for each in some} == {str(number) for number in range(next(numbers))}
    cut_short = {each.ended for each in some} & set(killed_at.values())
    assert cut_short, "no worker was killed while it ran a body"
    print(f"{len(some)} bodies, {len(killed_at)} kills, of which {len(cut_short)} cut bodies short")
    for worker in workers:
        fleet.until(lambda: fleet.worker_of(worker), "the last ones to be up")  # noqa: B023
        assert worker.end() == 0
    fleet.audit()


def stopped_in_a_body(fleet: Fleet, worker: Process) -> Process | None:
    """The worker, stopped in the middle of a body; None: it was not in one, and goes on."""
    fleet.still(worker)
    if any(each.ended == float("inf") for each in intervals(fleet, {}, pid=worker.pid)):
        return worker
    worker.go_on()
    return None


def top_up(fleet: Fleet, rng: random.Random, numbers: Iterable[int]) -> list[str]:
    """Keeps all tasks busy: each key at two priorities, and a third of the jobs fail at first."""
    ready = "SELECT queue, count(*) FROM dray_jobs WHERE state IN ('queued', 'parked') GROUP BY queue"
    there = dict[str, int](fleet.sql(ready))
    args = {
        queue: [
            {"label": str(number), "seconds": rng.uniform(0.005, 0.08), "fails": max(0, rng.randrange(3) - 1)}
            for number in itertools.islice(numbers, max(0, most - there.get(queue, 0)))
        ]
        for queue, most in BACKLOG.items()
    }
    keyed = [{**each, "key": rng.choice(KEYS)} for each in args["default"][::2]]
    many = {"max_attempts": apps_gated.MANY, "max_crashes": apps_gated.MANY}
    return [
        *enqueue(fleet, "alone", keyed, key=_key_of, priority=_drawn(rng), **many),
        *enqueue(fleet, "four", args["default"][1::2], **many),
        *enqueue(fleet, "single", args["single"], queue="single", **many),
        *enqueue(fleet, "call", args["api"][::2], queue="api", **many),
        *enqueue(fleet, "ping", args["api"][1::2], queue="api", **many),
    ]


def _key_of(args: Mapping[str, str]) -> str:
    return args["key"]


def _tenant_of(args: Mapping[str, str]) -> str:
    return args["tenant"]


def _drawn(rng: random.Random) -> Callable[[object], int]:
    return lambda _: rng.choice((0, 5))


# The controls: what the test above would see if claims did not lock what they count, or did not count again


def test_without_the_lock_of_a_claim_limits_are_exceeded(postgres_yard: Fleet) -> None:
    is_exceeded_by(postgres_yard, "no lock")


def test_with_what_was_counted_before_the_lock_limits_are_exceeded(postgres_yard: Fleet) -> None:
    is_exceeded_by(postgres_yard, "stale count")


def is_exceeded_by(fleet: Fleet, weakened: str) -> None:
    rng, numbers = random.Random(16), itertools.count()
    workers = [start(fleet, weakened, concurrency=4) for _ in range(3)]

    def is_exceeded() -> bool:
        top_up(fleet, rng, numbers)
        by_key = most_by_key(intervals(fleet, {}))
        return any(most > (1 if key in KEYS else 4) for key, most in by_key.items())

    fleet.until(is_exceeded, "a limit to be exceeded", seconds=60)
    for worker in workers:
        worker.kill()


# Slots come back


def is_decided(took: list[float], bound: float) -> bool:
    """Two of three tries say whether it is in time."""
    return max(sum(each <= bound for each in took), sum(each > bound for each in took)) >= 2


def test_a_killed_worker_gives_its_slot_back_in_time(fleets: list[Fleet]) -> None:
    side_by_side(fleets, back_in_time)


def back_in_time(fleet: Fleet) -> None:
    """Two seconds on SQLite, the lease and two seconds on PostgreSQL. Of three, on a busy machine one may be late."""
    bound = 2.0 if fleet.is_sqlite else LEASE + 2
    took: list[float] = []
    victim = start(fleet, concurrency=1)
    while not is_decided(took, bound):
        here, next_ = f"here {len(took)}", f"next {len(took)}"
        args = [{"label": label, "key": "k", "path": str(fleet.folder / label)} for label in (here, next_)]
        (fleet.folder / next_).touch()
        enqueue(fleet, "until_there", args[:1], key="k")
        fleet.until(lambda: fleet.ledger.starts(here), "the first attempt")  # noqa: B023
        waiting = enqueue(fleet, "until_there", args[1:], key="k")
        successor = start(fleet, concurrency=1)
        killed_at = victim.kill()
        (began,) = fleet.until(lambda: fleet.ledger.starts(next_), "the job that has waited")  # noqa: B023
        took.append(began.at - killed_at)
        fleet.until(lambda: not fleet.sql("SELECT 1 FROM dray_jobs WHERE state <> 'completed'"), "all to end")
        assert [job.state for job in jobs(fleet, waiting)] == ["completed"]
        victim = successor
    assert median(took) <= bound, took
    fleet.audit()


def test_a_job_that_waits_for_a_slot_of_another_worker_starts_when_that_one_is_free(together: Together) -> None:
    together.wait(woken)


@on_both
def woken(fleet: Fleet) -> None:
    """Of another worker, and in another queue: nobody but the limit connects them. Not by the poll each 5 s."""
    bound = 1.0
    workers = [start(fleet, concurrency=1, queues=[queue]) for queue in ("left", "right")]
    took: list[float] = []
    while not is_decided(took, bound):
        left, right = (f"{queue} {len(took)}" for queue in ("left", "right"))
        (fleet.folder / right).touch()
        for label, queue in ((left, "left"), (right, "right")):
            args = {"label": label, "key": queue, "path": str(fleet.folder / label)}
            enqueue(fleet, "until_there", [args], key=queue, queue=queue)
            fleet.until(lambda: fleet.ledger.starts(left), "the first job")  # noqa: B023
        is_passed_over(fleet, right, "right")
        assert fleet.ledger.starts(right) == []
        (fleet.folder / left).touch()
        (began,) = fleet.until(lambda: fleet.ledger.starts(right), "the second job")  # noqa: B023
        (ended,) = fleet.ledger.ends(left)
        assert began.at >= ended.at
        took.append(began.at - ended.at)
    assert median(took) <= bound, took
    for worker in workers:
        assert worker.end() == 0
    fleet.audit()


def is_passed_over(fleet: Fleet, label: str, queue: str) -> None:
    """Waits until a worker has looked at a queue twice and left this job where it is: it has run what comes after."""
    for time_ in ("once", "twice"):
        args = {"label": f"{label} {time_}", "seconds": 0, "fails": 0}
        later = enqueue(fleet, "four", [args], queue=queue, priority=-1)
        fleet.until(lambda: [job.state for job in jobs(fleet, later)] == ["completed"], "what comes after")  # noqa: B023


# Rates


def test_no_more_start_in_any_second_than_the_rate_allows_however_many_workers_there_are(together: Together) -> None:
    together.wait(paced)


@on_both
def paced(fleet: Fleet) -> None:
    rate, seconds = 40, SECONDS if IS_LONG else 2.5
    workers = [start(fleet, concurrency=4) for _ in range(2)]
    count = int(rate * seconds)
    enqueue(fleet, "paced", [{"label": str(number)} for number in range(count)])
    fleet.until(lambda: len(fleet.ledger.starts()) == count, "all of them", seconds=seconds + 30)

    claimed = sorted(entry.more for entry in fleet.ledger.starts())
    assert len({entry.pid for entry in fleet.ledger.starts()}) == 2
    assert most_in_a_window(claimed, SECOND) <= rate
    # By how much later than a second each start is repeated. The whole time would not tell: starts come in bursts, so
    # the last second of a short run is used in part or hardly at all.
    repeated = [after - before for before, after in zip(claimed, claimed[rate:], strict=False)]
    used = SECOND / mean(repeated)
    print(f"{'SQLite' if fleet.is_sqlite else 'PostgreSQL'}: {used:.1%} of {rate}/s used")
    if IS_LONG:
        assert used >= 0.97
    for worker in workers:
        assert worker.end() == 0
    fleet.audit()


def most_in_a_window(times: Sequence[int], length: int) -> int:
    """The largest number in any window of a length; times are sorted."""
    return max(bisect_left(times, at + length) - first for first, at in enumerate(times))


def test_a_worker_that_is_killed_between_claim_and_start_spends_one_start_and_no_more(together: Together) -> None:
    together.wait(killed_at_its_claim)


@on_both
def killed_at_its_claim(fleet: Fleet) -> None:
    """Two starts in four seconds: one is lost with the worker, the second is there at once, the third is not."""
    (first,) = enqueue(fleet, "slowly", [{"label": "first"}], max_crashes=9, max_attempts=9)
    victim = fleet.launch(
        apps_gated.NAME, environment={apps_gated.WEAKENED: "dies when it has claimed"}, lease=LEASE, concurrency=1
    )
    assert victim.wait() < 0
    (lost,) = jobs(fleet, [first])
    assert (lost.state, lost.attempt) == ("running", 1)
    assert lost.started_at is not None
    enqueue(fleet, "slowly", [{"label": "second"}, {"label": "third"}])
    worker = start(fleet, concurrency=4)
    fleet.until(lambda: len(fleet.ledger.starts()) == 3, "all of them", seconds=60)

    claimed = sorted(entry.more for entry in fleet.ledger.starts())
    assert claimed[0] - lost.started_at < 4 * SECOND <= claimed[1] - lost.started_at
    assert claimed[2] - claimed[0] >= 4 * SECOND
    # On time, and not by the poll each 5 s.
    assert claimed[1] - lost.started_at < 6 * SECOND
    assert worker.end() == 0
    fleet.audit()


# Turns


def test_light_tenants_do_not_wait_for_a_heavy_one_and_all_that_wait_get_the_same(together: Together) -> None:
    together.wait(tenants)


@on_both
def tenants(fleet: Fleet) -> None:
    """Counted in starts: while a light tenant's job waits, others start no more often than there are tenants."""
    slots, lights, body = 4, 100, 0.005
    heavy = [{"label": f"heavy {n}", "tenant": "heavy", "seconds": body} for n in range(1_500)]
    enqueue(fleet, "tenanted", heavy, key="heavy")
    worker = start(fleet, concurrency=slots)
    fleet.until(lambda: len(fleet.ledger.starts()) > 20, "the heavy one to be under way")
    enqueued_at: dict[str, float] = {}
    for number in range(lights):
        label = f"light {number}"
        args = {"label": label, "tenant": label, "seconds": body}
        enqueue(fleet, "tenanted", [args], key=label)
        enqueued_at[label] = time.monotonic()  # now: a busy machine may take long to commit it
        time.sleep(body)
    fleet.until(lambda: lights_started(fleet) == set(enqueued_at), "all light ones")
    starts = fleet.ledger.starts()
    waited = {e.label: e.at - enqueued_at[e.label] for e in starts if e.label in enqueued_at}
    before = [
        sum(enqueued_at[each.label] < e.at < each.at for e in starts) for each in starts if each.label in enqueued_at
    ]
    assert sorted(before)[int(lights * 0.99) - 1] <= lights  # first in, first out, it would be 1,500
    print(f"light tenants waited p50 {sorted(waited.values())[lights // 2] * 1_000:.1f} ms")
    assert worker.end() == 0
    even_shares(fleet, slots, body)


def lights_started(fleet: Fleet) -> set[str]:
    return {e.label for e in fleet.ledger.starts() if e.label.startswith("light")}


def even_shares(fleet: Fleet, slots: int, body: float) -> None:
    """Twenty tenants, of which each has more to do than the one before, and the heavy one."""
    names = [*(f"tenant {number:02}" for number in range(20)), "heavy"]
    args = [
        {"label": f"{name}, {n}", "tenant": name, "seconds": body}
        for number, name in enumerate(names)
        for n in range(90 + 5 * number)
    ]
    enqueue(fleet, "tenanted", args, key=_tenant_of)
    before = len(fleet.ledger.starts())
    workers = [start(fleet, concurrency=slots) for _ in range(2)]
    fleet.until(lambda: len(fleet.ledger.starts()) >= before + 1_260, "sixty of each", seconds=60)
    for worker in workers:
        worker.kill()
    # Within a tenth. At the end each worker is somewhere in its round of the tenants, with a few jobs claimed ahead:
    # of thirty each, that could be as much.
    counts = Counter(entry.more for entry in fleet.ledger.starts()[before : before + 1_260])
    assert set(counts) == set(names)
    assert 54 <= min(counts.values()) <= max(counts.values()) <= 66, counts


TOGETHER = (woken, paced, killed_at_its_claim, tenants)
