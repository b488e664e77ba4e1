"""Every example runs, and prints what its README shows; on both databases where it takes an address."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.play import is_as_shown

EXAMPLES = Path(__file__).parents[2] / "examples"


def _shown(folder: str) -> str:
    """What the README of an example shows of its output."""
    (shown,) = re.findall(r"^\$ python .+\n((?:.+\n)+?)```", (EXAMPLES / folder / "README.md").read_text(), re.M)
    return shown


def _run(folder: str, url: str, where: Path) -> str:
    (program,) = (EXAMPLES / folder).glob("*.py")
    command = [sys.executable, program, url]
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("folder", ["scraper", "pipeline", "parameter_search", "nightly_report"])
def test_an_example_prints_what_its_readme_shows(folder: str, empty_url: str, tmp_path: Path) -> None:
    assert is_as_shown(_shown(folder), _run(folder, empty_url, tmp_path))


def test_the_outbox_prints_what_its_readme_shows(postgres_url: str, tmp_path: Path) -> None:
    assert is_as_shown(_shown("outbox"), _run("outbox", postgres_url, tmp_path))


def test_the_web_app_writes_an_order_and_its_job_or_neither(tmp_path: Path) -> None:
    code = f"""
import io, json, sys
sys.path.insert(0, {str(EXAMPLES / "web_app")!r})
import app as shop

def ask(body):
    said = []
    environ = {{"CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body)}}
    answer = b"".join(shop.serve(environ, lambda status, headers: said.append(status)))
    return said[0], answer

shop.make_tables()
lamp = json.dumps({{"item": "lamp", "mail": "ann@example.com"}}).encode()
print(ask(lamp)[0], ask(lamp)[0], ask(b"{{}}")[0])
print(len(shop.app.jobs()), shop.app.worker().run_until_idle(), shop.app.jobs()[0].result())
shop.app.close()
"""
    command = [sys.executable, "-c", code, str(tmp_path / "shop.db")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == [
        "201 Created 400 Bad Request 400 Bad Request",
        "1 1 order 1 confirmed to ann@example.com",
    ], done.stderr


def test_every_example_is_listed() -> None:
    listed = re.findall(r"\]\(([\w.]+)", (EXAMPLES / "README.md").read_text())
    there = {
        path.name
        for path in EXAMPLES.iterdir()
        if path.name not in {"README.md", "__pycache__"} and path.suffix != ".db"
    }
    assert there - set(listed) == set()
