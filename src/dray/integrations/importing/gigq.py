"""The jobs of GigQ's SQLite file.

GigQ writes times without a zone, in the local time of its machine. A job that waits for others counts those that are
gone as completed, and waits for ever where one has failed: that is `on_parent_failure="hold"`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from datetime import UTC
from pathlib import Path
from typing import Any

from dray.integrations.importing import entries as read
from dray.integrations.importing.entries import Entry, Past, Unfit, Wishes
from dray.integrations.importing.snapshot import check_sound, columns_of, open_file, read_with_care
from dray.model.bounds import ATTEMPTS_KEPT
from dray.model.carried import Execution, derived_id, recorded
from dray.model.job import Outcome, Reason, State
from dray.model.job_retry import encode_retry
from dray.model.new_job import NewJob
from dray.model.retry import fixed
from dray.model.values import check_name, shown
from dray.model.workflow import ParentPolicy

SYSTEM = "gigq"
_COLUMNS = {
    *("id", "name", "function_name", "function_module", "params", "priority", "dependencies", "max_attempts"),
    *("timeout", "description", "status", "created_at", "updated_at", "attempts", "result", "error", "started_at"),
    *("completed_at", "worker_id"),
}
_LATER = {"pass_parent_results", "retry_delay", "retry_after"}  # an older release has them not
_EXECUTIONS = {"id", "job_id", "worker_id", "status", "started_at", "completed_at", "result", "error"}
_TIMEOUT_S = 300  # what GigQ takes for none
_ENDED = {
    "completed": (State.COMPLETED, None),
    "failed": (State.FAILED, Reason.ERROR),
    "timeout": (State.FAILED, Reason.TIMEOUT),
    "cancelled": (State.CANCELLED, Reason.USER),
}
_OUTCOMES = {"completed": Outcome.COMPLETED, "timeout": Outcome.TIMEOUT, "cancelled": Outcome.CANCELLED}


class GigQ:
    """What a GigQ file holds."""

    system = SYSTEM

    def __init__(self, path: Path, wishes: Wishes) -> None:
        self.place = str(path.resolve())
        self._wishes = wishes
        self._copy = open_file(path)
        try:
            with read_with_care(self.place):
                self._check()
            self._copy.execute("CREATE INDEX dray_executions ON job_executions (job_id)")
        except BaseException:
            self._copy.close()
            raise

    def _check(self) -> None:
        for table, needed, allowed in (
            ("jobs", _COLUMNS, _LATER),
            ("job_executions", _EXECUTIONS, set[str]()),
        ):
            found = set(columns_of(self._copy, table))
            if not found:
                raise read.refuse_schema("GigQ", self.place, f"it has no table {table}")
            if lacking := sorted(needed - found):
                raise read.refuse_schema("GigQ", self.place, f"its table {table} has no column {lacking[0]}")
            if strange := sorted(found - needed - allowed):
                raise read.refuse_schema("GigQ", self.place, f"its table {table} has a column {strange[0]}")
            check_sound(self._copy, self.place, table)

    def close(self) -> None:
        self._copy.close()

    def total(self) -> int:
        return self._copy.execute("SELECT count(*) FROM jobs").fetchone()[0]

    def running(self) -> int:
        return self._copy.execute("SELECT count(*) FROM jobs WHERE status = 'running'").fetchone()[0]

    def entries(self) -> Iterator[Entry]:
        for row in self._copy.execute("SELECT rowid AS number, * FROM jobs ORDER BY rowid"):
            yield self._entry(row)

    def entry(self, number: int) -> Entry:
        return self._entry(
            self._copy.execute("SELECT rowid AS number, * FROM jobs WHERE rowid = ?", (number,)).fetchone()
        )

    def _entry(self, found: sqlite3.Row) -> Entry:
        row: dict[str, Any] = dict.fromkeys(_LATER) | dict(found)
        entry = Entry(row["number"], str(row["id"]), str(row["status"]))
        try:
            self._carry(entry, row)
        except ValueError as error:
            entry.why = str(error)
        return entry

    def _carry(self, entry: Entry, row: Mapping[str, Any]) -> None:
        is_live = entry.state in {"pending", "running"}
        created_at = read.required(row, "created_at", self._wishes.zone)
        entry.id = job_id = _id(entry.key, row)
        if not is_live and entry.state not in _ENDED:
            raise read.unknown_state(row["status"])
        if entry.state == "running" and self._wishes.running != "requeue":
            raise Unfit(read.RUNS)
        past = self._past(entry, row, job_id)
        parents, waits = self._parents(entry, row)
        run_at = self._run_at(row, created_at) if is_live else created_at
        job = self._job(row, job_id, past, parents, run_at)
        result = read.encoded_result(row, "result", entry.lost) if past.state is State.COMPLETED else None
        entry.carried = past.carried(job, created_at, result=result)
        if row["pass_parent_results"] == 1 and is_live:
            entry.lost.append("pass_parent_results: the task gets them if it has a parameter parent_results")
        entry.becomes = past.state or ("waiting" if waits else "scheduled" if run_at > self._wishes.now else "queued")

    def _past(self, entry: Entry, row: Mapping[str, Any], job_id: str) -> Past:
        zone = self._wishes.zone
        executions = self._executions(row)
        # The attempt that runs is not counted: it may never end, and a job needs one to go on.
        attempt = max(0, read.count(row, "attempts", 0) - (entry.state == "running"))
        error = read.message(row["error"])
        said = read.one_line(_error_type(entry.state), error)
        if entry.state not in _ENDED:
            return Past(None, None, attempt, recorded(job_id, executions, attempt), None, None, said)
        state, reason = _ENDED[entry.state]
        attempt = max(attempt, 0 if state is State.CANCELLED else 1)
        started_at = read.instant_if_read(row, "started_at", zone) if attempt else None
        finished_at = read.instant_if_read(row, "completed_at", zone) or read.required(row, "updated_at", zone)
        if state is State.FAILED and not executions:
            executions = [_execution(entry.state, started_at, finished_at, error)]
        record = recorded(job_id, executions, attempt, completed=state is State.COMPLETED)
        return Past(state, reason, attempt, record, started_at, finished_at, said)

    def _job(self, row: Mapping[str, Any], job_id: str, past: Past, parents: tuple[str, ...], run_at: int) -> NewJob:
        seconds = read.number(row, "timeout", _TIMEOUT_S)
        delay = read.count(row, "retry_delay", 0)
        return NewJob(
            id=job_id,
            task=self._task(row),
            queue=self._wishes.queue,
            args=_args(row),
            priority=read.priority(read.number(row, "priority", 0)),
            run_at=run_at,
            max_attempts=max(1, read.count(row, "max_attempts", 3), past.attempt + (past.state is None)),
            timeout=float(seconds if seconds > 0 else _TIMEOUT_S),
            parents=parents,
            on_parent_failure=ParentPolicy.HOLD if parents else ParentPolicy.CANCEL,
            name=read.job_name(row["name"]),
            description=read.description(row["description"]),
            retry=encode_retry(fixed(delay), ()) if delay else None,
            keep_us=past.keep_us(self._wishes.now),
        )

    def _run_at(self, row: Mapping[str, Any], created_at: int) -> int:
        retry_at = read.instant(row, "retry_after", self._wishes.zone)
        return retry_at if retry_at is not None and retry_at > self._wishes.now else created_at

    def _task(self, row: Mapping[str, Any]) -> str:
        names = (f"{row['function_module']}.{row['function_name']}", str(row["function_name"]), str(row["name"]))
        given = next((self._wishes.tasks[name] for name in names if name in self._wishes.tasks), None)
        return check_name("task", given or names[0])

    def _executions(self, row: Mapping[str, Any]) -> list[Execution]:
        """The attempts that have ended, oldest first; the newest, if there are many."""
        found = self._copy.execute(
            "SELECT status, started_at, completed_at, substr(error, 1, 20000) AS error FROM job_executions "
            "WHERE job_id = ? AND status <> 'running' ORDER BY started_at DESC, rowid DESC LIMIT ?",
            (row["id"], ATTEMPTS_KEPT),
        ).fetchall()
        zone = self._wishes.zone
        return [
            _execution(
                str(each["status"]),
                read.instant_if_read(dict(each), "started_at", zone),
                read.instant_if_read(dict(each), "completed_at", zone),
                read.message(each["error"]),
            )
            for each in reversed(found)
        ]

    def _parents(self, entry: Entry, row: Mapping[str, Any]) -> tuple[tuple[str, ...], bool]:
        """The ids here of the jobs that a job runs after, and whether it has to wait for any of them."""
        given = read.decoded(row, "dependencies") or []
        if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
            raise Unfit(f"dependencies {shown(given)} is no list of job ids")
        parents: dict[str, None] = {}
        waits = False
        for key in given:
            if key == entry.key:
                raise Unfit("it runs after itself")
            found = self._copy.execute("SELECT status, created_at FROM jobs WHERE id = ?", (key,)).fetchone()
            if found is None:
                entry.lost.append(f"it ran after job {shown(key)}, which is gone; GigQ takes it for completed")
                continue
            try:
                parents[_id(key, dict(found))] = None
            except Unfit as error:
                raise Unfit(f"it runs after job {key}, which cannot be carried: {error}") from None
            waits |= found["status"] != "completed"
        return tuple(parents), waits


def _id(key: str, row: Mapping[str, Any]) -> str:
    """A job's id here. It is the same in every zone: an import with another one must carry no job twice."""
    return derived_id(SYSTEM, key, read.required(row, "created_at", UTC))


def _execution(status: str, started_at: int | None, finished_at: int | None, error: str | None) -> Execution:
    outcome = _OUTCOMES.get(status, Outcome.ERROR)
    return Execution(outcome, started_at, finished_at, _error_type(status), error)


def _error_type(status: str) -> str | None:
    """GigQ keeps the message of an error and not its type."""
    return "Timeout" if status == "timeout" else None


def _args(row: Mapping[str, Any]) -> str:
    params = read.decoded(row, "params") or {}
    if not isinstance(params, dict):
        raise Unfit(f"params {shown(params)} is no object of arguments by name")
    return read.encoded_args(params)
