"""The types of tasks and jobs, checked by pyright in strict mode."""

from __future__ import annotations

import json
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


def test_what_cannot_work_is_refused(findings: list[tuple[str, int, str]]) -> None:
    marked = re.findall(r"# pyright: ignore\[", (HERE / "refused.py").read_text())

    assert len(marked) > 10
    assert [each for each in findings if each[0] == "refused.py"] == []
