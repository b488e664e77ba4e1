"""docs/how-to/django.md says what examples/django_shop does, and its tests are run by test_runners."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from dray.integrations.django.options import KNOWN_OPTIONS, TASK_OPTIONS
from tests_integrations.django.test_runners import SHOP

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "django.md").read_text()
BLOCKS = re.findall(r"```python\n(.+?)```", PAGE, re.DOTALL)


def test_its_blocks_are_lines_of_the_example() -> None:
    named = {re.match(r"# (\S+)\n", block)[1]: block for block in BLOCKS if block.startswith("# ")}  # pyright: ignore[reportOptionalSubscript]
    assert {*named} == {"settings.py", "shop/tasks.py", "shop/views.py", "urls.py"}
    for block in BLOCKS:
        ast.parse(block)
    for name in ("shop/tasks.py", "shop/views.py"):
        theirs = _statements((SHOP / name).read_text())
        assert _statements(named[name]) <= theirs, name


def _statements(text: str) -> set[str]:
    """Statements inside functions; without annotations, docstrings and comments."""
    found = set[str]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign | ast.Return | ast.Expr) and not (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        ):
            found.add(ast.unparse(node))
    return found


def test_it_names_every_option() -> None:
    options = PAGE.partition("## 3. Options")[2].partition("## 4.")[0]
    assert [name for name in (*KNOWN_OPTIONS, *TASK_OPTIONS) if f"`{name}`" not in options] == []
