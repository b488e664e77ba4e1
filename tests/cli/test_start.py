"""Starting up: what is loaded, what every command says of itself, and how the app is found."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dray import __version__
from tests.cli.shell import TASKS, Shell

COMMANDS = [
    *(["demo"], ["worker"], ["enqueue"], ["jobs"], ["workers"], ["stats"]),
    *(
        ["job"],
        ["job", "show"],
        ["job", "logs"],
        ["job", "wait"],
        ["job", "retry"],
        ["job", "cancel"],
        ["job", "delete"],
    ),
    *(["queues"], ["queues", "pause"], ["queues", "resume"], ["queues", "set"]),
    *(["db"], ["db", "init"], ["db", "migrate"], ["db", "status"]),
    *(["dev"], ["run"], ["tasks"], ["config"], ["completion"], ["bench"]),
]


def loaded_by(*words: str) -> set[str]:
    code = f"import sys\nfrom dray.cli.run import run\nrun({list(words)!r})\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "words",
    [
        *(["--help"], ["--version"], ["worker", "--help"], ["jobs", "--help"]),
        *([name, "--help"] for name in ("dev", "run", "tasks", "config", "completion", "bench")),
    ],
    ids=" ".join,
)
def test_help_loads_click_and_nothing_that_costs(words: list[str]) -> None:
    expensive = {"rich", "psycopg", "sqlite3", "asyncio", "tomllib", "ssl", "http", "dray.backends.base", "dray.app"}

    assert loaded_by(*words) & expensive == set()


def test_a_list_in_a_pipe_loads_no_rich_and_no_other_database(local: Shell) -> None:
    local("db", "init")

    loaded = loaded_by("jobs", "--json", "--url", local.url)

    assert "sqlite3" in loaded
    assert loaded & {"rich", "psycopg", "asyncio", "dray.runtime.worker"} == set()


def test_python_m_dray_and_the_script_are_the_same(local: Shell) -> None:
    assert local.fresh("--version").out == f"dray, version {__version__}\n"
    script = subprocess.run([f"{sys.prefix}/bin/dray", "--version"], capture_output=True, text=True, check=True)
    assert script.stdout == f"dray, version {__version__}\n"


def test_ctrl_c_while_it_starts_is_as_clean_as_later(local: Shell) -> None:
    local.write("click.py", "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")

    done = local.fresh("jobs")

    assert (done.code, done.out, done.err) == (130, "", "")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_says_what_it_does(local: Shell, words: list[str]) -> None:
    said = local(*words, "--help").out

    assert said.startswith(f"Usage: dray {' '.join(words)}")
    assert "--url" in said
    assert len(list(local.folder.iterdir())) == 1, "help makes no file"


def test_the_list_of_commands_names_them_all(local: Shell) -> None:
    said = local("--help").out

    assert {words[0] for words in COMMANDS} <= set(said.split())


# Finding the app


@pytest.mark.parametrize("spec", ["shop:queue", "shop", "shop.py", "shop:Settings.queue"])
def test_an_app_is_named_by_module_and_object(local: Shell, spec: str) -> None:
    named = TASKS.replace("app = dray.App()", "queue = app = dray.App()\nclass Settings: queue = app")
    local.write("shop.py", named.replace("def add", "def plus"))

    assert "shop.plus" in local("worker", spec, "--burst").err
    assert "shop.plus" in local("worker", "--app", spec, "--burst").err
    assert "shop.plus" in local("worker", "--burst", DRAY_APP=spec).err


def test_an_app_is_named_in_pyproject(local: Shell) -> None:
    (local.folder / "shop").mkdir()
    local.write("shop/jobs.py", TASKS.replace("app =", "queue =").replace("@app", "@queue"))
    local.write("pyproject.toml", '[tool.dray]\napp = "shop.jobs:queue"\n')

    assert "shop.jobs.add" in local("worker", "--burst").err


def test_an_app_is_found_in_app_py(local: Shell) -> None:
    (local.folder / "tasks.py").rename(local.folder / "app.py")

    assert "app.add" in local("worker", "--burst").err


def test_a_file_of_the_same_name_that_is_about_something_else_is_not_run(local: Shell) -> None:
    local.write("tasks.py", "raise SystemExit('this is a server')")
    local.write("app.py", TASKS)

    assert "app.add" in local("worker", "--burst").err


def test_more_tasks_come_from_modules_that_are_named(local: Shell) -> None:
    local.write("more.py", "from tasks import app\n@app.task\ndef extra() -> None: ...\n")

    assert "more.extra" in local("worker", "--burst", "-i", "more").err


def test_the_address_in_the_code_counts_unless_another_is_typed(local: Shell) -> None:
    local.write("tasks.py", TASKS.replace("dray.App()", "dray.App('sqlite:///code.db')"))

    local("enqueue", "tasks.add", "a=1", "b=2", DRAY_URL="sqlite:///variable.db")
    local("enqueue", "tasks.add", "a=1", "b=2", "--url", "sqlite:///typed.db")

    assert {file.name for file in local.folder.glob("*.db")} == {"code.db", "typed.db"}
    assert len(local("jobs", DRAY_URL="sqlite:///variable.db").rows) == 1


BAD_APPS = {
    "there is no module nosuch": ("nosuch:app", ""),
    "is not there": ("shop:nothing", ""),
    "jobz is not there; did you mean shop:jobs?": ("shop:jobz", "import dray\njobs = dray.App('a.db')"),
    "is not an App but a function": ("shop:thing", "def thing(): ..."),
    "has no App in it": ("shop", ""),
    "has several apps: one, two": ("shop", "import dray\none, two = dray.App('a.db'), dray.App('b.db')"),
    "write module:object": ("shop jobs", ""),
    "ZeroDivisionError: division by zero": ("shop", "x = 1\ny = x / 0"),
    "shop.py:2": ("shop", "x = 1\ny = x / 0"),
    "SystemExit: bye": ("shop", "raise SystemExit('bye')"),
    "SyntaxError": ("shop", "def ("),
    "No module named 'nosuchlibrary'": ("shop", "import nosuchlibrary"),
}


@pytest.mark.parametrize(("problem", "given"), BAD_APPS.items(), ids=list(BAD_APPS))
def test_an_app_that_cannot_be_had_is_one_sentence(local: Shell, problem: str, given: tuple[str, str]) -> None:
    spec, code = given
    local.write("shop.py", code)

    done = local.try_("worker", spec, "--burst")

    assert done.code in {1, 2}
    assert problem in done.err
    assert len(done.err.splitlines()) == 1


def test_no_app_at_all_is_a_sentence_too(local: Shell) -> None:
    (local.folder / "tasks.py").unlink()

    done = local.try_("worker")

    assert (done.code, len(done.err.splitlines())) == (2, 1)


def test_an_interrupt_that_was_caught_inside_exec_does_not_change_the_exit_code(tmp_path: Path) -> None:
    """As while a dataclass is being made: Python notes it, and would end the process by SIGINT."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            from dray.cli import main, run

            def interrupted(args):
                try:
                    exec("raise KeyboardInterrupt")
                except KeyboardInterrupt:
                    return 130

            run.run = interrupted
            main([])
            """
        )
    )

    done = subprocess.run(
        [sys.executable, "-m", "program"], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (130, "")


def test_output_that_could_not_be_written_is_not_tried_again_at_the_end(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import errno, sys
            from dray.cli import main, run

            def full(args):
                sys.stdout.write("something that is still buffered")
                raise OSError(errno.ENOSPC, "No space left on device")

            run._invoke = full
            main([])
            """
        )
    )

    kept = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("wb") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "program"],
            cwd=tmp_path,
            stdout=stdout,
            env=kept,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
