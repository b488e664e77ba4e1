"""How many statements a page takes, on either database: pinned, so that no page reads row by row."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from dray.backends.postgres.session import PostgresSession
from dray.backends.sqlite.session import SqliteSession
from dray.web.site import Site
from tests.web.browsing import Visitor


def _no_menu(*_: object) -> dict[str, str]:
    return {}


@contextmanager
def statements() -> Generator[list[object]]:
    """The statements that are run inside."""
    made: list[object] = []

    def counted(execute: Callable[..., Any]) -> Callable[..., Any]:
        def run(self: Any, statement: object, params: Any) -> Any:
            made.append(statement)
            return execute(self, statement, params)

        return run

    kinds: tuple[Any, Any] = (SqliteSession, PostgresSession)
    with ExitStack() as stack:
        # The menu's are shared by all visits of a second, and pinned in test_overview.py.
        stack.enter_context(patch.object(Site, "menu", _no_menu))
        for kind in kinds:
            stack.enter_context(patch.object(kind, "_execute", counted(kind._execute)))
        yield made


def statements_of(call: Callable[[], object]) -> int:
    with statements() as made:
        call()
    return len(made)


def page_statements(visitor: Visitor, path: str) -> int:
    """How many statements the function of a page takes; what all pages share is not counted."""
    visitor.json("/workflows.json")  # the dashboard has asked what it asks once
    return statements_of(lambda: visitor.json(f"{path}.json"))
