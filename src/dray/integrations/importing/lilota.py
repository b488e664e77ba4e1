"""The tasks of lilota's database, in SQLite or PostgreSQL.

lilota makes a new task of every retry and links it to the one before: here such a chain is one job with its attempts.
What a task's registration says (its attempts, its timeout) is written to the row when a worker starts it; for one
that never started, the task here decides.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from datetime import UTC
from typing import Any, NamedTuple, cast

from dray.instants import SECOND
from dray.integrations.importing import entries as read
from dray.integrations.importing.entries import Entry, Past, Unfit, Wishes
from dray.integrations.importing.snapshot import check_sound, columns_of, open_url, place, read_with_care
from dray.model.bounds import LOG_LINES
from dray.model.carried import Execution, derived_id, recorded
from dray.model.job import LogLine, Outcome, Reason, State
from dray.model.new_job import NewJob
from dray.model.values import check_name, shown

SYSTEM = "lilota"
_TASK = (
    *("id", "name", "pid", "status", "run_at", "attempts", "max_attempts", "keep_input", "retried_at"),
    *("previous_task_id", "timeout", "expires_at", "progress_percentage", "start_date_time", "end_date_time"),
    *("input", "output", "error", "locked_by", "locked_at", "version"),
)
_LOG = ("id", "created_at", "level", "logger", "message", "process", "thread", "node_id", "task_id")
_VERSIONS = ("lilota_alembic_version", "alembic_version")
_TABLES = {"lilota_task": _TASK, "lilota_log": _LOG, **dict.fromkeys(_VERSIONS, ("version_num",))}
_LATER = {"keep_input"}
_REVISIONS = {"f5d588b76a5c", "c0874683c11d"}  # of its schema, as lilota 1.0 to 1.4 have it
_CHAIN = 10_000  # attempts that are followed back to the first
_RETRY_S = 5  # lilota waits this long for every attempt that was made
_ENDED = {
    "completed": (State.COMPLETED, None),
    "failed": (State.FAILED, Reason.ERROR),
    "expired": (State.FAILED, Reason.TIMEOUT),
    "cancelled": (State.CANCELLED, Reason.USER),
}
_LIVE = {"created", "scheduled", "running"}
_OUTCOMES = {"completed": Outcome.COMPLETED, "expired": Outcome.TIMEOUT, "cancelled": Outcome.CANCELLED}
# Tasks that are attempts before themselves: no chain of attempts that has an end leads to them.
_IN_CIRCLES = (
    "WITH RECURSIVE reached(id, previous) AS ("
    "SELECT t.id, t.previous_task_id FROM lilota_task AS t "
    "WHERE NOT EXISTS (SELECT 1 FROM lilota_task AS n WHERE n.previous_task_id = t.id) UNION "
    "SELECT p.id, p.previous_task_id FROM reached JOIN lilota_task AS p ON p.id = reached.previous) "
    "SELECT rowid AS number, id, status FROM lilota_task WHERE id NOT IN (SELECT id FROM reached)"
)


class Ending(NamedTuple):
    """What is known of how an attempt ended."""

    finished_at: int | None
    kind: str | None
    message: str | None
    traceback: str | None


class Lilota:
    """What a lilota database holds."""

    system = SYSTEM

    def __init__(self, url: str, wishes: Wishes) -> None:
        self.place = place(url)
        self._wishes = wishes
        self._copy = open_url(url, _TABLES)
        try:
            with read_with_care(self.place):
                self._check()
            self._copy.execute("CREATE INDEX dray_previous ON lilota_task (previous_task_id)")
            self._copy.execute("CREATE INDEX dray_log_task ON lilota_log (task_id)")
            self._copy.execute("CREATE INDEX dray_task_id ON lilota_task (id)")
        except BaseException:
            self._copy.close()
            raise

    def _check(self) -> None:
        for table, needed in (("lilota_task", _TASK), ("lilota_log", _LOG)):
            found = set(columns_of(self._copy, table))
            if not found:
                raise read.refuse_schema("lilota", self.place, f"it has no table {table}")
            if lacking := sorted({*needed} - found - _LATER):
                raise read.refuse_schema("lilota", self.place, f"its table {table} has no column {lacking[0]}")
            if strange := sorted(found - {*needed}):
                raise read.refuse_schema("lilota", self.place, f"its table {table} has a column {strange[0]}")
            check_sound(self._copy, self.place, table)
        revisions = self._revisions()
        if not revisions & _REVISIONS:
            named = shown(min(revisions)) if revisions else "that no table tells"
            raise read.refuse_schema("lilota", self.place, f"its schema has the revision {named}")

    def _revisions(self) -> set[str]:
        """What Alembic has noted; up to lilota 1.1.1 in a table that it may share with an application's."""
        if columns_of(self._copy, "lilota_alembic_version"):
            found = self._copy.execute("SELECT version_num FROM lilota_alembic_version")
        elif columns_of(self._copy, "alembic_version"):
            found = self._copy.execute("SELECT version_num FROM alembic_version")
        else:
            return set()
        return {str(row[0]) for row in found}

    def close(self) -> None:
        self._copy.close()

    def total(self) -> int:
        """Chains of tasks: each is a job."""
        chains = self._copy.execute(
            "SELECT count(*) FROM lilota_task AS t "
            "WHERE NOT EXISTS (SELECT 1 FROM lilota_task AS n WHERE n.previous_task_id = t.id)"
        ).fetchone()[0]
        return chains + len(self._copy.execute(_IN_CIRCLES).fetchall())

    def running(self) -> int:
        found = self._copy.execute("SELECT count(*) FROM lilota_task WHERE status IN ('running', 'scheduled')")
        return found.fetchone()[0]

    def entries(self) -> Iterator[Entry]:
        last = self._copy.execute(
            "SELECT t.rowid AS number, t.* FROM lilota_task AS t "
            "WHERE NOT EXISTS (SELECT 1 FROM lilota_task AS n WHERE n.previous_task_id = t.id) ORDER BY t.rowid"
        )
        for row in last:
            yield self._entry(row)
        for row in self._copy.execute(_IN_CIRCLES):
            why = "it is an attempt before itself, in a circle"
            yield Entry(row["number"], str(row["id"]), str(row["status"]), why=why)

    def entry(self, number: int) -> Entry:
        found = self._copy.execute("SELECT rowid AS number, * FROM lilota_task WHERE rowid = ?", (number,))
        return self._entry(found.fetchone())

    def _entry(self, found: sqlite3.Row) -> Entry:
        row = {"keep_input": 1} | dict(found)
        entry = Entry(row["number"], str(row["id"]), str(row["status"]))
        try:
            self._carry(entry, row)
        except ValueError as error:
            entry.why = str(error)
        return entry

    def _carry(self, entry: Entry, row: Mapping[str, Any]) -> None:
        wishes = self._wishes
        if entry.state not in _LIVE and entry.state not in _ENDED:
            raise read.unknown_state(row["status"])
        if entry.state in {"scheduled", "running"} and wishes.running != "requeue":
            raise Unfit(read.RUNS)
        chain = [*self._before(row), row]
        created_at = read.required(chain[0], "run_at", UTC)
        entry.id = job_id = derived_id(SYSTEM, str(chain[0]["id"]), created_at)
        past = self._past(entry, chain, job_id)
        job = self._job(entry, row, job_id, past)
        is_over = past.state is not None
        entry.carried = past.carried(
            job,
            created_at,
            result=read.encoded_result(row, "output", entry.lost) if past.state is State.COMPLETED else None,
            progress=_progress(row) if is_over else None,
            keeps_args=not is_over or row["input"] is not None or bool(row["keep_input"]),
            logs=self._logs(job_id, chain, past.record.claim + (entry.state not in _ENDED)),
        )
        entry.becomes = past.state or ("scheduled" if (job.run_at or 0) > wishes.now else "queued")

    def _past(self, entry: Entry, chain: list[Mapping[str, Any]], job_id: str) -> Past:
        row = chain[-1]
        attempts = max(1, read.count(row, "attempts", 1))
        if entry.state not in _ENDED:
            executions = [_execution(each) for each in chain[:-1]]
            record = recorded(job_id, executions, attempts - 1)
            return Past(None, None, attempts - 1, record, None, None, _last_error(executions))
        executions = [_execution(each) for each in chain]
        if self._is_retried(entry, row):
            record = recorded(job_id, executions, attempts)
            return Past(None, None, attempts, record, None, None, _last_error(executions))
        state, reason = _ENDED[entry.state]
        started_at = read.instant_if_read(row, "start_date_time", UTC)
        if state is State.CANCELLED and started_at is None:
            executions.pop()
            attempts -= 1
        record = recorded(job_id, executions, attempts, completed=state is State.COMPLETED)
        finished_at = _ending(row).finished_at or self._wishes.now
        return Past(state, reason, attempts, record, started_at, finished_at, _last_error(executions))

    @staticmethod
    def _is_retried(entry: Entry, row: Mapping[str, Any]) -> bool:
        """A failed task with attempts left waits for its leader to make the next one."""
        has_more = read.count(row, "attempts", 1) < read.count(row, "max_attempts", 1)
        return entry.state in {"failed", "expired"} and has_more and row["retried_at"] is None

    def _job(self, entry: Entry, row: Mapping[str, Any], job_id: str, past: Past) -> NewJob:
        wishes, name = self._wishes, str(row["name"])
        task = check_name("task", wishes.tasks.get(name, name))
        most = max(1, read.count(row, "max_attempts", 1))
        timeout: float | None = read.count(row, "timeout", 0) or None
        if entry.state == "created" and past.attempt == 0:
            said = wishes.known.options(task) or {}
            most, timeout = said.get("max_attempts", most), said.get("timeout", timeout)
        run_at = read.required(row, "run_at", UTC)
        if past.state is None and entry.state in _ENDED:
            run_at = (_ending(row).finished_at or wishes.now) + _RETRY_S * SECOND * past.attempt
        return NewJob(
            id=job_id,
            task=task,
            queue=wishes.queue,
            args=self._args(row, task),
            priority=0,
            run_at=run_at,
            max_attempts=max(most, past.attempt + (past.state is None)),
            timeout=timeout and float(timeout),
            keep_us=past.keep_us(wishes.now),
        )

    def _before(self, row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The attempts before a task, oldest first, as far as they are still there."""
        chain: list[Mapping[str, Any]] = []
        seen = {row["id"]}
        previous = row["previous_task_id"]
        while previous is not None and previous not in seen and len(chain) < _CHAIN:
            seen.add(previous)
            found = self._copy.execute("SELECT * FROM lilota_task WHERE id = ?", (previous,)).fetchone()
            if found is None:
                break
            chain.insert(0, dict(found))
            previous = found["previous_task_id"]
        return chain

    def _args(self, row: Mapping[str, Any], task: str) -> str:
        """lilota hands its whole input to one parameter, whose name no row says."""
        value = read.decoded(row, "input")
        if value is None:
            return "{}"
        names = self._wishes.known.arguments(task)
        if names is None or len(names) == 1:
            return read.encoded_args({names[0] if names else self._wishes.argument: value})
        if not isinstance(value, dict):
            raise Unfit(f"its input is no object, and the task {task} here takes {len(names)} arguments")
        return read.encoded_args(cast("dict[str, Any]", value))

    def _logs(self, job_id: str, chain: list[Mapping[str, Any]], newest: int) -> tuple[LogLine, ...]:
        lines: list[LogLine] = []
        for place_in_chain, each in enumerate(chain):
            claim = max(1, newest - len(chain) + place_in_chain + 1)
            found = self._copy.execute(
                "SELECT created_at, level, logger, substr(message, 1, 20000) AS message FROM lilota_log "
                "WHERE task_id = ? ORDER BY id DESC LIMIT ?",
                (each["id"], LOG_LINES),
            ).fetchall()
            for line in reversed(found):
                at = read.instant_if_read(dict(line), "created_at", UTC) or self._wishes.now
                words = (read.log_text(line["level"])[:200], read.log_text(line["logger"])[:200])
                lines.append(LogLine(job_id, claim, at, *words, read.log_text(line["message"])))
        return tuple(lines[-LOG_LINES:])


def _execution(row: Mapping[str, Any]) -> Execution:
    outcome, ending = _OUTCOMES.get(str(row["status"]), Outcome.ERROR), _ending(row)
    started_at = read.instant_if_read(row, "start_date_time", UTC)
    return Execution(outcome, started_at, ending.finished_at, ending.kind, ending.message, ending.traceback)


def _last_error(executions: list[Execution]) -> str | None:
    return read.one_line(executions[-1].error_type, executions[-1].message) if executions else None


def _progress(row: Mapping[str, Any]) -> float:
    return float(min(100, max(0, read.number(row, "progress_percentage", 0))))


def _ending(row: Mapping[str, Any]) -> Ending:
    ended_at = read.instant_if_read(row, "end_date_time", UTC) or read.instant_if_read(row, "expires_at", UTC)
    try:
        error = read.decoded(row, "error")
    except Unfit:
        error = row["error"]  # its text tells more than nothing
    if str(row["status"]) == "expired":
        return Ending(ended_at, "Timeout", "the task ran into its timeout", None)
    if not isinstance(error, dict):
        return Ending(ended_at, None, None if error is None else read.message(error), None)
    found = cast("dict[str, Any]", error)
    kind = found.get("type")
    return Ending(
        ended_at,
        read.label(kind, 200) if isinstance(kind, str) else None,
        read.message(found.get("message")),
        read.trace(found.get("traceback")),
    )
