"""The pytest plugin `dray`, and the example that uses it with xdist."""

from __future__ import annotations

from pathlib import Path

import pytest

from dray.testing.plugin import find_app
from tests.testing import shop
from tests.testing.inner import run_pytest

SHOP = Path(__file__).parent.parent.parent / "examples" / "tested_shop"

# What the plugin costs those who do not use it.
WEIGHT = """
import sys

def pytest_sessionstart():
    names = sorted(name for name in sys.modules if name.partition('.')[0] == 'dray')
    assert names == ['dray', 'dray.lazy', 'dray.testing', 'dray.testing.plugin'], names
"""
OWN_APP = """
import dray, pytest

def add(n: int) -> int:
    return n + 1

@pytest.fixture(scope="session")
def dray_app():
    app = dray.App("sqlite:////nowhere/x.db")
    app.task(name="add")(add)
    return app
"""
USES_ALL = """
def test_all(dray_app, dray_drain, dray_clock):
    job = dray_app.enqueue("add", {"n": 1}, delay=60)
    dray_clock.advance(60)
    assert dray_drain(delays=False) == 1
    assert job.result(5) == 2
"""


@pytest.mark.usefixtures("place")
def test_the_example_runs_with_xdist_and_the_plugin_loads_nothing_that_others_pay_for(tmp_path: Path) -> None:
    (tmp_path / "weight.py").write_text(WEIGHT)
    said = run_pytest(SHOP, "-n", "2", "-p", "xdist", "-p", "weight", PYTHONPATH=str(tmp_path))
    assert "7 passed" in said
    assert said.endswith("exit 0")


def test_a_project_can_make_its_own_app_and_without_one_the_error_says_what_to_write(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "conftest.py").write_text(OWN_APP)
    (tmp_path / "own" / "test_own.py").write_text(USES_ALL)
    (tmp_path / "test_none.py").write_text("def test_none(dray_drain): ...")
    said = run_pytest(tmp_path, DRAY_TEST_URL="")
    assert "1 passed, 1 error" in said
    assert 'dray_app is not set: write dray_app = "module:app" under [tool.pytest.ini_options]' in said
    assert "Traceback" not in said


def test_the_setting_names_an_app() -> None:
    assert find_app("tests.testing.shop:app") is shop.app


@pytest.mark.parametrize(
    ("ini", "said"),
    [
        ("", 'dray_app is not set: write dray_app = "module:app" under .+, or override the fixture dray_app'),
        ("shop", "dray_app is 'shop': write dray_app = "),
        ("nowhere:app", "dray_app is 'nowhere:app', and there is no module 'nowhere' to import"),
        ("json:dumps", r"dray_app is 'json:dumps', which is no dray\.App but function"),
        ("json:no", r"dray_app is 'json:no': no is not there"),
    ],
)
def test_a_wrong_setting_says_what_to_write(ini: str, said: str) -> None:
    with pytest.raises(pytest.fail.Exception, match=said):
        find_app(ini)
