"""``ctx.transaction()``: a connection whose commit is also the job's completion."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from dray.errors import ConfigError
from dray.interrupts import CleanExit
from dray.model.settlement import Settlement
from dray.runtime.execution import Execution

if TYPE_CHECKING:
    from dray.backends.store.block import Transaction as Block


class Transaction(CleanExit):
    """A database connection inside one transaction; whatever a connection can do, this can."""

    result: Any
    connection: Any
    _own = frozenset({"result", "connection", "_execution", "_completion", "_sync", "_async"})

    def __init__(self, execution: Execution, completion: Callable[[Any], Settlement], result: Any) -> None:
        self.result = result
        self.connection = None
        self._execution = execution
        self._completion = completion
        self._sync: Block | None = None
        self._async: AbstractAsyncContextManager[Any] | None = None

    def __getattr__(self, name: str) -> Any:
        if self.connection is None:
            raise ConfigError(f"the transaction is not open: use `with ctx.transaction() as tx`, then tx.{name}")
        return getattr(self.connection, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._own:
            object.__setattr__(self, name, value)
        else:
            setattr(self.connection, name, value)

    @property
    def __dray_connection__(self) -> Any:
        """What `connection=` takes this for."""
        return self.connection

    def __enter__(self) -> Self:
        self._refuse_twice()
        self._sync = self._execution.link.backend.transaction(fence=self._fence)
        self.connection = self._sync.__enter__()
        return self

    def leave(self, error: BaseException | None) -> None:
        assert self._sync is not None
        connection, self.connection = self.connection, None
        try:
            if error is None:
                backend = self._execution.link.backend
                completion = self._completion(self.result)
                execution = self._execution
                given = execution.worker_id, completion, connection
                execution.fanout_pending = backend.work.complete(*given, new=execution.grown)
        except BaseException as failure:
            self._sync.leave(failure)
            raise
        self._sync.leave(error)
        if error is None:
            self._has_written()

    def cleanup(self) -> None:
        if self._sync is not None:
            self._sync.cleanup()

    async def __aenter__(self) -> Self:
        self._refuse_twice()
        self._async = self._execution.link.backend.atransaction(fence=self._fence)
        self.connection = await self._async.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._async is not None
        connection, self.connection = self.connection, None
        try:
            if error is None:
                backend = self._execution.link.backend
                completion = self._completion(self.result)
                execution = self._execution
                given = execution.worker_id, completion, connection
                execution.fanout_pending = await backend.work.complete_async(*given, new=execution.grown)
        except BaseException as failure:
            await self._async.__aexit__(type(failure), failure, failure.__traceback__)
            raise
        await self._async.__aexit__(kind, error, trace)
        if error is None:
            self._has_written()

    def _has_written(self) -> None:
        self._execution.is_written = True
        self._execution.link.written(self._execution)

    @property
    def _fence(self) -> tuple[str, str, int]:
        claim = self._execution.claim
        return claim.id, self._execution.worker_id, claim.claim

    def _refuse_twice(self) -> None:
        if self._execution.is_written:
            raise ConfigError("this job is completed already: it has one completing transaction, not two")
