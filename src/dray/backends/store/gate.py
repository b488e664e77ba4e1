"""Claims where there are limits or keys: which jobs may start now, and whose turn it is.

Nothing is counted ahead of time. A claim counts the running jobs that are marked as held and the starts of the last
period, in its own transaction, and takes no more than there is room for. On SQLite it is the only writer. On
PostgreSQL it locks what it is about to count, without waiting for another worker that has it, and counts in a later
statement: only one that begins after the lock was taken sees everything that the lock's last holder did. Keys are
locked and counted again when they are chosen: there may be too many to lock them all. What could not be had, because
another transaction has locked its row or another worker counts its key, holds up nothing behind it: the claim goes on
with what comes next.

On PostgreSQL a job may also take the place of one that ends in the same transaction (`gate_swap`): no more run than
before, so that needs no lock.

Jobs with keys take turns: the keys of a task in a queue are visited in their order, from the one that had the last
turn, by hops along an index. So a key with 100,000 jobs costs as much as one with a single job. A claim makes a
bounded number of hops and goes on from there the next time: 10,000 keys whose limit is reached must not hold it up
(`turns.py`).
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from dray.backends.database import Later, Row, Session
from dray.backends.store.rooms import Candidate, Rooms
from dray.backends.store.turns import Hops, Line, Place, SwapLine, Turns
from dray.instants import MILLISECOND, SECOND
from dray.model.job import Claim, Demand
from dray.model.limit import Kind, Rule

_LEVEL_HOPS = 8  # what another priority costs, in hops
_SMALL = 32  # jobs of a claim for which all is asked at once
_ROUNDS = 3  # in which a claim goes on after what it could not have
_SPARE = 16  # keys that are tried at once where rows are locked
_SLICES = 100  # of a period, see dray_starts
_SHORTEST_LOOK = 10 * MILLISECOND  # between two looks at keys that wait for their rate


class Gated(NamedTuple):
    """What a claim from one queue brought."""

    claims: list[Claim]
    goes_on: bool  # it has not seen all there is, or another worker was counting the same: claim again soon
    stops_short: bool = False  # the next job is under a limit, and such jobs are not claimed ahead


class Opening(NamedTuple):
    """Whether a claim would find something."""

    is_open: bool
    opens_at: int | None  # else: when to look again, by the database's clock; None: when something changes
    goes_on: bool = False  # not all has been seen: look on


class _Line(NamedTuple):
    """The ready jobs of a task in a queue, with keys or without."""

    task: str
    is_keyed: bool
    priority: int | None  # the highest; of jobs with keys


class _Stretch(NamedTuple):
    """Keys of a line, in their order."""

    after: str
    until: str | None
    has_wrapped: bool  # the claim has begun with the first key again


class _SentAhead(NamedTuple):
    """What a claim has asked of one priority of a line, before it needs the answers."""

    hops: list[Later[list[Row]]]  # for each stretch
    more: dict[str, Later[list[Row]]]  # jobs of a key
    level: Later[list[Row]]  # the next priority


class Gate:
    """One queue, as one transaction sees it. A new one has sent what it asks first, and waits when it is used."""

    def __init__(self, tx: Session, turns: Turns, hops: Hops, queue: str, tasks: Sequence[str]) -> None:
        self._tx = tx
        self._turns = turns
        self._hops = hops
        self._queue = queue
        self._known = set(tasks)
        lines = tx.later("line_tasks", queue=queue, begins=turns.is_new(queue))
        self._asked = tx.later("limit_rules", queue=queue, tasks=list(tasks)), lines
        self._asked_plain: dict[str, Later[list[Row]]] = {}
        self._goes_on = False
        self._skips_locked = False  # a row was locked: it looks for those that are not
        self._exhausted: set[Line] = set()  # lines whose last key has been visited
        self._uncounted: set[tuple[str, str]] = set()  # keys, with their tasks, that another worker counts

    @cached_property
    def _ready(self) -> list[_Line]:
        rows = self._asked[1]()
        self._turns.begin_after(self._queue, [(task, last) for task, _, _, last in rows if last is not None])
        lines = [_Line(task, bool(keyed), top) for task, keyed, top, _ in rows if task in self._known]
        # The most urgent first: they should not be those for which no hops are left.
        return sorted(lines, key=lambda line: -(line.priority or 0))

    @cached_property
    def _rooms(self) -> Rooms:
        return Rooms(self._queue, [Rule(*row) for row in self._asked[0]()])

    def first(self) -> str | None:
        """The job that could start first; None: none is found with the hops that are left."""
        self._rooms.count(self._tx)()
        for each in self._in_order(dict.fromkeys(self._ready, 1)):
            if self._rooms.admit(each):
                self._turns.begin_again(self._hops)
                return each.id
        self._turns.saw_all(self._exhausted)
        return None

    def look(self, now: int) -> Opening:
        """Whether something could start."""
        if self.first() is not None:
            return Opening(is_open=True, opens_at=None)
        return Opening(is_open=False, opens_at=self._opens_at(now), goes_on=self._goes_on)

    def claim(self, worker_id: str, demand: Demand) -> Gated:
        """Takes up to `limit` jobs to run now, and up to `ahead` more that are under no limit, or stand by; with keys
        only up to `ahead_in_turn`, or a new key would wait for all that were claimed before it."""
        limit, ahead, in_turn = demand.limit, demand.ahead, demand.ahead_in_turn
        self._lock_and_count(limit + ahead + 1)
        chosen, stops_short = self._choose(limit, ahead, in_turn)
        claims = self._take(worker_id, chosen, limit)
        for _ in range(_ROUNDS):
            if len(claims) >= min(limit, len(chosen)) or self._tx.claims_alone:
                break
            # Slots are left although there was something to run: another transaction has it.
            self._asked_plain.clear()
            self._exhausted.clear()
            self._rooms.count(self._tx)()
            more, is_short = self._choose(limit - len(claims), 0, 0)
            stops_short |= is_short
            if not more:
                break
            claims += self._take(worker_id, more, limit - len(claims))
            chosen += more
        if claims:
            self._turns.have_changed()
        else:
            self._turns.saw_all(self._exhausted)
        line = self._swap_line
        if line is None:
            self._turns.forget_swaps()
        else:
            self._turns.allow_swaps(line, [claim.id for claim in claims])
            if line.task in demand.standby_tasks and len(demand.queues) == 1:
                claims += self._stand_by(worker_id, line, ahead)
        return Gated(claims, self._goes_on, stops_short)

    @property
    def _swap_line(self) -> SwapLine | None:
        """The line from which jobs may take the places of others: the only one, without keys, under no rule but
        limits."""
        lines, rules = self._ready, self._rooms.rules
        if len(lines) != 1 or lines[0].is_keyed or not all(rule.kind == Kind.LIMIT for rule in rules):
            return None
        task = lines[0].task
        return SwapLine(self._queue, task, self._rooms.spans_queues(task)) if self._rooms.is_limited(task) else None

    def _stand_by(self, worker_id: str, line: SwapLine, most: int) -> list[Claim]:
        """Takes jobs that may start in the places of others. None while more run than a limit allows: it was lowered,
        and what ends leaves no place."""
        if most <= 0 or min(self._rooms.free.values(), default=-1) < 0:
            return []
        name = "line_plain" if self._tx.claims_alone else "line_free"
        ids = [row[2] for row in self._tx.rows(name, **self._line(line.task), limit=most)]
        claims = self._tx.take(worker_id, dict.fromkeys(ids), (), 0) if ids else []
        return [claim._replace(is_standby=True, spans_queues=line.spans_queues) for claim in claims]

    def _take(self, worker_id: str, chosen: Sequence[Candidate], limit: int) -> list[Claim]:
        """Those of the chosen jobs that can be had now."""
        wanted = self._with_locked_keys(chosen)
        claims = self._take_locked(worker_id, wanted, limit) if wanted else []
        taken = {claim.id for claim in claims}
        # What should start now and cannot be had has had its turn: it must not keep all other keys waiting.
        had = [each for n, each in enumerate(chosen) if n < limit or each.id in taken]
        for each in {each.task: each for each in had if each.key is not None}.values():  # the last one of each line
            self._remember(each)
        return claims

    def _take_locked(self, worker_id: str, wanted: Sequence[Candidate], limit: int) -> list[Claim]:
        held = [each.id for each in wanted if each.key is not None or self._rooms.is_limited(each.task)]
        spanning = {line.task for line in self._ready if self._rooms.spans_queues(line.task)}
        claims = self._tx.take(worker_id, {each.id: each.key for each in wanted}, held, limit, spanning)
        self._skips_locked |= len(claims) < len(wanted)
        starts = self._rooms.starts(claims)
        for scope, name, key, period_us, n in starts:
            self._tx.later("starts_add", scope=scope, name=name, key=key, period_us=period_us, n=n)
        return [self._with_spent(claim) for claim in claims] if starts else claims

    def _with_spent(self, claim: Claim) -> Claim:
        if claim.key is not None:
            return claim
        return claim._replace(
            spent=tuple(sorted((rule.scope, rule.name, rule.period_us) for rule in self._rooms.rates(claim)))
        )

    def _lock_and_count(self, most: int) -> None:
        """Counts for the rules that do not look at keys; on PostgreSQL under a lock of each. Where another claim has
        the lock, the jobs that count for it are left to that one."""
        if self._tx.claims_alone:
            self._rooms.count(self._tx)()
            return
        names = sorted({name for line in self._ready for name in self._rooms.locks(line.task)})
        # Sent together: each begins when the one before it has ended, so what follows the lock sees all that its last
        # holder did.
        lock = self._tx.lock_limits(names) if names else set[str]
        count = self._rooms.count(self._tx)
        self._asked_plain = {
            line.task: self._tx.later("line_plain", **self._line(line.task), limit=most)
            for line in self._ready
            if not line.is_keyed
        }
        locked = lock()
        count()
        if len(locked) < len(names):
            self._goes_on = True
            self._ready = [line for line in self._ready if locked.issuperset(self._rooms.locks(line.task))]

    def _choose(self, limit: int, ahead: int, in_turn: int) -> tuple[list[Candidate], bool]:
        chosen: list[Candidate] = []
        most = {line: limit + self._more(line, ahead, in_turn) for line in self._ready}
        of_line = {(line.task, line.is_keyed): count for line, count in most.items()}
        # One more of each line than may be taken: what comes after it waits too.
        for each in self._in_order({line: count + 1 for line, count in most.items()}):
            if len(chosen) >= of_line[each.task, each.key is not None]:
                if self._rooms.fits(each):
                    return chosen, True
            elif self._rooms.admit(each):
                chosen.append(each)
            if len(chosen) == limit + ahead:
                break
        return chosen, False

    def _with_locked_keys(self, chosen: Sequence[Candidate]) -> Sequence[Candidate]:
        """Those whose keys still have room once they are locked."""
        if self._tx.claims_alone:
            return chosen
        needed = [self._rooms.key_locks(each) for each in chosen]
        names = {name for each in needed for name in each}
        if not names:
            return chosen
        lock = self._tx.lock_limits(names)
        by_task: defaultdict[str, set[str]] = defaultdict(set)
        for each in chosen:
            if each.key is not None:
                by_task[each.task].add(each.key)
        rooms = [
            (task, self._tx.later("key_rooms", keys=sorted(keys), **self._line(task), **self._rooms.key_rules(task)))
            for task, keys in by_task.items()
        ]
        locked = lock()
        if len(locked) < len(names):
            self._goes_on = True
            missed = [each for each, names in zip(chosen, needed, strict=True) if not locked.issuperset(names)]
            self._uncounted.update((each.task, each.key) for each in missed if each.key is not None)
            chosen = [each for each, names in zip(chosen, needed, strict=True) if locked.issuperset(names)]
        self._rooms.by_key.clear()
        for task, rows in rooms:
            self._rooms.note_keys(task, rows())
        return [each for each in chosen if self._rooms.admit_key(each)]

    def _line(self, task: str) -> dict[str, str]:
        return {"queue": self._queue, "task": task}

    def _more(self, line: _Line, ahead: int, in_turn: int) -> int:
        """How many jobs of a line may be claimed ahead."""
        if self._rooms.is_limited(line.task):
            return 0
        return in_turn if line.is_keyed else ahead

    def _in_order(self, most: Mapping[_Line, int]) -> Iterator[Candidate]:
        """Jobs by priority; those of one priority by their time, of a line with keys in turns. `most`: of a line."""
        lines: list[tuple[tuple[int, int, str], int, Candidate, Iterator[Candidate]]] = []
        for number, each in enumerate(self._ready):
            room = self._rooms.room(each.task, most[each])
            if room:
                line = self._plain(each.task, room) if each.priority is None else self._keyed(each, room)
                first = next(line, None)
                if first is not None:
                    heapq.heappush(lines, (first.rank, number, first, line))
        while lines:
            _, number, each, line = lines[0]
            yield each
            following = None if self._rooms.is_closed(each.task) else next(line, None)
            if following is None:
                heapq.heappop(lines)
            else:
                heapq.heapreplace(lines, (following.rank, number, following, line))

    def _plain(self, task: str, most: int) -> Iterator[Candidate]:
        name = "line_free" if self._skips_locked else "line_plain"
        asked = self._asked_plain.get(task) or self._tx.later(name, **self._line(task), limit=most)
        for priority, run_at, job_id in asked()[:most]:
            yield Candidate((-priority, run_at, job_id), task, None)

    def _keyed(self, given_line: _Line, most: int) -> Iterator[Candidate]:
        """The jobs of a line with keys: by priority, then one of each key that has room, then one more of each."""
        task, hops = given_line.task, self._hops
        line = self._queue, task
        if self._turns.is_seen(line):
            return
        if hops.left(line) <= 0:
            self._goes_on = True
            self._turns.pass_by(line)
            return
        place = self._turns.leave(line)
        priority = given_line.priority
        if place is not None:
            hops.resumed[line] = place
            priority = self._level(task, place.priority + 1)
        while priority is not None:
            opened: list[tuple[Candidate, list[Row]]] = []
            way = {"priority": priority, "limit": most}
            stretches = self._stretches(line, priority, place)
            sent = self._send_ahead(line, stretches, way)
            for number, stretch in enumerate(stretches):
                first = sent.hops[number] if sent else None
                for key, jobs in self._visit(line, stretch, way, first):
                    rank = (-priority, *jobs[0])
                    opened.append((Candidate(rank, task, key, stretch.has_wrapped), jobs))
                    yield opened[-1][0]
                if hops.left(line) <= 0:
                    return
            yield from self._laps(line, opened, way, sent.more if sent else {})
            place = None
            priority = self._level(task, priority, sent.level if sent else None)
            if priority is not None:
                hops.spend(line, max(0, min(_LEVEL_HOPS, hops.left(line))))
        hops.resumed.pop(line, None)
        self._exhausted.add(line)

    def _visit(
        self, line: Line, stretch: _Stretch, way: Mapping[str, Any], sent: Later[list[Row]] | None
    ) -> Iterator[tuple[str, list[Row]]]:
        """The keys of a stretch that have room, each with its first job; where rows are locked, with its first jobs
        that are not. When the hops are used up, the line rests where it is."""
        after, until, has_wrapped = stretch
        task, hops = line[1], self._hops
        asked = {**self._line(task), **self._rooms.key_rules(task), **way, "until": until}
        if self._skips_locked:
            asked["limit"] = max(_SPARE, way["limit"])
        while hops.left(line) > 0:
            rows = (sent or self._tx.later("turn_hop", **asked, after=after, hops=hops.left(line)))()
            sent, (last, _, _, n, *_) = None, rows[-1]
            hops.spend(line, n)
            keyed = rows if last is not None else rows[:-1]
            self._rooms.note_keys(task, keyed)
            found = [
                (key, [(run_at, job_id)])
                for key, of_task, of_queue, _, run_at, job_id in keyed
                if of_task > 0 and of_queue > 0 and (task, key) not in self._uncounted
            ]
            yield from self._free(task, found, way) if self._skips_locked else found
            if last is None:
                return
            after = last
        self._goes_on = True
        self._turns.cut_short(line, Place(way["priority"], after, has_wrapped))

    def _free(
        self, task: str, found: Sequence[tuple[str, list[Row]]], way: Mapping[str, Any]
    ) -> list[tuple[str, list[Row]]]:
        """The same keys with their jobs that no other transaction has locked; about as many as are asked for."""
        if not found:
            return []
        keys = [key for key, _ in found]
        asked = {**self._line(task), "priority": way["priority"], "limit": 1 + way["limit"] // len(keys)}
        free: defaultdict[str, list[Row]] = defaultdict(list)
        for key, *job in self._tx.rows("turn_free", keys=keys, **asked):
            free[key].append(tuple(job))
        return [(key, sorted(free[key])) for key in keys if key in free]

    def _send_ahead(
        self,
        line: Line,
        stretches: Sequence[_Stretch],
        way: Mapping[str, Any],
    ) -> _SentAhead | None:
        """Sends all that may be asked of one priority, before it is known what is needed: to wait for each took a
        small claim longer than its bodies. None where nothing is gained by it, or it would be too much."""
        few, hops = self._turns.few(line), self._hops.left(line)
        if self._tx.claims_alone or way["limit"] > _SMALL or self._skips_locked or hops < _LEVEL_HOPS:
            return None
        later, given = self._tx.later, self._line(line[1])
        asked = {**given, **self._rooms.key_rules(line[1]), **way}
        # Of those after the first only the beginning: mostly they are not needed, or short.
        rest = min(hops // 4, _SMALL)
        shares = [hops - rest * (len(stretches) - 1), *[rest] * (len(stretches) - 1)]
        sent = [
            later("turn_hop", **asked, after=each.after, until=each.until, hops=share)
            for each, share in zip(stretches, shares, strict=True)
        ]
        more = {key: later("turn_more", **given, **way, key=key) for key in few}
        return _SentAhead(sent, more, later("turn_level", **given, below=way["priority"]))

    def _level(self, task: str, below: int, sent: Later[list[Row]] | None = None) -> int | None:
        """The highest priority of a line's jobs with keys, below one."""
        found = (sent or self._tx.later("turn_level", **self._line(task), below=below))()
        return found[0][0] if found else None

    def _stretches(self, line: Line, priority: int, place: Place | None) -> list[_Stretch]:
        """The stretches of keys to visit at one priority."""
        if place is not None and place.priority == priority:
            whole = [] if place.has_wrapped else [_Stretch("", None, has_wrapped=True)]
            return [_Stretch(place.key, None, place.has_wrapped), *whole]
        last = self._turns.last(line)
        if not last:
            return [_Stretch("", None, has_wrapped=False)]
        return [_Stretch(last, None, has_wrapped=False), _Stretch("", last, has_wrapped=True)]

    def _laps(
        self,
        line: Line,
        opened: Sequence[tuple[Candidate, list[Row]]],
        way: Mapping[str, Any],
        sent: Mapping[str, Later[list[Row]]],
    ) -> Iterator[Candidate]:
        jobs = opened
        if not self._skips_locked:
            given = {**self._line(line[1]), **way}
            asked = [
                (each, sent.get(each.key or "") or self._tx.later("turn_more", **given, key=each.key))
                for each, _ in opened
            ]
            jobs = [(each, rows()) for each, rows in asked]
            self._turns.has_few(line, [each.key for each, _ in opened if each.key is not None])
        for lap in range(1, max((len(rows) for _, rows in jobs), default=0)):
            for each, rows in jobs:
                if lap < len(rows):
                    yield each._replace(rank=(-way["priority"], *rows[lap]))

    def _remember(self, each: Candidate) -> None:
        line = self._queue, each.task
        key = each.key or ""
        self._turns.took(line, key)
        if line in self._hops.resumed:
            # It goes on from there, and not from the first key: those before it were looked at in earlier claims.
            self._turns.go_on_from(line, Place(-each.rank[0], key, each.has_wrapped))

    def _opens_at(self, now: int) -> int | None:
        """When a rate lets something start. Of keys that is not known: they are looked at again in a slice's time."""
        spans = [rule.period_us // _SLICES for rule in self._rooms.rules if rule.kind == Kind.KEY_RATE]
        if not spans or not any(line.is_keyed for line in self._ready):
            return self._rooms.opens_at
        again = now + min(max(_SHORTEST_LOOK, min(spans)), SECOND)
        return again if self._rooms.opens_at is None else min(again, self._rooms.opens_at)
