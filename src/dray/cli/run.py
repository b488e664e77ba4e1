"""Runs one command line and turns every error into an exit code and one sentence."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from dray.cli.exits import TABLES_HINT, Code, Failure, code_of, drop_output, say
from dray.cli.root import root
from dray.errors import DrayError, FileMissing, SchemaMissing

_PREFIX = "DRAY"
_COMPLETE = "_DRAY_COMPLETE"  # set by a shell that asks for completions


def run(args: Sequence[str]) -> int:
    _open_streams()
    _print_anything()
    try:
        code = _invoke(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe (`dray jobs | head -1`).
        drop_output()
        return Code.DONE
    except click.ClickException as error:
        _tell(error)
        return error.code if isinstance(error, Failure) else error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return Code.INTERRUPTED
    except (DrayError, TimeoutError) as error:
        say(str(error))
        return code_of(error)
    except OSError as error:
        say(f"{error.filename or 'output'}: {error.strerror or error}")
        # The interpreter flushes again when it exits. If that fails, the exit code is 120, whatever we return.
        try:
            sys.stdout.flush()
        except OSError:
            drop_output()
        return Code.FAILED
    return code


def _invoke(args: Sequence[str]) -> int:
    if _COMPLETE in os.environ:
        from dray.cli.completing import complete  # noqa: PLC0415 - only for a shell that completes a word

        complete(root)
    # Not root.main(): it exits by itself when stdout is closed, and its usage errors take four lines.
    try:
        with root.make_context("dray", list(args), auto_envvar_prefix=_PREFIX) as context:
            code = _invoked(context)
    except click.exceptions.Exit as leave:
        code = leave.exit_code
    return code if isinstance(code, int) else Code.DONE


def _invoked(context: click.Context) -> object:
    try:
        return root.invoke(context)
    except (SchemaMissing, FileMissing) as error:
        hint = context.meta.get(TABLES_HINT)
        if hint is None:
            raise
        raise Failure(f"{error}; {hint}", code_of(error)) from error


def _tell(error: click.ClickException) -> None:
    message = _missing_choice(error) or error.format_message()
    if isinstance(error, click.UsageError) and error.ctx is not None:
        if message == error.ctx.get_help():  # a group without a command
            click.echo(message, err=True)
            return
        message = f"{message.rstrip('.')}; see `{error.ctx.command_path} --help`"
    say(message)


def _missing_choice(error: click.ClickException) -> str | None:
    """Returns on one line what click says on a line for each choice; None for any other error."""
    param = error.param if isinstance(error, click.MissingParameter) else None
    if param is None or not isinstance(param.type, click.Choice):
        return None
    choices = ", ".join(str(choice) for choice in param.type.choices)
    return f"Missing {param.param_type_name} {param.human_readable_name}: choose from {choices}"


def _open_streams() -> None:
    # `dray jobs >&-`: the next file that is opened would get the number of the closed stream, and our output.
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _print_anything() -> None:
    # A Cyrillic name in an ASCII locale must not fail the command.
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
