"""The thread that does what pages do not wait for."""

from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from dray.errors import StorageUnavailable
from dray.web.beside import Beside

PATIENCE = 20.0


@pytest.fixture
def beside() -> Generator[Beside]:
    made = Beside()
    yield made
    made.close()
    _until_over()


def _threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "dray-beside"]


def _until_over() -> None:
    for thread in _threads():
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_all_is_done_in_order_and_the_thread_ends(beside: Beside) -> None:
    go_on, done = threading.Event(), list[str]()
    beside.do("first", lambda: (go_on.wait(PATIENCE), done.append("first"))[1])
    beside.do("second", lambda: done.append("second"))
    assert len(_threads()) == 1

    go_on.set()
    _until_over()

    assert done == ["first", "second"]


def test_what_is_wanted_twice_is_done_once(beside: Beside) -> None:
    go_on, done = threading.Event(), list[int]()
    for n in range(3):
        beside.do("count", lambda n=n: (go_on.wait(PATIENCE), done.append(n))[1])

    go_on.set()
    _until_over()

    assert done == [0]


def test_it_is_done_again_when_it_is_wanted_later(beside: Beside) -> None:
    done = list[int]()
    for n in range(2):
        beside.do("count", lambda n=n: done.append(n))
        _until_over()

    assert done == [0, 1]


def test_a_database_that_is_away_keeps_nothing_else_from_being_done(beside: Beside) -> None:
    done = list[str]()

    def away() -> None:
        raise StorageUnavailable("the server is away")

    beside.do("count", away)
    beside.do("other", lambda: done.append("other"))
    _until_over()
    beside.do("count", lambda: done.append("count"))
    _until_over()

    assert done == ["other", "count"]


def test_nothing_is_begun_after_the_end(beside: Beside) -> None:
    begun, go_on, done = threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        begun.set()
        assert go_on.wait(PATIENCE)
        done.append("first")

    beside.do("first", first)
    assert begun.wait(PATIENCE)
    beside.do("second", lambda: done.append("second"))
    beside.close()
    go_on.set()
    _until_over()
    beside.do("third", lambda: done.append("third"))

    assert done == ["first"]
    assert not _threads()
