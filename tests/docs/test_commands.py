"""Every command that a page shows is one: its words, its options, and their values where there are few."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from dray.cli.root import root

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("examples/**/*.md")])
_CODE = re.compile(r"`(dray [^`]+)`|^\s*\$ (dray .+)$", re.M)


def _typed(page: Path) -> Iterator[str]:
    """Commands in console blocks, and in code between words."""
    for inline, line in _CODE.findall(page.read_text()):
        yield re.split(r"  +#| \| | > ", inline or line)[0]


def _command(words: list[str]) -> click.Context:
    """The command that these words name; leaves its arguments in the list."""
    context = click.Context(root, info_name="dray")
    while words and isinstance(context.command, click.Group):
        if words[0].startswith("-"):
            break
        command = context.command.get_command(context, words[0].partition("|")[0])  # `retry|cancel`: any of them
        if command is None:
            assert context.parent is not None, f"there is no command {words[0]!r}"
            break
        context = click.Context(command, context, words.pop(0))
    return context


def _unknown(line: str) -> list[str]:
    words = shlex.split(line.replace("…", "").replace("\\|", "|"))[1:]
    context = _command(words)
    options = {name: each for each in context.command.params for name in (*each.opts, *each.secondary_opts)}
    found: list[str] = []
    for n, word in enumerate(words):
        name = word.partition("=")[0]
        if word == "--":
            break
        if re.match(r"--?[a-z]", word) and name not in {*options, "--help", "-h", "--version"}:
            found.append(f"{line}: {context.command_path} has no {name}")
        elif name in options and isinstance(choice := options[name].type, click.Choice) and n + 1 < len(words):
            given = word.partition("=")[2] or words[n + 1]
            if given not in choice.choices and "|" not in given:
                found.append(f"{line}: {name} cannot be {given}")
    return found


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_a_page_shows_commands_and_options_that_exist(page: Path) -> None:
    found: list[str] = []
    for line in _typed(page):
        first = line.split()[1]
        if re.fullmatch(r"[a-z]+", first):  # not `dray COMMAND`, `dray …`
            found += _unknown(line)
    assert found == []
