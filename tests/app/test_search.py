"""Searching for jobs, on both databases: what is found, in which order, page by page, and how far was looked."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from dray.app import App
from dray.app_interface import core_of
from dray.backends.sqlite.database import SqliteDatabase
from dray.backends.store import search as store
from dray.core import AppCore
from dray.errors import ConfigError
from dray.handle.job import Job
from dray.instants import HOUR, SECOND, to_datetime
from dray.model.job import Reason
from dray.ops import search as ops
from tests.app.hands import Hands
from tests.backends import raw
from tests.manual_clock import ManualClock

KEY = "0011223344556677"


@pytest.fixture
def core(app: App) -> AppCore:
    return core_of(app)


@pytest.fixture
def find(core: AppCore) -> Callable[..., list[str]]:
    """The names of the jobs that a search finds."""

    def names(text: str, **options: Any) -> list[str]:
        return [str(job.name) for job in ops.search(core, text, **options).jobs]

    return names


@pytest.fixture
def shop(app: App, hands: Hands, clock: ManualClock) -> dict[str, Job[Any]]:
    """Nine jobs, a minute apart, one of each kind; by name."""
    jobs: dict[str, Job[Any]] = {}

    def add(name: str, task: str, args: dict[str, Any] | None = None, **options: Any) -> Job[Any]:
        clock.advance(60 * SECOND)
        jobs[name] = app.enqueue(task, args, name=name, **options)
        return jobs[name]

    hands.complete(add("welcome", "mail.send", {"to": "ann@example.com", "item": {"id": 7}}, queue="mail"))
    hands.fail(add("down", "webhook.deliver", {"hook": 1}, tags=["vip", "team-1"]), "503 for 100% of [a] 'x' in Oslo")
    hands.fail(add("slow", "webhook.deliver", {"hook": 2}, tags=["team-2"]), "Timed_out", reason=Reason.TIMEOUT)
    add("stopped", "mail.digest", queue="mail").cancel()
    add(
        "later",
        "mail.send",
        {"to": "bob@example.com", "pad": "x" * 2_000},
        queue="mail",
        delay=HOUR // SECOND,
        key="acct:[8]",
    )
    hands.stumble(add("again", "image.resize", max_attempts=3), "503 at first in Oslo")
    add("parent", "etl.read", key="acct:7")
    add("next", "etl_load", after=[jobs["parent"]])
    hands.claim(add("busy", "image.crop", queue="images"))
    clock.advance(60 * SECOND)
    raw.run(core_of(app).backend, "UPDATE dray_jobs SET error_key = ? WHERE id = ?", KEY, jobs["down"].id)
    return jobs


FINDS = {
    "": "busy next parent again later stopped slow down welcome",
    "state:failed": "slow down",
    "state:completed state:failed": "slow down welcome",
    "state:failed -state:timeout": "down",
    "state:timeout": "slow",
    "state:timeout state:running": "busy slow",
    "-state:failed -state:cancelled -state:completed": "busy next parent again later",
    "state:pending": "next parent again later",
    "state:running": "busy",
    "queue:mail": "later stopped welcome",
    "queue:mail queue:images": "busy later stopped welcome",
    "-queue:default": "busy later stopped welcome",
    "queue:*a*": "busy next parent again later stopped slow down welcome",
    "queue:nope": "",
    "task:mail.*": "later stopped welcome",
    "task:etl_*": "next",  # an underscore is no wildcard
    "task:*.s* -task:mail.*": "",
    "task:mail.send": "later welcome",
    "task:MAIL.send": "",
    "-task:mail.* -task:webhook.deliver": "busy next parent again",
    "tag:vip": "down",
    "tag:team-*": "slow down",
    "tag:team": "",
    "-tag:vip state:failed": "slow",
    "reason:timeout": "slow",
    "reason:timeout reason:user": "stopped slow",
    "-reason:timeout state:failed": "down",
    "error:503": "again down",
    "error:TIMED_OUT": "slow",
    "error:100%": "down",
    "error:%": "down",
    "error:_": "slow",
    "error:[a]": "down",
    "error:'x'": "down",
    "error:.*": "",
    "error:503 error:timed": "again slow down",
    "-error:503 state:failed": "slow",
    f"error_key:{KEY}": "down",
    f"-error_key:{KEY} state:failed": "slow",
    "key:acct:7": "parent",
    "key:acct:*": "parent later",
    'key:"acct:[8]"': "later",
    "key:acct:": "",
    "-key:acct:7 state:pending": "next again later",
    "Oslo": "again down",
    "webhook Oslo": "down",
    "webhook -Oslo": "slow",
    '"for 100%"': "down",
    "attempt:0": "next parent later stopped",
    "attempt:>0": "busy again slow down welcome",
    "-attempt:0 -attempt:1": "",
    "ran:>500ms state:completed": "welcome",
    "ran:>1s state:completed": "",
    "ran:>=1m": "busy",
    "ran:<1s": "slow down",
    "since:150": "busy next",
    "state:failed until:400": "slow down",
    "state:failed until:460": "down",
    "state:failed since:460": "slow",
    "args.to:ann@example.com": "welcome",
    "args.to:*@example.com": "later welcome",
    "args.item.id:7": "welcome",
    "args.hook:1 args.hook:2": "slow down",
    "args.hook:1 state:failed": "down",
    "-args.hook:1 state:failed": "slow",
    "worker:hands": "busy slow down welcome",
    "worker:h*s": "busy slow down welcome",
    "worker:nobody": "",
    "-worker:hands state:failed": "",
}


@pytest.mark.usefixtures("shop")
def test_what_a_search_finds(find: Callable[..., list[str]], core: AppCore) -> None:
    assert {text: find(text) for text in FINDS} == {text: names.split() for text, names in FINDS.items()}
    assert {text: ops.count(core, text) for text in FINDS} == {
        text: (len(names.split()), False) for text, names in FINDS.items()
    }


def test_jobs_are_found_by_id_and_by_parts_of_it(find: Callable[..., list[str]], shop: dict[str, Job[Any]]) -> None:
    down, slow = shop["down"].id, shop["slow"].id
    assert find(f"id:{down}") == ["down"]
    assert find(f"id:{down.upper()} id:{slow.replace('-', '')}") == ["slow", "down"]
    assert find(f"id:{down[-8:]}") == find(down[-8:]) == ["down"]
    assert find(f"-id:{down[-8:]} state:failed") == ["slow"]
    assert find(f"worker:{shop['busy'].row.worker_id} state:running") == ["busy"]
    assert find(f"worker:{str(shop['busy'].refresh().row.worker_id)[-12:]} state:running") == ["busy"]


def test_jobs_of_workflows_and_schedules(app: App, hands: Hands, find: Callable[..., list[str]]) -> None:
    def run(name: str, *steps: str) -> str:
        wf = app.workflow(name)
        for step in steps:
            wf.add(task.using(name=f"{name}/{step}"), step=step)
        return wf.enqueue().id

    @app.task(name="etl.step")
    def task() -> None: ...

    assert run("etl daily", "a", "b")
    other = run("etl-weekly", "c")
    app.enqueue("x")
    assert find('workflow:"etl daily"') == ["etl daily/b", "etl daily/a"]
    assert find("workflow:etl*") == ["etl-weekly/c", "etl daily/b", "etl daily/a"]
    assert find(f"workflow:{other}") == find(f"workflow:{other[-12:]}") == ["etl-weekly/c"]
    assert find("workflow:etl") == []
    assert find("-workflow:etl* task:etl.step") == []
    raw.run(core_of(app).backend, "UPDATE dray_jobs SET schedule = 'nightly' WHERE step = 'b'")
    assert find("schedule:nightly") == find("schedule:night*") == ["etl daily/b"]
    assert find("-schedule:nightly workflow:etl*") == ["etl-weekly/c", "etl daily/a"]


# Order and pages


def walk(core: AppCore, text: str, limit: int, **options: Any) -> Generator[ops.Found]:
    before = None
    while True:
        found = ops.search(core, text, limit=limit, before=before, **options)
        yield found
        before = found.next
        if before is None:
            return


def finish(core: AppCore, jobs: list[Job[Any]], state: str, at: int) -> None:
    """Ends jobs at one moment, as a transaction does that settles many."""
    reason = None if state == "completed" else "user"
    moment = at if isinstance(core.backend.db, SqliteDatabase) else to_datetime(at)
    with raw.transaction(core.backend) as execute:
        for job in jobs:
            sql = "UPDATE dray_jobs SET state = ?, reason = ?, finished_at = ? WHERE id = ?"
            execute(sql, state, reason, moment, job.id)


def test_ended_jobs_come_by_their_ends_and_jobs_that_ended_at_once_come_each_once(
    app: App, core: AppCore, clock: ManualClock
) -> None:
    jobs = [app.enqueue("x") for _ in range(12)]
    finish(core, jobs[6:], "failed", clock.now() + SECOND)
    finish(core, jobs[:3], "failed", clock.now() + 2 * SECOND)
    finish(core, jobs[3:6], "cancelled", clock.now() + 2 * SECOND)

    wanted = [job.id for job in [*jobs[5::-1], *jobs[:5:-1]]]
    for limit in (1, 2, 3, 5, 12, 50):
        pages = [*walk(core, "state:failed state:cancelled", limit)]
        assert [job.id for page in pages for job in page.jobs] == wanted
        assert {page.newest_first_by for page in pages} == {"ended"}
        assert len(pages) == max(1, -(-12 // limit))
    assert [job.id for page in walk(core, "state:failed", 2) for job in page.jobs] == [
        job.id for job in [*jobs[2::-1], *jobs[:5:-1]]
    ]


@pytest.mark.parametrize("window", [1, 3, 100])
def test_small_windows_find_the_same(
    app: App, core: AppCore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(store, "WINDOW", window)
    monkeypatch.setattr(store, "_FIRST_WINDOW", window)
    monkeypatch.setattr(store, "_FEW", -1)
    jobs = [app.enqueue("ab"[n % 2], {"n": n}, queue="pq"[n % 3 == 0]) for n in range(20)]
    finish(core, jobs[5:12], "failed", clock.now() + SECOND)
    finish(core, jobs[12:15], "completed", clock.now() + 2 * SECOND)
    raw.run(core.backend, "UPDATE dray_jobs SET error_key = ? WHERE state = 'failed'", KEY)
    raw.run(core.backend, "UPDATE dray_jobs SET schedule = 's' WHERE queue = 'p'")
    for text, wanted in {
        "": jobs,
        "task:a": jobs[::2],
        "state:queued": [*jobs[:5], *jobs[15:]],
        "state:queued task:b": [job for job in [*jobs[:5], *jobs[15:]] if job in jobs[1::2]],
        "state:failed": jobs[5:12],
        "state:failed state:completed": jobs[5:15],
        "state:failed args.n:8": [jobs[8]],
        "-args.n:8": [*jobs[:8], *jobs[9:]],
        f"error_key:{KEY}": jobs[5:12],
        "schedule:s": [job for n, job in enumerate(jobs) if n % 3],
    }.items():
        for limit in (2, 7, 50):
            pages = [*walk(core, text, limit, budget=60)]
            assert [job.id for page in pages for job in page.jobs] == [job.id for job in reversed(wanted)], text
            assert all(page.is_complete for page in pages)
        assert ops.count(core, text, 5) == (min(5, len(wanted)), len(wanted) > 5)


def test_a_page_says_how_far_it_has_looked_and_the_next_one_goes_on(
    app: App, core: AppCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "WINDOW", 3)
    monkeypatch.setattr(store, "_FIRST_WINDOW", 3)
    rare, *others = [app.enqueue("rare" if n == 0 else "x") for n in range(8)]
    pages = [*walk(core, "task:rare", 5, budget=0)]
    assert [(len(page.jobs), page.looked, page.is_complete) for page in pages] == [
        (0, 3, False),
        (0, 3, False),
        (1, 2, True),
    ]
    assert pages[-1].jobs == [rare]
    assert ops.count(core, "task:rare", budget=0) == (0, True)
    assert others


NO_PLACES = [
    ("", "nope"),
    ("", f"5.{store.LAST_ID}"),
    ("state:failed", store.LAST_ID),
    ("state:failed", f"5.{'-' * 36}"),
    ("state:failed", f"{'9' * 18}.{store.LAST_ID}"),
    ("state:failed", f"5.{store.LAST_ID}; DROP TABLE dray_jobs"),
    ("state:failed", "\0"),
]


def test_a_place_that_is_none_and_a_page_without_bounds_are_refused(core: AppCore) -> None:
    for text, before in NO_PLACES:
        with pytest.raises(ConfigError, match="is no place in this list; begin at its first page"):
            ops.search(core, text, before=before)
    for limit in (0, -1, 10_001):
        with pytest.raises(ConfigError, match="limit must be between 1 and 10,000"):
            ops.search(core, "", limit=limit)


# What people may see


@pytest.mark.usefixtures("shop")
def test_only_jobs_of_the_queues_that_a_visitor_may_see(find: Callable[..., list[str]], core: AppCore) -> None:
    mine = frozenset({"mail"})
    assert find("", queues=mine) == ["later", "stopped", "welcome"]
    assert find("queue:images", queues=mine) == []
    assert find("state:running", queues=mine) == find("", queues=frozenset()) == []
    assert ops.count(core, "", queues=mine) == (3, False)


def test_redacted_arguments_are_not_found_by_their_values(app: App, find: Callable[..., list[str]]) -> None:
    @app.task(name="login", redact=["password"])
    def login(user: str, password: str) -> None: ...

    login.using(name="ann").enqueue("ann", "hunter2")
    assert find("args.user:ann") == ["ann"]
    for text in ("args.password:hunter2", "args.password:h*", '-args.password:"***"', "hunter2"):
        assert find(text) == []
    assert find('args.password:"***"') == find("-args.password:hunter2") == ["ann"]


def test_hidden_arguments_of_unknown_tasks_are_not_found_either(
    app: App, core: AppCore, find: Callable[..., list[str]]
) -> None:
    app.enqueue("unknown", {"secret": "x1"}, name="it")
    assert find("args.secret:x1") == ["it"]
    core.hides_unknown_args = True
    assert find("args.secret:x1") == []


def test_rows_written_by_hand_break_no_search(app: App, core: AppCore, find: Callable[..., list[str]]) -> None:
    made = ["{", "[1]", '"a"', '{"a": 1', "\\u0000", '{"a": "\\u0000"}', '{"a": NaN, "n": 1}', "[" * 3_000]
    for n, args in enumerate(made):
        job = app.enqueue("x", {"n": 1}, name=f"bad-{n}")
        raw.run(core.backend, "UPDATE dray_jobs SET args = ?, tags = ? WHERE id = ?", args, "[n,", job.id)
    app.enqueue("x", {"n": 1}, name="good", tags=["n"])
    assert find("args.n:1") == ["good"]
    assert find("tag:n") == ["good"]
    assert "good" not in find("-args.n:1")


WORDS = ["'", '"', "%", "_", "*", "\\", "?", "[a-z]", "(", ".*", "^x$", "'; --", "$1", "%s", ":now", "\u202e", "é"]


def test_hostile_words_are_words(app: App, hands: Hands, find: Callable[..., list[str]]) -> None:
    for n, word in enumerate(WORDS):
        hands.fail(app.enqueue("x", {"a": word}, name=f"word {n}"), f"<{word}>")
    for n, word in enumerate(WORDS):
        quoted = word.replace("\\", "\\\\").replace('"', '\\"')
        for text in (f'"<{quoted}>"', f'error:"<{quoted}>"', f'args.a:"{quoted}"'):
            assert find(text) == [f"word {n}"]


def test_as_many_terms_as_there_may_be(app: App, find: Callable[..., list[str]]) -> None:
    app.enqueue("x.y", {"a": 1}, name="it")
    kinds = "x y task:x.* queue:* args.a:1 args.a:2 attempt:<9 since:9d -tag:no -error:no"
    assert find(" ".join([kinds] * 5)) == ["it"]


def test_letters_are_folded_alike_on_both_databases(app: App, hands: Hands, find: Callable[..., list[str]]) -> None:
    hands.fail(app.enqueue("x", name="it"), "Größe ÄÖ")
    assert find("error:gRößE") == ["it"]
    assert find("error:gRÖßE") == []  # only A to Z are the same as a to z


# Costs


STATEMENTS = {
    "": 3,
    "state:failed": 3,
    "state:failed state:cancelled": 5,
    "state:running": 3,
    "task:x": 3,
    f"id:{store.LAST_ID}": 1,
}


def test_a_page_takes_few_statements(app: App, core: AppCore, monkeypatch: pytest.MonkeyPatch) -> None:
    finish(core, [app.enqueue("x") for _ in range(3)], "failed", 5)
    app.enqueue("x")
    made = list[str]()
    session = type(core.backend.db.read(lambda tx: tx))
    rows = session.rows

    def counted(self: Any, name: str, /, **params: Any) -> list[tuple[Any, ...]]:
        made.append(name)
        return rows(self, name, **params)

    monkeypatch.setattr(session, "rows", counted)
    for text, most in STATEMENTS.items():
        made.clear()
        ops.search(core, text)
        assert len(made) <= most, made


def test_large_arguments_beside_the_row_are_searched(app: App, find: Callable[..., list[str]]) -> None:
    app.enqueue("x", {"pad": "y" * 5_000, "n": 12345}, name="large")
    assert find("args.n:12345") == ["large"]
