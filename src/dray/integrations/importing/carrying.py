"""The import itself: a batch of jobs a transaction, each once.

A job's id here is made of its id there, so a second run finds what the first has written, and goes on after one that
was cut off. A job that runs after others is written when they are there: one that comes before them in the source is
kept in mind by its number, and tried again at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dray.app_interface import AppInterface
from dray.backends import Backend
from dray.integrations.importing.entries import RUNS, Entry, Source
from dray.model.action import By, NewAction
from dray.task.signature import PARENT_RESULTS

_BATCH = 500  # jobs
_BATCH_SIZE = 8_000_000  # characters, about
_LISTED = 1_000  # jobs that are named with what is wrong with them
_TASKS = 1_000  # task names that are counted

HERE_ALREADY = "it is here already"
NO_PARENT = "a job that it runs after could not be carried, or runs after it"


class Line(NamedTuple):
    """Jobs of one state in the source, and what becomes of them."""

    state: str
    becomes: str | None  # None: they are not carried
    why: str | None


class Problem(NamedTuple):
    key: str  # the job's id in the source
    what: str
    is_lost: bool  # the whole job, and not only a part of it


@dataclass
class Imported:
    """What was carried, or would be."""

    system: str
    source: str
    total: int
    is_done: bool  # False: nothing was written
    lines: Counter[Line] = field(default_factory=Counter[Line])
    problems: list[Problem] = field(default_factory=list[Problem])
    problem_count: int = 0
    to_run: Counter[str] = field(default_factory=Counter[str])  # jobs by task

    def count(self, *, carried: bool) -> int:
        return sum(jobs for line, jobs in self.lines.items() if (line.becomes is not None) is carried)

    @property
    def failures(self) -> int:
        """Jobs that should have been carried, and were not."""
        fine = {HERE_ALREADY, RUNS}
        return sum(jobs for line, jobs in self.lines.items() if line.why is not None and line.why not in fine)

    def add(self, entry: Entry, why: str | None = None) -> None:
        why = why or entry.why
        if why is not None and why not in {HERE_ALREADY, RUNS}:
            self._note(entry, why, is_lost=True)
        self.lines[Line(entry.state, None if why else entry.becomes, _kind(why))] += 1
        if why or entry.carried is None:
            return
        for what in entry.lost:
            self._note(entry, what, is_lost=False)
        task = entry.carried.job.task
        if entry.carried.state is None and (task in self.to_run or len(self.to_run) < _TASKS):
            self.to_run[task] += 1

    def _note(self, entry: Entry, what: str, *, is_lost: bool) -> None:
        self.problem_count += 1
        if len(self.problems) < _LISTED:
            self.problems.append(Problem(entry.key, what, is_lost))


def _kind(why: str | None) -> str | None:
    """Reasons that name values of one row count as one: a table of all would have no bound."""
    return why if why in {None, HERE_ALREADY, RUNS, NO_PARENT} else "it cannot be read, or Dray cannot hold it"


class TasksHere:
    """What the tasks of an app say of jobs whose rows do not."""

    def __init__(self, core: AppInterface) -> None:
        self._registry = core.registry

    def options(self, task: str) -> Mapping[str, Any] | None:
        return self._registry.get(task).options.job_fields if task in self._registry else None

    def arguments(self, task: str) -> tuple[str, ...] | None:
        if task not in self._registry:
            return None
        signature = self._registry.get(task).signature
        filled_in = {*signature.contexts, PARENT_RESULTS}
        return tuple(name for name in signature.parameters if name not in filled_in)


def look(source: Source, backend: Backend) -> Imported:
    """What `carry` would do. Writes nothing, and does not see circles."""
    lost: set[str] = set()
    while True:
        before = len(lost)
        found = _looked(source, backend, lost)
        if len(lost) == before:
            return found  # a job may come before those that it runs after, and they may be lost


def _looked(source: Source, backend: Backend, lost: set[str]) -> Imported:
    """One pass. `lost`: the ids of jobs that are not carried; it grows by those that run after them."""
    found = Imported(source.system, source.place, source.total(), is_done=False)
    for batch in _batches(source.entries()):
        there = backend.imports.there([each.carried.job.id for each in batch if each.carried is not None])
        for each in batch:
            if each.carried is None:
                why = each.why
            elif each.carried.job.id in there:
                why = HERE_ALREADY
            else:
                why = None if lost.isdisjoint(each.carried.job.parents) else NO_PARENT
            found.add(each, why)
            if why not in {None, HERE_ALREADY} and each.id is not None:
                lost.add(each.id)
    return found


def carry(
    source: Source, backend: Backend, action_id: str, by: By, tell: Callable[[int, int], None] = lambda *_: None
) -> Imported:
    """Writes the jobs of the source that are not here yet. `tell` is told how many were looked at, of how many."""
    done = Imported(source.system, source.place, source.total(), is_done=True)
    note = f"from {source.system}"
    action = NewAction(action_id, by.who, by.via, "import", "database", source.place, note)
    backend.actions.note(action)
    seen, later = 0, list[int]()
    for batch in _batches(source.entries()):
        later += _write(backend, batch, done, action)
        seen += len(batch)
        tell(seen, done.total)
    while later:
        again: list[int] = []
        for batch in _batches(map(source.entry, later)):
            again += _write(backend, batch, done, action)
        if len(again) == len(later):
            for number in again:
                done.add(source.entry(number), NO_PARENT)
            backend.imports.write([], action=action, left_out=len(again))
            break
        later = again
    return done


def _write(backend: Backend, batch: list[Entry], done: Imported, action: NewAction) -> list[int]:
    """Writes a batch; the numbers of those whose parents are not there yet."""
    carried = [each.carried for each in batch if each.carried is not None]
    unfit = len(batch) - len(carried)
    written = backend.imports.write(carried, action=action, left_out=unfit)
    later: list[int] = []
    for each in batch:
        if each.carried is None or each.carried.job.id in written.fresh:
            done.add(each)
        elif each.carried.job.id in written.orphans:
            later.append(each.number)
        else:
            done.add(each, HERE_ALREADY)
    return later


def _batches(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    batch: list[Entry] = []
    size = 0
    for each in entries:
        batch.append(each)
        size += 0 if each.carried is None else each.carried.size
        if len(batch) >= _BATCH or size >= _BATCH_SIZE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
