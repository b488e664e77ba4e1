"""The database and Dray's tables in it: whether they can be read, are whole, and keep the right time and no more than
they should."""

from __future__ import annotations

from dray.backends.database import TookTooLong
from dray.backends.migrate import latest
from dray.errors import StorageError
from dray.instants import DAY, SECOND
from dray.model.circumstances import Closed
from dray.model.retention import Retention
from dray.ops.doctor.check import Check, Finding, failed, failed_by, note, ok, warning
from dray.ops.doctor.subject import Subject
from dray.ops.doctor.words import counted, listed, size, span

_SKEW_US, _GREAT_SKEW_US = 2 * SECOND, 60 * SECOND
_SLACK_US = DAY  # in which the pruner comes round


def _database(subject: Subject) -> Finding:
    try:
        subject.eyes.known()
    except TookTooLong:
        return failed("it does not answer in time", "see what else it does")
    except StorageError as error:
        return failed_by(error)
    facts = subject.file
    if facts is None:
        return ok(subject.settings.place)
    return ok(f"{subject.settings.place}, {size(facts.size)}")


def schema(subject: Subject) -> Finding:
    """Whether the tables are what this code needs."""
    known = subject.eyes.known()
    newest = latest("sqlite" if subject.settings.is_sqlite else "postgres")
    if not known:
        return failed("Dray's tables are not there", "dray db init")
    version, oldest_code = int(known["version"]), int(known["oldest_code"])
    if oldest_code > newest:
        return failed(
            f"the tables (version {version}) need a Dray that knows version {oldest_code}; this one knows {newest}",
            "pip install -U dray",
        )
    if version < newest:
        return failed(f"the tables are at version {version}, this Dray needs {newest}", "dray db migrate")
    if version > newest:
        return note(f"the tables (version {version}) are newer than this Dray ({newest})", "pip install -U dray")
    return ok(f"tables at version {version}")


def _moved(subject: Subject) -> Finding:
    closed = Closed.of(subject.eyes.known())
    if closed is None:
        return ok("the queue has not moved elsewhere")
    return failed(closed.text, closed.fix)


def _integrity(subject: Subject) -> Finding:
    if subject.server is not None:
        unused = subject.eyes.damage()
        if unused:
            return failed(f"invalid indexes, which nothing uses: {listed(unused)}", f"REINDEX INDEX {unused[0]}")
        return ok("no invalid index")
    try:
        # Twice: a file that nobody had open is read as it lies there, and somebody may just have opened it.
        damage = subject.eyes.damage() and subject.eyes.damage()
    except TookTooLong:
        return note("no damage found in the first second; the file is too large to check whole", "dray db check")
    if damage:
        return failed(f"the file is damaged: {damage[0]}", "stop all workers and restore a backup")
    return ok("no damage found")


def _clock(subject: Subject) -> Finding:
    if subject.server is not None:
        ahead_us = subject.server[1]
        whose = "the server's clock"
    else:
        newest = subject.eyes.newest()
        ahead_us = 0 if newest is None else max(0, newest - subject.eyes.clock_now)
        whose = "the newest row"
    if abs(ahead_us) < _SKEW_US:
        return ok("clocks agree")
    where = "ahead of" if ahead_us > 0 else "behind"
    text = f"{whose} is {span(abs(ahead_us))} {where} this machine's clock"
    advice = "set the clocks by NTP (timedatectl status)"
    return failed(text, advice) if abs(ahead_us) > _GREAT_SKEW_US else warning(text, advice)


def _history(subject: Subject) -> Finding:
    cutoffs = Retention().cutoffs(subject.now - _SLACK_US)
    left = {state: subject.eyes.unpruned(state, before) for state, before in cutoffs.items()}
    kept = sum(left.values())
    if not kept:
        return ok("nothing is kept past its retention")
    found = listed([counted(count, f"{state} job") for state, count in left.items() if count])
    return warning(
        f"not pruned though past retention: {found}", "have a worker running, or remove them now: dray db prune"
    )


CHECKS = (
    Check("database", _database),
    Check("schema", schema, after="database"),
    Check("moved", _moved, after="schema"),
)
INSIDE = (
    Check("integrity", _integrity, after="database"),
    Check("clock", _clock, after="schema"),
    Check("history", _history, after="moved"),
)
