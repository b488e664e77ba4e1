"""docs/how-to/django.md says what examples/django_shop does, whose tests test_runners runs. A project that is made of
the page's own blocks works."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from dray.integrations.django.options import KNOWN_OPTIONS, TASK_OPTIONS
from tests_integrations.django.test_runners import SHOP

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "django.md").read_text()
BLOCKS = re.findall(r"```python\n(.+?)```", PAGE, re.DOTALL)


NAMED = {block[2:].partition("\n")[0]: block for block in BLOCKS if block.startswith("# ")}


def test_its_blocks_are_lines_of_the_example() -> None:
    assert {*NAMED} == {"settings.py", "shop/tasks.py", "shop/views.py", "urls.py"}
    for name in ("shop/tasks.py", "shop/views.py"):
        theirs = _statements((SHOP / name).read_text())
        assert _statements(NAMED[name]) <= theirs, name


def test_a_project_of_its_blocks_works(tmp_path: Path) -> None:
    """Django's own settings, the models and the URL that the page speaks of are the example's."""
    options, test = (next(block for block in BLOCKS if word in block) for word in ("OPTIONS = {\n", "TestCase"))
    assert len(BLOCKS) == len(NAMED) + 2
    folder = tmp_path / "shop"
    shutil.copytree(SHOP, folder, ignore=shutil.ignore_patterns("__pycache__", "*.sqlite3*"))
    for name in ("shop/tasks.py", "shop/views.py"):
        (folder / name).write_text(NAMED[name])
    (folder / "shop" / "tests.py").write_text(test)
    (folder / "project" / "settings.py").rename(folder / "project" / "djangos.py")
    (folder / "project" / "settings.py").write_text(
        f"from project.djangos import *\ntheirs = [name for name in INSTALLED_APPS if 'dray' not in name]\n"
        f"{NAMED['settings.py']}\nINSTALLED_APPS += theirs\n"
        f"{options}\nTASKS['default']['OPTIONS'] = OPTIONS\nROOT_URLCONF = 'project.pages'\n"
    )
    (folder / "project" / "pages.py").write_text(
        f"{NAMED['urls.py']}\nfrom shop.views import buy\nurlpatterns += [path('buy/<what>', buy)]\n"
    )
    variables = {name: value for name, value in os.environ.items() if name != "SHOP_DATABASE"}

    def manage(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=folder,
            env=variables,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert "no issues" in manage("check", "--fail-level", "WARNING")
    assert re.search(r"Ran 1 test\b", manage("test"))
    manage("migrate")
    manage("dray", "jobs", "state:failed")
    manage("dray_worker", "--queues", "mail,default", "--concurrency", "8", "--burst")


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
