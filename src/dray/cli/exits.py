"""How a command ends: an exit code, and one sentence on stderr where something went wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from enum import IntEnum

import click

from dray import errors
from dray.sanitize import escape_control, redact
from dray.wording import close_matches

TABLES_HINT = "dray.tables_hint"  # in the context of a command: what makes the tables of its App


class Code(IntEnum):
    """The exit codes that scripts rely on."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    JOB_ENDED = 3  # the job failed or was cancelled
    TIMED_OUT = 4
    NOT_FOUND = 5
    NO_DATABASE = 6  # out of reach, missing, or its tables do not fit this version
    RENEW = 75  # a worker asks its supervisor for a new process
    INTERRUPTED = 130


# The first match counts.
_CODES = (
    (errors.SchemaMissing, Code.NO_DATABASE),
    (errors.StorageFull, Code.FAILED),
    (errors.StorageError, Code.NO_DATABASE),
    ((errors.UnknownJob, errors.UnknownTask, errors.UnknownSchedule, errors.UnknownWorkflow), Code.NOT_FOUND),
    (errors.JobEnded, Code.JOB_ENDED),
    ((errors.ConfigError, errors.PayloadError, errors.GraphError), Code.USAGE),
    (TimeoutError, Code.TIMED_OUT),
)


class Failure(click.ClickException):
    """Ends a command with a message and an exit code."""

    def __init__(self, message: str, code: Code = Code.FAILED) -> None:
        super().__init__(message)
        self.code = code


def code_of(error: BaseException) -> Code:
    return next((code for kinds, code in _CODES if isinstance(error, kinds)), Code.FAILED)


def say(message: str) -> None:
    """Writes one line to stderr. Control characters are escaped and passwords hidden."""
    click.echo(f"dray: {sentence(message)}", err=True)


def sentence(message: str) -> str:
    """Returns a message on one line, with control characters escaped and passwords hidden."""
    return escape_control(redact("; ".join(line.strip() for line in message.splitlines() if line.strip())))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns the end of a message about an unknown word: a hint, if a known one is close to it."""
    near = close_matches(word, known)
    return f"; did you mean {near[0]}?" if near else ""


def drop_output() -> None:
    """Discards what is still buffered for stdout, when its reader is gone or does not read, or the disk is full.

    The interpreter flushes stdout when it exits. That would fail, or block for ever on a full pipe.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
