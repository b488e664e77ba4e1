"""All messages of errors, read from the code as one set: what happened, to what, what to do next, in plain words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dray import errors

SOURCE = Path(errors.__file__).parent
OURS = {name for name, kind in vars(errors).items() if isinstance(kind, type)}
RAISED = {*OURS, "Failure", "TypeError", "ValueError"} - {"JobEnded", "JobFailed", "JobCancelled", "Any"}

# Words that blame, shout or say nothing; and those that STYLE forbids.
UNKIND = re.compile(
    r"\b(?:invalid|illegal|bad|oops|sorry|please|fatal|unexpected|somebody|anew|whoever|so many)\b|!$", re.I
)
ADVICE = re.compile(r"[;:`(=]|\b(?:must|cannot|at most|at least|not|no|use|write|Import)\b")
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


MESSAGES = list(_messages())
TO_PROGRAMS = [each for each in MESSAGES if not each.place.startswith("web/")]  # not sentences of a page


def test_the_messages_are_found() -> None:
    assert len(MESSAGES) > 300


def test_no_message_blames_shouts_or_says_nothing() -> None:
    assert [each for each in MESSAGES if UNKIND.search(each.text)] == []


def test_messages_are_one_sentence_that_other_text_can_stand_around() -> None:
    """No capital first, but for names; no full stop: a command puts `dray: ` before it, a log line more behind it."""
    odd = [
        each
        for each in TO_PROGRAMS
        if (each.text.endswith(".") or (each.text[0].isupper() and not each.text.startswith(NAMES)))
    ]
    assert odd == []


def test_every_message_to_programs_says_what_to_do_or_what_would_be_right() -> None:
    """After a semicolon or colon, in code, or as what must be. Not those between Dray's own processes."""
    lacking = [
        each
        for each in TO_PROGRAMS
        if each.kind in OURS - {"PayloadError"} and "… …" not in each.text and not ADVICE.search(each.text)
    ]
    assert lacking == []
