"""What a check is and what it answers; runs them one after the other, whatever becomes of each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from dray.backends.database import TookTooLong
from dray.errors import DrayError
from dray.ops.doctor.subject import Subject
from dray.sanitize import redact


class Verdict(StrEnum):
    OK = "ok"
    NOTE = "note"  # worth knowing, nothing to do
    WARNING = "warning"  # it works, and may not for long, or not as well as it could
    FAILED = "failed"


class Finding(NamedTuple):
    """What a check found, in words, and what to do about it."""

    verdict: Verdict
    text: str
    fix: str | None = None


class Check(NamedTuple):
    """``look`` answers None where the check does not apply. ``after``: the check that must not have failed."""

    name: str
    look: Callable[[Subject], Finding | None]
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A check that was made."""

    name: str
    verdict: Verdict
    text: str
    fix: str | None


def ok(text: str) -> Finding:
    return Finding(Verdict.OK, text)


def note(text: str, fix: str | None = None) -> Finding:
    return Finding(Verdict.NOTE, text, fix)


def warning(text: str, fix: str) -> Finding:
    return Finding(Verdict.WARNING, text, fix)


def failed(text: str, fix: str) -> Finding:
    return Finding(Verdict.FAILED, text, fix)


def failed_by(error: DrayError) -> Finding:
    """Errors say what happened; what to do next."""
    text, _, advice = str(error).rpartition("; ")
    return failed(text, advice) if text else failed(advice, "dray db status")


def run(checks: Iterable[Check], subject: Subject, skip: Collection[str] = ()) -> Iterator[Result]:
    """Makes the checks; those that rest on one which failed, or was left out for that, are left out."""
    barred: set[str] = set()
    for check in checks:
        if check.after in barred:
            barred.add(check.name)
            continue
        finding = None if check.name in skip else _look(check, subject)
        if finding is None:
            continue
        if finding.verdict is Verdict.FAILED:
            barred.add(check.name)
        fix = None if finding.verdict is Verdict.OK or finding.fix is None else redact(finding.fix)
        yield Result(check.name, finding.verdict, redact(finding.text), fix)


def _look(check: Check, subject: Subject) -> Finding | None:
    try:
        return check.look(subject)
    except TookTooLong as error:
        return note(f"not known: {error}", "look again when the database is less busy")
    except DrayError as error:
        return failed_by(error)
    except Exception as error:  # noqa: BLE001 - a defect of one check must not hide what the others find
        what = f"{type(error).__name__}: {error}"
        return failed(f"this could not be checked: {what}", "if the database is well otherwise, report this")
