"""The READMEs of the examples beside frameworks: their commands run, in their order, and print what is shown."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests_integrations.serving import PATIENCE, ROOT, free_port, served, until

EXAMPLES = ROOT / "examples"
# Each server, how it is started as a module with a port of its own, and the port that its README shows.
SERVERS = {
    "uvicorn shop:web": (("uvicorn", "shop:web", "--port", "{port}"), "8000"),
    "flask --app shop run": (("flask", "--app", "shop", "run", "--port", "{port}"), "5000"),
    "python manage.py runserver": (("django", "runserver", "--noreload", "{port}"), "8000"),
}


@pytest.mark.parametrize("name", ["fastapi", "flask", "django_shop"])
def test_the_commands_of_a_readme_run_as_shown(name: str, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    folder = tmp_path / name
    shutil.copytree(EXAMPLES / name, folder, ignore=shutil.ignore_patterns("__pycache__", "*.db*", "*.sqlite3*"))
    (block,) = re.findall(r"^```console\n(.+?)^```", (folder / "README.md").read_text(), re.M | re.S)
    environment = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    if name == "django_shop":
        environment["DJANGO_SETTINGS_MODULE"] = "project.settings"
    typed = re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", block, re.M)
    assert [command for command, _ in typed if command in SERVERS]

    port, shown_port = free_port(), ""
    with ExitStack() as stack:
        for command, shown in typed:
            if command in SERVERS:
                words, shown_port = SERVERS[command]
                path = os.pathsep.join([str(folder), str(ROOT)])
                stack.enter_context(served(*words, folder=folder, port=port, PYTHONPATH=path, **environment))
            elif not command.startswith("pip install"):
                said = _run(command.replace(f":{shown_port}/", f":{port}/"), folder, environment)
                assert not shown or _plain(said) == _plain(shown), f"$ {command}\n{said}"
        lists = typed[-1][0]
        until(lambda: "\tcompleted\t" in _run(lists, folder, environment))
        assert _run(lists, folder, environment).count("\n") == 1


def _run(command: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
    return done.stdout


def _plain(text: str) -> str:
    return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text).strip()
