"""The tutorial: its chapters are played in order, in one folder, as a reader would."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.docs.play import Player

CHAPTERS = ("1-first-job", "2-retries-and-schedules", "3-workflow", "4-production")


def test_the_tutorial_runs_as_shown_from_its_first_chapter_to_its_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Shell(tmp_path, f"sqlite:///{tmp_path / 'dray.db'}")
    del shell.environment["DRAY_URL"]  # a reader has none
    shell.environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # loading them would take longer than the test
    monkeypatch.chdir(tmp_path)

    pages = [f"docs/tutorial/{chapter}.md" for chapter in CHAPTERS]
    Player(pages[0], shell).play_all(*pages)
