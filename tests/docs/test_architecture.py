"""ARCHITECTURE.md is one page, and true: what it names exists, and its layers are those that import-linter holds."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
FOLDERS = ("src", "tests", "tests_integrations", "checks", "deploy", "benchmarks", "docs", "examples")
_NAMED = re.compile(r"(?<![\w/.*])((?:[\w-]+/)*(?:[\w-]+\.(?:py|sql|md|toml)|[\w-]+/))(?![\w*])")


def _section(title: str, text: str = PAGE) -> str:
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def _missing(text: str) -> list[str]:
    """Files and folders that are named and are not there; what is named is the end of a path."""
    ignored = {"__pycache__", "node_modules"}
    there = {f"/{path.relative_to(ROOT)}" for path in ROOT.glob("*")}
    for folder in FOLDERS:
        there |= {f"/{path.relative_to(ROOT)}" for path in (ROOT / folder).rglob("*") if path.name not in ignored}
    named = {found[1].rstrip("/") for found in _NAMED.finditer(text)}
    return sorted(each for each in named if not any(path.endswith(f"/{each}") for path in there))


def _drawn(picture: str) -> list[set[str]]:
    """The layers of a picture: by lines and by `>`; what follows two spaces is to be read."""
    lines = [re.split(r"  +", line)[0] for line in picture.strip().splitlines()]
    return [set(re.findall(r"\w+", layer)) for line in lines for layer in line.split(" > ")]


def test_it_is_one_page() -> None:
    assert PAGE.count("\n") <= 140
    assert len(PAGE.split()) < 1900
    assert len(re.findall(r"^\d\. ", _section("The life of a job"), re.M)) == 8


def test_every_file_and_folder_that_it_names_exists() -> None:
    assert len(list(_NAMED.finditer(PAGE))) > 100
    assert _missing(PAGE) == []


@pytest.mark.parametrize("text", ["`store/nothing.py`", "  nowhere/   a folder", "`docs/reference/gone.md`"])
def test_what_does_not_exist_is_found(text: str) -> None:
    assert len(_missing(text)) == 1


def test_its_layers_are_those_that_import_linter_holds() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (held,) = (each for each in settings["tool"]["importlinter"]["contracts"] if each["type"] == "layers")
    (picture,) = re.findall(r"```\n(.+?)```", _section("Layers"), re.S)

    assert _drawn(picture) == [set(re.findall(r"\w+", layer)) for layer in held["layers"]]


def test_the_threads_that_are_described_exist() -> None:
    code = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    table = _section("A worker's threads", (ROOT / "docs" / "explanation" / "running.md").read_text())
    named = {name.removesuffix("-N") for name in re.findall(r"`(dray-[\w-]+)`", table)}

    assert len(named) > 10
    assert [name for name in sorted(named) if f'"{name}' not in code] == []
    assert _missing(table) == []
