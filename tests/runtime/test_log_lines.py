"""A body cannot forge lines in the worker's log, whatever it raises or logs."""

from __future__ import annotations

import io
import logging
from collections.abc import Generator

import pytest

from dray.app import App
from dray.sanitize import escape_lines
from tests.runtime.watching import until

BODIES = ["forge", "forge-again", "forge-written", "forge-elsewhere", "forge-process"]


@pytest.fixture
def app(kinds_app: App) -> App:
    return kinds_app


@pytest.fixture
def written() -> Generator[io.StringIO]:
    """The worker's log: one record per line, its level first."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    root, level = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)


@pytest.mark.usefixtures("shared_forker")
@pytest.mark.parametrize("name", BODIES)
def test_no_body_can_forge_a_line(app: App, written: io.StringIO, name: str) -> None:
    app.enqueue(name)

    assert app.worker().run_until_idle() == 1

    until(lambda: "forged" in written.getvalue())
    lines = written.getvalue().splitlines()  # splits at every character that a reader might take for a line break
    assert [line for line in lines if line.startswith("ERROR")] == []
    assert "\x1b" not in written.getvalue()
    assert [line for line in lines if "harmless" in line] != []


def test_a_traceback_keeps_its_lines_and_none_of_them_begins_a_record() -> None:
    assert escape_lines("Traceback\n  File x\nE: a\rb") == "Traceback\n      File x\n    E: a\\rb"
    assert escape_lines("one line") == "one line"
