"""Fires schedules: a slot's job and the move to the next slot are one guarded write, so each slot fires once.

The worker that has the duty fires a slot at its time. All others are its deputies: they fire a slot that is still due
a moment later. So slots fire while the holder of the duty is dead and not yet buried (a whole lease on PostgreSQL),
or stopped but alive. A worker leaves a schedule whose task it does not know to other workers for a moment, because
they know the task's options.

These moments count from the first look, by the steady clock: wall clocks of machines differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dray.backends import Backend
from dray.backends.store.jobs import Upcoming
from dray.clock import Clock, Ids
from dray.errors import DrayError, StorageError
from dray.instants import SECOND
from dray.log import log
from dray.maintenance.duty_runner import Agenda
from dray.model.schedule import Schedule, due
from dray.task.job_options import job_of
from dray.task.options import TaskOptions

_LONGEST = 1.0  # seconds: another process may change a schedule, and wall clocks may be set, while this waits
_NONE_PAUSE = 2.0  # while there is none
_SHORTEST = 0.001
_SOON = 0.25  # seconds between two looks at slots that are left to others
_DEPUTY_US = 1 * SECOND
_STRANGER_US = 2 * SECOND
_CHUNK = 100
_DECLARER_PAUSE = 3600.0  # seconds; it has something to do only after it was asked


@dataclass
class Scheduler:
    name = "schedule"

    _backend: Backend
    _clock: Clock
    _ids: Ids
    _tasks: Mapping[str, TaskOptions]  # the options of the tasks that are known here
    _timeout: float | None  # for jobs of other tasks
    _agenda: Agenda
    is_exclusive: bool = True  # False: a deputy
    on_fired: Callable[[Sequence[str]], None] | None = None
    _last: Upcoming | None = None

    def __post_init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}  # name -> slot and when it was first seen to be due
        self._unusable: dict[str, str] = {}  # name -> what was logged about it

    def tick(self) -> float:
        self._last = self._agenda.after(self._last)
        slot_us = self._last.slot_us
        if slot_us is None or slot_us > 0:
            self._seen.clear()
            return _NONE_PAUSE if slot_us is None else min(max(slot_us / SECOND, _SHORTEST), _LONGEST)
        _, now = self._backend.schedules.upcoming()
        found = self._backend.schedules.due(_CHUNK)
        mine = [schedule for schedule in found if self._is_mine(schedule)]
        queues = {queue for schedule in mine for queue in self._fire(schedule, now)}
        if queues:
            self._backend.announce(queues)
        return _SHORTEST if len(mine) == len(found) and not self._unusable else _SOON

    def _is_mine(self, schedule: Schedule) -> bool:
        """Whether this worker is to fire it now."""
        assert schedule.next_at is not None
        now = self._clock.steady()
        slot, since = self._seen.get(schedule.name, (None, now))
        if slot != schedule.next_at:
            since = now
            self._seen[schedule.name] = (schedule.next_at, since)
        deputy_us = 0 if self.is_exclusive else _DEPUTY_US
        return now - since >= deputy_us + (0 if schedule.task in self._tasks else _STRANGER_US)

    def _fire(self, schedule: Schedule, now: int) -> set[str]:
        """Fires the slots that are due. Returns the queues that got jobs: none if another worker was faster."""
        assert schedule.next_at is not None
        now = max(now, schedule.next_at)  # the database found it due a moment after it told the time
        options = self._tasks.get(schedule.task) or TaskOptions(name=schedule.task, timeout=self._timeout)
        try:
            owed = due(
                schedule.rule,
                schedule.next_at,
                now,
                schedule.created_at,
                misfire=schedule.misfire,
                limit=schedule.misfire_limit,
            )
            new = [job_of(schedule, options, self._ids.new(), slot) for slot in owed.slots]
        except StorageError:
            raise
        except DrayError as error:
            self._complain(schedule, error)
            return set()
        self._unusable.pop(schedule.name, None)
        last_at = owed.slots[-1] if owed.slots else None
        fired = self._backend.schedules.fire(schedule, next_at=owed.next_at, last_at=last_at, new=new)
        if fired and self.on_fired is not None:
            self.on_fired([each.id for each in fired if not each.duplicate])
        return {job.queue for job in new} if fired else set()

    def _complain(self, schedule: Schedule, error: DrayError) -> None:
        """Logs once that this machine cannot fire a row: it lacks the time zone, or a newer release wrote the row."""
        message = f"schedule {schedule.name} cannot be fired here: {error}"
        if self._unusable.get(schedule.name) != message:
            self._unusable[schedule.name] = message
            log.error("%s", message)


@dataclass
class Declarer:
    """Writes the schedules that a worker's code declares: when it starts, and when it is asked to."""

    name = "declare"
    is_exclusive = False  # each worker knows the code it was started with

    _backend: Backend
    _declare: Callable[[Backend], None]
    _is_asked: bool = True

    def ask(self) -> None:
        """There may be a new schedule to write."""
        self._is_asked = True

    def tick(self) -> float:
        if self._is_asked:
            self._is_asked = False  # before the work: what is declared meanwhile asks again
            try:
                self._declare(self._backend)
            except BaseException:
                self._is_asked = True
                raise
        return _DECLARER_PAUSE
