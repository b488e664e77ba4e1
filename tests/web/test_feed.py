"""The feed: one thread that tells all streams which topics have changed."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Generator

import pytest

from dray import App
from dray.app_interface import core_of
from dray.errors import StorageUnavailable
from dray.web import feed as feeds
from dray.web.feed import TOPICS, Feed, Listener

PATIENCE = 20.0


class Heard:
    """A listener as a stream is one, with what it was told."""

    def __init__(self, feed: Feed, login: str = "ann") -> None:
        self.rings = threading.Event()
        self.topics: set[str] = set()
        listener = feed.join(login, self.rings.set)
        assert listener is not None
        self.listener: Listener = listener

    def until(self, wanted: set[str]) -> set[str]:
        """Waits until these were told; returns all that was."""
        ends = time.monotonic() + PATIENCE
        while not wanted <= self.topics:
            assert self.rings.wait(ends - time.monotonic()), f"told of {self.topics}, not of {wanted}"
            self.rings.clear()
            self.topics.update(self.listener.take())
        told, self.topics = self.topics, set()
        return told


@pytest.fixture
def feed(app: App, monkeypatch: pytest.MonkeyPatch) -> Generator[Feed]:
    monkeypatch.setattr(feeds, "_ECHO", 1000.0)
    made = Feed(core_of(app))
    yield made
    made.close()
    _until_no_thread()


def _threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "dray-feed"]


def _until_no_thread() -> None:
    for thread in _threads():
        thread.join(PATIENCE)
        assert not thread.is_alive()


def _add(app: App) -> Callable[[], object]:
    @app.task(name="mail.send")
    def send() -> None: ...

    return send.enqueue


def test_what_happens_is_told_by_topic(app: App, feed: Feed) -> None:
    enqueue = _add(app)
    heard = Heard(feed)
    heard.until(set(TOPICS))  # the first look: nothing is known yet

    enqueue()
    assert heard.until({"jobs", "queues", "workflows"}).isdisjoint({"schedules", "logs", "actions"})

    app.pause("mail")
    assert "jobs" not in heard.until({"queues"})

    app.schedule("nightly", "mail.send", every=3600)
    heard.until({"schedules"})


def test_a_change_is_told_once_more_for_what_was_made_of_older_readings(
    app: App, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "_ECHO", 0.1)
    heard = Heard(feed)
    heard.until(set(TOPICS))

    app.pause("mail")

    heard.until({"queues"})
    assert heard.until({"queues"}) == {"queues"}


def test_all_listeners_share_one_thread_that_ends_with_the_last(app: App, feed: Feed) -> None:
    heard = [Heard(feed, login) for login in ("ann", "ben", "cem")]
    assert len(_threads()) == 1

    for each in heard[:2]:
        feed.leave(each.listener)
    assert len(_threads()) == 1
    feed.leave(heard[2].listener)

    _until_no_thread()
    again = Heard(feed)
    again.until(set(TOPICS))
    assert len(_threads()) == 1


def test_streams_are_bounded(app: App, feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "STREAMS", 6)
    of_ann = [Heard(feed, "ann") for _ in range(feeds.STREAMS_OF_LOGIN)]

    assert feed.join("ann", lambda: None) is None
    assert feed.join("ben", lambda: None) is not None
    assert feed.join("cem", lambda: None) is not None
    assert feed.join("dee", lambda: None) is None  # six in all

    feed.leave(of_ann[0].listener)
    assert feed.join("ann", lambda: None) is not None


def test_closing_ends_all_listeners_at_once_and_refuses_others(app: App, feed: Feed) -> None:
    heard = Heard(feed)
    heard.until(set(TOPICS))

    feed.close()

    assert heard.listener.is_over
    assert feed.join("ann", lambda: None) is None
    _until_no_thread()


def test_a_database_that_goes_away_and_comes_back_is_told(
    app: App, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = core_of(app).backend.live
    pulse, is_away = live.pulse, threading.Event()

    def pulse_unless_away() -> object:
        if is_away.is_set():
            raise StorageUnavailable("the database does not reply")
        return pulse()

    monkeypatch.setattr(live, "pulse", pulse_unless_away)
    enqueue = _add(app)
    heard = Heard(feed)
    heard.until(set(TOPICS))
    assert feed.version({"jobs"}) is not None

    is_away.set()
    enqueue()  # wakes it
    heard.until(set(TOPICS))
    assert feed.version({"jobs"}) is None

    is_away.clear()
    heard.until(set(TOPICS))
    enqueue()
    heard.until({"jobs"})


def test_a_version_changes_with_its_topics_alone(app: App, feed: Feed) -> None:
    assert feed.version({"queues"}) is None  # nobody looks
    heard = Heard(feed)
    heard.until(set(TOPICS))
    schedules, queues = feed.version({"schedules"}), feed.version({"queues", "jobs"})

    app.pause("mail")
    heard.until({"queues"})

    assert feed.version({"schedules"}) == schedules
    assert feed.version({"queues", "jobs"}) != queues


def test_what_has_changed_beside_the_database_is_told_too(feed: Feed) -> None:
    feed.tell({"jobs"})  # nobody looks
    heard = Heard(feed)
    heard.until(set(TOPICS))
    before = feed.version({"jobs"})

    feed.tell({"jobs"})

    assert heard.until({"jobs"}) == {"jobs"}
    assert feed.version({"jobs"}) != before


def test_a_look_is_taken_at_most_four_times_a_second(app: App, feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    live = core_of(app).backend.live
    pulse, looks = live.pulse, list[float]()

    def counted() -> object:
        looks.append(time.monotonic())
        return pulse()

    monkeypatch.setattr(live, "pulse", counted)
    enqueue = _add(app)
    heard = Heard(feed)
    for _ in range(4):
        heard.until({"jobs"})
        enqueue()

    assert all(later - earlier >= 0.24 for earlier, later in itertools.pairwise(looks))
