"""The database: whether its tables can be read, are whole and keep no more than they should; on PostgreSQL also the
server's version, commits, notifications and room.
"""

from __future__ import annotations

from dray.backends.database import TookTooLong
from dray.backends.migrate import command, latest
from dray.backends.store.doctor import ServerFacts
from dray.instants import DAY, SECOND
from dray.model.circumstances import Closed
from dray.model.retention import Retention
from dray.ops.doctor.check import Finding, Subject, count_of, failed, note, ok, size, span, warning
from dray.wording import counted, listed

_SKEW_US, _GREAT_SKEW_US = 2 * SECOND, 60 * SECOND
_SLACK_US = DAY  # in which the pruner comes round


def database(subject: Subject) -> Finding:
    try:
        subject.eyes.known()
    except TookTooLong:
        return failed("it does not respond in time", "see what else it does")
    place = subject.settings.place
    return ok(place if subject.file is None else f"{place}, {size(subject.file.size)}")


def schema(subject: Subject) -> Finding:
    """Whether the tables are what this code needs."""
    known = subject.eyes.known()
    newest = latest("sqlite" if subject.settings.is_sqlite else "postgres")
    if not known:
        return failed("Dray's tables are not there", _command("init", subject))
    version, oldest_code = int(known["version"]), int(known["oldest_code"])
    if oldest_code > newest:
        return failed(
            f"the tables (version {version}) need a Dray that knows version {oldest_code}; this one knows {newest}",
            "pip install -U dray",
        )
    if version < newest:
        return failed(f"the tables are at version {version}, this Dray needs {newest}", _command("migrate", subject))
    if version > newest:
        return note(f"the tables (version {version}) are newer than this Dray ({newest})", "pip install -U dray")
    return ok(f"tables at version {version}")


def _command(verb: str, subject: Subject) -> str:
    return command(verb, subject.settings.place).replace("`", "")


def moved(subject: Subject) -> Finding:
    closed = Closed.of(subject.eyes.known())
    if closed is None:
        return ok("the queue has not moved elsewhere")
    return failed(closed.text, closed.fix)


def integrity(subject: Subject) -> Finding:
    if subject.server is not None:
        unused = subject.eyes.damage()
        if unused:
            return failed(f"invalid indexes, which nothing uses: {listed(unused)}", f"REINDEX INDEX {unused[0]}")
        return ok("no invalid index")
    try:
        # Twice: a file that no program had open is read without locks, and one may just have opened it.
        damage = subject.eyes.damage() and subject.eyes.damage()
    except TookTooLong:
        return note("no damage found in the first second; the file is too large to check whole", "dray db check")
    if damage:
        return failed(f"the file is damaged: {damage[0]}", "stop all workers and restore a backup")
    return ok("no damage found")


def clock(subject: Subject) -> Finding:
    if subject.server is not None:
        ahead_us = subject.server.ahead_us
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


def history(subject: Subject) -> Finding:
    cutoffs = Retention().cutoffs(subject.eyes.now - _SLACK_US)
    left = {state: subject.eyes.unpruned(state, before) for state, before in cutoffs.items()}
    if not any(left.values()):
        return ok("nothing is kept past its retention")
    found = listed([count_of(count, f"{state} job") for state, count in left.items() if count])
    return warning(
        f"not pruned though past retention: {found}", "have a worker running, or remove them now: dray db prune"
    )


_OLDEST = 130_000
_CONNECTIONS_EACH = 4  # that a worker takes at rest
_CROWDED = 0.8
_DEAD_ROWS = 100_000
_LONG_US = 600 * SECOND


def server(_: Subject, found: ServerFacts) -> Finding:
    if found.version_number < _OLDEST:
        return failed(f"PostgreSQL {found.version} is too old: Dray needs 13", "upgrade the server")
    if found.is_standby:
        return failed(
            f"PostgreSQL {found.version} is a standby here: nothing can be written to it",
            "use the address of the primary (target_session_attrs=read-write)",
        )
    return ok(f"PostgreSQL {found.version}")


def commits(_: Subject, found: ServerFacts) -> Finding:
    risky = [name for name in ("fsync", "full_page_writes") if getattr(found, name) == "off"]
    if risky:
        return warning(
            f"{' and '.join(risky)} off: a power loss can damage the whole database",
            f"set {risky[0]} = on in postgresql.conf",
        )
    if found.synchronous_commit == "off":
        return warning(
            "synchronous_commit is off: a power loss can forget jobs that were enqueued with connection=",
            "ALTER DATABASE … SET synchronous_commit = on",
        )
    return ok(f"fsync on, synchronous_commit {found.synchronous_commit}")


def listen(subject: Subject, _: ServerFacts) -> Finding:
    is_heard, is_direct = subject.eyes.listening()
    if not is_heard:
        return warning(
            "LISTEN does not deliver (a pooler in transaction mode?): workers look each second instead, and prove "
            "themselves alive by their leases alone",
            "give the App a direct address: listen_url=…",
        )
    if not is_direct:
        return note("LISTEN delivers through a pooler; workers prove themselves alive by their leases alone")
    return ok("LISTEN delivers")


def connections(_: Subject, found: ServerFacts) -> Finding:
    of = f"of {found.connections_max} connections"
    text = f"{counted(found.connections, f'{of} is', f'{of} are')} in use, {found.connections_ours} by Dray"
    left = found.connections_max - found.connections
    if left < _CONNECTIONS_EACH:
        return failed(f"{text}: another worker could not start", "raise max_connections, or use a pooler")
    if found.connections >= _CROWDED * found.connections_max:
        return warning(
            f"{text}: room for {counted(left // _CONNECTIONS_EACH, 'more worker')} ({_CONNECTIONS_EACH} each)",
            "raise max_connections, or use a pooler",
        )
    return ok(f"{text}; a worker takes {_CONNECTIONS_EACH}, and one more for each body that uses the database")


def vacuum(subject: Subject, facts: ServerFacts) -> Finding | None:
    found = subject.eyes.vacuum()
    if found is None:
        return None
    when = "never" if found.last_at is None else f"{span(subject.eyes.now - found.last_at)} ago"
    rows = f"{counted(found.dead, 'dead row')} beside {counted(found.live, 'live one')}"
    text = f"{rows} in dray_jobs; last vacuumed: {when}"
    if facts.autovacuum == "off":
        return warning(f"autovacuum is off: {text}", "set autovacuum = on in postgresql.conf")
    if found.dead > max(_DEAD_ROWS, found.live):
        return warning(
            f"{text}: claims get slower", "VACUUM dray_jobs; and look for a transaction that has been open for long"
        )
    return ok(text)


def transactions(subject: Subject, facts: ServerFacts) -> Finding:
    oldest = subject.eyes.oldest_transaction()
    if oldest is None:
        return ok("no transaction is open")
    open_us = facts.now - oldest.since
    text = f"the oldest transaction has been open for {span(open_us)} (process {oldest.pid}, {oldest.program or '?'})"
    if open_us < _LONG_US:
        return ok(text)
    return warning(
        f"{text}, {oldest.state or 'state unknown'}: what was deleted since cannot be cleared away",
        f"end it, or SELECT pg_terminate_backend({oldest.pid})",
    )
