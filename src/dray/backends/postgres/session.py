"""Named statements on a PostgreSQL connection."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Collection, Container, Mapping, Sequence
from functools import cache, lru_cache, partial
from itertools import groupby, starmap
from typing import Any, Protocol, cast

import psycopg
from psycopg.abc import QueryNoTemplate
from psycopg.pq import Format
from psycopg.rows import tuple_row

from dray.backends import rows
from dray.backends.database import ALL_LIMITS, FIRST_ID, Claimed, Later, Row, Session
from dray.backends.postgres import adapt
from dray.backends.postgres.adapt import adapt_anew
from dray.backends.postgres.tables import PostgresTables
from dray.backends.rows import SettledRow, SettlementRow, Start
from dray.backends.statements import Catalogue, Statement
from dray.backends.store.gate import Gate
from dray.backends.store.turns import SwapLine, Turns
from dray.instants import to_datetime
from dray.model.job import Claim, Demand, State
from dray.model.new_job import AlikeJobs, NewJob

# Two-part advisory locks: the first part tells Dray's from others, and one use from the other.
PAUSE_SPACE = 0x64726170  # "drap"
WORKER_SPACE = 0x64726177  # "draw"
MIGRATE_SPACE = 0x6472616D  # "dram"
LIMIT_SPACE = 0x6472616C  # "dral"
_TASK = Claim._fields.index("task")
_HOLD_PATIENCE = "2000"  # milliseconds in which a change of limits waits for locked rows, and no claim for the change


def lock_key(name: str) -> int:
    """The second part of an advisory lock, as PostgreSQL takes it: a signed 32-bit number."""
    key = zlib.crc32(name.encode())
    return key - (1 << 32) if key >= 1 << 31 else key


class Answer(Protocol):
    """What a statement has returned, or will."""

    def fetchall(self) -> list[Row]: ...


class PostgresSession(Session):
    """One transaction's view. Times are None in production: the server's clock counts."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        catalogue: Catalogue,
        times: dict[str, int | None],
        *,
        pipeline: psycopg.Pipeline | None = None,
        is_users: bool = False,
    ) -> None:
        self._connection = connection
        self.catalogue = catalogue
        self._times = times
        self._pipeline = pipeline
        self._is_users = is_users
        self._is_gating = False  # it may hold locks of limits
        self._is_gated: Later[list[Row]] | None = None  # what `begin_work` says of limits and keys

    def _cursor(self) -> psycopg.Cursor[Row]:
        if not self._is_users:
            return self._connection.cursor(binary=True, row_factory=tuple_row)
        # Their connection may have cursors and types of its own.
        cursor = psycopg.Cursor(self._connection, row_factory=tuple_row)
        cursor.format = Format.BINARY
        adapt_anew(cursor)
        return cursor

    def _values(self, statement: Statement, params: dict[str, Any]) -> dict[str, Any]:
        return {name: _plain(name, params.get(name, self._times.get(name))) for name in statement.parameters}

    def _run(self, statement: Statement, params: dict[str, Any]) -> psycopg.Cursor[Row]:
        return self._cursor().execute(cast(QueryNoTemplate, statement.text), self._values(statement, params))

    def _execute(self, statement: Statement, params: dict[str, Any]) -> Answer:
        return self._run(statement, params)

    def rows(self, name: str, /, **params: Any) -> list[Row]:
        return self.later(name, **params)()

    def later(self, name: str, /, **params: Any) -> Later[list[Row]]:
        if self._is_gating:
            return partial(self._synced, self._run(self.catalogue[name], params))
        return self._execute(self.catalogue[name], params).fetchall

    def _synced(self, cursor: psycopg.Cursor[Row]) -> list[Row]:
        """What a statement returned. Inside a pipeline the server does not take a session for idle until it is told
        that no more follows: it would not end one that was stopped and keeps locks of limits."""
        if self._pipeline is not None and cursor.pgresult is None:
            self._pipeline.sync()
        return cursor.fetchall()

    def run(self, name: str, /, **params: Any) -> int:
        cursor = self._run(self.catalogue[name], params)
        if self._pipeline is not None:
            self._pipeline.sync()
        return cursor.rowcount

    def script(self, text: str) -> None:
        """Runs every statement of a text."""
        self._connection.execute(cast(QueryNoTemplate, text))

    def each(self, name: str, rows: Sequence[Row]) -> list[bool]:
        if not rows:
            return []
        statement = self.catalogue[name]
        times = {key: self._times.get(key) for key in statement.parameters if key not in statement.columns}
        cursor = self._cursor()
        given = [times | dict(zip(statement.columns, row, strict=True)) for row in rows]
        cursor.executemany(cast(QueryNoTemplate, statement.text), given, returning=True)
        changed = [cursor.rowcount > 0]
        while cursor.nextset():
            changed.append(cursor.rowcount > 0)
        return changed

    def insert(self, jobs: Sequence[NewJob], starts: Mapping[str, Start]) -> list[bool]:
        written = {row[0] for row in self._insert(jobs, starts)()}
        return [job.id in written for job in jobs]

    def _insert(self, jobs: Sequence[NewJob], starts: Mapping[str, Start]) -> Later[list[Row]]:
        return self._batch(
            "job_insert", [rows.inserted(job, starts.get(job.id, rows.FREE), job.args) for job in jobs]
        )

    def post(self, batch: Sequence[AlikeJobs]) -> Later[list[Row]]:
        """As `Database.post`, in the transaction at hand."""
        if len(batch) == 1 and len(batch[0].ids) == 1 and not self._is_users:
            return self._post_one(batch[0])
        statement, given = self.catalogue["job_insert"], list[dict[str, Any]]()
        for pattern, ids, args in rows.merged(batch):
            same = _filled(statement, rows.inserted(pattern, rows.FREE, None))
            given += [{**same, "id": job_id, "args": text} for job_id, text in zip(ids, args, strict=True)]
        return self._send(statement, given)

    def _post_one(self, jobs: AlikeJobs) -> Later[list[Row]]:
        """As parameters, which the server takes in less time than JSON."""
        pattern, (job_id,), (args,) = jobs
        given = {**vars(pattern), "id": job_id, "args": args, "tags": rows.tags_of(pattern)}
        return self._execute(self.catalogue["job_insert_plain"], given).fetchall

    def insert_alike(self, jobs: AlikeJobs) -> None:
        # Not in a pipeline, which cannot COPY, nor in a user's transaction, which may be in a pipeline of theirs.
        can_copy = self._pipeline is None and not self._is_users
        if not (can_copy and self._copy(jobs)):
            self.post([jobs])()

    def _copy(self, jobs: AlikeJobs) -> bool:
        now = self.rows("server_now")[0][0]
        pattern, priority = jobs.pattern, jobs.pattern.priority
        if priority is None:
            priority = {row[0]: row[1] for row in self.rows("queue_list")}.get(pattern.queue, 0)
        before, after = rows.alike(pattern, now, priority, instant=_spelled)
        made_at = _spelled(now)
        before_args = adapt.as_copied(before)
        after_args = adapt.as_copied((*after, made_at, made_at))
        lines = [
            f"{job_id}\t{before_args}\t{adapt.escaped(args)}\t{after_args}\n"
            for job_id, args in zip(jobs.ids, jobs.args, strict=True)
        ]
        return adapt.copy(self._connection, self.catalogue["job_copy"], lines)

    def _batch(self, name: str, rows: Sequence[Row]) -> Later[list[Row]]:
        """A statement that takes all rows at once, as JSON: half the time of arrays of the driver's making."""
        statement = self.catalogue[name]
        return self._send(statement, [_filled(statement, row) for row in rows])

    def _send(self, statement: Statement, given: list[dict[str, Any]], **params: Any) -> Later[list[Row]]:
        return self._execute(statement, {"rows": _dumps(given), **params}).fetchall

    def replace(self, met: Sequence[tuple[NewJob, str]]) -> list[bool]:
        return self.each("job_replace", [rows.replaced(job, holder, job.args) for job, holder in met])

    def listed(self, fit: Mapping[str, Any], before: str, limit: int) -> list[Row]:
        return self.rows("job_list", **fit, before=before, first=FIRST_ID, limit=limit)

    def tend(self, limit: int) -> tuple[Later[list[Row]], Later[list[Row]]]:
        tended = cache(self.later("work_tend", limit=limit))
        return (
            lambda: [(job_id,) for job_id, _ in tended() if job_id is not None],
            lambda: [(queue,) for _, queue in tended() if queue is not None],
        )

    def claim(self, worker_id: str, demand: Demand, turns: Turns) -> Later[Claimed]:
        if not demand.queues:
            return lambda: Claimed([])  # it serves all queues, and none was ready
        is_gated = self._is_gated
        if is_gated is None or turns.is_needed:
            line = turns.swappable(demand)
            if line is not None and not self._is_users:
                return self._claim_swapped(worker_id, demand, turns, line)
            return self._claim_gated(worker_id, demand, turns)
        claimed = self._claim_plain(worker_id, demand)

        def answer() -> Claimed:
            turns.is_needed = bool(is_gated()[0][2])
            return Claimed(claimed(), goes_on=turns.is_needed)

        return answer

    def _claim_gated(self, worker_id: str, demand: Demand, turns: Turns) -> Later[Claimed]:
        """Queue by queue: what limits let start is known only from what was read before."""
        asked = self.later("gated_queues", worker_id=worker_id, queues=list(demand.queues))
        # Its first questions go with this one: mostly there is one queue, and it was gated at the last claim.
        hops = turns.begin()
        first = Gate(self, turns, hops, demand.queues[0], demand.tasks)
        gated = dict(asked())
        turns.is_needed = bool(gated)
        if not gated:
            claimed = self._claim_plain(worker_id, demand)
            return lambda: Claimed(claimed())
        if not self._is_users:
            self.later("gate_patience")
            self._is_gating = True
        claims: list[Claim] = []
        limit, ahead, in_turn = demand.limit, demand.ahead, demand.ahead_in_turn
        goes_on = stops_short = False
        for is_gated, group in groupby(demand.queues, gated.__contains__):
            for queues in [[queue] for queue in group if gated[queue]] if is_gated else [list(group)]:
                if limit + ahead <= 0 or stops_short:
                    break
                if is_gated:
                    is_first = queues[0] == demand.queues[0]
                    gate = first if is_first else Gate(self, turns, hops, queues[0], demand.tasks)
                    part = gate.claim(worker_id, demand._replace(limit=limit, ahead=ahead, ahead_in_turn=in_turn))
                    taken, stops_short = part.claims, part.stops_short
                    goes_on |= part.goes_on
                else:
                    rest = demand._replace(queues=tuple(queues), limit=limit, ahead=ahead)
                    taken = self._claim_plain(worker_id, rest)()
                claims += taken
                ahead -= max(0, len(taken) - limit)
                in_turn -= max(0, len(taken) - limit)
                limit -= min(limit, len(taken))
        return lambda: Claimed(claims, goes_on)

    def _claim_swapped(self, worker_id: str, demand: Demand, turns: Turns, line: SwapLine) -> Later[Claimed]:
        """Claims jobs in the place of those that this transaction has ended. If they are too few, the next claim
        counts."""
        given = {"worker_id": worker_id, "queue": line.queue, "task": line.task}
        ahead = demand.ahead if line.task in demand.standby_tasks else 0
        claimed = self.later("gate_swap", **given, limit=demand.limit, ahead=ahead)

        def answer() -> Claimed:
            found = starmap(Claim, claimed())
            claims = [each._replace(spans_queues=line.spans_queues, is_standby=not each.held) for each in found]
            claims.sort(key=lambda each: (each.is_standby, -each.priority, each.run_at, each.id))
            if sum(each.held for each in claims) < demand.limit:
                turns.forget_swaps()
                return Claimed(claims, goes_on=True)
            turns.allow_swaps(line, [claim.id for claim in claims if claim.held])
            return Claimed(claims)

        return answer

    def take(
        self,
        worker_id: str,
        keys: Mapping[str, str | None],
        held: Sequence[str],
        limit: int,
        spanning: Container[str] = (),
    ) -> list[Claim]:
        ids = list(keys)
        chosen = json.dumps({job_id: key or "" for job_id, key in keys.items()})
        at_once = ids[:limit] if limit < len(ids) else None
        counted = list(held) if len(held) < len(ids) else None
        given = {"ids": ids, "at_once": at_once, "held": counted, "keys": chosen}
        place = {job_id: n for n, job_id in enumerate(ids)}
        rows = self.rows("gate_claim", worker_id=worker_id, **given)
        rows.sort(key=lambda row: place[row[0]])
        return [*starmap(Claim, [(*row, row[_TASK] in spanning) for row in rows])]

    @property
    def claims_alone(self) -> bool:
        return self._is_users  # no other worker claims in their transaction, and the locks would last as long

    def lock_limits(self, names: Collection[str]) -> Later[set[str]]:
        keys = {name: str(lock_key(name)) for name in names}
        asked = self.later("gate_lock", space=LIMIT_SPACE, keys=sorted(set(keys.values())))

        def locked() -> set[str]:
            got = {row[0] for row in asked()}
            return {name for name, key in keys.items() if key in got}

        return locked

    def _claim_plain(self, worker_id: str, demand: Demand) -> Later[list[Claim]]:
        claimed = self.later(
            "job_claim",
            worker_id=worker_id,
            queues=list(demand.queues),
            tasks=list(demand.tasks),
            limit=demand.limit,
            total=demand.limit + demand.ahead,
        )
        place = {queue: n for n, queue in enumerate(demand.queues)}

        def in_order() -> list[Claim]:  # RETURNING has an order of its own
            claims = [*starmap(Claim, claimed())]
            claims.sort(key=lambda each: (place[each.queue], -each.priority, each.run_at, each.id))
            return claims

        return in_order

    def settle(self, endings: Sequence[SettlementRow]) -> Later[list[SettledRow]]:
        completions = [_completed(each) for each in endings if each.settlement.state == State.COMPLETED]
        others = [_settled(each) for each in endings if each.settlement.state != State.COMPLETED]
        written = [
            self._send(self.catalogue[name], given, worker_id=endings[0].worker_id)
            for name, given in (("job_complete", completions), ("job_settle", others))
            if given
        ]
        # Already as text: they are ids, and need not be looked at one by one.
        marked = self.later("fanout_mark", ids=_dumps([each.settlement.id for each in endings]))

        def answer() -> list[SettledRow]:
            parents = {row[0] for row in marked()}
            return [SettledRow(job_id, state, job_id in parents) for rows in written for job_id, state in rows()]

        return answer

    @property
    def tables(self) -> PostgresTables:
        assert self._pipeline is None, "a pipeline can neither COPY nor read through a cursor of the server's"
        return PostgresTables(self._connection, self.catalogue)

    def begin_work(self, queues: Sequence[str], *, durable: bool) -> None:
        if self._is_users:
            return  # how durable its commit is, is theirs; and these locks would last until then
        keys = sorted({lock_key(queue) for queue in (*queues, ALL_LIMITS)})
        self._is_gated = self.later("work_begin", durable=durable, space=PAUSE_SPACE, keys=keys, queues=list(queues))

    def begin_limits(self, milliseconds: int) -> None:
        self.later("limit_patience", milliseconds=str(milliseconds))
        self.rows("limit_begin", space=PAUSE_SPACE, key=lock_key(ALL_LIMITS))

    def hold_free(self, scope: str, name: str) -> list[str]:
        self.later("limit_mark", scope=scope, name=name)
        return [row[0] for row in self.rows("limit_unmarked", scope=scope, name=name)]

    def hold_locked(self, job_id: str) -> None:
        self.later("limit_patience", milliseconds=_HOLD_PATIENCE)
        self.run("limit_mark_one", id=job_id)

    def begin_pause(self, queue: str) -> None:
        self.rows("pause_begin", space=PAUSE_SPACE, key=lock_key(queue))

    def bury(self, verdicts: Sequence[tuple[str, int]]) -> list[bool]:
        given = [(w, lease, WORKER_SPACE, lock_key(w) & 0xFFFFFFFF) for w, lease in verdicts]
        return self.each("worker_bury", given)


def _filled(statement: Statement, row: Row) -> dict[str, Any]:
    """What is not there reads as NULL: rows are mostly empty, and the server parses what we send."""
    return {c: v for c, v in zip(statement.columns, row, strict=True) if v is not None}


def _completed(ending: SettlementRow) -> dict[str, Any]:
    """A settlement with no more than it says: the server parses what we send."""
    s, _, started_age, finished_age = ending
    given: dict[str, Any] = {"id": s.id, "claim": s.claim, "finished_age_us": finished_age}
    if s.result is not None:
        given["result"] = s.result
    if started_age is not None:
        given["started_age_us"] = started_age
    if s.drops_args:
        given["drops_args"] = True
    return given


def _settled(ending: SettlementRow) -> dict[str, Any]:
    """The same for an attempt that did not complete."""
    s = ending.settlement
    said = {
        "reason": s.reason,
        "delay_us": s.delay_us,
        "gives_back": int(s.gives_back) or None,
        "crash": int(s.counts_crash) or None,
        "error": s.error,
        "error_key": s.error_key,
        "outcome": s.outcome,
        "error_type": s.error_type,
        "error_message": s.error_message,
        "traceback": s.traceback,
        "error_class": s.error_class,
        "keeps_error": s.keeps_error or None,
        "key": s.key,
    }
    return {
        **_completed(ending),
        "worker_id": ending.worker_id,
        "state": s.state,
        **{key: value for key, value in said.items() if value is not None},
    }


_dumps = json.JSONEncoder(separators=(",", ":")).encode


@lru_cache(maxsize=1_000)
def _spelled(instant: int) -> str:
    """An instant as COPY takes it; the rows of one enqueue share theirs."""
    return to_datetime(instant).isoformat()


_ID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_IDS = {"id", "workflow_id", "worker_id", "holder", "before"}


def _plain(name: str, value: Any) -> Any:
    """A value as the driver takes it. What is no id names no row: it must not be an error of the type `uuid`."""
    if isinstance(value, list):
        return json.dumps([v for v in cast("list[str]", value) if _ID.fullmatch(v)] if name == "ids" else value)
    if name in _IDS and isinstance(value, str) and not _ID.fullmatch(value):
        return FIRST_ID
    return value
