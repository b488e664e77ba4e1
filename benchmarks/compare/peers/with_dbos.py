"""DBOS, on SQLite and PostgreSQL. A job is a workflow without steps; many can be enqueued in one transaction."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import sqlalchemy
from dbos import DBOS, DBOSClient

from benchmarks.compare.peers.work import THREADS, URL, Producer, body, chunks, six

if URL.startswith("sqlite") and sqlite3.sqlite_version_info < (3, 42):
    # DBOS uses `unixepoch('subsec')`, which older versions do not have. SQLAlchemy imports the driver when an engine
    # is made.
    import pysqlite3

    sys.modules["sqlite3"] = pysqlite3

_QUEUE = "default"
_ADDRESS = URL.replace("postgresql://", "postgresql+psycopg://")

noop = DBOS.workflow(name="noop")(body)


def prepare() -> None:
    _launch()
    DBOS.register_queue(_QUEUE)
    DBOS.destroy()


@contextmanager
def producer() -> Generator[Producer]:
    client = DBOSClient(system_database_url=_ADDRESS)
    engine = sqlalchemy.create_engine(_ADDRESS)
    job = {"workflow_name": "noop", "queue_name": _QUEUE}

    def each(numbers: Sequence[int]) -> None:
        for number in numbers:
            client.enqueue(job, *six(number))

    def bulk(numbers: Sequence[int]) -> None:
        for chunk in chunks(numbers):
            with engine.begin() as connection:
                for number in chunk:
                    client.enqueue_in_transaction(connection, job, *six(number))

    yield Producer(each, bulk)
    client.destroy()


def work() -> None:
    _launch()
    threading.Event().wait()


def _launch() -> None:
    DBOS(
        config={
            "name": "compare",
            "system_database_url": _ADDRESS,
            "max_executor_threads": THREADS,
            "log_level": "WARNING",
        }
    )
    DBOS.launch()
