"""Work inside the transactions that users' own connections have open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

import psycopg

from dray.backends import migrate, user_connection
from dray.backends.awaiting import in_a_thread, to_the_end
from dray.backends.database import DataRefused, Row
from dray.backends.postgres.foreign import (
    AsyncpgConnection,
    Psycopg2Connection,
    asyncpg_lock,
    refuse_outside_transaction,
)
from dray.backends.postgres.session import PostgresSession
from dray.backends.postgres.transaction import UsersConnection, borrowed, interrupt, joined, refuse_autocommit
from dray.backends.user_connection import Cancellation
from dray.errors import ConfigError
from dray.log import log

T = TypeVar("T")
Work = Callable[[PostgresSession], T]
Notes = Mapping[str, Sequence[str]]  # by channel
Prepare = Callable[[], None]


class Home(Protocol):
    """The database of the App, by connections of its own."""

    place: str
    schema: str | None
    jobs_table: str

    def identity(self) -> Row: ...
    def ask(self, name: str, /, **params: Any) -> list[Row]: ...
    def make_tables(self) -> None: ...
    def upgrade(self, session: PostgresSession) -> int: ...
    def users_session(self, connection: UsersConnection) -> PostgresSession: ...


class Joins:
    """Joins users' transactions; neither commits them nor rolls them back."""

    def __init__(self, home: Home, *, makes_tables: bool) -> None:
        self._home = home
        self._place = home.place
        self._makes_tables = makes_tables
        self._has_tables = not makes_tables  # or they are not ours to make
        self._is_admitted = False
        self._has_asked_users = False
        self._identity: Row | None = None

    def run(self, given: Any, work: Work[T], notes: Notes) -> T:
        """Does the work in the transaction of a synchronous connection."""
        return self._join(given, self._admitted(work, notes), self._make_tables)

    async def run_async(self, given: Any, work: Work[T], notes: Notes) -> T:
        """Does the work in the transaction of any connection; a synchronous one is used in the calling thread."""
        return await self._join_async(given, self._admitted(work, notes), self._make_tables)

    def migrate(self, given: Any) -> int:
        """Makes or upgrades the tables in the transaction of a synchronous connection."""
        return self._join(given, self._upgrade)

    async def migrate_async(self, given: Any) -> int:
        """As `migrate`, for any connection."""
        return await self._join_async(given, self._upgrade)

    def _join(self, given: Any, work: Work[T], prepare: Prepare | None = None) -> T:
        found = user_connection.unwrap(given)
        if isinstance(found, psycopg.AsyncConnection) or user_connection.is_asyncpg(found):
            raise user_connection.needs_await(given)
        if not isinstance(found, psycopg.Connection) and not user_connection.is_psycopg2(found):
            raise user_connection.refusal(given, found, self._place)
        theirs = cast("psycopg.Connection[Any]", found)
        refuse_autocommit(theirs, self._place)
        if prepare is not None:
            prepare()  # by a connection of our own, before the user's transaction is touched
        return self._inside(
            theirs if isinstance(found, psycopg.Connection) else Psycopg2Connection(found), work, Cancellation()
        )

    async def _join_async(self, given: Any, work: Work[T], prepare: Prepare | None = None) -> T:
        found = await user_connection.unwrap_async(given)
        if user_connection.is_asyncpg(found):
            return await self._join_asyncpg(found, work, prepare)
        if not isinstance(found, psycopg.AsyncConnection):
            return self._join(found, work, prepare)
        theirs, cancellation = cast("psycopg.AsyncConnection[Any]", found), Cancellation()
        refuse_autocommit(theirs, self._place)
        await self._prepared(prepare)
        async with theirs.lock:
            refuse_autocommit(theirs, self._place)
            with borrowed(theirs) as facade:
                joining = in_a_thread(lambda: self._inside(facade, work, cancellation))
                return await to_the_end(joining, cancellation, lambda: interrupt(theirs))

    async def _join_asyncpg(self, theirs: Any, work: Work[T], prepare: Prepare | None) -> T:
        """The work in a thread of its own, its statements in the event loop."""
        refuse_outside_transaction(theirs, self._place)
        await self._prepared(prepare)
        async with asyncpg_lock(theirs):
            refuse_outside_transaction(theirs, self._place)
            lent, cancellation = AsyncpgConnection(theirs), Cancellation()
            joining = in_a_thread(lambda: self._inside(lent, work, cancellation))
            return await to_the_end(joining, cancellation, lent.interrupt)

    async def _prepared(self, prepare: Prepare | None) -> None:
        if prepare is not None and not self._has_tables:
            await in_a_thread(prepare)

    def _inside(self, connection: UsersConnection, work: Work[T], cancellation: Cancellation) -> T:
        cancellation.check()
        with joined(connection, self._place) as theirs:
            cancellation.guard()
            try:
                answer = work(self._home.users_session(theirs))
            except UnicodeEncodeError as error:
                raise DataRefused(f"{self._place}: {error}") from error
            cancellation.check()
            return answer

    def _admitted(self, work: Work[T], notes: Notes) -> Work[T]:
        """The work, where it may be done; its notes are sent by the user's commit."""

        def inside(session: PostgresSession) -> T:
            self._refuse_elsewhere(session)
            self._warn_if_forgetful(session)
            answer = work(session)
            for channel, payloads in notes.items():
                session.rows("join_notify", channel=channel, notes=list(payloads))
            return answer

        return inside

    def _make_tables(self) -> None:
        if not self._has_tables:
            self._home.make_tables()
            self._has_tables = True

    def _upgrade(self, session: PostgresSession) -> int:
        self._refuse_other_database(self._identity_of(session), self._home.identity())
        (made_in, search_path), (ours, _) = session.rows("join_schema")[0], self._home.ask("join_schema")[0]
        if self._home.schema is None and made_in != ours:
            raise ConfigError(
                f"this connection would make the tables in the schema {made_in!r}, and the queue ({self._place}) "
                f"looks for them in {ours!r}; give App the schema (?schema=…), or both the same search_path"
            )
        version = self._home.upgrade(session)
        session.rows("join_search_path", path=search_path)  # the rest of the transaction is the user's
        self._has_tables = True  # for this transaction at least: it must not wait for itself
        return version

    def _warn_if_forgetful(self, session: PostgresSession) -> None:
        """Asked once: how durable their commits are is their connections' own setting, mostly the server's."""
        if self._has_asked_users:
            return
        self._has_asked_users = True
        if session.rows("join_is_forgetful")[0][0]:
            log.warning(
                "%s: a connection= of this program has synchronous_commit off: a crash of the server may forget the "
                "jobs it commits, with the data that caused them",
                self._place,
            )

    def _refuse_elsewhere(self, session: PostgresSession) -> None:
        """Refuses another database, another schema's tables, and tables that are missing or too new."""
        theirs, ours = self._identity_of(session), self._identity
        if ours is None or theirs != ours:
            # Ours may have been noted before the server was restarted, or the tables made.
            ours = self._identity = self._home.identity()
        self._refuse_other_database(theirs, ours)
        if not self._is_admitted:
            known = session.known()
            if not known:
                self._has_tables = not self._makes_tables  # what `migrate` has made was rolled back
                raise migrate.missing(self._place)
            migrate.admit("postgres", known, self._place)
        if theirs != ours and not self._are_uncommitted(theirs, ours):
            raise ConfigError(
                f"this connection does not find the tables of the queue ({self._place}) by its search_path; give App "
                "the schema they are in (?schema=…)"
            )
        self._is_admitted = theirs == ours  # by the same tables: not asked again

    def _are_uncommitted(self, theirs: Row, ours: Row) -> bool:
        """Whether the tables were made in the user's own transaction, so that no other session finds them yet."""
        return ours[2] is None and not self._home.ask("join_is_committed", table=theirs[2])

    def _refuse_other_database(self, theirs: Row, ours: Row) -> None:
        if theirs[:2] != ours[:2]:
            raise ConfigError(
                f"this connection leads to another database ({theirs[0]!r}) than the queue ({self._place}); "
                "use a connection to the same one"
            )

    def _identity_of(self, session: PostgresSession) -> Row:
        return session.rows("join_identity", table=self._home.jobs_table)[0]
