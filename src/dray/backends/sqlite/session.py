"""Named statements on a SQLite connection."""

from __future__ import annotations

import heapq
import json
import re
import sqlite3
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from contextlib import suppress
from itertools import islice, starmap
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from dray.backends import rows, sqlite
from dray.backends.database import Claimed, Later, Rivalry, Row, Session
from dray.backends.rows import SettledRow, SettlementRow, Start
from dray.backends.statements import Catalogue
from dray.clock import Clock
from dray.errors import ForkedConnection
from dray.model.job import FINAL, LIVE, Claim, Demand, State
from dray.model.new_job import AlikeJobs, NewJob

if TYPE_CHECKING:
    from dray.backends.store.turns import Hops, Turns
    from dray.model.settlement import Settlement

T = TypeVar("T")

_TASK, _ARGS, _TIMEOUT = map(Claim._fields.index, ("task", "args", "timeout"))
_PRIORITY, _RUN_AT = Claim._fields.index("priority"), Claim._fields.index("run_at")
# Not escaped: the driver refuses half of a surrogate pair, which SQLite would take for something else.
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
# Text that is not UTF-8 is read with its bytes as \xe9 (`connect.tolerantly`). JSON has no such escape.
_ESCAPED_BYTE = re.compile(r"(?<!\\)((?:\\\\)*)\\x")
_CHUNK = 1_000  # jobs whose arguments are one text
PAYLOAD_SIZE = 1024  # characters; larger arguments and results go beside the row, not into it
_FEW_CLAIMS = 32  # that are returned row by row
_FEW = 20_000  # rows that are read and sorted in 20 milliseconds
_NEAR = 20_000  # the newest rows, which are looked at in 10


class SqliteSession(Session):
    """One transaction's view; `now` stands still in it."""

    def __init__(self, connection: sqlite3.Connection, catalogue: Catalogue, clock: Clock) -> None:
        self._connection = connection
        self.catalogue = catalogue
        self._clock = clock
        self._cursor = connection.cursor()
        self._cursor.row_factory = None  # a user's connection may have its own
        self.forked = False  # set in a child: the transaction is the parent's
        self._has_waited = False
        self._times: dict[str, int] = {}

    @property
    def _time(self) -> dict[str, int]:
        """The moment of `begin`, or of the first statement."""
        if not self._times:
            self.set_time()
        return self._times

    def set_time(self) -> None:
        self._times = {"now": self._clock.now(), "steady": self._clock.steady()}

    def begin(self) -> None:
        """Takes the write lock, or raises. Its time is that of the lock: others may have had it for long."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error:
            self._has_waited = True
            raise
        self.set_time()

    def rivalry(self) -> Rivalry | None:
        if not self._has_waited:
            return None
        return Rivalry(self._time["steady"], self.rows("job_newest")[0][0])

    def roll_back(self) -> None:
        """Undoes what is open, unless it is the parent's. What cannot even do that is not over afterwards."""
        if self.forked:
            return
        self._cursor.close()  # one that is left open keeps its snapshot
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    @property
    def is_over(self) -> bool:
        """Whether its transaction has been committed or undone."""
        try:
            return not self._connection.in_transaction
        except sqlite3.ProgrammingError:  # the connection is closed
            return True

    def check(self) -> None:
        """Refuses to go on with a transaction that was open across a fork."""
        if self.forked:
            raise ForkedConnection(
                "this process was forked inside a transaction, which stays the parent's; fork outside transactions"
            )

    def _execute(self, name: str, params: dict[str, Any]) -> sqlite3.Cursor:
        self.check()
        statement = self.catalogue[name]
        values = self._time | {
            key: json.dumps(value) if isinstance(value, list) else value for key, value in params.items()
        }
        return self._cursor.execute(statement.text, statement.bind(values))

    def rows(self, name: str, /, **params: Any) -> list[Row]:
        return self._execute(name, params).fetchall()

    def later(self, name: str, /, **params: Any) -> Later[list[Row]]:
        return _known(self.rows(name, **params))

    def run(self, name: str, /, **params: Any) -> int:
        cursor = self._execute(name, params)
        if cursor.description is not None:
            cursor.fetchall()  # of RETURNING: a statement that is not read to its end keeps a COMMIT from happening
        return cursor.rowcount

    def each(self, name: str, rows: Sequence[Row]) -> list[bool]:
        if not rows:
            return []
        self.check()
        statement = self.catalogue[name]
        tail = tuple(self._time[key] for key in statement.parameters[len(statement.columns) :])
        given = [statement.arranged(row + tail) for row in rows] if tail or statement.order else rows
        if len(given) == 1:
            return [self._connection.execute(statement.text, given[0]).rowcount > 0]
        self._connection.execute("SAVEPOINT dray_each")
        changed = self._connection.executemany(statement.text, given).rowcount
        if changed in {0, len(given)}:
            self._connection.execute("RELEASE dray_each")
            return [changed > 0] * len(given)
        # Some did and some did not, and executemany does not say which: do it again one by one.
        self._connection.execute("ROLLBACK TO dray_each")
        self._connection.execute("RELEASE dray_each")
        return [self._connection.execute(statement.text, row).rowcount > 0 for row in given]

    def insert(self, jobs: Sequence[NewJob], starts: Mapping[str, Start]) -> list[bool]:
        given = [rows.inserted(job, starts.get(job.id, rows.FREE), _inline(job.args)) for job in jobs]
        written = self.each("job_insert", given)
        self.each("payload_args", [(job.id, job.args) for job in jobs if len(job.args) > PAYLOAD_SIZE])
        return written

    def insert_alike(self, jobs: AlikeJobs) -> None:
        self.check()
        now, (pattern, ids, args) = self._time["now"], jobs
        if len(ids) == 1:
            insert_plain(self._connection, self.catalogue, jobs, now)
        else:
            before, after = rows.alike(pattern, now, pattern.priority, instant=int)
            statement = self.catalogue["job_insert_alike"]
            for start in range(0, len(ids), _CHUNK):
                some = slice(start, start + _CHUNK)
                args_by_id = _dumps(dict(zip(ids[some], map(_inline, args[some]), strict=True)))
                self._connection.execute(statement.text, statement.arranged((*before, *after, now, args_by_id)))
        large = [each for each in zip(ids, args, strict=True) if len(each[1]) > PAYLOAD_SIZE]
        self.each("payload_args", large)

    def replace(self, met: Sequence[tuple[NewJob, str]]) -> list[bool]:
        given = [rows.replaced(job, holder, _inline(job.args)) for job, holder in met]
        changed = self.each("job_replace", given)
        last = {holder: job.args for (job, holder), was_changed in zip(met, changed, strict=True) if was_changed}
        self.each("payload_drop_args", [(job_id,) for job_id in last])
        self.each("payload_set_args", [(job_id, args) for job_id, args in last.items() if _inline(args) is None])
        return changed

    def listed(self, fit: Mapping[str, Any], before: str, limit: int) -> list[Row]:
        """As the contract says. The order of ids is quick where what is asked for is among the newest, and slow where
        it is rare or long ago. So jobs that are few by their state are read through the index of that state and
        sorted; those that failed, or that have tags, through an index of their own. Others are looked for among the
        newest, and those of a queue or a task then in the whole table, in the order that it lies in."""
        states = {State(state) for state in fit["states"]}
        asked: dict[str, Any] = {**fit, "before": before, "limit": limit}
        chosen: dict[str, Any] = {state: state in states for state in LIVE} | {"final": sorted(states & FINAL)}
        if states != set(State) and self.rows("list_count", **chosen, limit=_FEW + 1)[0][0] <= _FEW:
            return self.rows("list_few", **asked, **chosen)
        if states <= {State.FAILED, State.CANCELLED}:
            return self.rows("list_failed", **asked)
        if fit["tag"] is not None:
            return self.rows("list_tagged", **asked)
        if all(value is None for name, value in fit.items() if name != "states"):
            return self.rows("job_list", **asked, first="")
        near = self.rows("list_near", before=before, limit=_NEAR)
        found = self.rows("job_list", **asked, first=near[0][0] if near else "")
        return found if len(found) == limit or not near else self.rows("list_far", **asked)

    def tend(self, limit: int) -> tuple[Later[list[Row]], Later[list[Row]]]:
        # One look at two index heads instead of two updates that mostly find nothing.
        expired, due = self.rows("tend_due")[0]
        return (
            _known(self.rows("job_expire", limit=limit) if expired else []),
            _known(self.rows("job_promote", limit=limit) if due else []),
        )

    def claim(self, worker_id: str, demand: Demand, turns: Turns) -> Later[Claimed]:
        claimed: list[Claim] = []
        limit, ahead, in_turn, goes_on = demand.limit, demand.ahead, demand.ahead_in_turn, False
        hops: Hops | None = None
        for queue in demand.queues:
            if limit + ahead <= 0:
                break
            few = self._claim_few(worker_id, queue, demand.tasks, limit) if 0 < limit <= _FEW_CLAIMS else []
            claimed += few
            limit -= len(few)
            if few and (limit or not ahead):
                continue  # it has no more, or no more is wanted
            is_allowed, is_gated = self.rows("claim_allowed", worker_id=worker_id, queue=queue)[0]
            if not is_allowed:
                continue
            if is_gated:
                hops = hops or turns.begin()
                rest = demand._replace(limit=limit, ahead=ahead, ahead_in_turn=in_turn)
                gated = sqlite.Gate(self, turns, hops, queue, demand.tasks).claim(worker_id, rest)
                claimed += gated.claims
                goes_on |= gated.goes_on
                if gated.stops_short:
                    break
                count = len(gated.claims)
            else:
                count, ids = self._pick(queue, demand.tasks, limit + ahead)
                if count:
                    self.run("job_claim", worker_id=worker_id, ids=ids, limit=limit)
                    claimed += self._made(self._claimed("job_claimed", worker_id, ids))
            ahead -= max(0, count - limit)
            in_turn -= max(0, count - limit)
            limit -= min(limit, count)
        return lambda: Claimed(claimed, goes_on)

    def _claim_few(self, worker_id: str, queue: str, tasks: Sequence[str], limit: int) -> list[Claim]:
        """What a worker with free slots mostly finds: jobs of one task, in a queue without limits and keys. If it
        returns none, the queue may have others: `claim` then looks for them."""
        if len(tasks) > 1:
            known = set(tasks)
            tasks = [row[0] for row in self.rows("ready_tasks", queue=queue) if row[0] in known]
        if len(tasks) != 1:
            return []
        rows = self.rows("claim_few", worker_id=worker_id, queue=queue, task=tasks[0], limit=limit)
        rows.sort(key=_by_order)
        return self._made([*map(list, rows)])

    def take(
        self,
        worker_id: str,
        keys: Mapping[str, str | None],
        held: Sequence[str],
        limit: int,
        spanning: Container[str] = (),
    ) -> list[Claim]:
        taken = json.dumps([*keys])
        self.run("gate_claim", worker_id=worker_id, ids=taken, held=list(held), limit=limit)
        rows = self._claimed("gate_claimed", worker_id, taken)
        for row in rows:
            row.append(row[_TASK] in spanning)
        return self._made(rows)

    @property
    def claims_alone(self) -> bool:
        return True

    def lock_limits(self, names: Collection[str]) -> Later[set[str]]:
        return lambda: set(names)

    def _claimed(self, name: Literal["job_claimed", "gate_claimed"], worker_id: str, ids: str) -> list[list[Any]]:
        rows: list[list[Any]] = _loads(self.rows(name, worker_id=worker_id, ids=ids)[0][0])
        for row in rows:
            if row[_TIMEOUT] is not None:
                row[_TIMEOUT] = float(row[_TIMEOUT])
        return rows

    def _made(self, rows: list[list[Any]]) -> list[Claim]:
        large = [row[0] for row in rows if row[_ARGS] is None]
        payloads = dict(self.rows("payload_read", ids=large)) if large else {}
        for row in rows:
            if row[_ARGS] is None:
                row[_ARGS] = payloads.get(row[0])
        return [*starmap(Claim, rows)]

    def _pick(self, queue: str, tasks: Sequence[str], limit: int) -> tuple[int, str]:
        """The next jobs of a queue: how many, and their ids as JSON. Each task has its own stretch of the index, so
        that jobs of tasks this worker lacks cost nothing however many they are; the stretches are merged."""
        if len(tasks) > 2:
            present = {row[0] for row in self.rows("ready_tasks", queue=queue)}
            tasks = [task for task in tasks if task in present]
        if len(tasks) == 1:
            count, ids = self.rows("ready_ids", queue=queue, task=tasks[0], limit=limit)[0]
            return count, ids
        heads = [_loads(self.rows("ready_pick", queue=queue, task=task, limit=limit)[0][0]) for task in tasks]
        picked = [job_id for _, _, job_id in islice(heapq.merge(*heads), limit)]
        return len(picked), json.dumps(picked)

    def settle(self, endings: Sequence[SettlementRow]) -> Later[list[SettledRow]]:
        completions = [each for each in endings if each.settlement.state == State.COMPLETED]
        others = [each for each in endings if each.settlement.state != State.COMPLETED]
        written = self._complete(completions) if completions else []
        written += self._settle_others(others) if others else []
        # One look instead of an update that mostly finds nothing.
        has_children = self.rows("edges_open")[0][0]
        marked = self.rows("fanout_mark", ids=[job_id for job_id, _ in written]) if has_children else []
        parents = {row[0] for row in marked}
        return _known([SettledRow(job_id, state, job_id in parents) for job_id, state in written])

    def _complete(self, endings: Sequence[SettlementRow]) -> list[tuple[str, str]]:
        done = self._completed(endings)
        self.each("payload_result", [(s.id, s.result) for s in done if s.result and len(s.result) > PAYLOAD_SIZE])
        self.each("payload_drop_args", [(s.id,) for s in done if s.drops_args])
        return [(s.id, State.COMPLETED) for s in done]

    def _completed(self, endings: Sequence[SettlementRow]) -> list[Settlement]:
        """Writes them by one statement, during which other threads have the GIL. If the claims of some were lost, the
        statement does not say which: then one by one."""
        if len({each.worker_id for each in endings}) == 1:
            self._connection.execute("SAVEPOINT dray_complete")
            if self._run_complete(endings) == len(endings):
                self._connection.execute("RELEASE dray_complete")
                return [each.settlement for each in endings]
            self._connection.execute("ROLLBACK TO dray_complete")
            self._connection.execute("RELEASE dray_complete")
        return [each.settlement for each in endings if self._run_complete([each])]

    def _run_complete(self, endings: Sequence[SettlementRow]) -> int:
        given = [
            (s.id, s.claim, _inline(s.result), s.drops_args, started_age, finished_age)
            for s, _, started_age, finished_age in endings
        ]
        return self.run("job_complete", worker_id=endings[0].worker_id, endings=_dumps(given))

    def _settle_others(self, endings: Sequence[SettlementRow]) -> list[tuple[str, str]]:
        # The record first, while the row still shows the attempt that ends.
        self.each("attempt_insert", [_attempt(each) for each in endings if each.settlement.outcome is not None])
        done = _changed(endings, self.each("job_settle", [_settled(each) for each in endings]))
        put_back = [s.id for s in done if s.state not in FINAL or s.counts_crash]
        stopped = {row[0] for row in self.rows("settled_cancelled", ids=put_back)} if put_back else set[str]()
        return [(s.id, State.CANCELLED if s.id in stopped else s.state) for s in done]

    @property
    def tables(self) -> sqlite.SqliteTables:
        return sqlite.SqliteTables(self._connection, self.catalogue)

    def forget_results(self, ids: Sequence[str]) -> None:
        self.run("payload_drop_result", ids=list(ids))

    def bury(self, verdicts: Sequence[tuple[str, int]]) -> list[bool]:
        return self.each("worker_bury", [tuple(verdict) for verdict in verdicts])


def is_one_row(batch: Sequence[AlikeJobs]) -> bool:
    """Whether one INSERT writes all of it."""
    return len(batch) == 1 and len(batch[0].ids) == 1 and len(batch[0].args[0]) <= PAYLOAD_SIZE


def insert_plain(connection: sqlite3.Connection, catalogue: Catalogue, jobs: AlikeJobs, now: int) -> None:
    """Writes the row of the only one of these jobs."""
    pattern, (job_id,), (args,) = jobs
    before, after = rows.alike(pattern, now, pattern.priority, instant=int)
    statement = catalogue["job_insert_plain"]
    connection.execute(statement.text, statement.arranged((job_id, *before, _inline(args), *after, now)))


def _known(rows: list[T]) -> Callable[[], list[T]]:
    return lambda: rows


def _by_order(row: Row) -> tuple[int, int, str]:
    """The order in which jobs are claimed."""
    return -row[_PRIORITY], row[_RUN_AT], row[0]


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(_ESCAPED_BYTE.sub(r"\1\\\\x", text))


def _inline(text: str | None) -> str | None:
    """What stays in the job's own row."""
    return text if text is None or len(text) <= PAYLOAD_SIZE else None


def _changed(endings: Sequence[SettlementRow], changed: Sequence[bool]) -> list[Settlement]:
    return [each.settlement for each, was_changed in zip(endings, changed, strict=True) if was_changed]


def _attempt(ending: SettlementRow) -> Row:
    """The columns of `attempt_insert`."""
    s, worker_id, started_age, finished_age = ending
    said = (s.outcome, s.error_type, s.error_message, s.traceback, s.error_class)
    return (s.id, worker_id, s.claim, *said, started_age, finished_age)


def _settled(ending: SettlementRow) -> Row:
    """The columns of `job_settle`."""
    s, worker_id, started_age, finished_age = ending
    becomes = (s.state, s.state in FINAL, s.reason, s.delay_us, int(s.gives_back), int(s.counts_crash))
    return (s.id, worker_id, s.claim, *becomes, s.error, s.error_key, s.keeps_error, started_age, finished_age, s.key)
