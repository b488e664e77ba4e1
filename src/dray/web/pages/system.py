"""The doctor's checks, with advice; versions, the database and the settings, without secrets."""

from __future__ import annotations

import platform
from collections import Counter
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from dray import __version__
from dray.errors import DrayError
from dray.model.job import FINAL
from dray.ops import acting
from dray.ops.doctor import CHECKS, Result, examine
from dray.ops.doctor.check import Code, Subject, size
from dray.ops.health import Health, health
from dray.sanitize import redact
from dray.web.page import Done, Form, Page, Post, Refused, View
from dray.web.site import DOCTOR
from dray.web.visit import Visit
from dray.wording import dotted

_KEPT = 30.0  # seconds that a look of the doctor's is shown
_SOONEST = 2.0  # seconds after which people may have it look again
_DAYS = 36_500  # that may be given for a prune
_PATIENCE = 0.25  # seconds that one question to the database may take
# A check of the whole file takes a second and more; the others are of the place that a command is run in.
_SKIPPED = ("integrity", "other-files", "app")
_GROUPS = {"work": "The work", "database": "The database", "machine": "This machine"}
_GROUP_OF = {check.name: check.look.__module__.rpartition(".")[2] for check in CHECKS}
_ORDER = ("failed", "warning", "note", "ok")
SETTINGS = tuple(
    "durability default_timeout imports locator migrate busy_timeout notify listen_url file_mode".split()  # noqa: SIM905
)


class Look(NamedTuple):
    at: datetime
    results: list[Result]
    health: Health
    size: str | None
    server: str | None


def show(visit: Visit) -> View:
    if visit.query.get("again") == "1" and not visit.is_fragment:
        visit.site.shared.get("doctor again", _SOONEST, lambda: visit.site.shared.drop(DOCTOR))
    look = visit.site.shared.get(DOCTOR, _KEPT, lambda: _look(visit))
    groups = [
        (title, [each for each in look.results if _GROUP_OF[each.name] == name]) for name, title in _GROUPS.items()
    ]
    counts = Counter(str(each.verdict) for each in look.results)
    facts, settings = _facts(visit, look), _settings(visit)
    data: dict[str, Any] = {
        "groups": [(title, sorted(found, key=lambda each: _ORDER.index(each.verdict))) for title, found in groups],
        "counts": {verdict: counts[verdict] for verdict in _ORDER if counts[verdict]},
        "health": look.health,
        "at": look.at,
        "facts": facts,
        "settings": settings,
        "now": visit.now,
    }
    shape = {
        "at": look.at,
        "health": {"is_healthy": look.health.is_healthy, **asdict(look.health)},
        "checks": [asdict(each) for each in look.results],
        "versions": facts,
        "settings": settings,
    }
    return View("system.html", "System", data, shape)


def _look(visit: Visit) -> Look:
    core = visit.core
    source = core.settings.source
    code = Code("this app", core.registry.names(), address="the app" if source is None else f"the {source.value}")
    subject = Subject(core.settings, core.backend, core.clock, code, seconds=_PATIENCE)
    results = list(examine(subject, _SKIPPED))
    demands: dict[str, Any] = {"max_age": None, "max_failed": None, "window": 3600.0}
    found = health(subject, worker=None, min_workers=1, queues=(), **demands)
    file = subject.file
    return Look(visit.now, results, found, None if file is None else size(file.size), _server(subject))


def _server(subject: Subject) -> str | None:
    try:
        return None if subject.server is None else subject.server.version
    except DrayError:  # a check has said so
        return None


def _facts(visit: Visit, look: Look) -> dict[str, str]:
    settings = visit.core.settings
    database = f"SQLite {dotted(Subject.sqlite)}" if settings.is_sqlite else f"PostgreSQL {look.server or 'unknown'}"
    return {
        "Dray": __version__,
        "Python": platform.python_version(),
        "Database": database,
        "Place": settings.place,
        **({} if look.size is None else {"Size": look.size}),
        **({} if look.health.version is None else {"Tables": f"version {look.health.version}"}),
        "Tasks known here": f"{len(visit.core.registry):,}",
    }


def _settings(visit: Visit) -> dict[str, str]:
    """As they are in force. An address is shown without its password."""
    values = {name: getattr(visit.core.settings, name) for name in SETTINGS}
    words: dict[str, str] = {}
    for name, value in values.items():
        if value is None:
            words[name] = "not set"
        elif name == "file_mode":
            words[name] = f"{value:o}"
        elif isinstance(value, tuple):
            words[name] = ", ".join(map(str, value)) or "none"  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        else:
            words[name] = redact(str(value))
    return words


def prune(visit: Visit, form: Form) -> Done:
    """Begins to remove ended jobs. The row in Actions counts them, transaction by transaction."""
    older_than, core, by = _age(form.get("days", "").strip()), visit.core, visit.by
    if not visit.site.pruning.do("prune", lambda: acting.prune(core, older_than, FINAL, by)):
        raise Refused("Jobs are being pruned already: the page Actions shows how many are gone.")
    return Done("/actions", "Pruning has begun: its row shows how many jobs are gone.")


def _age(days: str) -> timedelta | None:
    if not days:
        return None
    if not days.isascii() or not days.isdigit() or int(days) > _DAYS:
        raise Refused(f"Days must be a whole number from 0 to {_DAYS:,}.")
    return timedelta(days=int(days))


PAGES: list[Page] = [Page("/system", show, "system", frozenset({"workers"}), is_whole=True)]
POSTS: list[Post] = [Post("/system/prune", prune, "prune", is_whole=True)]
