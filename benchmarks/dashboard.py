"""What the dashboard's pages and the searches of the command line read, with a million jobs in the database.

``python -m benchmarks.dashboard --jobs 1000000 --on sqlite``: each read is made once to warm up, then some times; its
p95 is compared with its bar, and so is that of its longest statement.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import http.client
import math
import re
import socket
import statistics
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from functools import partial
from html import unescape
from itertools import islice
from typing import Any, NamedTuple

import dray
from benchmarks import shop
from benchmarks.arena import Arena, arenas
from benchmarks.figures import Figures
from benchmarks.processes import run_until_stopped
from dray.app_interface import core_of
from dray.backends.sqlite.session import SqliteSession
from dray.core import AppCore
from dray.maintenance.rollups import RollUp
from dray.model.action import By
from dray.model.search import parse
from dray.ops import bulk, export
from dray.ops import search as ops
from dray.ops.top import Top
from dray.web.dashboard import Dashboard
from dray.web.server import Server

JOBS = 1_000_000
_PAGE_MS, _FRAGMENT_MS, _STATEMENT_MS = 100.0, 50.0, 80.0
_REST_PERCENT = 2.0
_FIRST_LOAD_KB = 60.0
_BEN = By("ben", "web")


class Size(NamedTuple):
    """How much is measured."""

    rounds: int  # of each read
    rest_s: float


_WHOLE, _QUICK = Size(30, 10.0), Size(1, 0.2)

SEARCHES = (
    "",
    "state:failed",
    "state:completed",
    "state:completed task:mail.*",
    "state:failed state:cancelled",
    "state:queued queue:mail",
    "state:running",
    "state:failed error:503 since:12h",
    f"error_key:{shop.ERRORS[0][0]}",
    f"schedule:{shop.SCHEDULE}",
    "workflow:etl",
    "tag:vip",
    "ran:>900ms",
    "attempt:>1",
    # Rare, or there are none: read until the time is over.
    f"task:{shop.RARE_TASK}",
    f"state:completed task:{shop.RARE_TASK}",
    "task:none.such",
    "0a1b2c3d",
    '"503 Service"',
    "args.order:123456",
    "state:completed args.item.sku:sku-77",
)


def _reads(core: AppCore) -> dict[str, Callable[[], object]]:
    """Returns what is measured, by name."""
    top = Top(core.backend)
    searches = {f"search {text or '(all)'}": partial(ops.search, core, text) for text in SEARCHES}
    return {
        "live panels": top.look,
        "what the feed compares": core.backend.live.pulse,
        **searches,
        "second page, state:completed": partial(_second_page, core),
        "count state:completed": partial(ops.count, core, "state:completed"),
        "preview of 100,000 and more": partial(_preview, core),
    }


def _second_page(core: AppCore) -> ops.Found:
    return ops.search(core, "state:completed", before=ops.search(core, "state:completed").next)


def _preview(core: AppCore) -> bulk.Preview:
    return bulk.preview(core, bulk.freeze(core, parse("state:completed task:mail.*")), "delete")


@contextmanager
def _statements(core: AppCore) -> Generator[list[float]]:
    """Yields the milliseconds of each statement that is run meanwhile, also beside the pages."""
    session: Any = core.backend.db.read(type)
    rows, later, taken = session.rows, session.later, list[float]()

    def timed(read: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        try:
            return read()
        finally:
            taken.append(1e3 * (time.perf_counter() - started))

    def timed_rows(self: Any, name: str, /, **params: Any) -> Any:
        return timed(lambda: rows(self, name, **params))

    def timed_later(self: Any, name: str, /, **params: Any) -> Any:
        """In a pipeline: what is waited for is the answer."""
        answer = later(self, name, **params)
        return lambda: timed(answer)

    session.rows = timed_rows
    if session is not SqliteSession:  # which asks at once, by `rows`
        session.later = timed_later
    try:
        yield taken
    finally:
        session.rows, session.later = rows, later


def _p95(values: list[float]) -> float:
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


def measure(arena: Arena, figures: Figures, jobs: int, size: Size) -> None:
    figures.heading(f"Reads of the dashboard, {arena.name}, {jobs:,} jobs")
    with arena.fresh() as app:
        core = core_of(app)
        core.backend.migrate()
        started = time.perf_counter()
        shop.fill(arena.url, jobs)
        figures.say("filled in", f"{time.perf_counter() - started:.0f} s")
        started, duty = time.perf_counter(), RollUp(core.backend)
        while duty.tick() < 1:
            pass
        figures.say("rolled up in", f"{time.perf_counter() - started:.0f} s")
        slowest: dict[str, float] = {}
        statements: dict[str, float] = {}
        for name, read in _reads(core).items():
            slowest[name], statements[name] = _measure_read(figures, core, name, read, size.rounds)
        for values, bar, what in ((slowest, _PAGE_MS, "p95 of a read"), (statements, _STATEMENT_MS, "statement")):
            name = max(values, key=lambda each: values[each])
            figures.at_most(f"slowest {what}, {arena.name}: {name}", values[name], bar, " ms")
        _measure_read(figures, core, "export, 500 jobs", lambda: list(islice(export.export(core, "", "csv"), 2)), 5)
        _measure_pages(figures, arena.name, app, size.rounds)
        _measure_rest(figures, arena.name, app, size.rest_s)
        _measure_bulk(figures, app)


def _paths(app: dray.App) -> list[str]:
    """Every page, those about one thing for one that there is."""
    found = ["/", "/?span=24h", "/?span=7d", "/jobs", "/jobs?q=state:failed", "/jobs?q=state:completed+task:mail.*"]
    found += ["/failures", "/queues", "/queues/mail", "/workflows", "/schedules", "/tasks", "/workers"]
    found += ["/metrics", "/metrics?span=24h", "/metrics?span=7d", "/actions", "/system"]
    found += [
        f"/jobs/{job.id}" for state in ("completed", "failed", "queued") for job in app.jobs(state=state, limit=1)
    ]
    found += [f"/failures/{shop.ERRORS[0][0]}"]
    found += [f"/workflows/{run.id}" for run in app.workflows(limit=1)]
    return found


def _measure_pages(figures: Figures, place: str, app: dray.App, rounds: int) -> None:
    """Pages right after an action, which drops nearly all that is kept; their fragments as an open page gets them.

    And the first page of a process, with nothing kept, counts of a million jobs included: they are then kept for 50
    times as long as they took.
    """
    made = dray.dashboard(app, access=lambda _: "admin")
    pages: dict[str, float] = {}
    fragments: dict[str, float] = {}
    statements: dict[str, float] = {}
    with asyncio.Runner() as runner:

        def ask(path: str, *, is_fragment: bool) -> None:
            (made.site.feed_has_seen if is_fragment else made.site.forget)()
            runner.run(_answer(made, path, is_fragment=is_fragment))

        def first() -> None:
            runner.run(_answer(dray.dashboard(app, access=lambda _: "admin"), "/", is_fragment=False))

        core = core_of(app)
        _measure_read(figures, core, "first page of a process", first, rounds)
        for path in _paths(app):
            whole = partial(ask, path, is_fragment=False)
            pages[path], statements[path] = _measure_read(figures, core, f"page {path}", whole, rounds)
            part = partial(ask, path, is_fragment=True)
            fragments[path], _ = _measure_read(figures, core, f"  fragment {path}", part, rounds)
    for values, bar, what in (
        (pages, _PAGE_MS, "page"),
        (fragments, _FRAGMENT_MS, "fragment"),
        (statements, _STATEMENT_MS, "statement of a page"),
    ):
        path = max(values, key=lambda each: values[each])
        figures.at_most(f"p95 of the slowest {what}, {place}: {path}", values[path], bar, " ms")


async def _answer(made: Dashboard, path: str, *, is_fragment: bool) -> None:
    """One request, without a network."""
    bare, _, query = path.partition("?")
    headers = [(b"host", b"localhost"), *([(b"hx-request", b"true")] if is_fragment else [])]
    scope: dict[str, Any] = {"type": "http", "method": "GET", "scheme": "http", "path": bare, "root_path": ""}
    scope |= {"query_string": query.encode(), "headers": headers, "client": ("127.0.0.1", 1), "server": None}
    statuses = list[int]()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await made(scope, receive, send)
    assert statuses == [200], (path, statuses)


def _measure_rest(figures: Figures, place: str, app: dray.App, seconds: float) -> None:
    """A server with an open page, while nothing happens; and what a browser loads before it shows that page."""
    made = dray.dashboard(app, access=lambda _: "admin")
    bound = socket.create_server(("127.0.0.1", 0))
    server = Server(made, bound)
    threads = [threading.Thread(target=server.serve_here), threading.Thread(target=_keep_open, args=(bound,))]
    for thread in threads:
        thread.start()
    _measure_first_load(figures, place, bound)
    time.sleep(seconds / 5)  # its first looks
    before = time.process_time()
    time.sleep(seconds)
    percent = 100 * (time.process_time() - before) / seconds
    server.should_exit = True  # which ends the stream, too
    for thread in threads:
        thread.join()
    figures.at_most(f"of a core at rest, {place}, with an open page", percent, _REST_PERCENT, " %")


def _get(bound: socket.socket, path: str, **headers: str) -> bytes:
    with closing(http.client.HTTPConnection(*bound.getsockname())) as connection:
        connection.request("GET", path, headers=headers)
        with connection.getresponse() as answer:
            assert answer.status == 200, (path, answer.status)
            return answer.read()


def _keep_open(bound: socket.socket) -> None:
    """Does what the overview does in a browser: listens, and fetches its own part when the stream names a topic."""
    with closing(http.client.HTTPConnection(*bound.getsockname())) as connection:
        connection.request("GET", "/events")
        with connection.getresponse() as stream:
            for line in stream:
                if line.startswith(b"data:"):
                    _get(bound, "/", **{"hx-request": "true"})


def _measure_first_load(figures: Figures, place: str, bound: socket.socket) -> None:
    page = _get(bound, "/").decode()
    linked = {unescape(each) for each in re.findall(r'(?:src|href)="(/static/[^"]+)"', page)}
    packed = [len(gzip.compress(each)) for each in (page.encode(), *(_get(bound, path) for path in linked))]
    figures.at_most(f"first load, {place}, gzip", sum(packed) / 1e3, _FIRST_LOAD_KB, " kB")


def _measure_read(
    figures: Figures, core: AppCore, name: str, read: Callable[[], object], rounds: int
) -> tuple[float, float]:
    """Prints what a read takes; returns the p95 of it and of its longest statement, in milliseconds."""
    read()
    taken, longest, count = list[float](), list[float](), 0
    for _ in range(rounds):
        with _statements(core) as statements:
            started = time.perf_counter()
            read()
            taken.append(1e3 * (time.perf_counter() - started))
        longest.append(max(statements, default=0.0))
        count = len(statements)
    words = f"p50 {statistics.median(taken):6.1f}  p95 {_p95(taken):6.1f} ms"
    figures.say(name, f"{words}   {count:>3} statements, the longest {_p95(longest):5.1f} ms")
    return _p95(taken), _p95(longest)


def _measure_bulk(figures: Figures, app: dray.App) -> None:
    """An action on all that failed. It is the last: it changes them."""
    core = core_of(app)
    action = bulk.Bulk(core, bulk.freeze(core, parse("state:failed")), "retry", _BEN)
    steps = list[float]()
    progress = None
    while progress is None or not progress.is_over:
        started = time.perf_counter()
        progress = action.step()
        steps.append(1e3 * (time.perf_counter() - started))
    rate = progress.done / (sum(steps) / 1e3)
    words = f"{progress.done:,} done, {progress.refused:,} refused, {rate:,.0f} a second"
    figures.say(
        "retry of all that failed", f"{words}; a step p50 {statistics.median(steps):.0f}  max {max(steps):.0f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.dashboard")
    parser.add_argument("--jobs", type=int, default=JOBS, help="jobs in the database")
    parser.add_argument("--on", choices=["sqlite", "postgres", "both"], default="both", help="databases")
    parser.add_argument("--quick", action="store_true", help="few samples: to see that it runs, not to compare")
    given = parser.parse_args()
    figures = Figures()
    try:
        with arenas(given.on) as found:
            for arena in found:
                measure(arena, figures, given.jobs, _QUICK if given.quick else _WHOLE)
    finally:
        figures.summary()


if __name__ == "__main__":
    run_until_stopped(main)
