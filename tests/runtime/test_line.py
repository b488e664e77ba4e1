"""Executions that wait for a slot: started from the front, given back from the end."""

from __future__ import annotations

import threading
from queue import Empty
from types import SimpleNamespace
from typing import Any

import pytest

from dray.runtime.runners import Line
from tests.runtime.watching import until


def execution(name: str = "", priority: int = 0, queue: str = "default") -> Any:
    return SimpleNamespace(name=name, claim=SimpleNamespace(priority=priority, queue=queue))


def line_of(count: int) -> tuple[Line, list[Any]]:
    line, executions = Line(), [execution(str(n)) for n in range(count)]
    line.extend(executions)
    return line, executions


def test_what_is_claimed_later_goes_before_jobs_of_its_queue_with_a_lower_priority() -> None:
    line = Line()
    line.extend([execution("a", 5), execution("b", 0), execution("other", -1, "other"), execution("c", 0)])
    line.extend([execution("urgent", 9), execution("also", 5), execution("late", 0)])
    line.extend([execution("last", 9, "other"), None])

    taken = [line.take() for _ in range(8)]
    assert [each.name for each in taken if each is not None] == [  # pyright: ignore[reportAttributeAccessIssue]
        *("urgent", "a", "also", "b", "last", "other", "c", "late")
    ]
    assert line.take(timeout=1) is None


def test_the_first_goes_first() -> None:
    line, executions = line_of(3)

    assert [line.take() for _ in range(3)] == executions
    with pytest.raises(Empty):
        line.take(timeout=0.01)


def test_all_that_wait_go_back_in_their_order_and_nobody_is_woken_for_them() -> None:
    line, executions = line_of(3)
    assert line.take() is executions[0]

    assert line.take_back() == executions[1:]
    assert line.take_back() == []
    with pytest.raises(Empty):
        line.take(timeout=0.01)


def test_a_slot_sleeps_until_something_comes() -> None:
    line, executions = line_of(1)
    line.take_back()
    timer = threading.Timer(0.05, line.extend, ([executions[0], None],))
    timer.start()

    assert line.take(timeout=30) is executions[0]
    assert line.take(timeout=30) is None
    timer.join()


def test_while_slots_take_what_goes_back_comes_from_behind() -> None:
    """Each execution is started or given back, once. None is started that came after one that was given back."""
    for _ in range(50):
        line, executions = line_of(200)
        started = threading.Event()
        taken: list[Any] = []

        def work(line: Line = line, taken: list[Any] = taken, started: threading.Event = started) -> None:
            while (execution := line.take()) is not None:
                taken.append(execution)
                started.set()

        slot = threading.Thread(target=work)
        slot.start()
        started.wait()
        back = line.take_back()
        line.extend([None])
        slot.join()
        assert taken + back == executions


def test_no_slot_sleeps_while_another_execution_waits() -> None:
    """Slots come and go, with and without a timeout, while executions come one by one and in crowds."""
    line, executions = line_of(3_000)
    line.take_back()
    taken: list[Any] = []

    def work(timeout: float | None) -> None:
        while True:
            try:
                execution = line.take(timeout)
            except Empty:
                continue
            if execution is None:
                return
            taken.append(execution)

    slots = [threading.Thread(target=work, args=(timeout,)) for timeout in (None, 0.0001, None, 0.001)]
    for slot in slots:
        slot.start()
    for start in range(0, 3_000, 30):
        line.extend(executions[start : start + 1])
        line.extend(executions[start + 1 : start + 30], wake=1)
        until(lambda start=start: len(taken) == start + 30)  # woken by nothing that comes later
    line.extend([None] * len(slots))
    for slot in slots:
        slot.join()

    assert sorted(map(id, taken)) == sorted(map(id, executions))


def test_a_line_knows_that_some_wait_while_slots_sleep() -> None:
    line, executions = line_of(2)
    slot = threading.Thread(target=line.take)
    line.take_back()
    slot.start()
    until(lambda: line._asleep)

    line.extend(executions, wake=0)
    assert line.is_held_up

    line.wake(8)
    slot.join()
    assert not line.is_held_up
    assert line.take() is executions[1]
