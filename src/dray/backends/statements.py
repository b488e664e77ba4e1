"""The catalogue: every SQL statement Dray runs, by name.

Statements live in `.sql` files as blocks: a `-- name:` line, a line that says what the statement does, for
statements that are applied to many rows a `-- rows:` line with their columns, and the SQL with `:name`
parameters. A database's catalogue is `sql/common/` overlaid with its own folder. What differs between the two
only in spelling is written once, with the words of `_WORDS`. A statement with `dray_{table}` in it is one for any
table: its slots are filled with names out of the database's own catalogue. `checks/statements.py` checks it all.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

from dray.model.job import Job
from dray.model.rollup import THRESHOLDS

Dialect = Literal["sqlite", "postgres"]


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, its parameters rewritten to what the driver takes."""

    name: str
    text: str
    parameters: tuple[str, ...]  # in the order of the placeholders, each once
    columns: tuple[str, ...]  # of the rows it is applied to; empty for a statement that runs once
    order: tuple[int, ...] = ()  # the parameters as the placeholders name them, where these have no numbers

    def bind(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values of the parameters, as the driver takes them."""
        return self.arranged(tuple([values[name] for name in self.parameters]))

    def arranged(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The same, of values in the order of the parameters."""
        return tuple([values[number] for number in self.order]) if self.order else values


_JOB_COLUMNS = ", ".join(f"j.{field.name}" for field in fields(Job))

# What live views show of a job: no arguments, no results.
_LIVE_COLUMNS = """
    j.id, j.claim, j.task, j.queue, $shown_state(j) AS state, j.reason, j.attempt, j.max_attempts, j.worker_id,
    j.error, j.run_at, j.progress, j.progress_message, j.created_at, j.updated_at, j.started_at, j.finished_at,
    j.step, (SELECT w.name FROM dray_workflows AS w WHERE w.id = j.workflow_id) AS workflow"""

# A schedule, in the order of its fields.
_SCHEDULE_COLUMNS = """
    name, task, queue, args, cron, every_us, tz, misfire, misfire_limit, overlap, priority, next_at, last_at,
    created_at, updated_at, paused_at
""".strip()

# What a list is asked for; a filter that is NULL does not matter. The cheapest first: it may be asked of every row.
_FITS = """
    (CAST(:queue AS text) IS NULL OR j.queue = :queue)
    AND (CAST(:task AS text) IS NULL OR j.task = :task)
    AND $in_states(states)
    AND (CAST(:reason AS text) IS NULL OR j.reason = :reason)
    AND (CAST(:workflow_id AS text) IS NULL OR CAST(j.workflow_id AS text) = :workflow_id)
    AND (CAST(:schedule AS text) IS NULL OR j.schedule = :schedule)
    AND (CAST(:tag AS text) IS NULL OR EXISTS (SELECT 1 FROM $tags AS t WHERE t.value = :tag))
    AND ($at(since) IS NULL OR j.created_at >= $at(since))"""

# What a search asks for (`model/sought.py`); again the cheapest first. "IS TRUE" keeps planners from reading an index
# of ids for it: nearly all jobs have an earlier one.
_SOUGHT = """
    ($in_states(states)
        OR (CAST(:outcomes AS text) IS NOT NULL AND j.state || '/' || j.reason $in_texts(outcomes)))
    AND (CAST(:not_outcomes AS text) IS NULL OR j.reason IS NULL
        OR NOT j.state || '/' || j.reason $in_texts(not_outcomes))
    AND (j.id <= :newest) IS TRUE
    AND (CAST(:allowed AS text) IS NULL OR j.queue $in_texts(allowed))
    AND $chosen(j.queue, queue)
    AND $chosen(j.task, task)
    AND $chosen(j.schedule, schedule)
    AND $chosen(j.key, key)
    AND coalesce(j.finished_at, j.created_at) >= $at(since)
    AND coalesce(j.finished_at, j.created_at) < $at(until)
    AND j.created_at >= $at(enqueued_since) AND j.created_at < $at(enqueued_until)
    AND j.attempt >= :attempt_low AND j.attempt <= :attempt_high
    AND $one_of(CAST(j.attempt AS text), attempt)
    AND $one_of(j.reason, reason)
    AND $one_of(j.error_key, error_key)
    AND (CAST(:ran_low AS bigint) IS NULL
        OR CASE j.state WHEN 'running' THEN $now ELSE j.finished_at END - j.started_at >= $span(ran_low))
    AND (CAST(:ran_high AS bigint) IS NULL
        OR CASE j.state WHEN 'running' THEN $now ELSE j.finished_at END - j.started_at <= $span(ran_high))
    AND (CAST(:worker AS text) IS NULL OR $of_worker(worker))
    AND (CAST(:not_worker AS text) IS NULL OR j.worker_id IS NULL OR NOT $of_worker(not_worker))
    AND (CAST(:workflow AS text) IS NULL OR (j.workflow_id IS NOT NULL AND $of_workflow(workflow)))
    AND (CAST(:not_workflow AS text) IS NULL OR j.workflow_id IS NULL OR NOT $of_workflow(not_workflow))
    AND $with(j.tags, tag)
    AND $with(CAST(j.id AS text), id_part)
    AND $with($folded(j.error), error)
    AND (CAST(:texts AS text) IS NULL OR $has_all($hay, texts))
    AND (CAST(:not_texts AS text) IS NULL OR NOT $has_any($hay, not_texts))
    AND (CAST(:args_has AS text) IS NULL OR $has_all($stored_args, args_has))"""

# One of some names, and none of others; with and without * for any text.
_CHOSEN = r"""(CAST(:\2 AS text) IS NULL OR \1 $in_texts(\2) OR $like_any(\1, \2_like))
    AND (CAST(:not_\2 AS text) IS NULL OR \1 IS NULL
        OR NOT (\1 $in_texts(not_\2) OR $like_any(\1, not_\2_like)))"""
_ONE_OF = r"""(CAST(:\2 AS text) IS NULL OR \1 $in_texts(\2))
    AND (CAST(:not_\2 AS text) IS NULL OR \1 IS NULL OR NOT \1 $in_texts(not_\2))"""
# One of some texts is a part of it, and none of others.
_WITH = r"""(CAST(:\2 AS text) IS NULL OR $has_any(\1, \2))
    AND (CAST(:not_\2 AS text) IS NULL OR \1 IS NULL OR NOT $has_any(\1, not_\2))"""
# By its id, a part of it, or its name.
_OF_WORKER = r"""(CAST(j.worker_id AS text) $in_texts(\1)
        OR j.worker_id IN (SELECT w.id FROM dray_workers AS w WHERE w.name $in_texts(\1)
            OR $like_any(w.name, \1_like) OR $has_any(CAST(w.id AS text), \1_part)))"""
_OF_WORKFLOW = r"""(CAST(j.workflow_id AS text) $in_texts(\1)
        OR EXISTS (SELECT 1 FROM dray_workflows AS w WHERE w.id = j.workflow_id
            AND (w.name $in_texts(\1) OR $like_any(w.name, \1_like) OR $has_any(CAST(w.id AS text), \1_part))))"""
# What words without a filter are looked for in, on lines of their own: no search has two lines.
_HAY = "$folded(CAST(j.id AS text) || '\n' || j.task || '\n' || coalesce(j.error, ''))"
_CALL = r"((?:[^(),]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))+)"  # an expression with brackets in it, three deep

# 1: a step that failed or was cancelled, and whose children in the workflow, one at least, all run anyway.
_TOLERATED = """
    CASE WHEN j.state IN ('failed', 'cancelled') THEN (
        SELECT min(CASE WHEN c.on_parent_failure = 'run' THEN 1 ELSE 0 END)
        FROM dray_edges AS e JOIN dray_jobs AS c ON c.id = e.child_id
        WHERE e.parent_id = j.id AND c.workflow_id = j.workflow_id) END"""

# What of a job itself keeps its workflow from being pruned.
_STAYS = """(
    j.finished_at IS NULL OR j.fanout_pending
    OR CASE WHEN j.keep_us IS NOT NULL AND $state_cutoff > $at(never) THEN $kept_until(j) > $utc_now
        ELSE j.finished_at >= $state_cutoff END
    OR (j.unique_lock IS NOT NULL AND j.unique_until > $now)
)"""

# Jobs of a state that ended before this instant go, unless they have a time of their own; `never`: none of them does.
_STATE_CUTOFF = """CASE j.state
        WHEN 'completed' THEN $at(completed) WHEN 'failed' THEN $at(failed) ELSE $at(cancelled) END"""

# Whether a job has a child that is live, failed or cancelled, which asks for its result now or after a retry. The
# edge goes with the job: a child that starts over later would run without it. PostgreSQL's has an OFFSET 0 too, which
# keeps the planner from collecting all such parents while it takes the tables for empty.
_NEEDED = r"""EXISTS (SELECT 1 FROM dray_edges AS e JOIN dray_jobs AS c ON c.id = e.child_id
        WHERE e.parent_id = \1.id AND c.state <> 'completed')"""

# The same of a workflow's job, when the workflow goes whole: its other steps go too, unless one was started over.
_NEEDED_BEYOND = r"""EXISTS (SELECT 1 FROM dray_edges AS e JOIN dray_jobs AS c ON c.id = e.child_id
        WHERE e.parent_id = \1.id AND (c.finished_at IS NULL OR (
            c.state <> 'completed' AND (c.workflow_id IS NULL OR c.workflow_id <> \1.workflow_id))))"""

# How many rows a job has in all tables; of each table no more than `most` are counted.
_ROWS_OF = r"""(1 + (SELECT count(*) FROM (SELECT 1 FROM dray_logs AS l WHERE l.job_id = \1.id LIMIT :most) AS few)
        + (SELECT count(*) FROM (SELECT 1 FROM dray_attempts AS a WHERE a.job_id = \1.id LIMIT :most) AS few)
        + (SELECT count(*) FROM (SELECT 1 FROM dray_edges AS e WHERE e.parent_id = \1.id LIMIT :most) AS few)
        + (SELECT count(*) FROM (SELECT 1 FROM dray_edges AS e WHERE e.child_id = \1.id LIMIT :most) AS few))"""

_HAS_ARGS = """
    (args IS NOT NULL
        OR EXISTS (SELECT 1 FROM dray_payloads AS p WHERE p.job_id = dray_jobs.id AND p.args IS NOT NULL))"""

# The class of a time, as `model/rollup.py` counts it.
_CLASS = " ".join(
    (
        r"CASE WHEN \1 IS NULL THEN NULL",
        *(rf"WHEN \1 < {threshold} THEN {place}" for place, threshold in enumerate(THRESHOLDS)),
        f"ELSE {len(THRESHOLDS)} END",
    )
)

# How long a job that could run had to wait. Of one that ran after others it is not known since when it could. A count
# of at most one, and not EXISTS: PostgreSQL might collect all jobs that run after others.
_WAITED = r"""CASE WHEN (SELECT count(*) FROM (
            SELECT 1 FROM dray_edges AS e WHERE e.child_id = \1.id LIMIT 1) AS parent) = 0
        THEN $microseconds(\1.started_at - \1.run_at) END"""

# The state of a job that can run: with a key it has to take turns.
_READY = "CASE WHEN key IS NULL THEN 'queued' ELSE 'parked' END"

# A job's state as people see it.
_SHOWN_STATE = r"CASE \1.state WHEN 'parked' THEN 'queued' ELSE \1.state END"

# Whether a job is in one of some states, as people see them. Not by its shown state: the planner has no statistics of
# it, takes such jobs for few, and sorts the whole table instead of reading the newest.
_IN_STATES = r"(j.state $in_texts(\1) OR (j.state = 'parked' AND 'queued' $in_texts(\1)))"

# Whether claims from a queue have to mind limits or keys: of the queue, or of a task that has jobs ready in it. The
# first of an index, and not EXISTS: where many jobs have keys, the planner takes them for spread over the table, and
# to see whether a limited task has jobs it read all that was queued, even where there were no limits.
_GATED = r"""((SELECT min(p.task) FROM dray_jobs AS p WHERE p.state = 'parked' AND p.queue = \1) IS NOT NULL
        OR EXISTS (SELECT 1 FROM dray_limits AS l WHERE l.scope = 'queue' AND l.name = \1 AND l.in_force)
        OR EXISTS (SELECT 1 FROM dray_limits AS l WHERE l.scope = 'task' AND l.in_force AND (
            SELECT max(r.priority) FROM dray_jobs AS r
            WHERE r.state = 'queued' AND r.queue = \1 AND r.task = l.name) IS NOT NULL))"""

# How many more jobs of a key may start now by the rules of a task or a queue; a large number: any. What the rules are
# is given as far as it can be: to look them up for each key took as long as to find it.
_KEY_ROOM = r"""$least(
    coalesce(CAST(:\1_key_limit AS integer) - CASE WHEN :\1_key_limit IS NOT NULL THEN (
        SELECT count(*) FROM dray_jobs AS h WHERE h.held AND h.key = \2 AND h.\1 = :\1 AND $is_running(h)) END,
        2147483647),
    coalesce(CASE WHEN :\1_has_key_rate THEN (
        SELECT min(l.most - (SELECT coalesce(sum(s.n), 0) FROM dray_starts AS s
            WHERE s.scope = l.scope AND s.name = l.name AND s.key = \2 AND s.period_us = l.period_us
                AND s.at > $now - $span_of(l.period_us) AND s.at <= $now + $span_of(l.period_us)))
        FROM dray_limits AS l
        WHERE l.scope = '\1' AND l.name = :\1 AND l.kind = 'key_rate' AND l.in_force) END, 2147483647))"""

# `$now` is the time of the statement, not of the transaction: a user's transaction may be open for an hour.
# statement_timestamp() and not clock_timestamp(): a volatile function cannot be compared through an index.
_POSTGRES_INSTANT = r"(timestamptz 'epoch' + CAST(:\1 AS bigint) * interval '1 microsecond')"
# With what LIKE takes for something else escaped.
_POSTGRES_TEXTS = r"""ARRAY(
        SELECT '%' || replace(replace(replace(value, '\\', '\\\\'), '%', '\\%'), '_', '\\_') || '%'
        FROM $texts(\2))"""
_COMMON_WORDS = (
    (r"\$fits\b", _FITS),
    (r"\$sought\b", _SOUGHT),
    (r"\$hay\b", _HAY),
    (r"\$of_worker\((\w+)\)", _OF_WORKER),
    (r"\$of_workflow\((\w+)\)", _OF_WORKFLOW),
    (rf"\$chosen\({_CALL}, (\w+)\)", _CHOSEN),
    (rf"\$one_of\({_CALL}, (\w+)\)", _ONE_OF),
    (rf"\$with\({_CALL}, (\w+)\)", _WITH),
    (r"\$stays\b", _STAYS),
    (r"\$tolerated\b", _TOLERATED),
    (r"\$state_cutoff\b", _STATE_CUTOFF),
    (r"\$rows_of\((\w+)\)", _ROWS_OF),
    (r"\$live_columns\b", _LIVE_COLUMNS),
    (r"\$schedule_columns\b", _SCHEDULE_COLUMNS),
    (r"\$class\((\w+)\)", _CLASS),
    (r"\$waited_us\((\w+)\)", _WAITED),
    (r"\$ready\b", _READY),
    (r"\$shown_state\((\w+)\)", _SHOWN_STATE),
    (r"\$in_states\((\w+)\)", _IN_STATES),
    (r"\$gated\(([\w.:]+)\)", _GATED),
    (r"\$key_room\((\w+), ([\w.]+)\)", _KEY_ROOM),
)
_WORDS: dict[Dialect, tuple[tuple[str, str], ...]] = {
    "sqlite": (
        *_COMMON_WORDS,
        (r"\$needed\((\w+)\)", _NEEDED),
        (r"\$needed_beyond\((\w+)\)", _NEEDED_BEYOND),
        (r"\$stored_args\b", "coalesce(j.args, (SELECT p.args FROM dray_payloads AS p WHERE p.job_id = j.id))"),
        # With what GLOB and LIKE take for something else escaped.
        (
            rf"\$like_any\({_CALL}, (\w+)\)",
            r"""(:\2 IS NOT NULL AND EXISTS (
                SELECT 1 FROM json_each(:\2) AS t
                WHERE \1 GLOB replace(replace(t.value, '[', '[[]'), '?', '[?]')))""",
        ),
        (
            rf"\$has_any\({_CALL}, (\w+)\)",
            r"(:\2 IS NOT NULL AND EXISTS (SELECT 1 FROM json_each(:\2) AS t WHERE instr(\1, t.value) > 0))",
        ),
        (
            rf"\$has_all\({_CALL}, (\w+)\)",
            r"NOT EXISTS (SELECT 1 FROM json_each(:\2) AS t WHERE coalesce(instr(\1, t.value), 0) = 0)",
        ),
        (rf"\$folded\({_CALL}\)", r"lower(\1)"),
        (r"\$kept_until\((\w+)\)", r"(\1.finished_at + \1.keep_us)"),
        (r"\$utc_now\b", ":now"),
        (r"\$now\b", ":now"),
        (r"\$steady\b", ":steady"),
        (r"\$at\((\w+)\)", r":\1"),
        (r"\$span\((\w+)\)", r":\1"),
        (r"\$span_of\(([\w.]+)\)", r"\1"),
        (r"\$least\b", "min"),
        # As below, for a file that was never analyzed.
        (r"\$is_running\((\w+)\)", r"+\1.state = 'running'"),
        (r"\$microseconds\((.+?)\)", r"(\1)"),
        (r"\$in_(ids|texts)\((\w+)\)", r"IN (SELECT value FROM json_each(:\2))"),
        (r"\$in_instants\((\w+)\)", r"IN (SELECT value FROM json_each(:\1))"),
        (r"\$texts\((\w+)\)", r"json_each(:\1)"),
        (r"\$in_picked\b", "IN (SELECT id FROM picked)"),
        (r"\$by_text\((\w+)\)", r"\1"),
        (r"\$job_columns\b", re.sub(r"j\.(args|result)\b", r"coalesce(j.\1, p.\1)", _JOB_COLUMNS)),
        (r"\$jobs\b", "dray_jobs AS j LEFT JOIN dray_payloads AS p ON p.job_id = j.id"),
        (r"\$tags\b", "json_each(j.tags)"),
        (r"\$has_args\b", _HAS_ARGS),
        (r"\$skip_(locked|referred)(_\w)?\b", ""),
        (r"\$for_(share|update)\b", ""),
    ),
    "postgres": (
        *_COMMON_WORDS,
        (r"\$needed\((\w+)\)", f"{_NEEDED[:-1]} OFFSET 0)"),
        (r"\$needed_beyond\((\w+)\)", f"{_NEEDED_BEYOND[:-1]} OFFSET 0)"),
        (r"\$stored_args\b", "j.args"),
        (
            rf"\$like_any\({_CALL}, (\w+)\)",
            r"""\1 LIKE ANY (ARRAY(
                SELECT replace(replace(replace(replace(value, '\\', '\\\\'), '%', '\\%'), '_', '\\_'), '*', '%')
                FROM $texts(\2)))""",
        ),
        (rf"\$has_any\({_CALL}, (\w+)\)", rf"\1 LIKE ANY ({_POSTGRES_TEXTS})"),
        (rf"\$has_all\({_CALL}, (\w+)\)", rf"\1 LIKE ALL ({_POSTGRES_TEXTS})"),
        (rf"\$folded\({_CALL}\)", r'lower(\1 COLLATE "C")'),  # ASCII alone, as SQLite's
        # As the index has it.
        (
            r"\$kept_until\((\w+)\)",
            r"(\1.finished_at AT TIME ZONE 'UTC' + \1.keep_us * interval '1 microsecond')",
        ),
        (r"\$utc_now\b", "($now AT TIME ZONE 'UTC')"),
        (r"\$now\b", "coalesce($at(now), statement_timestamp())"),
        (r"\$steady\b", "coalesce($at(steady), statement_timestamp())"),
        (r"\$at\((\w+)\)", _POSTGRES_INSTANT),
        (r"\$span\((\w+)\)", r"(CAST(:\1 AS bigint) * interval '1 microsecond')"),
        (r"\$span_of\(([\w.]+)\)", r"(\1 * interval '1 microsecond')"),
        (r"\$least\b", "least"),
        # Joined to nothing, so that the planner keeps off the index of running jobs: it took four times as long.
        (r"\$is_running\((\w+)\)", r"\1.state || '' = 'running'"),
        (r"\$microseconds\((.+?)\)", r"(extract(epoch FROM \1) * 1000000)::bigint"),
        # Arrays and not sub-selects: a join lets the planner guess the number of rows, and read the whole table.
        (r"\$in_ids\((\w+)\)", r"= ANY (ARRAY(SELECT value::uuid FROM $texts(\1)))"),
        (r"\$in_texts\((\w+)\)", r"= ANY (ARRAY(SELECT value FROM $texts(\1)))"),
        (
            r"\$in_instants\((\w+)\)",
            r"= ANY (ARRAY(SELECT timestamptz 'epoch' + value::bigint * interval '1 microsecond' FROM $texts(\1)))",
        ),
        (r"\$in_picked\b", "= ANY (ARRAY(SELECT id FROM picked))"),
        (r"\$by_text\((\w+)\)", r'\1 COLLATE "C"'),  # as SQLite and Python order text, whatever the database's locale
        (r"\$texts\((\w+)\)", r"json_array_elements_text(CAST(:\1 AS json))"),
        (r"\$job_columns\b", _JOB_COLUMNS),
        (r"\$jobs\b", "dray_jobs AS j"),
        (r"\$tags\b", "json_array_elements_text(CAST(j.tags AS json))"),
        (r"\$has_args\b", "args IS NOT NULL"),
        (r"\$skip_locked_(\w)\b", r"FOR NO KEY UPDATE OF \1 SKIP LOCKED"),
        (r"\$skip_referred_(\w)\b", r"FOR KEY SHARE OF \1 SKIP LOCKED"),
        (r"\$skip_locked\b", "FOR NO KEY UPDATE SKIP LOCKED"),
        (r"\$for_share\b", "FOR SHARE"),
        (r"\$for_update\b", "FOR UPDATE"),
    ),
}

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_ROWS = re.compile(r"^-- rows: (.+)$")
_TABLE = re.compile(r"\bdray_[a-z]+\b")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")

# These releases take ?1 for a parameter with a name, and warn at each value of each row (gh-117995).
_NUMBERS_WARN = (3, 12) <= sys.version_info < (3, 12, 4)


class Catalogue(dict[str, Statement]):
    """The statements of one database, their tables in a schema where one is named.

    In the statements and not in the session's search_path: behind a pooler a session belongs to no client. Each
    statement is made when it is first asked for: a command needs three of two hundred.
    """

    def __init__(self, dialect: Dialect, schema: str | None = None) -> None:
        super().__init__()
        self._dialect: Dialect = dialect
        self.schema = schema

    def __missing__(self, name: str) -> Statement:
        made = self[name] = self.filled(name, {})
        return made

    def filled(self, name: str, slots: Mapping[str, str]) -> Statement:
        """A statement for one table, its slots filled. `slots` hold names of tables and columns, never values."""
        body = blocks(self._dialect)[name]
        for slot, text in slots.items():
            body = body.replace(f"{{{slot}}}", text)
        return _statement(self._dialect, self.schema, name, body)


@cache
def blocks(dialect: Dialect) -> dict[str, str]:
    """Every statement by name, as it is written. One for any table has `{table}` in it."""
    return {**_folder("common"), **_folder(dialect)}


def sql_files(folder: str, kind: str = "sql") -> list[Path]:
    """The `.sql` files of a folder of this package, by name."""
    found = (Path(__file__).parent / kind / folder).iterdir()
    return sorted((f for f in found if f.name.endswith(".sql")), key=lambda f: f.name)


def _folder(folder: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for file in sql_files(folder):
        _, *parts = _NAME.split(file.read_text(encoding="utf-8"))
        for name, body in zip(parts[::2], parts[1::2], strict=True):
            if name in found:
                raise ValueError(f"statement {name} stands twice in sql/{folder}")
            found[name] = body.strip()
    return found


@lru_cache(1_000)  # a worker has three catalogues of the same database
def _statement(dialect: Dialect, schema: str | None, name: str, body: str) -> Statement:
    columns: tuple[str, ...] = ()
    order: tuple[int, ...] = ()
    lines: list[str] = []
    for line in body.splitlines():
        if found := _ROWS.match(line):
            columns = tuple(found[1].replace(" ", "").split(","))
        elif not line.startswith("--"):
            lines.append(line)
    text = "\n".join(lines).strip().removesuffix(";")
    for word, spelling in _WORDS[dialect]:
        text = re.sub(word, spelling, text)
    if dialect == "postgres":
        parameters = tuple(dict.fromkeys(_PARAMETER.findall(text)))
        text = _PARAMETER.sub(r"%(\1)s", text.replace("%", "%%"))
    else:
        # The columns first: the tuples of a batch are then bound as they come.
        parameters = tuple(dict.fromkeys([*columns, *_PARAMETER.findall(text)]))
        if _NUMBERS_WARN:
            places = tuple(map(parameters.index, _PARAMETER.findall(text)))
            order = () if places == tuple(range(len(parameters))) else places
            text = _PARAMETER.sub("?", text)
        else:
            text = _PARAMETER.sub(lambda match: f"?{parameters.index(match[1]) + 1}", text)
    if schema is not None:
        text = _TABLE.sub(rf'"{schema}".\g<0>', text)
    return Statement(name, text, parameters, columns, order)
