"""What completion on ``app.`` shows is what users may call, and the reference has all of it."""

from __future__ import annotations

import re
from pathlib import Path

import dray

PAGE = (Path(__file__).parent.parent.parent / "docs" / "reference" / "python.md").read_text()


def test_an_app_shows_the_names_that_are_documented_and_no_others() -> None:
    (listed,) = re.findall(r"^All names of an App: (.+?)\.$", PAGE, re.M | re.S)
    app = dray.App("sqlite:///never-opened.db")

    assert [name for name in dir(app) if not name.startswith("_")] == re.findall(r"`(\w+)`", listed)
