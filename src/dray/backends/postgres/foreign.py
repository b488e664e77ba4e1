"""Users' connections of other drivers, psycopg 2 and asyncpg: the same statements, in the driver's own way.

A `ForeignConnection` takes parameters as the driver does, gives values back as psycopg 3 does on Dray's own
connections, and raises psycopg 3's errors, so that all above treats it alike. Neither driver is loaded from here: a
user who passes a connection of one has it loaded.
"""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar, cast
from uuid import UUID
from weakref import WeakKeyDictionary

import psycopg

from dray.backends.database import Row
from dray.backends.postgres.session import PostgresSession
from dray.backends.statements import Catalogue, Statement
from dray.backends.user_connection import Abandoned
from dray.errors import ConfigError
from dray.instants import FIRST_INSTANT, LAST_INSTANT, from_datetime

T = TypeVar("T")
Values = Mapping[str, Any]

_LOOK_S = 5.0  # how often a thread that waits for an event loop looks whether that is still there
_BUSY_S = 30.0  # how long a statement waits for another task's, on the same connection, to end
_TRY_EACH_S = 0.005  # between two tries: asyncpg does not say when the other statement has ended
_ENDS = ("RELEASE SAVEPOINT", "ROLLBACK TO SAVEPOINT")


class ForeignConnection(Protocol):
    """A user's connection of another driver, inside a transaction."""

    @property
    def closed(self) -> bool: ...

    def execute(self, text: str) -> object:
        """Runs every statement of a text, which has no parameters."""
        ...

    def rows(self, text: str, values: Values) -> list[Row]:
        """All rows of a statement."""
        ...

    def run(self, text: str, values: Values) -> int:
        """How many rows a statement changed."""
        ...


class _Answer(NamedTuple):
    rows: list[Row]

    def fetchall(self) -> list[Row]:
        return self.rows


class ForeignSession(PostgresSession):
    """Named statements on a `ForeignConnection`."""

    def __init__(self, connection: ForeignConnection, catalogue: Catalogue, times: dict[str, int | None]) -> None:
        super().__init__(cast("psycopg.Connection[Any]", connection), catalogue, times, is_users=True)
        self._foreign = connection

    def _execute(self, statement: Statement, params: dict[str, Any]) -> _Answer:
        return _Answer(self._foreign.rows(statement.text, self._values(statement, params)))

    def run(self, name: str, /, **params: Any) -> int:
        statement = self.catalogue[name]
        return self._foreign.run(statement.text, self._values(statement, params))

    def each(self, name: str, rows: Sequence[Row]) -> list[bool]:
        columns = self.catalogue[name].columns
        return [self.run(name, **dict(zip(columns, row, strict=True))) > 0 for row in rows]

    def script(self, text: str) -> None:
        self._foreign.execute(text)


def _translated(error: Exception, sqlstate: str | None, otherwise: type[psycopg.Error]) -> psycopg.Error:
    """A driver's error as psycopg 3 would raise it; `otherwise`: without an answer of the server's."""
    if sqlstate is None:
        return otherwise(str(error))
    try:
        return psycopg.errors.lookup(sqlstate)(str(error))
    except KeyError:  # an error of a function of Dray's or the user's
        made = psycopg.DatabaseError(str(error))
        made.sqlstate = sqlstate
        return made


# psycopg 2


class Psycopg2Connection(ForeignConnection):
    """A connection of psycopg2's, which begins a transaction by itself."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._module = sys.modules["psycopg2"]

    @property
    def closed(self) -> bool:
        return bool(self._connection.closed)

    def execute(self, text: str) -> object:
        return self._run(text, None)

    def rows(self, text: str, values: Values) -> list[Row]:
        return self._run(text, values).fetchall()

    def run(self, text: str, values: Values) -> int:
        return self._run(text, values).rowcount

    def _run(self, text: str, values: Values | None) -> Any:
        extensions: Any = sys.modules["psycopg2.extensions"]
        try:
            # Their connection may have cursors and types of its own.
            cursor = extensions.cursor(self._connection)
            for each in _psycopg2_types():
                extensions.register_type(each, cursor)
            cursor.execute(text, values)
        except self._module.Error as error:
            is_lost = isinstance(error, self._module.OperationalError) or self.closed
            kind = psycopg.OperationalError if is_lost else psycopg.DatabaseError
            raise _translated(error, error.pgcode, kind) from error
        except ValueError as error:  # of a value, before it is sent
            if isinstance(error, UnicodeError):
                raise
            raise psycopg.DataError(str(error)) from error
        return cursor


@cache
def _psycopg2_types() -> list[Any]:
    """How the types that Dray reads are read, whatever a program has registered for them."""
    make: Any = sys.modules["psycopg2.extensions"].new_type  # pyright: ignore[reportAttributeAccessIssue]
    casts: dict[tuple[int, ...], Callable[[str], Any]] = {
        (19, 25, 1043, 2950): str,  # name, text, varchar, uuid
        (20, 21, 23, 26): int,  # int8, int2, int4, oid
        (16,): lambda text: text == "t",  # bool
        (701,): float,  # float8
        (1184,): _instant,  # timestamptz
    }

    def read(cast: Callable[[str], Any]) -> Callable[[str | None, object], Any]:
        return lambda text, _: None if text is None else cast(text)

    return [make(oids, f"DRAY_{oids[0]}", read(cast)) for oids, cast in casts.items()]


def _instant(text: str) -> int:
    try:
        return from_datetime(datetime.fromisoformat(text))
    except ValueError:
        if text == "-infinity" or text.endswith(" BC"):
            return FIRST_INSTANT
        if text == "infinity" or re.match(r"\d{5,}-", text):
            return LAST_INSTANT
        raise psycopg.DataError(
            f"{text!r} is no time in ISO's form: leave this connection's DateStyle as it was"
        ) from None


# asyncpg

_locks: WeakKeyDictionary[Any, asyncio.Lock] = WeakKeyDictionary()


def asyncpg_lock(connection: Any) -> asyncio.Lock:
    """One call of Dray's at a time on a connection: of two, one would roll back to the savepoint of the other."""
    return _locks.setdefault(_lent(connection), asyncio.Lock())


def refuse_outside_transaction(connection: Any, place: str) -> None:
    """asyncpg begins no transaction by itself, so nothing would be left for the user to commit or roll back."""
    if _lent(connection) is None:
        raise ConfigError(
            f"this asyncpg connection to {place} was given back to its pool: enqueue inside "
            "`async with pool.acquire() as connection, connection.transaction():`"
        )
    if not connection.is_closed() and not connection.is_in_transaction():
        raise ConfigError(
            f"this asyncpg connection to {place} is in no transaction: enqueue inside "
            "`async with connection.transaction():` (with SQLAlchemy, another isolation level than AUTOCOMMIT)"
        )


def _lent(connection: Any) -> Any:
    """The connection that a pool has given out a proxy for; None: it was given back."""
    return getattr(connection, "_con", connection)


@contextmanager
def _asyncpg_errors(connection: Any) -> Generator[None]:
    """Raises asyncpg's errors as psycopg's."""
    module: Any = sys.modules["asyncpg"]
    try:
        yield
    except module.PostgresError as error:
        raise _translated(error, error.sqlstate, psycopg.DatabaseError) from error
    except (module.InterfaceError, module.InternalClientError) as error:
        kind = psycopg.OperationalError if connection.is_closed() else psycopg.DatabaseError
        raise kind(str(error)) from error
    except TimeoutError as error:
        raise psycopg.errors.QueryCanceled("this connection's command_timeout is over") from error
    except OSError as error:
        raise psycopg.OperationalError(str(error)) from error


class AsyncpgConnection(ForeignConnection):
    """A connection of asyncpg's, for work in another thread than that of its event loop: each statement is handed to
    the loop and waited for. Made in the loop's thread."""

    def __init__(self, connection: Any) -> None:
        self._connection = _lent(connection)
        self._loop = asyncio.get_running_loop()
        self._record: Any = sys.modules["asyncpg"].Record  # their connection may have records of its own
        self._task: asyncio.Task[Any] | None = None  # the statement under way
        self._may_be_interrupted = False  # that statement
        self._is_interrupted = self._is_given_up = False
        self._has_begun = False  # the savepoint is set

    @property
    def closed(self) -> bool:
        return self._connection.is_closed()

    def execute(self, text: str) -> object:
        answer = self._wait(
            lambda: self._in_turn(lambda: self._connection.execute(text)),
            may_be_interrupted=not text.startswith(_ENDS),
        )
        self._has_begun = True
        return answer

    def rows(self, text: str, values: Values) -> list[Row]:
        numbered, names = _numbered(text)
        given = [values[name] for name in names]
        found = self._wait(
            lambda: self._in_turn(lambda: self._connection.fetch(numbered, *given, record_class=self._record))
        )
        return [tuple([_plain(value) for value in record]) for record in found]

    def run(self, text: str, values: Values) -> int:
        numbered, names = _numbered(text)
        given = [values[name] for name in names]
        status: str = self._wait(lambda: self._in_turn(lambda: self._connection.execute(numbered, *given)))
        return int(status.rpartition(" ")[2])  # as "UPDATE 3"

    async def _in_turn(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """A statement, after those that another task of the program began: asyncpg refuses it meanwhile. From the
        savepoint on, for that cannot be undone meanwhile either, and what the other task did would be undone too."""
        until = self._loop.time() + _BUSY_S
        while True:
            try:
                return await call()
            except Exception as error:
                if "another operation is in progress" not in str(error) or not self._has_begun:
                    raise
                if self._loop.time() > until:
                    self._connection.terminate()  # half of our work must not be committed
                    raise
            await asyncio.sleep(_TRY_EACH_S)

    async def interrupt(self) -> None:
        """Ends the statement under way, and starts no other but those that end the savepoint: a coroutine that is
        cancelled must not wait for a lock. In the loop's thread."""
        self._is_interrupted = True
        if self._task is not None and self._may_be_interrupted and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    def _wait(self, call: Callable[[], Coroutine[Any, Any, T]], *, may_be_interrupted: bool = True) -> T:
        done, answers = threading.Event(), list[T]()
        failures = list[BaseException]()

        async def run() -> None:
            try:
                if self._is_given_up:
                    return
                if may_be_interrupted and self._is_interrupted:
                    raise Abandoned  # noqa: TRY301 - kept for the thread that waits
                with _asyncpg_errors(self._connection):
                    answers.append(await call())
            except asyncio.CancelledError:
                failures.append(Abandoned())
            except Exception as error:  # noqa: BLE001 - raised in the thread that waits
                failures.append(error)

        def start() -> None:
            self._may_be_interrupted = may_be_interrupted
            self._task = self._loop.create_task(run())
            self._task.add_done_callback(lambda _: done.set())

        self._hand_over(start)
        was_running = True
        while not done.wait(_LOOK_S):
            is_running = self._loop.is_running()
            if not is_running and not was_running and not done.is_set():
                self._give_up()
            was_running = is_running
        if failures:
            raise failures[0]
        if not answers:
            raise Abandoned  # cancelled before its first step
        return answers[0]

    def _hand_over(self, call: Callable[[], object]) -> None:
        """To the loop."""
        try:
            if self._is_given_up:
                raise psycopg.OperationalError("the event loop of this connection has stopped")
            self._loop.call_soon_threadsafe(call)
        except RuntimeError as error:
            raise psycopg.OperationalError(str(error)) from error  # it is closed

    def _give_up(self) -> NoReturn:
        """The program has stopped its loop; its end must not wait for this thread. Should the loop go on later, half
        of our work must not be committed."""
        self._hand_over(self._connection.terminate)
        self._is_given_up = True
        raise psycopg.OperationalError("the event loop of this connection has stopped")


_PLACEHOLDER = re.compile(r"%\((\w+)\)s|%%")
_AS_JSON = re.compile(r"CAST\((\$\d+) AS json\)")


@lru_cache(1_000)
def _numbered(text: str) -> tuple[str, list[str]]:
    """A statement with numbers for its parameters, and their names in that order."""
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        name = found[1]
        if name is None:
            return "%"
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    numbered = _PLACEHOLDER.sub(number, text)
    # As text first: many programs have asyncpg make JSON of what they pass for json, and ours is JSON already.
    return _AS_JSON.sub(r"CAST(CAST(\1 AS text) AS json)", numbered), names


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        at = from_datetime(value if value.tzinfo is not None else value.replace(tzinfo=UTC))
        return max(FIRST_INSTANT, min(at, LAST_INSTANT))
    return str(value) if isinstance(value, UUID) else value
