"""A NOTIFY ends a wait, whatever happens to the LISTEN connection, which also holds the worker's lock."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from queue import SimpleQueue
from typing import Any

import psycopg
import pytest

from dray.address import PostgresAddress, parse_address
from dray.backends.postgres import listen as module
from dray.backends.postgres.database import PostgresDatabase
from dray.backends.postgres.listen import PostgresWatch
from dray.backends.postgres.notify import NOTIFY, Note, Notifier, channels
from dray.backends.postgres.session import WORKER_SPACE, lock_key
from dray.backends.watch import Watch, rest
from dray.errors import ConfigError, StorageError, StorageUnavailable
from tests.backends.processes import ROOT

UNAIDED = 6.0  # seconds; much longer than any wake-up takes on a busy machine
WORKER = "018f0000-0000-7000-8000-000000000001"


class Sender:
    """What an App passes as `send`: another connection. Records what was sent, and when."""

    def __init__(self, conninfo: str) -> None:
        self._connection = psycopg.connect(conninfo, autocommit=True)
        self._lock = threading.Lock()
        self.sent: list[tuple[float, str, str]] = []
        self.delivers = self.delivers_pings = True

    def __call__(self, channel: str, payload: str) -> None:
        with self._lock:
            self.sent.append((time.monotonic(), channel, payload))
            if self.delivers and (self.delivers_pings or ":ping:" not in channel):
                self._connection.execute(NOTIFY, (channel, payload))

    def query(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(text.encode(), values).fetchall()

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def address(postgres_url: str) -> PostgresAddress:
    found = parse_address(postgres_url)
    assert isinstance(found, PostgresAddress)
    return found


@pytest.fixture
def sender(address: PostgresAddress) -> Iterator[Sender]:
    with closing(Sender(address.conninfo)) as opened:
        yield opened


@pytest.fixture
def watch(address: PostgresAddress, sender: Sender) -> Iterator[PostgresWatch]:
    with closing(PostgresWatch(address.conninfo, address.schema, sender)) as opened:
        yield opened


@pytest.fixture
def database(address: PostgresAddress, sender: Sender) -> Iterator[PostgresDatabase]:
    """A database whose notifications go through the sender."""
    with closing(PostgresDatabase(address)) as opened:
        opened._notifier = Notifier(sender)
        yield opened


@pytest.fixture
def listening(watch: PostgresWatch) -> PostgresWatch:
    """A watch with an open and verified connection."""
    wait_until(watch, lambda: watch.is_pushed)
    settle(watch)
    return watch


@pytest.fixture
def unaided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAFETY_POLL", UNAIDED)
    monkeypatch.setattr(module, "PROVEN_POLL", UNAIDED)


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds: list[float] = []

    def counted(descriptors: tuple[int, ...], length: float) -> bool:
        seconds.append(length)
        return rest(descriptors, length)

    monkeypatch.setattr(module, "rest", counted)
    return seconds


def wait_until(watch: Watch, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        watch.wait(0.02)


def settle(watch: Watch) -> None:
    while watch.wait(0.03):
        pass


def sessions(sender: Sender) -> list[int]:
    """Returns the server's processes of LISTEN connections; this process's database has one test at a time."""
    ours = "datname = current_database() AND application_name = 'dray listen'"
    return [row[0] for row in sender.query(f"SELECT pid FROM pg_stat_activity WHERE {ours}")]


def kill(sender: Sender) -> None:
    for pid in sessions(sender):
        sender.query("SELECT pg_terminate_backend(%s, 5000)", pid)


def lock_holders(sender: Sender, worker_id: str) -> list[int]:
    return [
        row[0]
        for row in sender.query(
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2"
            " AND classid = %s::bigint::oid AND objid = %s::bigint::oid",
            WORKER_SPACE,
            lock_key(worker_id) % (1 << 32),
        )
    ]


# Notifications


@pytest.mark.usefixtures("unaided")
def test_of_200_notifications_none_is_missed(sender: Sender, listening: PostgresWatch):
    found: list[float] = []
    for number in range(200):
        timer = threading.Timer(number % 5 * 0.001, sender, (listening._hears[0], "default"))
        timer.start()
        assert listening.wait(), f"notification {number} was not heard"
        heard_at = time.monotonic()
        timer.join()
        found.append(heard_at - sender.sent[-1][0])
    found.sort()
    print(f"sent → heard p50 {found[100] * 1e3:.2f} ms, p99 {found[198] * 1e3:.2f} ms")


@pytest.mark.usefixtures("unaided")
def test_what_is_for_other_queues_is_taken_in_at_ever_longer_pauses(
    address: PostgresAddress, sender: Sender, rests: list[float]
):
    with closing(PostgresWatch(address.conninfo, address.schema, sender, queues={"ours"})) as watch:
        wait_until(watch, lambda: watch.is_pushed)
        settle(watch)
        rests.clear()
        over = threading.Event()
        sent: list[int] = []

        def talk() -> None:
            while not over.wait(0.001):
                sender(watch._hears[0], "theirs")
                sent.append(1)

        talker = threading.Thread(target=talk)
        talker.start()
        assert not watch.wait(1.0)
        assert len(rests) < 2 * 60  # two per turn; turns of 1, 2, 4 ... 50 ms
        sender(watch._hears[0], "ours")
        assert watch.wait(), "what is ours was not heard among what is theirs"
        over.set()
        talker.join()
        assert len(sent) > 100


def test_a_pause_is_forgotten_when_it_was_long_ago():
    lull = module.Lull()
    found: list[float] = []
    for now in (0.0, 0.01, 0.02, 0.03, 5.0):
        lull.is_due = True
        found.append(lull.take(now))
        assert lull.take(now) == 0.0

    assert found == [0.001, 0.002, 0.004, 0.008, 0.001]


@pytest.mark.usefixtures("unaided")
def test_a_notification_that_comes_with_the_answer_to_a_statement_is_heard(sender: Sender, listening: PostgresWatch):
    assert listening._connection is not None
    timer = threading.Timer(0.02, sender, (listening._hears[0], "default"))
    timer.start()
    listening._connection.execute("SELECT pg_sleep(0.1)")
    timer.join()
    assert listening.wait()


@pytest.mark.usefixtures("unaided")
def test_jobs_that_are_ready_and_jobs_that_are_done_both_end_the_wait(
    address: PostgresAddress, sender: Sender, database: PostgresDatabase, listening: PostgresWatch
):
    database.announce(["default"])
    assert listening.wait()
    settle(listening)
    database.announce_done()
    assert listening.wait()
    assert {entry[1:] for entry in sender.sent if "ping" not in entry[1]} == {
        (f"dray_{address.schema}", "default"),
        (f"dray_{address.schema}:done", ""),
    }


def test_who_does_not_wait_for_results_is_not_woken_by_them(
    address: PostgresAddress, sender: Sender, database: PostgresDatabase
):
    with closing(PostgresWatch(address.conninfo, address.schema, sender, hears_done=False)) as watch:
        wait_until(watch, lambda: watch.is_pushed)
        settle(watch)
        database.announce_done()
        assert not watch.wait(0.1)
        database.announce(["default"])
        assert watch.wait()


def test_the_first_wait_tells_to_look_once_it_listens(watch: PostgresWatch):
    assert watch.wait(0)


def test_schemas_do_not_wake_each_other(address: PostgresAddress, sender: Sender, listening: PostgresWatch):
    sender(channels("another").work, "default")
    sender(channels(None).work, "default")
    assert not listening.wait(0.1)


def test_every_schema_has_channels_of_its_own_however_long_its_name(address: PostgresAddress, sender: Sender):
    names = [None, "x", "x_done", "done_x", "a" * 50, "a" * 51, "a" * 63, "a" * 62 + "b"]
    made = [channel for name in names for channel in channels(name)]
    assert len(set(made)) == 2 * len(names)
    assert channels("public") == channels(None)
    longest = "s" * 63
    assert all(len(channel) <= 63 for channel in (*made, *channels(longest)))
    with closing(PostgresWatch(address.conninfo, longest, sender)) as watch:
        wait_until(watch, lambda: watch.is_pushed)
        settle(watch)
        sender(channels(longest).work, "default")
        assert watch.wait(1)


# Proof


def test_the_safety_poll_is_longer_once_listen_is_proven(
    monkeypatch: pytest.MonkeyPatch, sender: Sender, watch: PostgresWatch
):
    monkeypatch.setattr(module, "SAFETY_POLL", 0.1)
    monkeypatch.setattr(module, "PROVEN_POLL", 1.5)
    sender.delivers = False
    assert watch.wait()
    assert 0.09 < duration_of_wait(watch) < 1.4
    sender.delivers = True
    sender(watch._ping.channel, "")
    wait_until(watch, lambda: watch.is_pushed)
    assert 1.49 < duration_of_wait(watch) < 15


def duration_of_wait(watch: Watch) -> float:
    began = time.monotonic()
    assert not watch.wait(60)
    return time.monotonic() - began


def test_listen_that_does_not_deliver_is_found_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, sender: Sender, watch: PostgresWatch
):
    monkeypatch.setattr(module, "PROOF", 0.1)
    sender.delivers = False
    wait_until(watch, lambda: "LISTEN does not deliver" in caplog.text)
    assert not watch.is_pushed
    assert len(sessions(sender)) == 1, "it is no pooler's: the worker's lock may be on it"


def test_a_ping_that_is_not_answered_ends_the_trust_and_a_new_connection_brings_it_back(
    monkeypatch: pytest.MonkeyPatch, sender: Sender, listening: PostgresWatch
):
    for name in ("PROOF", "_PING", "_UNPROVEN_PING"):
        monkeypatch.setattr(module, name, 0.05)
    listening._ping_at = 0.0
    before = sessions(sender)
    sender.delivers = False
    wait_until(listening, lambda: not listening.is_pushed)
    assert sessions(sender) == before, "one ping may be late"
    wait_until(listening, lambda: sessions(sender) not in ([], before))
    sender.delivers = True
    wait_until(listening, lambda: listening.is_pushed)


def _not_direct(_: object) -> bool:
    return False


def test_a_pooler_that_does_not_deliver_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, sender: Sender, watch: PostgresWatch
):
    monkeypatch.setattr(module, "leads_to_server", _not_direct)
    monkeypatch.setattr(module, "PROOF", 0.3)
    sender.delivers_pings = False
    assert not watch.hold(WORKER)
    assert lock_holders(sender, WORKER) == []
    assert len(sessions(sender)) == 1
    assert watch.wait(), "poked by hold"
    sender(watch._hears[0], "default")
    assert not watch.wait(0.1), "its connection to the server was told to listen, for whoever has it next"
    wait_until(watch, lambda: sessions(sender) == [])
    assert not watch.is_pushed
    assert 200 < watch._retry_at - time.monotonic() < 601


def test_a_pooler_that_delivers_is_listened_to_but_given_no_lock(
    monkeypatch: pytest.MonkeyPatch, sender: Sender, watch: PostgresWatch
):
    monkeypatch.setattr(module, "leads_to_server", _not_direct)
    wait_until(watch, lambda: watch.is_pushed)
    settle(watch)
    sender(watch._hears[0], "default")
    assert watch.wait()
    assert not watch.hold(WORKER)
    assert lock_holders(sender, WORKER) == []


# Loss


@pytest.mark.usefixtures("unaided")
def test_a_connection_that_is_killed_is_made_anew_with_its_lock(
    caplog: pytest.LogCaptureFixture, sender: Sender, listening: PostgresWatch
):
    assert listening.hold(WORKER)
    settle(listening)
    (before,) = sessions(sender)
    for _ in range(2):
        kill(sender)
        assert listening.wait(), "after a reconnect there has to be a look"
        wait_until(listening, lambda: listening.is_pushed)
        settle(listening)
        sender(listening._hears[0], "default")
        assert listening.wait()
        assert listening.holds
        (after,) = sessions(sender)
        assert lock_holders(sender, WORKER) == [after] != [before]
    assert "lost" in caplog.text


def test_notifications_sent_while_nobody_listened_lead_to_a_look(sender: Sender, listening: PostgresWatch):
    kill(sender)
    sender(listening._hears[0], "default")
    assert listening.wait() or listening.wait()


def test_a_server_that_is_away_is_waited_for_without_an_error(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    address: PostgresAddress,
    sender: Sender,
    rests: list[float],
):
    monkeypatch.setattr(module, "SAFETY_POLL", 0.4)
    caplog.set_level(logging.DEBUG, "dray")
    with closing(PostgresWatch("host=/nowhere dbname=x", None, sender)) as watch:
        began = time.monotonic()
        assert not watch.wait(60)
        assert 0.39 < time.monotonic() - began < 20
        assert not watch.hold(WORKER)
        assert not watch.holds
        assert not watch.is_pushed
        assert len(rests) < 10
        settle(watch)
        watch._failures = 2_000  # as after a night
        watch._retry_at = 0.0
        assert not watch.wait(0.01)
        assert watch._retry_at - time.monotonic() < 5.1
        monkeypatch.setattr(module, "SAFETY_POLL", UNAIDED)  # a busy server takes its time
        watch._conninfo, watch._retry_at = address.conninfo, 0.0
        assert watch.wait(), "it is back"
        assert watch.holds
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1, "one line for an outage, not one for each try"


# The lock


def test_the_workers_lock_is_on_the_connection_that_listens(sender: Sender, watch: PostgresWatch):
    assert watch.hold(WORKER)
    assert watch.hold(WORKER)
    assert lock_holders(sender, WORKER) == sessions(sender)
    watch.close()
    assert not watch.holds
    wait_for(lambda: lock_holders(sender, WORKER) == [])


def test_a_worker_that_comes_back_under_a_new_id_lets_the_old_lock_go(sender: Sender, watch: PostgresWatch):
    another = WORKER.replace("1", "2")
    assert watch.hold(WORKER)
    assert watch.hold(another)
    assert lock_holders(sender, WORKER) == []
    assert lock_holders(sender, another) == sessions(sender)


def test_a_lock_that_somebody_has_is_taken_when_it_is_free(
    monkeypatch: pytest.MonkeyPatch, address: PostgresAddress, sender: Sender, watch: PostgresWatch
):
    monkeypatch.setattr(module, "_LOCK_PAUSE", 0.05)
    with psycopg.connect(address.conninfo, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(%s::int, %s::int)", (WORKER_SPACE, lock_key(WORKER)))
        assert not watch.hold(WORKER)
        assert not watch.holds
    wait_until(watch, lambda: watch.holds)


def test_a_lock_is_taken_while_another_thread_waits(sender: Sender, listening: PostgresWatch):
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(listening.wait(0.3)))
    waiting.start()
    assert listening.hold(WORKER)
    waiting.join()
    assert answers == [False], "it is told of jobs, and of nothing else"


@pytest.fixture
def greeting(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """New LISTEN connections are not accepted before this is set."""
    greets, connect = threading.Event(), psycopg.connect

    def slow(*args: Any, **options: Any) -> Any:
        if options.get("application_name") == "dray listen":
            assert greets.wait(30)
        return connect(*args, **options)

    monkeypatch.setattr(psycopg, "connect", slow)
    yield greets
    greets.set()


def test_nobody_waits_for_a_server_that_is_slow_to_greet(
    sender: Sender, listening: PostgresWatch, greeting: threading.Event
) -> None:
    """Neither the wait for jobs nor the heartbeat: both have working connections."""
    assert listening.hold(WORKER)
    settle(listening)
    kill(sender)
    began = time.monotonic()
    wait_until(listening, lambda: not listening.holds)
    for _ in range(3):
        assert not listening.wait(0.02)
        listening.keep(WORKER)
    assert time.monotonic() - began < 5
    assert not listening.holds

    greeting.set()
    wait_until(listening, lambda: listening.holds)
    assert lock_holders(sender, WORKER) == sessions(sender)


def test_a_heartbeat_has_the_lock_taken_again_while_nobody_waits(sender: Sender, listening: PostgresWatch) -> None:
    """A worker that is always busy never waits for jobs."""
    assert listening.hold(WORKER)
    kill(sender)

    def beat() -> bool:
        listening.keep(WORKER)
        return lock_holders(sender, WORKER) != []

    wait_for(beat)
    assert len(sessions(sender)) == 1


def test_a_heartbeat_waits_for_nobody_who_tends_the_connection(listening: PostgresWatch) -> None:
    with listening._lock:
        listening.keep(WORKER)
    assert not listening.holds
    listening.keep(WORKER)
    wait_for(lambda: listening.holds)


def test_a_watch_that_is_closed_while_it_connects_leaves_no_connection(
    sender: Sender, listening: PostgresWatch, greeting: threading.Event
) -> None:
    kill(sender)
    wait_until(listening, lambda: listening._is_aside)
    listening.close()
    greeting.set()

    wait_for(lambda: not [each for each in threading.enumerate() if each.name == "dray-listen"])
    wait_for(lambda: not sessions(sender))  # the server's side ends a moment later


def test_without_a_thread_to_connect_on_it_is_tried_again_later(
    sender: Sender, listening: PostgresWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "dray-listen":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        kill(sender)
        for _ in range(10):
            listening.wait(0.02)
        assert not listening.is_pushed
    wait_until(listening, lambda: listening.is_pushed)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# Sending


def test_of_1000_notifications_few_are_sent_and_the_last_is_not_lost(sender: Sender, database: PostgresDatabase):
    for pause in (0.0, 0.000_1, 0.001):
        sender.sent.clear()
        began = last = time.monotonic()
        for _ in range(1_000 if pause < 0.001 else 100):
            last = time.monotonic()  # the call itself may send: after a stall its window is over
            database.announce(["default", "mail", "default"])
            time.sleep(pause)
        seconds = time.monotonic() - began
        wait_for(lambda last=last: all(_last(sender, queue) >= last for queue in ("default", "mail")))
        print(f"{len(sender.sent)} sent in {seconds * 1e3:.0f} ms")
        assert len(sender.sent) <= 2 * (seconds / 0.005 + 2)


def _last(sender: Sender, queue: str) -> float:
    return max((at for at, _, payload in list(sender.sent) if payload == queue), default=0.0)


def test_ended_jobs_are_told_at_most_each_20_ms(sender: Sender, database: PostgresDatabase):
    began = last = time.monotonic()
    while time.monotonic() - began < 0.1:
        last = time.monotonic()  # as above
        database.announce_done()
        time.sleep(0.000_5)
    wait_for(lambda: sender.sent[-1][0] >= last)
    times = [at for at, _, _ in sender.sent]
    assert len(times) >= 3
    assert all(later - at > 0.019 for at, later in pairwise(times))


def test_a_lone_notification_is_sent_at_once_and_by_no_thread(sender: Sender, database: PostgresDatabase):
    database.announce(["default"])
    assert len(sender.sent) == 1
    assert database._notifier._thread is None


def test_many_threads_notify_and_nothing_is_lost(sender: Sender, database: PostgresDatabase):
    lasts: dict[str, float] = {}

    def notify(queue: str) -> None:
        for _ in range(100):
            database.announce([queue, "shared"])
            lasts[queue] = time.monotonic()

    threads = [threading.Thread(target=notify, args=(f"q{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_for(lambda: all(_last(sender, queue) >= last for queue, last in lasts.items()))
    wait_for(lambda: _last(sender, "shared") >= max(lasts.values()) - 0.000_1)


def test_the_thread_that_sends_the_last_of_a_burst_ends(database: PostgresDatabase):
    for _ in range(10):
        database.announce(["default"])
    wait_for(lambda: all(thread.name != "dray-notify" for thread in threading.enumerate()))


def test_closing_sends_what_is_waiting(sender: Sender, database: PostgresDatabase):
    database.announce_done()
    database.announce_done()
    database.close()
    assert len(sender.sent) == 2


def test_nothing_is_sent_once_closing_is_over(address: PostgresAddress):
    state = ["idle"]

    def send(channel: str, payload: str) -> None:
        state.append("sending")
        time.sleep(0.05)
        state.append("idle")

    watch = PostgresWatch(address.conninfo, address.schema, send)
    watch.wait(0)  # connects and pings; a thread sends the ping
    wait_for(lambda: len(state) > 1)
    watch.close()
    assert state[-1] == "idle"
    assert all(thread.name != "dray-notify" for thread in threading.enumerate())


def test_a_notification_that_cannot_be_sent_harms_nobody(address: PostgresAddress):
    def fail(channel: str, payload: str) -> None:
        raise StorageUnavailable("away")

    with closing(PostgresDatabase(address)) as database:
        database._notifier = Notifier(fail)
        for _ in range(3):
            database.announce(["default"])
        database.announce_done()


def test_a_burst_rings_for_the_thread_once() -> None:
    """Rung for each note, the thread took a fifth of the time of single enqueues."""
    sent: list[str] = []
    notifier = Notifier(lambda channel, payload: sent.append(payload))
    note = Note("channel", "queue", 1.0)
    notifier.push(note)
    notifier.push(note)  # starts the thread
    notifier._bell = rung = SimpleQueue[None]()

    for _ in range(100):
        notifier.push(note)

    assert rung.empty()
    notifier.flush()
    assert len(sent) == 2


def test_where_no_thread_can_be_started_the_last_is_sent_at_once(monkeypatch: pytest.MonkeyPatch):
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    sent: list[str] = []
    notifier = Notifier(lambda channel, payload: sent.append(payload))
    for _ in range(3):
        notifier.push(Note("c", "p", 60.0))
    assert sent == ["p", "p", "p"]


def test_any_number_of_queues_can_be_notified(monkeypatch: pytest.MonkeyPatch):
    sent: list[str] = []
    notifier = Notifier(lambda channel, payload: sent.append(payload))
    for number in range(5_000):
        notifier.push(Note("c", str(number), 0.000_1))
    assert len(sent) == 5_000
    assert len(notifier._free_at) < 2_000


SCRIPT = """
import sys
from dray.backends import open_backend

database = open_backend(sys.argv[1])
database.announce_done()
database.announce_done()
database.announce_done()
"""


def test_a_script_that_ends_has_sent_its_last_notification(address: PostgresAddress, postgres_url: str):
    with psycopg.connect(address.conninfo, autocommit=True) as other:
        other.execute(f'LISTEN "{channels(address.schema).done}"'.encode())
        subprocess.run([sys.executable, "-c", SCRIPT, postgres_url], cwd=ROOT, check=True)
        # One at once, one at the end; if the script paused between the calls, the thread sends the second.
        assert len(list(other.notifies(timeout=2, stop_after=2))) >= 2


# Wake-ups, idle, fork, end


@pytest.mark.usefixtures("unaided")
def test_a_poke_from_another_thread_ends_the_wait(listening: PostgresWatch):
    threading.Timer(0.1, listening.poke).start()
    began = time.monotonic()
    assert listening.wait()
    assert 0.09 < time.monotonic() - began < 5


@pytest.mark.usefixtures("unaided")
def test_a_poke_from_a_signal_handler_ends_the_wait(listening: PostgresWatch):
    def handle(number: int, frame: object) -> None:
        listening.poke()

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        began = time.monotonic()
        assert listening.wait()
        assert 0.09 < time.monotonic() - began < 5
    finally:
        signal.signal(signal.SIGALRM, before)


def test_an_idle_watch_costs_next_to_nothing(listening: PostgresWatch, rests: list[float]):
    before = time.process_time()
    assert not listening.wait(1)
    cpu = time.process_time() - before
    print(f"idle for 1 s: {cpu * 1e3:.1f} ms CPU, {len(rests)} rests")
    assert cpu < 0.02
    assert len(rests) < 5


FORK = """
import os, sys, psycopg
from dray.backends.postgres import listen, notify
from dray.errors import ForkedConnection

listen.PROVEN_POLL = listen.SAFETY_POLL = 15.0
conninfo, schema = sys.argv[1:]
connection = psycopg.connect(conninfo, autocommit=True)
notifier = notify.Notifier(lambda *note: connection.execute(notify.NOTIFY, note))
note = notify.Note(notify.channels(schema).work, "default", notify.WINDOW)
watch = listen.PostgresWatch(conninfo, schema, lambda *note: connection.execute(notify.NOTIFY, note))
while not watch.is_pushed:
    watch.wait(0.05)
assert watch.hold("w")
while watch.wait(0.05):
    pass
pid = os.fork()
if not pid:
    try:
        watch.wait(0)
    except ForkedConnection:
        watch.close()
        sys.stdout.flush()
        os.dup2(os.open(os.devnull, os.O_RDWR), connection.fileno())
        with psycopg.connect(conninfo, autocommit=True) as connection:
            notifier.push(note)
        sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert watch.wait()
while watch.wait(0.05):
    pass
notifier.push(note)
assert watch.wait()
assert watch.holds and watch.is_pushed
pids = [row[0] for row in connection.execute(
    "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = %s::bigint::oid",
    (listen.lock_key("w") % (1 << 32),))]
assert pids == [watch._connection.info.backend_pid], pids
watch.close()
print("well")
"""


def test_a_forked_child_leaves_its_parents_watch_alone_and_can_notify(address: PostgresAddress):
    assert address.schema is not None
    done = subprocess.run(
        [sys.executable, "-c", FORK, address.conninfo, address.schema],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=20,
        env=os.environ,
    )
    assert done.stdout.strip() == "well"


@pytest.mark.usefixtures("unaided")
def test_closing_ends_the_wait_under_way(sender: Sender, listening: PostgresWatch):
    timer = threading.Timer(0.05, listening.close)
    timer.start()
    assert listening.wait()
    timer.join()
    listening.close()
    listening.poke()
    assert not listening.is_pushed
    with pytest.raises(StorageError, match="closed"):
        listening.wait(0)
    wait_for(lambda: sessions(sender) == [])


def test_a_watch_that_nobody_waits_on_has_no_connection(sender: Sender, watch: PostgresWatch):
    watch.poke()
    assert sessions(sender) == []


def test_listening_can_go_to_another_address(address: PostgresAddress, postgres_url: str, sender: Sender):
    with closing(PostgresWatch("host=/nowhere", address.schema, sender, listen_url=postgres_url)) as watch:
        wait_until(watch, lambda: watch.is_pushed)
    with pytest.raises(ConfigError, match="listen_url"):
        PostgresWatch(address.conninfo, None, sender, listen_url="sqlite:///x.db")
