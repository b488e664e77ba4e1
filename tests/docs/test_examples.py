"""Every example runs as its README says, on both databases; those that need a framework in tests_integrations."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import Shell
from tests.docs.play import Player, blocks_of

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def shell(tmp_path: Path, empty_url: str) -> Shell:
    return Shell(tmp_path / "example", empty_url)


def _play(folder: str, shell: Shell, **options: Any) -> None:
    shutil.copytree(EXAMPLES / folder, shell.folder, ignore=shutil.ignore_patterns("__pycache__", "*.db*"))
    Player(f"examples/{folder}/README.md", shell, **options).play()


@pytest.mark.parametrize("folder", ["scraper", "pipeline", "parameter_search", "nightly_report"])
def test_the_commands_of_an_examples_readme_run_as_shown(folder: str, shell: Shell) -> None:
    _play(folder, shell)


def test_the_database_of_an_example_is_its_own_without_an_address(tmp_path: Path) -> None:
    """Its worker uses the file that the program has made, and makes no other."""
    shell = Shell(tmp_path / "example", "")
    del shell.environment["DRAY_URL"]

    _play("parameter_search", shell)

    assert [path.name for path in shell.folder.glob("*.db")] == ["dray.db"]
    assert len(shell("jobs").rows) == 6


def test_a_stopped_parameter_search_goes_on_with_the_trials_that_are_left(shell: Shell) -> None:
    shutil.copytree(EXAMPLES / "parameter_search", shell.folder)
    program = shell.folder / "search.py"
    program.write_text(program.read_text().replace("app.worker(", "os._exit(9) or app.worker("))
    assert "6 of 6" in _output(shell, code=9)

    shutil.copy(EXAMPLES / "parameter_search" / "search.py", program)

    assert _output(shell).startswith("0 of 6 trials are new\nbest of 5: ")


def _output(shell: Shell, *, code: int = 0) -> str:
    command = [sys.executable, "-u", "search.py"]
    done = subprocess.run(
        command, cwd=shell.folder, env=shell.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def test_the_commands_of_the_outboxs_readme_run_as_shown(tmp_path: Path, postgres_url: str) -> None:
    _play("outbox", Shell(tmp_path / "example", postgres_url))


def test_the_commands_of_the_web_apps_readme_run_as_shown(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shell = Shell(tmp_path / "example", "sqlite:///another.db")
    shell.environment["PORT"] = str(port)

    _play("web_app", shell, serves=("python app.py",), replace=((":8000", f":{port}"),))

    (job,) = shell("jobs", "--url", "shop.db").rows
    assert job[1:4] == ["app.confirm", "mail", "completed"]
    assert sorted(path.name for path in shell.folder.glob("*.db")) == ["shop.db"]


def test_the_commands_of_the_readme_of_the_package_with_tests_run_as_shown(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "example", f"sqlite:///{tmp_path / 'unused.db'}")
    _play("tested_shop", shell)


def test_the_commands_of_the_list_of_examples_run_as_shown(shell: Shell) -> None:
    shutil.copytree(EXAMPLES, shell.folder, ignore=shutil.ignore_patterns("__pycache__", "*.db*"))
    Player("examples/README.md", shell).play()


def test_every_example_has_a_readme_with_commands() -> None:
    for file in EXAMPLES.glob("*/*.py"):
        page = f"examples/{file.parent.name}/README.md"
        assert [block for block in blocks_of(page, "console") if block.startswith("$ ")], page


def test_every_example_is_listed() -> None:
    listed = re.findall(r"\]\(([\w.]+)", (EXAMPLES / "README.md").read_text())
    there = {
        path.name
        for path in EXAMPLES.iterdir()
        if path.name not in {"README.md", "__pycache__"} and path.suffix != ".db"
    }
    assert there - set(listed) == set()
