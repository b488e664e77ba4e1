"""Executions that wait for a slot: started from the front, given back from the end."""

from __future__ import annotations

import threading
from queue import Empty
from types import SimpleNamespace
from typing import Any

import pytest

from dray.runtime.runners import Line


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
