"""How much longer ``import dray`` and ``dray --help`` take than bare Python, and how long a list of jobs takes.

Modules are compiled, as in an installed package.
"""

from __future__ import annotations

import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from benchmarks.arena import Arena
from benchmarks.figures import Figures
from benchmarks.processes import environment

_BARS = {"import dray": 45.0, "dray --help": 90.0}  # ms over bare Python
_LIST_BAR = 150.0  # ms in all
_COMMANDS = {"bare": ("-c", "pass"), "import dray": ("-c", "import dray"), "dray --help": ("-m", "dray", "--help")}
_JOBS = ("-m", "dray", "jobs", "--json")
_FOREIGN = """
import sys
before = set(sys.modules)
import dray
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))
"""

# Lists of a large table. Jobs of a rare queue or task are searched in the whole table.
_LISTS: dict[str, tuple[str, ...]] = {
    "": (),
    " --state failed (3 of them)": ("--state", "failed"),
    " --state cancelled (none)": ("--state", "cancelled"),
    " --state queued": ("--state", "queued"),
    " --queue mail": ("--queue", "mail"),
    " --task report": ("--task", "report"),
    " --tag rare (one)": ("--tag", "rare"),
    " --since 1h": ("--since", "1h"),
}
_RARE: dict[str, tuple[str, ...]] = {
    " --queue rare (one)": ("--queue", "rare"),
    " --task nosuch (none)": ("--task", "nosuch"),
}
# Completed jobs, the newest 1 % queued, ten jobs a second; three have failed and one is rare.
_FILL = """
WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < :rows),
jobs AS (
    SELECT n, :now - (:rows - n) * 100000 AS at,
        CASE WHEN n IN (10, 20, 30) THEN 'failed' WHEN n < :rows * 0.99 THEN 'completed' ELSE 'queued' END AS state
    FROM numbers
)
INSERT INTO dray_jobs (id, task, queue, state, reason, priority, run_at, max_attempts, max_crashes, created_at,
    updated_at, started_at, finished_at, tags, args)
SELECT printf('%08x-%04x-7000-8000-%012x', at / 1000 >> 16, at / 1000 & 65535, n),
    CASE n % 2 WHEN 0 THEN 'report' ELSE 'send' END,
    CASE WHEN n = 40 THEN 'rare' WHEN n % 3 = 0 THEN 'mail' ELSE 'default' END,
    state, CASE state WHEN 'failed' THEN 'error' END, 0, at, 3, 3, at, at,
    CASE state WHEN 'queued' THEN NULL ELSE at END, CASE state WHEN 'queued' THEN NULL ELSE at END,
    CASE n WHEN 50 THEN '["rare"]' END, '{"a": 1, "b": 2}'
FROM jobs
"""


def measure(_: list[Arena], figures: Figures, *, quick: bool) -> None:
    rounds = 1 if quick else 15
    with tempfile.TemporaryDirectory(prefix="dray-start-") as folder:
        compiled = {} if quick else {"PYTHONPYCACHEPREFIX": f"{folder}/compiled", "PYTHONDONTWRITEBYTECODE": ""}
        _starts(figures, compiled, rounds)
        _lists(figures, compiled, Path(folder), 1_000 if quick else 1_000_000, rounds)


def _starts(figures: Figures, more: Mapping[str, str], rounds: int) -> None:
    figures.heading(f"Start-up, ms, medians of {rounds} in turn")
    bare, *rest = _medians([(command, more) for command in _COMMANDS.values()], rounds)
    figures.say("bare Python", f"{bare:.1f}")
    for (name, bar), found in zip(_BARS.items(), rest, strict=True):
        figures.say(name, f"{found:.1f}, {found - bare:.1f} over bare Python")
        figures.at_most(f"{name}, over bare Python", found - bare, bar, " ms")
    figures.say("packages it loads beside Python's own", _run(("-c", _FOREIGN), more).strip())


def _lists(figures: Figures, more: Mapping[str, str], folder: Path, rows: int, rounds: int) -> None:
    figures.heading(f"dray jobs --json on SQLite, ms in all, medians of {rounds}")
    for count in (0, rows):
        place = {**more, "DRAY_URL": f"sqlite:///{folder}/{count}.db"}
        _run(("-m", "dray", "db", "init"), place)
        if count:
            _fill(folder / f"{count}.db", count)
        asked = {**_LISTS, **_RARE} if count else {"": ()}
        found = _medians([((*_JOBS, *words), place) for words in asked.values()], rounds)
        for name, taken in zip(asked, found, strict=True):
            figures.say(f"{count:,} jobs: dray jobs --json{name}", f"{taken:.1f}")
        bounded = found[: len(_LISTS)]
        figures.at_most(
            f"dray jobs --json, {count:,} jobs, the slowest of {len(bounded)}", max(bounded), _LIST_BAR, " ms"
        )


def _fill(file: Path, rows: int) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(_FILL, {"rows": rows, "now": int(time.time() * 1_000_000)})


def _medians(commands: Sequence[tuple[Sequence[str], Mapping[str, str]]], rounds: int) -> list[float]:
    if rounds > 1:
        for command in commands:
            _run(*command)  # compiles the modules it loads
    taken = [[_milliseconds(*command) for command in commands] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*taken, strict=True)]


def _milliseconds(arguments: Sequence[str], more: Mapping[str, str]) -> float:
    started = time.perf_counter()
    _run(arguments, more)
    return 1_000 * (time.perf_counter() - started)


def _run(arguments: Sequence[str], more: Mapping[str, str]) -> str:
    command = [sys.executable, *arguments]
    env = {name: value for name, value in environment("sqlite://", more).items() if value}
    return subprocess.run(command, cwd=os.sep, env=env, stdout=subprocess.PIPE, check=True, text=True).stdout
