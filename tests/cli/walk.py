"""Every command there is, from the command line's own tree, with words to run it by: what is added is walked too."""

from __future__ import annotations

from collections.abc import Iterator

import click

from dray.cli.root import root

Path = tuple[str, ...]

ID = "01a1e083-5ed4-704a-ae25-a11872c7f5d4"

# What a command that is not named here needs for its arguments, by their names.
ARGUMENTS = {
    "ids": ID,
    "job_id": ID,
    "part": ID,
    "parts": ID,
    "task": "tasks.add",
    "name": "default",
    "names": "default",
    "scope": "queue",
    "shell": "bash",
    "source": "sqlite:///source.db",
    "target": "sqlite:///target.db",
    "file": "copy.db",
    "path": "copy.db",
    "statement": "SELECT 1",
}
MORE: dict[Path, list[str]] = {
    ("enqueue",): ["a=1", "b=2"],
    ("run",): ["a=1", "b=2"],
    ("tasks",): [],
    ("job", "retry"): [ID],
    ("job", "cancel"): [ID],
    ("job", "delete"): [ID],
    ("job", "wait"): ["--timeout", "1"],
    ("queues", "set"): ["--priority", "1"],
    ("limits", "set"): ["--limit", "1"],
    ("schedules", "add"): ["a=1", "b=2", "--every", "60"],
    ("worker",): ["--burst"],
    ("tail",): ["-n", "3", "--until-idle"],
    ("db", "prune"): ["--yes"],
    ("db", "sql"): ["--kind", "sqlite"],
}

# These change something, or make a file; all others only look, and hold what is asked of those.
ACTING = {
    *(("demo",), ("dev",), ("worker",), ("enqueue",), ("run",), ("bench",)),
    *(("job", "retry"), ("job", "cancel"), ("job", "delete")),
    *(("queues", "pause"), ("queues", "resume"), ("queues", "set")),
    *(("limits", "set"), ("limits", "reset")),
    *(("workflows", "cancel"), ("workflows", "retry")),
    *(("schedules", verb) for verb in ("add", "pause", "remove", "resume", "run")),
    *(("db", verb) for verb in ("init", "migrate", "move", "prune", "backup")),
    *(("import", "gigq"), ("import", "lilota")),
}
# These need no database.
WITHOUT_DATABASE = {("demo",), ("run",), ("bench",), ("tasks",), ("config",), ("completion",), ("db", "sql")}
# These run until they are told to stop.
ENDLESS = {("dev",), ("web",), ("mcp",), ("top",), ("demo",), ("bench",)}


def tree() -> Iterator[tuple[Path, click.Command]]:
    """All commands; a group too, where it does something by itself."""
    yield from _below((), root, click.Context(root, info_name="dray"))


def _below(path: Path, command: click.Command, context: click.Context) -> Iterator[tuple[Path, click.Command]]:
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None, name
            yield from _below((*path, name), child, click.Context(child, info_name=name, parent=context))


COMMANDS = dict(tree())
READS = sorted(path for path in COMMANDS if path not in ACTING and path not in ENDLESS)
WRITES = sorted(path for path in ACTING if path in COMMANDS and path not in ENDLESS | WITHOUT_DATABASE)


def words(path: Path, **given: str) -> list[str]:
    """A command line that is right in itself; `given` replaces arguments by their names."""
    command = COMMANDS[path]
    values = ARGUMENTS | given
    arguments = [each for each in command.params if isinstance(each, click.Argument) and each.required]
    filled = [values[str(each.name)] for each in arguments]
    more = [given.get("ids", ID) if word == ID else word for word in MORE.get(path, [])]
    return [*path, *filled, *more]


def named(path: Path) -> str:
    """For the name of a test."""
    return "-".join(path)
