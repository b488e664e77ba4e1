"""How much a worker claims, and from which queues: policy without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, cast

from dray.clock import Rng
from dray.errors import ConfigError
from dray.instants import MILLISECOND
from dray.model.names import check_name, shown
from dray.model.queue import Demand

AHEAD = 100  # jobs
AHEAD_US = 50 * MILLISECOND  # of work
_WEIGHED_AHEAD = 10  # one turn of a queue among weighted ones takes no more
_MAX_WEIGHT = 1_000_000


class Room(NamedTuple):
    """What a worker can run while it lacks threads or processes."""

    slots: int
    tasks: tuple[str, ...]


class Appetite:
    """What a worker would take now: its free slots, and a little ahead while bodies are short."""

    def __init__(
        self,
        concurrency: int,
        queues: Mapping[str, int | None] | None,
        tasks: Sequence[str],
        rng: Rng,
        budget: int | None = None,
    ) -> None:
        self.concurrency = concurrency
        self.serves_all = queues is None
        self.tasks = tuple(tasks)
        self._weights: dict[str, int | None] = dict(queues or {})
        self._is_weighed = any(self._weights.values())
        self._credit: dict[str, int] = {}
        self._rng = rng
        self._budget = budget  # jobs that it takes in all; None: as many as there are
        self._mean_us: float | None = None  # of a body's time; None: not known yet
        self._is_short = False  # the last claim brought less than was asked for

    def served(self, ready: Iterable[str]) -> None:
        """Where all queues are served: those that have anything ready, else those that last had."""
        self._weights = dict.fromkeys(ready) or self._weights

    def noted(self, took_us: int) -> None:
        """A body has ended."""
        self._mean_us = took_us if self._mean_us is None else self._mean_us + (took_us - self._mean_us) * 0.1

    def spoilt(self) -> None:
        """A body takes much longer than those before: nothing is claimed ahead until some have been short again."""
        self._mean_us = float(AHEAD_US * self.concurrency * 2)

    def demand(self, in_hand: int, room: Room | None = None) -> Demand:
        """What to claim, while so many jobs are claimed and not ended; `room`: all that can be run."""
        limit = max(0, self.concurrency - in_hand)
        ahead = max(0, self.concurrency + self._ahead() - in_hand - limit)
        if not limit and self._is_short:
            # Perhaps a job came first that is never claimed ahead. Topped up for ever, a worker has no slot for it:
            # jobs of lower priority would go before it for as long as there are any.
            ahead = 0
        if self._budget is not None:
            limit, ahead = min(limit, self._budget), 0
        if room is not None:
            limit, ahead = (min(limit, max(0, room.slots - in_hand)) if room.tasks else 0), 0
        return Demand(self._order(), self.tasks if room is None else room.tasks, limit, ahead)

    @property
    def is_sated(self) -> bool:
        """Whether all that it was to take has been taken."""
        return self._budget == 0

    def answered(self, demand: Demand, count: int) -> None:
        """So many were claimed, of what was asked for."""
        if demand.limit or demand.ahead:
            self._is_short = count < demand.limit + demand.ahead

    def fed(self, count: int) -> None:
        """So many were claimed. The next turn is another queue's, each as often as it weighs and evenly spread."""
        if self._budget is not None:
            self._budget = max(0, self._budget - count)
        if not self._is_weighed:
            return
        total = sum(weight or 1 for weight in self._weights.values())
        first = self._order()[0]
        for queue, weight in self._weights.items():
            self._credit[queue] = self._credit.get(queue, 0) + (weight or 1)
        self._credit[first] -= total

    def unfed(self, count: int) -> None:
        """So many went back because they could not be run."""
        if self._budget is not None:
            self._budget += count

    def _ahead(self) -> int:
        if self._mean_us is None:
            return 0
        most = _WEIGHED_AHEAD if self._is_weighed and len(self._weights) > 1 else AHEAD
        return int(min(most, AHEAD_US * self.concurrency / max(1.0, self._mean_us)))

    def _order(self) -> tuple[str, ...]:
        """The queues as they are listed; with weights, whose turn it is first; where all are served, by lot."""
        queues = tuple(self._weights)
        if len(queues) < 2:
            return queues
        if self.serves_all:
            return tuple(sorted(queues, key=lambda _: self._rng.random()))
        if not self._is_weighed:
            return queues
        return tuple(sorted(queues, key=lambda queue: -(self._credit.get(queue, 0) + (self._weights[queue] or 1))))


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
            raise ConfigError(f"queue {queue} is listed twice")
        parsed[queue] = (1 if weight is None else _weight(queue, weight)) if weighed else None
    return parsed


def _weighed(part: object) -> tuple[str, int | None]:
    if not isinstance(part, str):
        raise TypeError(f"a queue's name is a string, not {type(part).__name__}")
    queue, colon, weight = part.rpartition(":")
    if not colon or not weight.lstrip("-").isdigit():
        return part, None  # a colon may be part of a queue's name
    return queue, int(weight)


def _weight(queue: str, weight: object) -> int:
    if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= _MAX_WEIGHT:
        raise ConfigError(f"the weight of queue {queue} must be a whole number from 1 on, not {shown(weight)}")
    return weight
