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
    """The base of every error Dray raises on purpose."""


class ConfigError(DrayError, ValueError):
    """A setting, address or name that cannot work; nothing was written."""


class InvalidName(ConfigError):
    """A name that is empty, longer than 200 characters, not printable, or has a space at either end."""


class SchemaMissing(ConfigError):
    """The database can be reached, but Dray's tables are not in it."""


class PayloadError(DrayError, ValueError):
    """A value that cannot be stored as JSON; ``path`` says where it sits, e.g. ``args.items[3]``."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class PayloadTooLarge(PayloadError):
    """A value over its size limit."""


class UnknownJob(DrayError, LookupError):
    """No job has this id: it was never committed, was rolled back, or was pruned."""


class UnknownTask(DrayError, LookupError):
    """No task is registered under this name."""


class UnknownSchedule(DrayError, LookupError):
    """No schedule has this name: it was never stored, or was removed."""


class UnknownWorkflow(DrayError, LookupError):
    """No workflow has this id: it was never committed, was rolled back, or was pruned."""


class GraphError(DrayError, ValueError):
    """Jobs that depend on each other in a way that cannot run; nothing was written."""


class JobEnded(DrayError):
    """The job ended without a result. `job` is its handle, `error` what its last attempt ended with."""

    def __init__(self, message: str, job: Any = None, reason: str | None = None, error: str | None = None) -> None:
        super().__init__(message)
        self.job = job
        self.reason = reason
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        # A handle stays in its process; all else is text.
        return type(self), (str(self), None, self.reason, self.error)


class JobFailed(JobEnded):
    """The job ended as ``failed``."""


class JobCancelled(JobEnded):
    """The job ended as ``cancelled``."""


class Misfit(DrayError):
    """The arguments in a row do not fit the function as it is here: the code has changed since, or not yet."""


class MoveError(DrayError):
    """A database that cannot be moved, or moved into, as it is; what was carried so far is kept."""


class StaleClaim(DrayError):
    """The claim is no longer held: the job was taken back, cancelled or ended by another worker."""


class Timeout(DrayError, TimeoutError):
    """An attempt ran longer than its timeout."""


class ProcessDied(DrayError):
    """The child process that ran an attempt died."""


class WorkerDied(DrayError):
    """The worker that ran an attempt died."""


class Unstorable(DrayError):
    """The database refused what an attempt ended with."""


class StorageError(DrayError):
    """The database failed to do what it was asked."""


class StorageUnavailable(StorageError):
    """The database cannot be opened or reached."""


class FileMissing(StorageUnavailable):
    """There is no SQLite file, and this call may not make one."""


class StorageLocked(StorageError):
    """Another connection kept the write lock past the deadline."""


class StorageDamaged(StorageError):
    """The SQLite file is damaged: no waiting repairs it."""


class StorageFull(StorageError):
    """The disk under the database is full; the transaction was rolled back."""


class SchemaTooNew(StorageError):
    """The tables were migrated by a newer Dray that this one must not write to."""


class DatabaseClosed(StorageError):
    """Nothing may be changed here: the queue has moved to another database, or is being moved into this one."""


class ForkedConnection(StorageError):
    """A transaction was open while the process forked; the child cannot use this database."""
