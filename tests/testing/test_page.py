"""The code of docs/how-to/test-your-tasks.md runs as shown."""

from __future__ import annotations

import re
from pathlib import Path

from dray import testing
from tests.testing.inner import run_pytest

PAGE = (Path(__file__).parent.parent.parent / "docs" / "how-to" / "test-your-tasks.md").read_text()


def test_the_code_of_the_page_runs(place: str, tmp_path: Path) -> None:
    tasks, *blocks = re.findall(r"```python\n(.+?)```", PAGE, re.S)
    tests = "\n\n".join(blocks)
    if place == "postgres":  # whose connections this page does not open
        tests = re.sub(r"def test_inside_a_transaction.+?\n\n", "\n", tests, flags=re.S)
    (tmp_path / "pyproject.toml").write_text("".join(re.findall(r"```toml\n(.+?)```", PAGE, re.S)))
    (tmp_path / "jobs.py").write_text(tasks)
    (tmp_path / "test_page.py").write_text(tests)

    said = run_pytest(tmp_path, PYTHONPATH=str(tmp_path))

    assert f"{tests.count(chr(10) + 'def test_')} passed" in said


def test_the_page_names_all_there_is() -> None:
    shown = set(re.findall(r"\w+", PAGE))
    inner = {"ClockControl", "HandContext"}  # types of what is returned
    assert set(testing.__all__) - shown - inner == set()
