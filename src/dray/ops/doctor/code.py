"""What the doctor was told: which database, by whom, and the app."""

from __future__ import annotations

from dray.ops.doctor.check import Check, Finding, failed, note, ok
from dray.ops.doctor.subject import Subject
from dray.wording import counted


def _configuration(subject: Subject) -> Finding:
    code, settings = subject.code, subject.settings
    text = f"{settings.place}, from {code.address}"
    if code.unused is not None:
        return note(f"{text}; {code.unused}", "unset it, or name one database in both places")
    if settings.durability == "normal":
        return note(f"{text}; durability is normal: a power loss may forget the last enqueues")
    return ok(text)


def _app(subject: Subject) -> Finding:
    code = subject.code
    if code.problem is not None:
        return failed(code.problem, "repair it, or name the app: --app module:object")
    if code.app is None:
        why = "no app is named or found here" if code.is_sought else "--url alone looks for no app"
        return note(f"{why}: what needs its tasks is not checked", "--app module:object")
    if not code.tasks:
        return note(f"{code.app} has no tasks", "name the modules that define them: App(imports=[…])")
    return ok(f"{code.app}, {counted(len(code.tasks), 'task')}")


CHECKS = (Check("configuration", _configuration), Check("app", _app))
