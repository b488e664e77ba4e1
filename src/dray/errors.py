"""Every error Dray raises, in one tree.

    DrayError
    ├── ConfigError            a setting, address or name that cannot work
    │   ├── InvalidName        a queue, task, schedule or step name that is too long or cannot be printed
    │   └── SchemaMissing      the tables are not there yet
    ├── PayloadError           a value that JSON cannot carry; names the path to it
    │   └── PayloadTooLarge
    ├── UnknownJob             no job has this id (not committed, rolled back or pruned)
    ├── UnknownTask            no task is registered under this name
    ├── UnknownWorkflow        no workflow has this id
    ├── UnknownSchedule        no schedule has this name
    ├── GraphError             a workflow with a cycle, a step named twice, a parent that is gone or did not complete
    ├── JobEnded               result() of a job that has none: its `job`, `reason` and `error` say why
    │   ├── JobFailed
    │   └── JobCancelled
    ├── Misfit                 stored arguments that do not fit the function here; raised in workers
    ├── MoveError              a database that cannot be moved, or moved into, as it is
    ├── StaleClaim             this worker no longer holds the job; what it wrote was not kept
    ├── Timeout                an attempt ran longer than its timeout (this and the next three: see below)
    ├── ProcessDied            the child process that ran it died
    ├── WorkerDied             its worker died
    ├── Unstorable             what it ended with could not be stored
    └── StorageError           the database failed to do what it was asked
        ├── StorageUnavailable cannot be opened or reached
        │   └── FileMissing    there is no SQLite file, and none may be made
        ├── StorageLocked      another connection kept the write lock past the deadline
        ├── StorageDamaged     the file is damaged
        ├── StorageFull        the disk is full
        ├── SchemaTooNew       the tables need a newer Dray than this one
        ├── DatabaseClosed     it moved elsewhere, or is being filled from elsewhere
        └── ForkedConnection   a transaction was open across a fork

Every message says what happened, to which job or file, and what to do next.

Timeout, ProcessDied, WorkerDied and Unstorable are never raised: they are the types of errors that Dray itself
records with an attempt (`AttemptError.class_path`), for programs that want a class.
"""

from __future__ import annotations

from typing import Any


class DrayError(Exception):
    """The base of every error Dray raises on purpose.

    Example:

        >>> try:
        ...     app.job("01a1ec9c-0000-7000-8000-000000000001")
        ... except dray.DrayError as error:
        ...     type(error).__name__
        'UnknownJob'
    """


class ConfigError(DrayError, ValueError):
    """A setting, address or name that cannot work; nothing was written.

    Example:

        >>> add.using(delay=-1).enqueue(1, 2)
        Traceback (most recent call last):
        dray.errors.ConfigError: delay must be between 0 and 315,619,200 seconds (ten years), not -1
    """


class InvalidName(ConfigError):
    """A name that is empty, longer than 200 characters, not printable, or has a space at either end.

    Example:

        >>> app.pause("")
        Traceback (most recent call last):
        dray.errors.InvalidName: ...
    """


class SchemaMissing(ConfigError):
    """The database can be reached, but Dray's tables are not in it.

    Example:

        >>> open("empty.db", "x").close()
        >>> dray.App("empty.db", migrate=False).jobs()
        Traceback (most recent call last):
        dray.errors.SchemaMissing: ...
    """


class PayloadError(DrayError, ValueError):
    """A value that cannot be stored as JSON; ``path`` says where it sits, e.g. ``args.items[3]``.

    Example:

        >>> try:
        ...     add.enqueue("1", 2)
        ... except dray.PayloadError as error:
        ...     error.path, error.problem
        ('args.a', 'expected int, got str')
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class PayloadTooLarge(PayloadError):
    """A value over its size limit.

    Example:

        >>> app.enqueue("mail.send", {"text": "x" * 300_000})
        Traceback (most recent call last):
        dray.errors.PayloadTooLarge: ...
    """


class UnknownJob(DrayError, LookupError):
    """No job has this id: it was never committed, was rolled back, or was pruned.

    Example:

        >>> app.job("01a1ec9c-0000-7000-8000-000000000001")
        Traceback (most recent call last):
        dray.errors.UnknownJob: ...
    """


class UnknownTask(DrayError, LookupError):
    """No task is registered under this name.

    Example:

        >>> with crash(app, "no.such.task"):
        ...     drain(app)
        Traceback (most recent call last):
        dray.errors.UnknownTask: ...
    """


class UnknownSchedule(DrayError, LookupError):
    """No schedule has this name: it was never stored, or was removed.

    Example:

        >>> app.run_schedule("nightly")
        Traceback (most recent call last):
        dray.errors.UnknownSchedule: ...
    """


class UnknownWorkflow(DrayError, LookupError):
    """No workflow has this id: it was never committed, was rolled back, or was pruned.

    Example:

        >>> app.workflow_run("01a1ec9c-0000-7000-8000-000000000001")
        Traceback (most recent call last):
        dray.errors.UnknownWorkflow: ...
    """


class GraphError(DrayError, ValueError):
    """Jobs that depend on each other in a way that cannot run; nothing was written.

    Example:

        >>> wf = app.workflow("sums")
        >>> _ = wf.add(add, 1, 2, step="left", after=["left"])
        >>> wf.enqueue()
        Traceback (most recent call last):
        dray.errors.GraphError: ...
    """


class JobEnded(DrayError):
    """The job ended without a result. `job` is its handle, `error` what its last attempt ended with.

    Example:

        >>> job = add.enqueue(1, 2)
        >>> job.cancel()
        True
        >>> try:
        ...     job.result()
        ... except dray.JobEnded as error:
        ...     error.job == job, error.reason
        (True, 'user')
    """

    def __init__(self, message: str, job: Any = None, reason: str | None = None, error: str | None = None) -> None:
        super().__init__(message)
        self.job = job
        self.reason = reason
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        # A handle stays in its process; all else is text.
        return type(self), (str(self), None, self.reason, self.error)


class JobFailed(JobEnded):
    """The job ended as ``failed``.

    Example:

        >>> job = fail.enqueue()
        >>> app.worker().run_until_idle()
        1
        >>> try:
        ...     job.result()
        ... except dray.JobFailed as error:
        ...     error.reason, error.error
        ('error', 'ValueError: no such customer')
    """


class JobCancelled(JobEnded):
    """The job ended as ``cancelled``.

    Example:

        >>> job = add.enqueue(1, 2)
        >>> job.cancel()
        True
        >>> job.result()
        Traceback (most recent call last):
        dray.errors.JobCancelled: ...
    """


class Misfit(DrayError):
    """The arguments in a row do not fit the function as it is here: the code has changed since, or not yet.

    Example:

        >>> with dray.App(app.url) as elsewhere:  # it does not know the function
        ...     job_id = elsewhere.enqueue("add", {"a": 1}).id
        >>> app.worker().run_until_idle()
        0
        >>> print(app.job(job_id).error)
        Misfit: ...
    """


class MoveError(DrayError):
    """A database that cannot be moved, or moved into, as it is; what was carried so far is kept."""


class StaleClaim(DrayError):
    """The claim is no longer held: the job was taken back, cancelled or ended by another worker.

    Example:

        >>> @app.task
        ... def pay(ctx: dray.Context) -> None:
        ...     with ctx.transaction(result="paid"):  # raises it at the end of the block, and keeps nothing
        ...         pass
        >>> job = pay.enqueue()
        >>> app.worker().run_until_idle()
        1
        >>> job.result()
        'paid'
    """


class Timeout(DrayError, TimeoutError):
    """An attempt ran longer than its timeout.

    Example:

        >>> import asyncio
        >>> @app.task(timeout=0.05, max_attempts=1)
        ... async def slow() -> None:
        ...     await asyncio.sleep(60)
        >>> job = slow.enqueue()
        >>> app.worker().run_until_idle()
        1
        >>> job.attempts()[0].error.class_path
        'dray.errors.Timeout'
    """


class ProcessDied(DrayError):
    """The child process that ran an attempt died.

    Example:

        >>> job = add.enqueue(1, 2)
        >>> errors = [each.error for each in job.attempts() if each.error]
        >>> any(error.class_path == "dray.errors.ProcessDied" for error in errors)
        False
    """


class WorkerDied(DrayError):
    """The worker that ran an attempt died.

    Example:

        >>> job = add.enqueue(1, 2)
        >>> with crash(app, add):
        ...     drain(app)
        2
        >>> job.attempts()[0].error.class_path
        'dray.errors.WorkerDied'
    """


class Unstorable(DrayError):
    """The database refused what an attempt ended with.

    Example:

        >>> job = add.enqueue(1, 2)
        >>> errors = [each.error for each in job.attempts() if each.error]
        >>> any(error.class_path == "dray.errors.Unstorable" for error in errors)
        False
    """


class StorageError(DrayError):
    """The database failed to do what it was asked.

    Example:

        >>> try:
        ...     dray.App("sqlite:////no/such/folder/jobs.db").jobs()
        ... except dray.StorageError as error:
        ...     type(error).__name__
        'StorageUnavailable'
    """


class StorageUnavailable(StorageError):
    """The database cannot be opened or reached.

    Example:

        >>> dray.App("sqlite:////no/such/folder/jobs.db").jobs()
        Traceback (most recent call last):
        dray.errors.StorageUnavailable: ...
    """


class FileMissing(StorageUnavailable):
    """There is no SQLite file, and this call may not make one.

    Example:

        >>> dray.App("missing.db", migrate=False).jobs()
        Traceback (most recent call last):
        dray.errors.FileMissing: ...
    """


class StorageLocked(StorageError):
    """Another connection kept the write lock past the deadline.

    Example:

        >>> import sqlite3
        >>> busy = dray.App("busy.db", busy_timeout=0.01)
        >>> busy.init()
        >>> other = sqlite3.connect("busy.db")
        >>> _ = other.execute("BEGIN IMMEDIATE")
        >>> busy.enqueue("mail.send")
        Traceback (most recent call last):
        dray.errors.StorageLocked: ...
        >>> other.close(), busy.close()
        (None, None)
    """


class StorageDamaged(StorageError):
    """The SQLite file is damaged: no waiting repairs it.

    Example:

        >>> try:
        ...     add.enqueue(1, 2).state
        ... except dray.StorageDamaged:
        ...     "restore the backup"
        'queued'
    """


class StorageFull(StorageError):
    """The disk under the database is full; the transaction was rolled back.

    Example:

        >>> try:
        ...     add.enqueue(1, 2).state
        ... except dray.StorageFull:
        ...     "make room, then enqueue it again"
        'queued'
    """


class SchemaTooNew(StorageError):
    """The tables were migrated by a newer Dray that this one must not write to.

    Example:

        >>> try:
        ...     add.enqueue(1, 2).state
        ... except dray.SchemaTooNew:
        ...     "upgrade Dray here"
        'queued'
    """


class DatabaseClosed(StorageError):
    """Nothing may be changed here: the queue has moved to another database, or is being moved into this one.

    Example:

        >>> try:
        ...     add.enqueue(1, 2).state
        ... except dray.DatabaseClosed:
        ...     "use the new address"
        'queued'
    """


class ForkedConnection(StorageError):
    """A transaction was open while the process forked; the child cannot use this database.

    Example:

        >>> try:
        ...     add.enqueue(1, 2).state
        ... except dray.ForkedConnection:
        ...     "fork before the transaction, or after it"
        'queued'
    """
