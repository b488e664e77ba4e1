"""Groups of failures on pages: a page counts few of them, a thread beside it the rest."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest

from dray import App
from dray.app_interface import core_of
from dray.backends.store.failures import FailureStore
from dray.errors import StorageUnavailable
from dray.web import failing
from dray.web.beside import Beside
from dray.web.failing import Asked, Failing
from dray.web.shared import Shared
from tests.web.browsing import Visitor
from tests.web.hands import Hand

PATIENCE = 20.0
ALL = Asked(None, 10, 0.0)  # read with each question


@pytest.fixture(autouse=True)
def three_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failing, "_FRESH", 3)
    monkeypatch.setattr(failing, "_CHEAP_S", -1.0)  # to count all takes long


class Counted:
    """Groups as pages ask for them, and when they have been counted beside."""

    def __init__(self, app: App) -> None:
        self.beside = Beside()
        self.failing = Failing(core_of(app), Shared(), self.beside, self._ring)
        self._rings = threading.Semaphore(0)

    def _ring(self) -> None:
        self._rings.release()

    def wait(self) -> None:
        assert self._rings.acquire(timeout=PATIENCE)
        _until_no_thread()

    def group(self, asked: Asked = ALL) -> tuple[int, bool, bool]:
        """The only group: how many, whether there are more, whether that is of an earlier count."""
        (group,) = self.failing.groups(asked)
        return group.count, group.is_capped, group.counted_at is not None


@pytest.fixture
def counted(app: App) -> Generator[Counted]:
    made = Counted(app)
    yield made
    made.beside.close()
    _until_no_thread()


def _threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "dray-beside"]


def _until_no_thread() -> None:
    for thread in _threads():
        thread.join(PATIENCE)
        assert not thread.is_alive()


def fail(app: App, jobs: int, message: str = "no answer {n}") -> None:
    app.init()
    for _ in range(jobs):
        app.enqueue("send", {}, queue="mail", max_attempts=1)
    Hand(app, slots=jobs).fail("mail", message, most=jobs)


@contextmanager
def limits(monkeypatch: pytest.MonkeyPatch) -> Generator[list[int]]:
    """How many failures in all each reading counts at most."""
    read, asked = FailureStore.groups, list[int]()

    def noted(store: FailureStore, *given: Any, **options: Any) -> Any:
        asked.append(options["in_all"])
        return read(store, *given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(FailureStore, "groups", noted)
        yield asked


def test_a_small_group_is_counted_by_the_page_alone(
    app: App, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(app, 3)

    with limits(monkeypatch) as asked:
        assert counted.group() == (3, False, False)

    assert asked == [3]
    assert not _threads()


def test_a_page_does_not_wait_for_the_count_of_a_large_group(
    app: App, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(app, 5)

    with limits(monkeypatch) as asked:
        assert counted.group() == (3, True, False)
        counted.wait()
        assert counted.group() == (5, False, True)

    assert asked == [3, 100_000, 3]


def test_a_page_takes_the_count_itself_where_that_is_cheap(
    app: App, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing, "_CHEAP_S", PATIENCE)
    fail(app, 5)
    assert counted.group() == (3, True, False)
    counted.wait()

    assert counted.group() == (5, False, False)
    fail(app, 1)
    assert counted.group() == (6, False, False)

    monkeypatch.setattr(failing, "_CHEAP_S", -1.0)
    assert counted.group() == (6, False, True)


def test_a_count_that_was_just_taken_serves_all(app: App, counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failing, "_SHARE", 1_000_000)
    fail(app, 5)
    counted.group()
    counted.wait()
    fail(app, 1)

    assert counted.group() == (5, False, True)
    assert not _threads()


def test_an_action_has_it_counted_again_and_the_last_count_is_shown_as_such(
    app: App, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing, "_SHARE", 1_000_000)
    fail(app, 6)
    counted.group()
    counted.wait()
    app.job(app.jobs(state="failed", limit=1)[0].id).retry()
    counted.failing.forget()

    assert counted.group() == (6, False, True)
    counted.wait()
    assert counted.group() == (5, False, True)


def test_a_group_that_has_become_small_is_counted_by_the_page(app: App, counted: Counted) -> None:
    fail(app, 5)
    counted.group()
    counted.wait()
    for job in app.jobs(state="failed", limit=3):
        job.delete()

    assert counted.group() == (2, False, False)


def test_an_action_during_a_count_has_it_taken_again(
    app: App, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing, "_SHARE", 1_000_000)
    fail(app, 5)
    read = counted.failing._read

    def acted_upon(asked: Asked, in_all: int | None = None) -> Any:
        found = read(asked, in_all)
        if in_all is None:
            monkeypatch.setattr(counted.failing, "_read", read)
            fail(app, 1)
            counted.failing.forget()
        return found

    monkeypatch.setattr(counted.failing, "_read", acted_upon)
    counted.group()
    counted.wait()

    assert counted.group() == (5, False, True)
    counted.wait()
    assert counted.group() == (6, False, True)


def test_an_old_count_is_not_shown(app: App, counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failing, "_OLDEST", 0.0)
    fail(app, 5)
    counted.group()
    counted.wait()

    assert counted.group() == (3, True, False)


def test_a_count_that_fails_is_tried_again_by_the_next_page(
    app: App, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(app, 5)
    with monkeypatch.context() as patched:
        patched.setattr(counted.failing, "_count", _away)
        assert counted.group() == (3, True, False)
        _until_no_thread()

    assert counted.group() == (3, True, False)
    counted.wait()
    assert counted.group() == (5, False, True)


def _away(_: Asked) -> None:
    raise StorageUnavailable("the server is away")


def test_two_lists_are_counted_one_after_the_other(app: App, counted: Counted) -> None:
    fail(app, 5)
    hour = Asked(3600.0, 10, 0.0)
    assert counted.group() == counted.group(hour) == (3, True, False)
    counted.wait()

    assert counted.group() == (5, False, True)
    assert counted.group(hour) == (5, False, True)


def test_nothing_is_counted_after_the_end(app: App, counted: Counted) -> None:
    fail(app, 5)
    counted.beside.close()

    assert counted.group() == (3, True, False)
    assert not _threads()


def _counted_by(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Reads a page, and waits until all that it wanted is counted and open pages are told."""
    done = threading.Event()
    tell = visitor.site.feed.tell

    def told(topics: Any) -> None:
        tell(topics)
        done.set()

    monkeypatch.setattr(visitor.site.feed, "tell", told)

    def read(path: str) -> str:
        done.clear()
        words = visitor.words(path)
        assert done.wait(PATIENCE)
        _until_no_thread()
        return words

    return read


def test_pages_say_which_counts_are_of_earlier(app: App, visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(app, 12)
    first_words = _counted_by(visitor, monkeypatch)

    assert " 3+ " in first_words("/failures")
    assert " ≈ 12 " in visitor.words("/failures")
    assert re.search(r"≈ counted [<\d]+m?s ago", visitor.words("/failures"))
    (group,) = visitor.json("/failures.json")
    assert (group["count"], group["is_capped"]) == (12, False)
    assert group["counted_at"] is not None

    assert " 3+ " in first_words("/")
    words = visitor.words("/")
    assert "About 12 jobs of send failed with the same error" in words
    assert "Retry ≈ 12…" in words
    assert re.search(r"send , last [<\d.]+m?s ago , counted [<\d.]+m?s ago ≈ 12", words)


def test_a_reading_as_new_as_the_page_says_nothing_of_its_count(app: App, visitor: Visitor) -> None:
    fail(app, 2)

    assert "≈" not in visitor.words("/failures")
    (group,) = visitor.json("/failures.json")
    assert group["counted_at"] is None
