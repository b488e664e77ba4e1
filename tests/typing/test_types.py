"""The types of tasks and jobs, checked by pyright and mypy in strict mode."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@pytest.fixture(scope="module")
def findings() -> list[tuple[str, int, str]]:
    """Returns everything that pyright finds in this folder."""
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", str(HERE)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] >= 3
    return [
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1, each["message"])
        for each in found["generalDiagnostics"]
    ]


def test_what_works_is_accepted_with_its_exact_types(findings: list[tuple[str, int, str]]) -> None:
    assert [each for each in findings if each[0] == "accepted.py"] == []


def test_mypy_accepts_what_works_too() -> None:
    """But for what it cannot know, which is marked: it takes a Context off a signature only if it comes first."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={os.devnull}", "--no-error-summary", "accepted.py"],
        cwd=HERE,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = (HERE / "accepted.py").read_text().splitlines()
    marked = [number for number, line in enumerate(lines, 1) if line.endswith("# not mypy")]

    assert marked
    assert re.findall(r"^accepted\.py:(\d+): error", done.stdout, re.M) == [str(number) for number in marked], (
        done.stdout
    )
    assert done.stderr == ""


def test_what_cannot_work_is_refused(findings: list[tuple[str, int, str]]) -> None:
    marked = re.findall(r"# pyright: ignore\[", (HERE / "refused.py").read_text())

    assert len(marked) > 10
    assert [each for each in findings if each[0] == "refused.py"] == []
