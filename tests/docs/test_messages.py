"""All messages of errors, read from the code as one set: what happened, to what, what to do next, in plain words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from dray import errors

SOURCE = Path(errors.__file__).parent
OURS = {name for name, kind in vars(errors).items() if isinstance(kind, type)}
RAISED = {*OURS, "Failure", "TypeError", "ValueError"} - {"JobEnded", "JobFailed", "JobCancelled", "Any"}

# Words that blame, shout or say nothing; and those that STYLE forbids.
UNKIND = re.compile(
    r"\b(?:invalid|illegal|bad|oops|sorry|please|fatal|unexpected|somebody|anew|whoever|so many)\b|!$", re.I
)
# What a reader can do: after a sign or a word that leads to it; an option or code; or what would have been right.
VERBS = (
    "add|allow|ask|await|begin|call|cancel|change|check|choose|close|commit|connect|copy|count|"
    "create|declare|delete|do not|end|enqueue|fork|free|give|grant|import|install|keep|leave|let|"
    "list|log|look|make|mark|mend|move|name|narrow|open|pass|pause|pip install|point|put|quote|raise|"
    "read|register|remove|restore|resume|retry|return|run|say|see|set|shorten|split|start|stop|store|"
    "take|try|turn|unset|upgrade|use|wait|write"
)
NEXT = re.compile(
    rf"`|--\w|(?:^|[;:,.…] |\(|\b(?:and|or|then|else|first|only|instead) )(?:{VERBS})\b"
    r"|\b(?:must|has to|have to|needs?|expected|at most|at least|takes|one of|known|may be|can be|only)\b"
    r"|\blists (?:its|them)|\bshows its|\b(?:arguments|parameters|filters) are …|\bit has …$|; steps wait for"
    r"|\bused here\. …"
    r"|\b\w+ [^;]*, not (?:…|a\b|by …)",
    re.I,
)
CARRIED = re.compile(
    r"(?:[:;,.(] |^|^…+ |\band )…\)?(?:; nothing was enqueued)?$"
)  # ends with what another message says
NAMES = (
    "PostgreSQL",
    "SQLite",
    "DATABASES",
    "OPTIONS",
    "TASKS",
    "Django",
    "Python",
    "DRAY_",
    "Dray",
    "UTC",
    "GigQ",
    "Unsupported value",
)


class Message(NamedTuple):
    """What one place in the code says; what is filled in shows as …"""

    place: str
    kind: str
    text: str


def _text(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(each.value if isinstance(each, ast.Constant) else "…" for each in node.values)  # type: ignore[misc]
    return None


def _messages() -> Iterator[Message]:
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(node, ast.Call) and node.args):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            text = _text(node.args[0])
            if name in RAISED and text is not None and text.strip() != "…":
                yield Message(f"{file.relative_to(SOURCE)}:{node.lineno}", name, text)


@cache
def messages() -> list[Message]:
    """Read when they are needed: every test process loads this file, and one runs its tests."""
    return list(_messages())


def to_programs() -> list[Message]:
    """Those that are no sentences of a page."""
    return [each for each in messages() if not each.place.startswith("web/")]


def test_the_messages_are_found() -> None:
    assert len(messages()) > 300


def test_no_message_blames_shouts_or_says_nothing() -> None:
    assert [each for each in messages() if UNKIND.search(each.text)] == []


def test_messages_are_one_sentence_that_other_text_can_stand_around() -> None:
    """No capital first, but for names; no full stop: a command puts `dray: ` before it, a log line more behind it."""
    odd = [
        each
        for each in to_programs()
        if (each.text.endswith(".") or (each.text[0].isupper() and not each.text.startswith(NAMES)))
    ]
    assert odd == []


def _says_what_to_do(text: str) -> bool:
    return bool(NEXT.search(text) or CARRIED.search(text))


def test_every_message_to_programs_says_what_to_do_or_what_would_be_right() -> None:
    """Those between Dray's own processes, and of values by their place, are for other tests."""
    lacking = [
        each
        for each in to_programs()
        if each.kind in {*OURS, "Failure"} - {"PayloadError"} and not _says_what_to_do(each.text)
    ]
    assert lacking == []


@pytest.mark.parametrize(
    "text",
    [
        "this worker has not been started",
        "no workflow has the id …",
        "…: the address has a part that PostgreSQL does not know",
        "DATABASES[…] has no NAME",
        "cron … never comes: there is no such day and time in … or elsewhere",
        "…: there is no such file (nothing was moved)",
        "the worker has not started within … s",
    ],
)
def test_a_message_without_a_next_step_is_found(text: str) -> None:
    assert not _says_what_to_do(text)
