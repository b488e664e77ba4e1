"""How much a worker claims and from which queues, and when it looks for work: policy without I/O."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from dray.backends.database import Rivalry
from dray.errors import ConfigError
from dray.instants import MILLISECOND, SECOND
from dray.model.bounds import MIB
from dray.model.job import Claim, Demand
from dray.model.settlement import Rng
from dray.model.values import check_name, shown

AHEAD_US = 50 * MILLISECOND  # of work
_AHEAD_BYTES = 16 * MIB  # of arguments, if they are as large as in the last claim
_AHEAD_IN_TURN_US = 10 * MILLISECOND  # of jobs with keys: this much longer a key that is new waits for its turn
_WEIGHTED_AHEAD = 10  # jobs that one turn of a weighted queue may claim ahead
_SHORT_US = 500  # bodies that take less are over before another thread is awake
_MAX_WEIGHT = 1_000_000


def default_concurrency() -> int:
    """Bodies at a time, unless a number is given."""
    return min(8, 4 * (os.cpu_count() or 1))


def checked_concurrency(given: object) -> int:
    if given is None:
        return default_concurrency()
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= 10_000:
        raise ConfigError(f"concurrency must be a whole number between 1 and 10,000, not {given!r}")
    return given


class Capacity(NamedTuple):
    """What a worker can still run while it cannot start threads or processes."""

    slots: int
    tasks: tuple[str, ...]


@dataclass(eq=False)
class ClaimPolicy:
    """Decides what to claim next: the free slots, and a few jobs ahead while bodies are short."""

    concurrency: int
    _queues: Mapping[str, int | None] | None
    tasks: tuple[str, ...]
    _rng: Rng
    _jobs_left: int | None  # None: no limit
    _most_ahead: int
    _mean_us: float | None = None  # how long a body takes; None: not known yet
    _mean_bytes: float = 0.0  # of the arguments in the last claim
    is_short: bool = False  # the last claim returned fewer jobs than it asked for

    def __post_init__(self) -> None:
        self.serves_all = self._queues is None
        self._weights = dict(self._queues or {})
        self._is_weighted = any(self._weights.values())
        self._credit: dict[str, int] = {}

    def set_ready_queues(self, ready: Iterable[str]) -> None:
        """For a worker that serves all queues: those with ready jobs. Keeps the last ones if there are none."""
        self._weights = dict.fromkeys(ready) or self._weights

    def body_took(self, took_us: int) -> None:
        self._mean_us = took_us if self._mean_us is None else self._mean_us + (took_us - self._mean_us) * 0.1

    @property
    def are_short(self) -> bool:
        """Whether bodies have been short lately."""
        return self._mean_us is not None and self._mean_us < _SHORT_US

    @property
    def may_gather(self) -> bool:
        """Whether the worker may wait for more jobs: bodies are short, and it has claimed all that there were."""
        return self.is_short and self.are_short

    @property
    def wants_standbys(self) -> bool:
        """Whether bodies are so short that a claim between two of them under a limit costs much."""
        return self._mean_us is not None and self._mean_us <= AHEAD_US

    @property
    def batch(self) -> int:
        """How many outcomes to write at once: half of what may be in flight, so that bodies run the other half while
        the database works. With all at once the slots had nothing to do meanwhile, and the engine nothing to write
        while they ran: a no-op took 36 to 44 us instead of 30 to 33."""
        return min(self._most_ahead // 2, max(self.concurrency, (self.concurrency + self._ahead()) // 2))

    def stop_claiming_ahead(self) -> None:
        """A body takes much longer than the ones before it. Claims nothing ahead until bodies are short again."""
        self._mean_us = float(AHEAD_US * self.concurrency * 2)

    def demand(self, in_flight: int, capacity: Capacity | None = None, standbys: int = 0) -> Demand:
        """What to claim while `in_flight` jobs are claimed and not finished, and others stand by. `capacity` limits
        what can run."""
        limit = max(0, self.concurrency - in_flight)
        ahead = max(0, self.concurrency + self._ahead() - in_flight - limit - standbys)
        if not limit and self.is_short:
            # The first job in line may be one that is never claimed ahead. A worker that always tops up has no free
            # slot for it: with -c 1, a job of priority 9 started after 1,200 jobs of priority 0.
            ahead = 0
        if self._jobs_left is not None:
            limit, ahead = min(limit, self._jobs_left), 0
        if capacity is not None:
            limit, ahead = (min(limit, max(0, capacity.slots - in_flight)) if capacity.tasks else 0), 0
        in_turn = min(ahead, max(0, self.concurrency + self._ahead_in_turn() - in_flight - limit))
        tasks = self.tasks if capacity is None else capacity.tasks
        return Demand(self._order(), tasks, limit, ahead, ahead_in_turn=in_turn)

    @property
    def is_exhausted(self) -> bool:
        """Whether the worker has claimed all the jobs that it may (`max_jobs`)."""
        return self._jobs_left == 0

    def claimed(self, demand: Demand, claims: Sequence[Claim]) -> None:
        """A claim returned these jobs. With weights, the next turn is another queue's."""
        count = len(claims)
        if demand.limit or demand.ahead:
            has_keys = any(claim.key is not None for claim in claims)
            # With keys, no more are claimed ahead than in turn. When that was taken for a short claim, the next one
            # waited for a free slot: bodies of 5 ms ran at two thirds of their rate.
            self.is_short = count < demand.limit + (demand.ahead_in_turn if has_keys else demand.ahead)
        if not count:
            return
        self._mean_bytes = sum(len(claim.args) for claim in claims) / count
        if self._jobs_left is not None:
            self._jobs_left = max(0, self._jobs_left - count)
        if not self._is_weighted:
            return
        # Each queue gets turns by its weight, evenly spread.
        total = sum(weight or 1 for weight in self._weights.values())
        first = self._order()[0]
        for queue, weight in self._weights.items():
            self._credit[queue] = self._credit.get(queue, 0) + (weight or 1)
        self._credit[first] -= total

    def gave_back(self, count: int) -> None:
        """The worker could not run `count` of the claimed jobs. They do not count."""
        if self._jobs_left is not None:
            self._jobs_left += count

    def _ahead(self) -> int:
        if self._mean_us is None:
            return 0
        most = _WEIGHTED_AHEAD if self._is_weighted and len(self._weights) > 1 else self._most_ahead
        at_a_time = 1 if self.are_short else self.concurrency  # short bodies run one after the other
        of_time = AHEAD_US * at_a_time / max(1.0, self._mean_us)
        return int(min(most, of_time, _AHEAD_BYTES / max(1.0, self._mean_bytes)))

    def _ahead_in_turn(self) -> int:
        """No more than one for each slot."""
        if self._mean_us is None:
            return 0
        return int(self.concurrency * min(1.0, _AHEAD_IN_TURN_US / max(1.0, self._mean_us)))

    def _order(self) -> tuple[str, ...]:
        """The queues as listed. With weights: whose turn it is first. Where all are served: random."""
        queues = tuple(self._weights)
        if len(queues) < 2:
            return queues
        if self.serves_all:
            return tuple(sorted(queues, key=lambda _: self._rng.random()))
        if not self._is_weighted:
            return queues
        return tuple(sorted(queues, key=lambda queue: -(self._credit.get(queue, 0) + (self._weights[queue] or 1))))


_FIRST_PAUSE, _LONG_PAUSE, _LONGEST_PAUSE = 0.001, 0.02, 0.08  # seconds
_MANY_EMPTY_LOOKS = 50  # in a row: other workers are busy, and there is nothing for this one
_GATE_PAUSE = 0.002
_FIRST_LOCKED_PAUSE, _LONGEST_LOCKED_PAUSE = 0.005, 0.25


class PollPolicy:
    """Decides whether a woken worker looks at the database, claims at once, or ignores wake-ups for a moment.

    A wake-up costs the same whether there is work for this worker or not, and beside busy workers there are hundreds
    a second. So each look that finds nothing makes the worker ignore wake-ups for a while, twice as long each time.
    Its own writes wake it too; they do not count.

    Where a worker is alone or usually wins, a look only delays the claim. It then claims at once when a commit wakes
    it, for as long as that returns jobs. Among many workers on a queue only the last winners do so; the others look.
    """

    def __init__(self, *, hears_own: bool) -> None:
        self.may_have_work = True
        self.pause = 0.0  # seconds in which it ignores wake-ups
        self.due_at: int | None = None  # when the next scheduled job is due, by the steady clock
        self.looked_at = 0
        self._hears_own = hears_own  # its own writes wake it
        self._expects_own_wake_up = False
        self._is_active = False  # it has just written, or was woken by its own write
        self._is_woken_by_others = False
        self._is_woken = False  # by a change or a ring, not because time was up
        self._claims_without_look = False
        self._won_last_claim = True
        self._empty_looks = 0
        self._locked_pause = 0.0

    def wants_work(self, now: int) -> bool:
        return self.may_have_work or self.is_due(now)

    def is_due(self, now: int) -> bool:
        """Whether the next scheduled job is due."""
        return self.due_at is not None and now >= self.due_at

    def woken(self, *, by_change: bool, by_ring: bool, is_same: bool = False) -> None:
        """The wait is over: the database changed, another thread rang, or time was up. `is_same`: a look would show
        what the last one has shown. Otherwise the watch is a hint, and only the poll is certain."""
        self.may_have_work |= by_change or by_ring or not is_same
        self._is_woken = by_change or by_ring
        if by_ring:
            return
        if not by_change:
            self.pause, self._empty_looks = 0.0, 0  # all is quiet
            return
        self._is_woken_by_others = not self._expects_own_wake_up
        self._is_active |= self._expects_own_wake_up
        self._expects_own_wake_up = False

    def claims_at_once(self) -> bool:
        """Whether to claim without a look: another commit woke this worker, and its last claim returned jobs."""
        self._claims_without_look = self._is_woken_by_others and self._won_last_claim
        self._is_woken_by_others = False
        return self._claims_without_look

    def looked(self, *, found: bool) -> None:
        self.may_have_work = False
        if not found:
            # What the last claim did not get is gone, and not locked: another worker was faster. A rate wakes all
            # workers at the same moment, and one that lost six times in a row would be deaf for 250 ms.
            self._locked_pause = 0.0
        if found:
            self.pause, self._empty_looks = 0.0, 0
        elif self._is_woken and not self._is_active:
            self._empty_looks += 1
            longest = _LONG_PAUSE if self._empty_looks < _MANY_EMPTY_LOOKS else _LONGEST_PAUSE
            if self._empty_looks > 1:  # a single write, as of a beat, is not worth the wake-up that ends the pause
                self.pause = min(max(self.pause * 2, _FIRST_PAUSE), longest)
        self._is_active = False

    def exchanged(self, *, has_claimed: bool, has_changed: bool, goes_on: bool = False) -> float:
        """A transaction that could claim is over. Returns the seconds until the next step. `goes_on`: it has not seen
        all there is under limits, or another worker counted them at the same moment."""
        self.may_have_work = True
        self._is_active |= has_changed
        self._expects_own_wake_up |= has_changed and self._hears_own
        was_without_look, self._claims_without_look = self._claims_without_look, False
        if has_claimed or was_without_look:
            self._won_last_claim = has_claimed
        if has_changed or was_without_look:
            self._locked_pause = 0.0
            return 0.0
        if goes_on:
            return _GATE_PAUSE
        # Another transaction holds the rows, of outcomes or of ready jobs. They are tried again, without haste.
        self._locked_pause = min(max(self._locked_pause * 2, _FIRST_LOCKED_PAUSE), _LONGEST_LOCKED_PAUSE)
        self.pause = self._locked_pause
        return self.pause


_YIELD_FACTOR = 10  # times as long as it had the write lock, a worker leaves it to producers
_SHORTEST_YIELD, _LONGEST_YIELD = 5 * MILLISECOND, 100 * MILLISECOND
_BUSY_RATE = 200  # new jobs a second; below that, a short transaction costs a producer little
_WAIT_COUNTS = 2  # exchanges, itself and the next


class YieldPolicy:
    """Decides how long a worker leaves the one write lock of a SQLite file to producers.

    A producer of single jobs has the lock for most of the time, and its commits wake the worker. If the worker wrote
    as soon as it could, the producer would wait for hundreds of small transactions a second. So a worker that had to
    wait for the lock while jobs were added writes in a tenth of the time at most, and more at once. Other workers do
    not count: if all left the lock to each other, none would have it.
    """

    def __init__(self) -> None:
        self._last: Rivalry | None = None
        self._waits_left = 0

    def exchanged(self, rivalry: Rivalry | None, began: int, now: int) -> float:
        """A transaction is over. Returns the seconds for which the worker writes nothing."""
        self._waits_left = max(0, self._waits_left - 1)
        if rivalry is not None:
            began, last, self._last = rivalry.since, self._last, rivalry
            if last is not None and (rivalry.newest - last.newest) * SECOND > _BUSY_RATE * (began - last.since):
                self._waits_left = _WAIT_COUNTS
        if not self._waits_left:
            return 0.0
        return min(max((now - began) * _YIELD_FACTOR, _SHORTEST_YIELD), _LONGEST_YIELD) / SECOND


_WINDOW = 16  # exchanges that are judged together
_GATHERED = 1.5  # new jobs an exchange; a chain, in which each job enqueues the next, brings one
_GATHER_PAUSE = 0.01  # seconds
_LULL = SECOND // 20  # without an exchange: what came before is over
_STILL_THERE = 0.7  # of the rate before: less, and those who enqueue wait for the jobs' ends
_FIRST_TRUST, _LONGEST_TRUST = SECOND, 60 * SECOND


class GatherPolicy:
    """Decides when a worker waits for more new jobs before it claims again.

    A worker with free slots claims each job as it comes. Beside a producer of 3,000 jobs a second on PostgreSQL that
    made 1,230 transactions a second, which took half a core and a quarter of the producer's rate. So while short
    bodies end and new jobs come in most transactions, it pauses between two of them: 90 a second do the same.

    If fewer jobs come then, those who enqueue them wait for others to end, and a pause only makes them slower. It
    then lets it be: for a second, and for twice as long each time that follows at once.
    """

    def __init__(self) -> None:
        self._rate_before: float | None = None  # new jobs a second before it began to pause; None: it does not
        self._trusted_until = 0
        self._trust = _FIRST_TRUST
        self._last = 0  # the last exchange
        self._begin(0)

    def _begin(self, now: int) -> None:
        self._since, self._exchanges, self._both, self._claimed = now, 0, 0, 0

    def exchanged(self, ended: int, claimed: int, now: int, *, may_gather: bool) -> float:
        """A transaction has ended some jobs and claimed others. `may_gather`: all that there were, and bodies are
        short. Returns the seconds for which the worker writes nothing."""
        is_over, self._last = now - self._last > _LULL, now
        if is_over or not may_gather:
            self._rate_before = None
            self._begin(now)
            return 0.0
        self._exchanges += 1
        self._both += bool(ended and claimed)
        self._claimed += claimed
        if self._exchanges == _WINDOW:
            self._judge(now)
            self._begin(now)
        return 0.0 if self._rate_before is None else _GATHER_PAUSE

    def _judge(self, now: int) -> None:
        rate = self._claimed * SECOND / max(1, now - self._since)
        is_flow = 2 * self._both >= _WINDOW and self._claimed >= _GATHERED * _WINDOW
        if self._rate_before is None:
            if is_flow and now >= self._trusted_until:
                self._rate_before = rate
        elif not is_flow or rate < _STILL_THERE * self._rate_before:
            self._rate_before = None
            self._trusted_until = now + self._trust
            self._trust = min(2 * self._trust, _LONGEST_TRUST)
        else:
            self._trust = _FIRST_TRUST


def parse_queues(given: str | Iterable[str] | Mapping[str, int] | None) -> dict[str, int | None] | None:
    """``"mail:4,default"``, ``["mail", "default"]`` or ``{"mail": 4}`` as queues with weights; None: all queues."""
    if given is None:
        return None
    if isinstance(given, str):
        given = [part.strip() for part in given.split(",") if part.strip()]
    pairs: list[tuple[str, int | None]]
    if isinstance(given, Mapping):
        pairs = list(cast("Mapping[str, int]", given).items())
    elif isinstance(given, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - users pass what they like
        pairs = [_weighed(part) for part in given]
    else:
        raise TypeError(f"queues must be names, or names with weights, not {type(given).__name__}")
    if not pairs:
        raise ConfigError("queues= names no queue; leave it out to serve them all")
    weighed = any(weight is not None for _, weight in pairs)
    parsed: dict[str, int | None] = {}
    for queue, weight in pairs:
        if check_name("queue", queue) in parsed:
            raise ConfigError(f"queue {queue} is listed twice; name it once")
        parsed[queue] = (1 if weight is None else _weight(queue, weight)) if weighed else None
    return parsed


def _weighed(part: object) -> tuple[str, int | None]:
    if not isinstance(part, str):
        raise TypeError(f"a queue's name is a string, not {type(part).__name__}")
    queue, colon, weight = part.rpartition(":")
    if not colon or not re.fullmatch("-?[0-9]{1,18}", weight):
        return part, None  # a colon may be part of a queue's name
    return queue, int(weight)


def _weight(queue: str, weight: object) -> int:
    if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= _MAX_WEIGHT:
        raise ConfigError(f"the weight of queue {queue} must be a whole number from 1 on, not {shown(weight)}")
    return weight
