"""What every command prints with --json fits docs/reference/json.schema.json, on both databases."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli import walk
from tests.cli.restricted import run_all
from tests.cli.shell import TASKS, Done, Shell
from tests.json_schema import DOCUMENT, faults

SCHEMAS: dict[str, Any] = DOCUMENT["commands"]

# They have nothing to answer: they run until they are stopped, talk to a terminal, or print a script.
ANSWERLESS = {("demo",), ("dev",), ("worker",), ("web",), ("mcp",), ("top",), ("completion",)}


@dataclass
class Scene:
    """A project in which everything that can be listed is there."""

    shell: Shell
    failed: str
    later: str
    workflow: str

    def examples(self, path: walk.Path) -> list[list[str]]:
        """Command lines of one command, each with an answer worth a look."""
        ids = {"ids": self.failed, "job_id": self.failed, "part": self.workflow, "parts": self.workflow}
        given: dict[walk.Path, list[list[str]]] = {
            ("job", "show"): [["job", "show", self.failed], ["job", "show", self.failed, self.later]],
            ("job", "wait"): [["job", "wait", self.failed]],
            ("job", "cancel"): [
                ["job", "cancel", self.failed],
                ["job", "cancel", "--all", "--dry-run"],
                ["job", "cancel", self.later],
            ],
            ("why",): [["why", self.failed], ["why", self.later, self.failed]],
            ("workers",): [["workers", "--all"]],
            ("schedules", "add"): [["schedules", "add", "more", "tasks.add", "a=1", "b=2", "--cron", "0 3 * * *"]],
            ("schedules", "remove"): [["schedules", "remove", "more"]],
            ("tasks",): [["tasks"], ["tasks", "--schema"]],
            ("tail",): [["tail", "-n", "1000", "--since", "1h", "--until-idle"]],
            ("enqueue",): [["enqueue", "tasks.add", "a=1", "b=2", "--delay", "1h"]],
            ("bench",): [["bench", "--seconds", "1", "--jobs", "100"]],
            ("db", "sql"): [["db", "sql", "--kind", "postgres"]],
            ("db", "backup"): [["db", "backup", "copy.db"]],
            ("import", "gigq"): [["import", "gigq", "gigq.db", "--running", "skip"]],
            ("import", "lilota"): [["import", "lilota", "sqlite:///lilota.db", "--dry-run"]],
            ("db", "move"): [["db", "move", self.shell.url, "sqlite:///moved.db", "--dry-run"]],
        }
        named = {"name": "nightly", "names": "nightly"} if path[0] == "schedules" else {}
        return given.get(path, [walk.words(path, **ids, **named)])


START = """
from tasks import add, app

workflow = app.workflow("etl")
first = workflow.add(add, 1, 2, step="first")
workflow.add(add, 3, 4, after=[first])
print(workflow.enqueue().id)
"""


def theirs(gigq: Path, lilota: Path) -> None:
    """Files as two other queues make them; the tests beside the real ones are in tests_integrations/importing."""
    with closing(sqlite3.connect(gigq)) as file:
        file.execute(
            "CREATE TABLE jobs (id TEXT PRIMARY KEY, name, function_name, function_module, params, priority, "
            "dependencies, max_attempts, timeout, description, status, created_at, updated_at, attempts, result, "
            "error, started_at, completed_at, worker_id)"
        )
        file.execute(
            "CREATE TABLE job_executions (id, job_id, worker_id, status, started_at, completed_at, result, error)"
        )
        columns = "id, name, function_name, function_module, params, status, created_at, updated_at"
        then = "2026-01-01T00:00:00"
        rows = [
            ("one", "one", "add", "theirs", "{}", "pending", then, then),
            ("two", "two", "add", "theirs", "{", "pending", then, then),
        ]
        file.executemany(f"INSERT INTO jobs ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        file.commit()
    with closing(sqlite3.connect(lilota)) as file:
        file.execute(
            "CREATE TABLE lilota_task (id, name, pid, status, run_at, attempts, max_attempts, retried_at, "
            "previous_task_id, timeout, expires_at, progress_percentage, start_date_time, end_date_time, input, "
            "output, error, locked_by, locked_at, version)"
        )
        file.execute(
            "CREATE TABLE lilota_log (id, created_at, level, logger, message, process, thread, node_id, task_id)"
        )
        file.execute("CREATE TABLE lilota_alembic_version (version_num)")
        file.execute("INSERT INTO lilota_alembic_version VALUES ('f5d588b76a5c')")
        file.commit()


@pytest.fixture
def scene(shell: Shell) -> Scene:
    shell.write("tasks.py", TASKS)
    shell.write("start.py", START)
    shell("db", "init")
    theirs(shell.folder / "gigq.db", shell.folder / "lilota.db")
    shell("enqueue", "tasks.talk")
    failed = shell("enqueue", "tasks.fail", "word=bad").value
    shell("schedules", "add", "nightly", "tasks.add", "a=1", "b=2", "--every", "1d")
    workflow = subprocess.run(
        [sys.executable, "start.py"],
        cwd=shell.folder,
        env=shell.environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    shell("worker", "--burst")
    later = shell("enqueue", "tasks.add", "a=1", "b=2", "--delay", "1h", "--tag", "x", "--unique", "k").value
    shell("queues", "pause", "mail")
    return Scene(shell, failed, later, workflow)


# The order matters where one command undoes another.
LAST = [
    ("job", "retry"),
    ("job", "delete"),
    ("workflows", "cancel"),
    ("workflows", "retry"),
    ("schedules", "remove"),
    ("db", "prune"),
]


def test_every_command_has_a_schema() -> None:
    paths = {" ".join(path) for path in walk.COMMANDS if path not in ANSWERLESS}

    assert set(SCHEMAS) == paths


def test_answers_are_what_the_schema_says(scene: Scene) -> None:
    acting = [path for path in walk.COMMANDS if path not in {*walk.READS, *ANSWERLESS, *LAST}]
    paths = [*walk.READS, *acting]
    asked = [(path, words) for path in [*paths, *LAST] if path not in ANSWERLESS for words in scene.examples(path)]
    if "postgres" in scene.shell.url:  # it asks for pg_dump of the server's version
        asked = [(path, words) for path, words in asked if path != ("db", "backup")]

    found = run_all(scene.shell, [], [[*words, "--json"] for _, words in asked])

    wrong: list[str] = []
    for (path, words), done in zip(asked, found, strict=True):
        if done.code not in {0, 1, 3}:
            wrong.append(f"{' '.join(words)}: {done.code} {done.err}")
            continue
        for answer in _answers(path, done):
            wrong += [f"{' '.join(words)}: {fault}" for fault in faults(SCHEMAS[" ".join(path)], answer)]
    assert wrong == []


def _answers(path: walk.Path, done: Done) -> list[Any]:
    if path == ("tail",):
        lines = [json.loads(line) for line in done.out.splitlines()]
        assert {"log", "failed"} <= {line["event"] for line in lines}
        return lines
    return [done.json]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string"}, 1),
        ({"type": ["integer", "null"]}, "1"),
        ({"type": "integer"}, True),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, {}),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, {"a": "", "b": 1}),
        ({"type": "array", "items": {"$ref": "#/$defs/id"}}, ["x"]),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1),
        ({"$ref": "#/$defs/state"}, "done"),
    ],
)
def test_a_value_that_does_not_fit_its_schema_is_noticed(schema: dict[str, Any], value: Any) -> None:
    assert list(faults(schema, value))
