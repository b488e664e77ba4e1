"""``dray tasks``: what the app can do, who is there to do it, and what arguments look like."""

from __future__ import annotations

import enum
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict
from uuid import UUID

import pytest

import dray
from dray.convert.annotations import Schemas
from dray.ops.tasks import argument_schema
from tests.cli.shell import Shell, plain, until

CODE = '''
import dray
app = dray.App()

@app.task(name="mail.send", queue="mail", priority=5, max_attempts=5, max_crashes=2, timeout=90, runner="process",
          retry=dray.linear(10, cap=60), redact=["token"])
def send(to: str, token: str = "canary", copies: int = 1) -> None:
    """Send one mail.

    With all its attachments.
    """

@app.task(cron="0 3 * * *", tz="Europe/Berlin", description="Every night", max_attempts=1)
async def nightly(ctx: dray.Context) -> None:
    """Not this line."""

@app.task(every=90, retry=30)
def beat() -> None: ...

def later(attempt: int) -> float:
    return 1.0

@app.task(retry=later)
def plain(*numbers: int, **more: str) -> None: ...
'''


@pytest.fixture
def with_tasks(shell: Shell) -> Shell:
    shell.write("tasks.py", CODE)
    return shell


def test_every_option_is_shown(local: Shell) -> None:
    local.write("tasks.py", CODE)

    found = {task["name"]: task for task in local("tasks", "--json").json}

    assert found["mail.send"] == {
        "name": "mail.send",
        "queue": "mail",
        "priority": 5,
        "runner": "process",
        "max_attempts": 5,
        "max_crashes": 2,
        "timeout": 90.0,
        "retry": "after 10 s, 10 s more each time, at most 60 s",
        "cron": None,
        "every": None,
        "tz": None,
        "description": "Send one mail.",
        "workers": None,
    }
    nightly, beat, plain = (found[f"tasks.{name}"] for name in ("nightly", "beat", "plain"))
    assert (nightly["runner"], nightly["cron"], nightly["tz"]) == ("async", "0 3 * * *", "Europe/Berlin")
    assert (nightly["description"], nightly["retry"]) == ("Every night", "none")
    assert (beat["every"], beat["tz"], beat["description"], beat["retry"]) == (90.0, None, None, "after 30 s")
    assert plain["retry"] == "as later(attempt) says"
    assert {path.name for path in local.folder.iterdir()} <= {"tasks.py", "__pycache__"}, "no database is made"


def test_the_default_retry_is_in_words(local: Shell) -> None:
    found = local("tasks", "tasks.add", "--json").json

    assert found[0]["retry"] == "after 2, 4, 8 ... at most 3600 s, up to 2 times that by chance"


def test_live_workers_that_know_a_task_are_named(with_tasks: Shell) -> None:
    with_tasks("worker", "--burst")
    assert with_tasks("tasks", "tasks.beat", "--json").json[0]["workers"] == []

    with with_tasks.background("worker"):
        workers = until(lambda: with_tasks("workers").rows)
        assert with_tasks("tasks", "tasks.beat", "--json").json[0]["workers"] == [workers[0][0]]
        with_tasks.write("tasks.py", CODE.replace("def beat", "def drum"))
        assert with_tasks("tasks", "tasks.drum", "--json").json[0]["workers"] == []


@pytest.mark.parametrize(
    "url", ["postgresql://user:canary@127.0.0.1:1/db?connect_timeout=2", "sqlite:////nosuch/place/dray.db"]
)
def test_a_database_need_not_be_there(local: Shell, url: str) -> None:
    done = local("tasks", "tasks.add", DRAY_URL=url)

    assert done.err == ""
    assert done.rows[0][:2] == ["tasks.add", "default"]


def test_in_a_pipe_it_is_a_line_each(local: Shell) -> None:
    local.write("tasks.py", CODE)

    rows = {row[0]: row for row in local("tasks").rows}

    assert rows["mail.send"][1:7] == ["mail", "5", "process", "5", "2", "90.0"]
    assert rows["tasks.nightly"][8:] == ["0 3 * * *", "", "Europe/Berlin", "", "Every night"]
    assert list(rows) == sorted(rows)


@pytest.mark.parametrize("columns", [20, 80, 200])
def test_on_a_terminal_it_is_a_table(local: Shell, columns: int) -> None:
    local.write("tasks.py", CODE)

    lines = plain(local.on_terminal("tasks", columns=columns).out).splitlines()

    assert lines[0].startswith("task")
    assert all(len(line.rstrip()) <= columns for line in lines)
    if columns == 200:
        assert "every 1 minute 30 seconds" in "\n".join(lines)
        assert "0 3 * * * Europe/Berlin" in "\n".join(lines)


def test_an_unknown_task_is_not_found(local: Shell) -> None:
    done = local.try_("tasks", "tasks.ad")

    assert (done.code, done.out) == (5, "")
    assert "did you mean tasks.add" in done.err


@pytest.mark.parametrize(
    "words", [["enqueue"], ["run"], ["tasks"], ["schedules", "add", "--every", "5m", "sums"]], ids=" ".join
)
def test_a_name_without_its_module_gets_a_hint_at_the_whole_name(local: Shell, words: list[str]) -> None:
    local("db", "init")

    done = local.try_(*words, "add")

    assert (done.code, done.out) == (5, "")
    assert done.err == (
        "dray: no task is named 'add' here; did you mean tasks.add? `dray tasks` lists the known ones\n"
    )


# Schemas


def test_a_schema_describes_the_arguments_by_name(local: Shell) -> None:
    local.write("tasks.py", CODE)

    found = local("tasks", "--schema").json

    assert found["mail.send"] == {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "mail.send",
        "type": "object",
        "properties": {
            "to": {"type": "string"},
            "token": {"type": "string"},  # its default is as secret as its values
            "copies": {"type": "integer", "default": 1},
        },
        "required": ["to"],
        "additionalProperties": False,
    }
    assert found["tasks.nightly"]["properties"] == {}
    assert found["tasks.plain"]["properties"] == {"*numbers": {"type": "array", "items": {"type": "integer"}}}
    assert found["tasks.plain"]["additionalProperties"] == {"type": "string"}
    both = local("tasks", "tasks.beat", "--schema", "--json").json
    assert both[0]["schema"] == found["tasks.beat"]


class Colour(enum.Enum):
    RED = "red"
    BLUE = 2


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass
class Node:
    name: str
    size: float = 0
    children: list[Node] = field(default_factory=list["Node"])


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Point(NamedTuple):
    x: int
    y: int = 0


Name = NewType("Name", str)

ANNOTATIONS: list[tuple[Any, Any]] = [
    (str, {"type": "string"}),
    (int, {"type": "integer"}),
    (float, {"type": "number"}),
    (bool, {"type": "boolean"}),
    (None, {"type": "null"}),
    (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
    (typing.Optional[str], {"anyOf": [{"type": "string"}, {"type": "null"}]}),  # noqa: UP045
    (list[int], {"type": "array", "items": {"type": "integer"}}),
    (Sequence[str], {"type": "array", "items": {"type": "string"}}),
    (set[int], {"type": "array", "items": {"type": "integer"}}),
    (list, {"type": "array", "items": {}}),
    (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
    (
        tuple[int, str],
        {
            "type": "array",
            "prefixItems": [{"type": "integer"}, {"type": "string"}],
            "minItems": 2,
            "maxItems": 2,
        },
    ),
    (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
    (dict, {"type": "object", "additionalProperties": {}}),
    (Literal["a", 2], {"enum": ["a", 2]}),
    (Colour, {"enum": ["red", 2]}),
    (Rights, {"type": "integer"}),
    (datetime, {"type": "string", "format": "date-time"}),
    (date, {"type": "string", "format": "date"}),
    (time, {"type": "string"}),
    (timedelta, {"type": "number"}),
    (UUID, {"type": "string", "format": "uuid"}),
    (Decimal, {"type": ["string", "number"]}),
    (Path, {"type": "string"}),
    (bytes, {"type": "string", "contentEncoding": "base64"}),
    (Annotated[int, "more"], {"type": "integer"}),
    (Name, {"type": "string"}),
    (Any, {}),
    (object, {}),
    ("NotThere", {}),
    (int | object, {}),
    (typing.TypeVar("T"), {}),
]


@pytest.mark.parametrize(("annotation", "schema"), ANNOTATIONS, ids=lambda value: str(value)[:40])
def test_what_is_read_for_an_annotation_is_what_its_schema_says(annotation: Any, schema: Any) -> None:
    assert Schemas().of(annotation) == schema


def test_classes_stand_once_and_may_hold_themselves() -> None:
    schemas = Schemas()

    assert schemas.of(list[Node]) == {"type": "array", "items": {"$ref": "#/$defs/Node"}}
    assert schemas.of(Movie) == {"$ref": "#/$defs/Movie"}
    assert schemas.of(Point) == {"$ref": "#/$defs/Point"}
    assert schemas.definitions == {
        "Node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "size": {"type": "number"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
            },
            "required": ["name"],
            "additionalProperties": False,
        },
        "Movie": {
            "type": "object",
            "properties": {"title": {"type": "string"}, "year": {"type": "integer"}},
            "required": ["title"],
        },
        "Point": {
            "type": "array",
            "prefixItems": [{"type": "integer"}, {"type": "integer"}],
            "minItems": 1,
            "maxItems": 2,
        },
    }


def test_two_classes_of_one_name_are_told_apart() -> None:
    other = dataclass(type("Node", (), {"__annotations__": {"x": int}}))
    schemas = Schemas()

    assert [schemas.of(Node)["$ref"], schemas.of(other)["$ref"]] == ["#/$defs/Node", "#/$defs/Node_"]


class Model:
    """Speaks as a pydantic model does."""

    def model_dump(self) -> None: ...
    @classmethod
    def model_validate_json(cls) -> None: ...
    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return {"$ref": "#/$defs/Inner", "$defs": {"Inner": {"type": "object"}}}


class Broken(Model):
    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        raise RuntimeError("no schema for this")


def test_a_model_describes_itself_if_it_can() -> None:
    schemas = Schemas()

    assert schemas.of(Model) == {"$ref": "#/$defs/Inner"}
    assert schemas.definitions == {"Inner": {"type": "object"}}
    assert schemas.of(Broken) == {}
    assert Schemas().of(Model) == {"$ref": "#/$defs/Inner"}


def test_a_default_of_none_may_be_given(tmp_path: Path) -> None:
    app = dray.App(tmp_path / "jobs.db")

    @app.task(name="x")
    def task(size: int = None, day: date = date(2026, 1, 1), word: str = "x" * 500) -> None: ...  # type: ignore[assignment] # noqa: RUF013

    properties = argument_schema(task)["properties"]

    assert properties["size"] == {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}
    assert "default" not in properties["day"]
    assert "default" not in properties["word"]
