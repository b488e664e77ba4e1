"""What the docs show runs as shown."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.server import in_database

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs" / "reference" / "python.md").read_text()


def run(*words: str, cwd: Path = ROOT) -> str:
    done = subprocess.run([sys.executable, *words], cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_workflow_of_the_how_to_runs_as_shown(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "build-a-workflow.md").read_text()
    (tmp_path / "etl.py").write_text("\n".join(re.findall(r"```python\n(.+?)```", page, re.S)))

    run("etl.py", cwd=tmp_path)

    *_, etl = (
        line.split("\t")[0] for line in run("-m", "dray", "workflows", "--url", "etl.db", cwd=tmp_path).splitlines()
    )
    for line in re.findall(r"^\$ dray (.+?) *(?:#|$)", page, re.M):
        assert (
            run("-m", "dray", *line.replace("ID", etl).split(), "--url", "etl.db", cwd=tmp_path) or "failed" in line
        )


def test_every_example_has_its_context_first() -> None:
    """There type checkers check every call; anywhere else they check none."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    code = [block for page in pages for block in re.findall(r"```python\n(.+?)```", page.read_text(), re.S)]
    folders = (ROOT / "examples", ROOT / "src" / "dray" / "cli" / "demo")
    code += [file.read_text() for folder in folders for file in folder.rglob("*.py")]
    heads = [
        head for text in code for head in re.findall(r"^ *(?:async )?def \w+\(([^)]*\bContext\b[^)]*)\)", text, re.M)
    ]

    assert len(heads) > 10
    assert [head for head in heads if not re.match(r"\w+: (dray\.)?Context", head)] == []


def test_the_commands_that_replace_a_sqlite_file_run_as_shown(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "replace-a-sqlite-file.md").read_text()
    typed = re.findall(r"^\$ (.+)", page, re.M)
    assert len(typed) > 3
    (tmp_path / "tasks.py").write_text("import dray\n\napp = dray.App()\n\n\n@app.task\ndef add(): ...\n")
    job = run("-m", "dray", "enqueue", "tasks.add", cwd=tmp_path)

    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for line in typed:
        subprocess.run(line, shell=True, cwd=tmp_path, env={**os.environ, "PATH": path}, timeout=60, check=True)

    assert run("-m", "dray", "jobs", cwd=tmp_path).startswith(job.strip())


def test_the_code_about_transactions_runs_as_shown(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "enqueue-in-your-transaction.md").read_text()
    (tmp_path / "page.py").write_text("".join(re.findall(r"```python\n(.+?)```", page, re.S)))

    # Two threads print: one may do so between the text and the newline of the other.
    assert sorted(re.findall(r"confirmed \d+", run("page.py", cwd=tmp_path))) == ["confirmed 1", "confirmed 2"]


def test_the_code_about_transactions_of_psycopg_runs_as_shown(postgres_server: str) -> None:
    name = f"page_{os.getpid()}"
    with psycopg.connect(postgres_server, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}".encode())
    url = in_database(postgres_server, name)
    page = (ROOT / "docs" / "how-to" / "enqueue-in-your-transaction.md").read_text()
    (code,) = re.findall(r"```python title=\"psycopg\"\n(.+?)```", page, re.S)
    names: dict[str, Any] = {"__name__": "shop"}

    exec(compile(code.replace("postgresql://localhost/shop", url), "shop.py", "exec"), names)

    with psycopg.connect(url) as server:
        assert server.execute("SELECT customer FROM orders").fetchall() == [("ann",)]


def test_the_code_of_the_first_page_runs_as_shown(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.+?)```", (ROOT / "docs" / "index.md").read_text(), re.S)
    (tmp_path / "page.py").write_text(code)
    run("page.py", cwd=tmp_path)


def test_the_code_of_hooks_and_middleware_runs_as_shown_on_both_databases(url: str) -> None:
    page = (ROOT / "docs" / "how-to" / "use-hooks-and-middleware.md").read_text()
    code = "".join(re.findall(r"```python\n(.+?)```", page, re.S)).replace('"sqlite:///shop.db"', repr(url))
    names: dict[str, Any] = {"__name__": "shop"}

    exec(compile(code, "shop.py", "exec"), names)

    names["app"].close()
    assert len(names["alerts"]) == 1


def test_the_recipes_of_limits_run_as_shown_on_both_databases(url: str) -> None:
    page = (ROOT / "docs" / "how-to" / "limits.md").read_text()
    code = "".join(re.findall(r"```python\n(.+?)```", page, re.S)).replace('"sqlite:///shop.db"', repr(url))
    names: dict[str, Any] = {"__name__": "shop"}

    exec(compile(code, "shop.py", "exec"), names)

    names["app"].close()
    typed = re.findall(r"^\$ dray (limits.*)", page, re.M)
    assert len(typed) > 4
    said = [run("-m", "dray", *line.split(), "--url", url) for line in typed]
    assert [line.split("\t")[:3] for line in said] == [
        ["queue", "api", "0"],
        ["queue", "api", "2"],
        ["task", "shop.fetch", ""],
        ["queue", "api", "2"],
        ["queue", "api", "0"],
    ]


def test_the_reference_names_every_public_name() -> None:
    import dray

    shown = set(re.findall(r"\w+", REFERENCE))
    assert [name for name in dray.__all__ if name not in shown] == []


def test_the_generated_reference_has_every_public_name() -> None:
    import dray
    from dray import testing

    page = (ROOT / "docs" / "reference" / "api.md").read_text()
    shown = {path.rpartition(".")[2] for path in re.findall(r"^::: (dray\.[\w.]+)$", page, re.M)}
    errors = {name for name in dray.__all__ if name in vars(dray.errors)}  # all of them are in one entry
    returned = {"Attempt", "AttemptError", "LogLine", "Progress", "ScheduleInfo", "Stats", "QueueInfo", "WorkerInfo"}
    made = {"Worker", "LimitInfo", "ClockControl", "Context"}
    assert {*dray.__all__, *testing.__all__, *returned, *made} - errors - shown == set()
    assert "errors" in shown


def _sections() -> dict[str, set[str]]:
    """The words in code of each section of the reference, by its heading."""
    found: dict[str, set[str]] = {}
    for heading, text in re.findall(r"^## (.+?)\n(.+?)(?=^## |\Z)", REFERENCE, re.M | re.S):
        found[heading] = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`\n]+`", text))))
    return found


def _public(kind: type[Any]) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("_")]


def _options(function: Any, *inner: str) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in ("self", *inner)]


def _documented() -> dict[str, list[str]]:
    """What people can use, by the section that has to name it."""
    import dray
    from dray import testing
    from dray.handle.job import Attempt, AttemptError, LogLine
    from dray.model.limit import Kind
    from dray.ops.limits import LimitInfo
    from dray.ops.listing import QueueInfo, Stats, WorkerInfo
    from dray.runtime.worker import Worker
    from dray.schedules import ScheduleInfo, ScheduleKeywords
    from dray.task.job_options import JobKeywords
    from dray.task.options import TaskKeywords

    kept = [name for kind in (Attempt, AttemptError, LogLine) for name in kind.__dataclass_fields__]
    coroutines = {"acomplete", "acancel", "aretry", "arefresh", "aresult", "await_", "aretry_failed"}
    return {
        "App": _options(dray.App.__init__, "clock"),
        "Tasks": [*TaskKeywords.__optional_keys__],
        "Options of a job": [*JobKeywords.__optional_keys__],
        "A job's handle": [*(name for name in _public(dray.Job) if name not in coroutines), *kept],
        "Lists, numbers and queues": [*_public(Stats), *_public(QueueInfo), *_public(WorkerInfo)],
        "Keys and limits": [*_public(LimitInfo), *(kind.value for kind in Kind), "key"],
        "Context": [name for name in _public(dray.Context) if name != "completion"],  # for ctx.transaction()
        "Steering": ["Retry", "Snooze", "Fail", "Cancel", "Steering"],
        "Workers": [
            *_options(Worker.__init__, "app", "owns_process", "observer"),  # for `dray worker`
            *(name for name in _public(Worker) if name != "condition"),
        ],
        "Workflows": [name for name in _public(dray.Run) if name not in coroutines or name == "await_"],
        "Schedules": [*ScheduleKeywords.__optional_keys__, *_public(ScheduleInfo)],
        "Coroutines": [*coroutines],
        "Testing": [
            *testing.__all__,
            *(
                name
                for function in (
                    testing.drain,
                    testing.assert_enqueued,
                    testing.context,
                    testing.clock,
                    testing.crash,
                )
                for name in _options(function)
            ),
        ],
        "Dashboard": [*_options(dray.dashboard), *_options(dray.Access.__init__), "wsgi", "close"],
        "Errors": [name for name, kind in vars(dray.errors).items() if isinstance(kind, type) and name != "Any"],
    }


@pytest.mark.parametrize("section", _documented())
def test_a_section_of_the_reference_names_all_that_it_is_about(section: str) -> None:
    shown = _sections()[section]
    assert [name for name in _documented()[section] if name not in shown] == []


def _defaults() -> dict[str, dict[str, Any]]:
    """The defaults of the code, by the section whose table has them."""
    import dray
    from dray.model.schedule import Schedule
    from dray.runtime.worker import Worker
    from dray.task.options import TaskOptions

    def of(function: Any) -> dict[str, Any]:
        return {name: each.default for name, each in inspect.signature(function).parameters.items()}

    tasks = {name: each.default for name, each in TaskOptions.__dataclass_fields__.items()}
    return {
        "App": of(dray.App.__init__),
        "Tasks": tasks,
        "Workers": of(Worker.__init__),
        "Schedules": {name: each.default for name, each in Schedule.__dataclass_fields__.items()},
    }


@pytest.mark.parametrize("section", _defaults())
def test_the_reference_has_the_defaults_of_the_code(section: str) -> None:
    text = re.findall(rf"^## {section}\n(.+?)(?=^## |\Z)", REFERENCE, re.M | re.S)[0]
    table = text.partition("| option | default | |\n")[2].partition("\n\n")[0]
    compared: list[str] = []
    for names, shown in re.findall(r"^\| *(`[^|]+`) *\| *([^|]+?) *\|", table, re.M):
        for name in re.findall(r"\w+", names):
            default = _defaults()[section].get(name)
            if value := re.fullmatch(r"`?(\d+|0o\d+|True|False|None|\(\)|\"\w+\")`?", shown):
                assert default == ast.literal_eval(value[1]), name
            elif shown == "none":
                assert default in (None, ()) or name == "args", name
            else:
                continue  # in words
            compared.append(name)
    assert len(compared) >= 2


def test_the_reference_has_the_limits_of_the_code() -> None:
    from dray import codec
    from dray.instants import DAY
    from dray.model import bounds
    from dray.model.retention import Retention

    section = REFERENCE.partition("## Sizes and retention")[2].partition("## ")[0]
    figures = (
        f"arguments of a job | {bounds.ARGS_BYTES // bounds.KIB} KiB",
        f"result | {bounds.RESULT_BYTES // bounds.MIB} MiB",
        f"nesting | {codec.MAX_DEPTH} levels",
        f"error message, progress message | {bounds.ERROR_MESSAGE_BYTES // bounds.KIB} KiB",
        f"traceback | {bounds.TRACEBACK_BYTES // bounds.KIB} KiB",
        f"log line | {bounds.LOG_MESSAGE_BYTES // bounds.KIB} KiB",
        f"log lines of a job | {bounds.LOG_LINES:,} ",
        f"attempts of a job | {bounds.ATTEMPTS_KEPT} ",
        f"{bounds.TAGS}; {bounds.UNIQUE_CHARS}, {bounds.JOB_NAME_CHARS}, {bounds.DESCRIPTION_CHARS} characters",
        f"±{bounds.PRIORITY_MAX:,}",
        f"{(Retention().completed_us or 0) // DAY} days if they completed or were cancelled",
        f"{(Retention().failed_us or 0) // DAY} days if they failed",
    )
    assert [figure for figure in figures if figure not in section] == []


def test_the_guide_for_contributors_agrees_with_the_makefile() -> None:
    guide, makefile = (ROOT / "CONTRIBUTING.md").read_text(), (ROOT / "Makefile").read_text()
    helped = dict(re.findall(r"^([a-z-]+):.*?## (.+)$", makefile, re.M))
    said = re.findall(r"^\$ make ([a-z-]+) +# (.+)$", guide, re.M)

    assert {"check", "test", "docs", "bench", "compare", "soak"} <= {target for target, _ in said}
    for target, text in said:
        time = re.findall(r"about .*hour", text)
        assert time == re.findall(r"about .*hour", helped[target]), target
    (processes,) = re.findall(r"\$\(PYTEST\) -n (\d+)", makefile)
    assert f"`-n {processes}` runs" in guide
    (in_ci,) = re.findall(r"^make (.+)$", (ROOT / ".ci" / "run").read_text(), re.M)
    assert f"`make {in_ci}`" in guide


def test_the_reference_of_searches_has_the_limits_of_the_code() -> None:
    from dray.model.search import TERMS, TEXT_CHARS

    page = (ROOT / "docs" / "reference" / "search.md").read_text()
    assert f"at most {TEXT_CHARS:,} characters and {TERMS} terms" in page


def test_llms_txt_lists_every_page_by_its_title() -> None:
    listed = dict(re.findall(r"^- \[(.+)\]\((.+\.md)\)", (ROOT / "llms.txt").read_text(), re.M))
    parts = {f"docs/{name}/index.md" for name in ("tutorial", "how-to", "reference", "explanation")}
    pages = {str(page.relative_to(ROOT)): page.read_text() for page in (ROOT / "docs").rglob("*.md")}

    assert set(pages) - {"docs/index.md", *parts} - set(listed.values()) == set()
    for title, path in listed.items():
        assert (ROOT / path).exists()
        assert path not in pages or f"# {title}\n" in pages[path]


SEARCHED = ("backoff", "dead letter", "graceful shutdown", "idempotency", "exactly once", "cron", "DAG", "rate limit")


@pytest.mark.parametrize("word", SEARCHED)
def test_a_word_that_people_search_for_is_in_the_glossary_and_where_they_begin(word: str) -> None:
    first = (ROOT / "README.md", *(ROOT / "docs" / "tutorial").glob("*.md"))
    assert re.search(rf"\*\*[^*]*\b{word}", (ROOT / "docs" / "reference" / "glossary.md").read_text(), re.I)
    assert re.search(rf"\b{word}", "".join(page.read_text() for page in first), re.I)


def test_importing_dray_and_its_sqlite_side_loads_nothing_from_elsewhere() -> None:
    code = "import dray, dray.backends, dray.task.task, sys; print(*sys.modules)"
    ours = {"dray", "__main__", "sitecustomize", "usercustomize"}
    loaded = {name.partition(".")[0] for name in run("-c", code).split()} - set(sys.stdlib_module_names) - ours
    assert {name for name in loaded if not name.startswith("_")} == set()
