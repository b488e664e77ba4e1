"""The page about telemetry runs as shown, with the real packages, in every runner."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "telemetry.md").read_text()


def section(heading: str) -> str:
    """The code of a section."""
    (text,) = re.findall(rf"^## {heading}\n(.+?)(?=^## |\Z)", PAGE, re.M | re.S)
    return "".join(re.findall(r"```python\n(.+?)```", text, re.S))


def run(code: str, url: str, folder: Path, **environment: str) -> str:
    assert '"sqlite:///shop.db"' in code
    (folder / "shop.py").write_text(code.replace('"sqlite:///shop.db"', f"{url!r}, migrate=True"))
    done = subprocess.run(
        [sys.executable, "shop.py"],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_traces_are_made_as_shown(sqlite_url: str, tmp_path: Path) -> None:
    said = run(section("OpenTelemetry"), sqlite_url, tmp_path)

    spans = [json.loads(text) for text in re.findall(r"^\{$.+?^\}$", said, re.M | re.S)]
    assert sorted(span["name"] for span in spans) == [
        *("POST /orders", "process mail", "process mail", "process mail", "send mail", "send mail")
    ]
    assert len({span["context"]["trace_id"] for span in spans}) == 1


class Sentry(ThreadingHTTPServer):
    """Takes what the SDK sends, as Sentry does."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        super().__init__(("127.0.0.1", 0), Take)

    @property
    def dsn(self) -> str:
        return f"http://key@127.0.0.1:{self.server_port}/1"


class Take(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        lines = (gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body).splitlines()
        for header, item in zip(lines[1::2], lines[2::2], strict=False):
            if json.loads(header)["type"] == "event":
                cast("Sentry", self.server).events.append(json.loads(item))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as it is called there
        pass


@pytest.fixture
def sentry() -> Generator[Sentry]:
    with Sentry() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


FAILING = """
import time

def fail(ctx, card):
    sentry_sdk.add_breadcrumb(message=f"attempt {ctx.attempt} of {ctx.task}")
    sentry_sdk.set_tag(f"only-{ctx.attempt}", "yes")
    raise ValueError("declined")

@app.task(name="in_thread", queue="cards", max_attempts=2, retry=0, redact=["card"])
def in_thread(ctx: dray.Context, card: str) -> None:
    fail(ctx, card)

@app.task(name="in_loop", queue="cards", max_attempts=2, retry=0, redact=["card"])
async def in_loop(ctx: dray.Context, card: str) -> None:
    fail(ctx, card)

@app.task(name="in_child", queue="cards", max_attempts=2, retry=0, redact=["card"], runner="process")
def in_child(ctx: dray.Context, card: str) -> None:
    fail(ctx, card)

@app.task(name="cured", max_attempts=2, retry=0)
def cured(ctx: dray.Context) -> None:
    if ctx.attempt == 1:
        raise ValueError("not yet")

@app.task(name="slow", max_attempts=1, timeout=0.1)
def slow() -> None:
    while True:
        time.sleep(0.01)

@app.task(name="given_up")
def given_up() -> None:
    raise dray.Cancel("no use")

for task in (in_thread, in_loop, in_child):
    task.enqueue("4111-1111")
cured.enqueue(), slow.enqueue(), given_up.enqueue()
app.worker().run_until_idle()
sentry_sdk.flush(10)
"""


def test_sentry_gets_one_event_for_each_job_that_failed_for_good(url: str, sentry: Sentry, tmp_path: Path) -> None:
    # Left alone, Sentry would load every framework that is installed here, in each process.
    code = section("Sentry").replace("sentry_sdk.init(", "sentry_sdk.init(auto_enabling_integrations=False, ")

    run(code + FAILING, url, tmp_path, SENTRY_DSN=sentry.dsn)

    events = {event["tags"]["task"]: event for event in sentry.events}
    assert len(sentry.events) == 4
    assert events.keys() == {"in_thread", "in_loop", "in_child", "slow"}
    for name in ("in_thread", "in_loop", "in_child"):
        event = events[name]
        (error,) = event["exception"]["values"]
        assert (error["type"], error["value"]) == ("ValueError", "declined")
        assert (event["tags"]["queue"], event["tags"]["attempt"]) == ("cards", 2)
        assert "only-1" not in event["tags"]  # of the attempt before
        assert [each["message"] for each in event["breadcrumbs"]["values"]] == [f"attempt 2 of {name}"]
    assert events["slow"]["message"].startswith("slow failed: Timeout")
    assert "4111" not in json.dumps(sentry.events)


MORE_TASKS = """
@app.task
async def change(order: int) -> None:
    structlog.contextvars.bind_contextvars(is_leaked=True)
    log.info("changed", order=order)


@app.task(runner="process", retry=0)
def pack(ctx: dray.Context, order: int) -> None:
    log.info("packed", order=order)
    if ctx.attempt == 1:
        structlog.contextvars.bind_contextvars(is_leaked=True)
        raise ValueError("not yet")


"""
MORE_JOBS = """
jobs = [change.enqueue(1), pack.enqueue(2), charge.enqueue(3)]
app.worker(concurrency=1).run_until_idle()
import json
print(json.dumps([(job.id, [json.loads(line.message) for line in job.logs()]) for job in jobs]))
"""


def test_structlog_lines_are_bound_to_the_attempt_and_kept_with_the_job(url: str, tmp_path: Path) -> None:
    tasks, jobs = section("structlog").split(
        "job = charge.enqueue"
    )  # a child runs the script up to its first enqueue

    said = run(f"{tasks}{MORE_TASKS}job = charge.enqueue{jobs}{MORE_JOBS}", url, tmp_path)

    (changed, first), (packed, second), (charged, third) = json.loads(said)
    level = {"level": "info"}
    assert first == [
        {
            "job": changed,
            "task": "shop.change",
            "attempt": 1,
            "event": "changed",
            "order": 1,
            "is_leaked": True,
            **level,
        }
    ]
    assert second == [
        {"job": packed, "task": "shop.pack", "attempt": number, "event": "packed", "order": 2, **level}
        for number in (1, 2)
    ]
    assert third == [{"job": charged, "task": "shop.charge", "attempt": 1, "event": "charged", "order": 3, **level}]
