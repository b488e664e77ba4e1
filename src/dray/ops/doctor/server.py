"""The PostgreSQL server: its version, what its commits are worth, whether it can be listened to, and its room."""

from __future__ import annotations

from dray.instants import SECOND
from dray.ops.doctor.check import Check, Finding, failed, note, ok, warning
from dray.ops.doctor.subject import Subject
from dray.ops.doctor.words import span
from dray.wording import counted

_OLDEST = 130_000
_CONNECTIONS_EACH = 4  # that a worker takes at rest
_CROWDED = 0.8
_DEAD_ROWS = 100_000
_LONG_US = 600 * SECOND


def _server(subject: Subject) -> Finding | None:
    if subject.server is None:
        return None
    found, _ = subject.server
    if found.version_number < _OLDEST:
        return failed(f"PostgreSQL {found.version} is too old: Dray needs 13", "upgrade the server")
    if found.is_standby:
        return failed(
            f"PostgreSQL {found.version} is a standby here: nothing can be written to it",
            "use the address of the primary (target_session_attrs=read-write)",
        )
    return ok(f"PostgreSQL {found.version}")


def _commits(subject: Subject) -> Finding | None:
    if subject.server is None:
        return None
    found, _ = subject.server
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


def _listen(subject: Subject) -> Finding | None:
    if subject.server is None:
        return None
    heard = subject.eyes.listening()
    if not heard.is_heard:
        return warning(
            "LISTEN does not deliver (a pooler in transaction mode?): workers look each second instead, and prove "
            "themselves alive by their leases alone",
            "give the App a direct address: listen_url=…",
        )
    if not heard.is_direct:
        return note("LISTEN delivers through a pooler; workers prove themselves alive by their leases alone")
    return ok("LISTEN delivers")


def _connections(subject: Subject) -> Finding | None:
    if subject.server is None:
        return None
    found, _ = subject.server
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


def _vacuum(subject: Subject) -> Finding | None:
    if subject.server is None:
        return None
    found = subject.eyes.vacuum()
    if found is None:
        return None
    when = "never" if found.last_at is None else f"{span(subject.now - found.last_at)} ago"
    rows = f"{counted(found.dead, 'dead row')} beside {counted(found.live, 'live one')}"
    text = f"{rows} in dray_jobs; last vacuumed: {when}"
    if subject.server[0].autovacuum == "off":
        return warning(f"autovacuum is off: {text}", "set autovacuum = on in postgresql.conf")
    if found.dead > max(_DEAD_ROWS, found.live):
        return warning(
            f"{text}: claims get slower", "VACUUM dray_jobs; and look for a transaction that has been open for long"
        )
    return ok(text)


def _transactions(subject: Subject) -> Finding | None:
    if subject.server is None:
        return None
    oldest = subject.eyes.oldest_transaction()
    if oldest is None:
        return ok("no transaction is open")
    open_us = subject.server[0].now - oldest.since
    text = f"the oldest transaction has been open for {span(open_us)} (process {oldest.pid}, {oldest.program or '?'})"
    if open_us < _LONG_US:
        return ok(text)
    return warning(
        f"{text}, {oldest.state or 'state unknown'}: what was deleted since cannot be cleared away",
        f"end it, or SELECT pg_terminate_backend({oldest.pid})",
    )


CHECKS = (
    Check("server", _server, after="database"),
    Check("commits", _commits, after="database"),
    Check("listen", _listen, after="database"),
    Check("connections", _connections, after="database"),
    Check("transactions", _transactions, after="database"),
    Check("vacuum", _vacuum, after="schema"),
)
