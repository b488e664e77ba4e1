"""Dray in FastAPI: a session whose commit comes before the response.

A dependency with ``yield`` ends after the response is sent, unless it says otherwise. Its commit would come then: the
client would have the id of a job that is not there yet, or that a failed commit has taken back. `transaction` makes a
dependency that ends before. `App.lifespan` and `dray.dashboard` work in FastAPI as they are.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any

from dray.errors import ConfigError

try:
    from fastapi import Depends
    from fastapi.concurrency import contextmanager_in_threadpool
except ModuleNotFoundError as error:
    missing = "dray.integrations.fastapi needs FastAPI: pip install 'dray[fastapi]'"
    raise ModuleNotFoundError(missing, name=error.name) from None

_EXAMPLES = "sessionmaker(engine), lambda: Session(engine), pool.acquire"


def transaction(open_session: Callable[[], Any]) -> Any:
    """A dependency: ``InTransaction = Annotated[Session, transaction(sessionmaker(engine))]``.

    Opens a session for each request and commits when the endpoint has returned, before the response is sent. If
    anything raises, an HTTPException too, it is rolled back. `open_session` is called without arguments and returns a
    context manager: a session or connection of SQLAlchemy, SQLModel, psycopg or asyncpg, synchronous or not.
    """
    _check(open_session)

    async def opened() -> AsyncGenerator[Any]:
        async with _in_transaction(open_session()) as session:
            yield session

    try:
        return Depends(opened, scope="function")
    except TypeError:
        raise ConfigError(
            "this FastAPI would commit after the response is sent; use 0.121 or newer: pip install 'dray[fastapi]'"
        ) from None


def _check(open_session: Any) -> None:
    if inspect.isgeneratorfunction(open_session) or inspect.isasyncgenfunction(open_session):
        name = open_session.__name__
        raise ConfigError(
            f"{name} is a dependency already: commit after its yield, and write Depends({name}, scope='function')"
        )
    if not callable(open_session):
        raise ConfigError(f"transaction() takes what opens a session ({_EXAMPLES}), not {_kind(open_session)}")


def _in_transaction(manager: Any) -> AbstractAsyncContextManager[Any]:
    if hasattr(manager, "__aenter__"):
        return _awaited(manager)
    if hasattr(manager, "__enter__"):
        return contextmanager_in_threadpool(_plain(manager))
    if inspect.iscoroutine(manager):
        manager.close()
    raise ConfigError(
        f"transaction() was given a function that returns {_kind(manager)}, and not a session to open with `with`; "
        f"pass what returns one: {_EXAMPLES}"
    )


@contextmanager
def _plain(manager: AbstractContextManager[Any]) -> Generator[Any]:
    """Leaving the session's own block after an error rolls back."""
    with manager as session:
        yield session
        session.commit()


@asynccontextmanager
async def _awaited(manager: AbstractAsyncContextManager[Any]) -> AsyncGenerator[Any]:
    async with manager as session:
        if hasattr(session, "commit"):
            yield session
            await session.commit()
        else:  # asyncpg commits at the end of a block
            async with session.transaction():
                yield session


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"
