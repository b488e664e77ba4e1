"""Who takes part: versions, settings, and what each queue guarantees by default beside its rate.

The guarantees are read from the source and the documentation of the versions pinned here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

StoreName = Literal["SQLite", "PostgreSQL", "Redis"]


@dataclass(frozen=True, slots=True)
class Guarantees:
    """One short cell each."""

    durable: str  # when enqueue returns
    killed: str  # what happens to the job of a worker that is killed by kill -9
    fenced: str  # whether a late worker cannot overwrite the outcome of a newer attempt
    delivery: str


@dataclass(frozen=True, slots=True)
class Entrant:
    """One queue on one store."""

    name: str
    store: StoreName
    module: str  # in benchmarks.compare.peers
    requirements: tuple[str, ...]  # the first names the queue itself
    settings: str
    guarantees: Guarantees
    pause: float = 0.06  # longest pause between two pick-ups, in seconds: the polling interval where it polls
    drain_at_most: int = 1_000_000  # jobs of its drain: fewer for a queue that runs few within the time limit

    @property
    def title(self) -> str:
        return f"{self.name}, {self.store}"


_PSYCOPG = "psycopg[binary,pool]==3.3.8"
_REDIS = "redis[hiredis]==8.1.0"
_HUEY = "huey==3.5.4"
_DRAY = ("-e .[postgres]", _PSYCOPG)
_DRAY_SETTINGS = "`dray worker`: 8 threads"
_HUEY_SETTINGS = "`huey_consumer`: 8 threads"
_DBOS = "dbos==3.4.0"
# Without a limit of threads, DBOS starts the body of every job long before it can record an outcome, and the drain
# would count jobs that are far from done.
_DBOS_SETTINGS = "8 threads (`max_executor_threads`), polls every 1 s (default)"
_DBOS_GUARANTEES = Guarantees(
    "yes", "run again when a worker with its executor id starts (by default any), also when it still runs", "yes",
    "at least once",
)  # fmt: skip
_LILOTA = "lilota==1.4.0"
_LILOTA_SETTINGS = "`LilotaWorker`: one task at a time, polls 0.1 s after each, then up to every 5 s (default)"
_LILOTA_GUARANTEES = Guarantees("yes", "run again after 20 to 30 s", "no", "at least once")
_SNAPSHOTS = "no: Redis snapshots"
_LOST = Guarantees(_SNAPSHOTS, "lost", "-", "at most once")

ENTRANTS = (
    Entrant(
        "Dray", "SQLite", "with_dray", _DRAY, _DRAY_SETTINGS,
        Guarantees("yes", "run again within about 1 s", "yes", "at least once"),
    ),
    Entrant(
        "GigQ", "SQLite", "with_gigq", ("gigq==0.5.1",), "`Worker`: 8 threads, polls every 5 s (default)",
        Guarantees("yes", "run again after the job's timeout (300 s)", "no", "at least once"), pause=5.0,
    ),
    Entrant(
        "litequeue", "SQLite", "with_litequeue", ("litequeue==0.14",),
        "no worker of its own: a loop of `pop` and `done`, one thread, 10 ms when idle",
        Guarantees(
            "not on power loss (synchronous=NORMAL)", "stuck until your code calls `retry_expired`", "yes",
            "at least once, by your code",
        ),
    ),
    Entrant(
        "Huey", "SQLite", "with_huey", (_HUEY,), f"{_HUEY_SETTINGS}, polls after 0.1 s, then up to 10 s (default)",
        Guarantees("yes", "lost", "-", "at most once"), pause=1.0,
    ),
    Entrant(
        "DBOS", "SQLite", "with_dbos", (_DBOS, "pysqlite3-binary==0.5.4.post2"),
        f"{_DBOS_SETTINGS}; on pysqlite3's SQLite 3.51 if Python's is older than 3.42", _DBOS_GUARANTEES, pause=1.0,
    ),
    Entrant(
        "lilota", "SQLite", "with_lilota", (_LILOTA,), _LILOTA_SETTINGS, _LILOTA_GUARANTEES, pause=1.0,
        drain_at_most=1_000,
    ),
    Entrant(
        "Dray", "PostgreSQL", "with_dray", _DRAY, _DRAY_SETTINGS,
        Guarantees("yes", "run again within 15 s", "yes", "at least once"),
    ),
    Entrant(
        "Procrastinate", "PostgreSQL", "with_procrastinate", ("procrastinate==3.10.0", _PSYCOPG),
        "`run_worker`: async task, concurrency 8",
        Guarantees("yes", "stuck until a task of yours retries it", "no", "at least once, by your code"),
    ),
    Entrant(
        "PgQueuer", "PostgreSQL", "with_pgqueuer", ("pgqueuer[asyncpg]==1.6.0", "asyncpg==0.32.0"),
        "asyncpg pool, async task, batches of 100",
        Guarantees("yes", "run again after 30 s", "no", "at least once"),
    ),
    Entrant(
        "oban", "PostgreSQL", "with_oban", ("oban==0.7.0", _PSYCOPG), "async task, 100 at a time",
        Guarantees("yes", "run again after 300 s, also when it still runs", "yes", "at least once"),
    ),
    Entrant(
        "Huey", "PostgreSQL", "with_huey", (_HUEY, _PSYCOPG), _HUEY_SETTINGS,
        Guarantees("yes", "lost", "-", "at most once"),
    ),
    Entrant(
        "DBOS", "PostgreSQL", "with_dbos", (_DBOS, _PSYCOPG), _DBOS_SETTINGS, _DBOS_GUARANTEES, pause=1.0,
    ),
    Entrant(
        "lilota", "PostgreSQL", "with_lilota", (_LILOTA, _PSYCOPG), _LILOTA_SETTINGS, _LILOTA_GUARANTEES,
        pause=1.0, drain_at_most=1_000,
    ),
    Entrant(
        "RQ", "Redis", "with_rq", ("rq==2.12.0", _REDIS), "`Worker`: a process forked for each job (default)",
        Guarantees(_SNAPSHOTS, "marked as failed, not run again", "-", "at most once"),
    ),
    Entrant(
        "Celery", "Redis", "with_celery", ("celery[redis]==5.7.0", _REDIS),
        "prefork, a process for each core (default), no result backend (default)",
        Guarantees(_SNAPSHOTS, "lost; those it prefetched come back after 1 h", "-", "at most once"),
    ),
    Entrant(
        "Dramatiq", "Redis", "with_dramatiq", ("dramatiq[redis]==2.2.1", _REDIS),
        "one process, 8 threads, polls up to every 1 s when idle (default)",
        Guarantees(_SNAPSHOTS, "run again after 60 s", "yes", "at least once"), pause=1.0,
    ),
    Entrant("Huey", "Redis", "with_huey", (_HUEY, _REDIS), _HUEY_SETTINGS, _LOST),
)  # fmt: skip
