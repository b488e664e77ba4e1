"""What the docs show runs as shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def run(*words: str, cwd: Path = ROOT) -> str:
    done = subprocess.run([sys.executable, *words], cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_retries_and_succeeds(empty_url: str) -> None:
    said = run("examples/mailer.py", empty_url)

    assert said.splitlines() == [
        "sent to ann@example.com",
        "attempt 1: error",
        "attempt 2: completed",
        "log: sent to ann@example.com",
    ]


def test_the_demo_says_what_the_readme_shows(tmp_path: Path) -> None:
    shown = README.partition("$ make demo")[2].partition("```")[0].splitlines()

    said = {_without_numbers(line) for line in run("-m", "dray", "demo", "--jobs", "300", cwd=tmp_path).splitlines()}

    told = [_without_numbers(line) for line in shown if line and line != "…"]
    assert len(told) > 5
    assert [line for line in told if line not in said] == []


def _without_numbers(line: str) -> str:
    return re.sub(r"[\d.,]*\d(ms|s)?\b", "#", line).strip()


def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    tasks, script, transaction = re.findall(r"```python\n(.+?)```", README, re.S)
    (tmp_path / "tasks.py").write_text(tasks)
    (tmp_path / "script.py").write_text(script)
    orders = (
        'connection = sqlite3.connect("dray.db"); connection.execute("CREATE TABLE orders (id)"); connection.close()'
    )
    count = "print(len(app.jobs(task=send)))"
    (tmp_path / "orders.py").write_text(
        f"import sqlite3\nfrom tasks import app, send\n{orders}\n{transaction}\n{count}"
    )

    worker = subprocess.Popen([sys.executable, "-m", "dray", "worker"], cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        assert run("script.py", cwd=tmp_path) == "3\nscheduled\n"
        assert run("-m", "dray", "enqueue", "tasks.add", "a=1", "b=2", "--wait", cwd=tmp_path) == "3\n"
        assert run("orders.py", cwd=tmp_path) == "2\n"
    finally:
        worker.terminate()
        assert worker.wait(30) == 0


def test_the_commands_of_the_readme_are_commands(tmp_path: Path) -> None:
    typed = re.findall(r"^\$ dray (\w+(?: show)?)", README, re.M)

    assert len(typed) > 4
    for words in typed:
        assert run("-m", "dray", *words.split(), "--help", cwd=tmp_path).startswith(f"Usage: dray {words}")


def test_links_between_the_docs_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_importing_dray_and_its_sqlite_side_loads_nothing_from_elsewhere() -> None:
    code = "import dray, dray.backends, dray.task, sys; print(*sys.modules)"
    ours = {"dray", "__main__", "sitecustomize", "usercustomize"}
    loaded = {name.partition(".")[0] for name in run("-c", code).split()} - set(sys.stdlib_module_names) - ours
    assert {name for name in loaded if not name.startswith("_")} == set()
