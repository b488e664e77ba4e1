"""What TASKS says of Dray, read at each use, and what Dray makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from django.apps import apps
from django.conf import settings as django_settings
from django.utils.module_loading import import_string, module_has_submodule

from dray.errors import ConfigError
from dray.integrations.django.addresses import MEMORY, address_of
from dray.settings import Settings
from dray.task.checks import known_options, several
from dray.task.options import TaskOptions

if TYPE_CHECKING:
    from dray.task.options import TaskKeywords

LOCATION = "dray.integrations.django"
IN_MEMORY = Path("/django-database-in-memory")  # is never opened: see `DjangoDatabase`
OF_APP = ("durability", "busy_timeout", "notify", "listen_url")  # what OPTIONS may set of an App
KNOWN_OPTIONS = (*OF_APP, "database", "schema", "imports", "max_attempts", "timeout", "tasks")
TASK_OPTIONS = (
    "max_attempts",
    "max_crashes",
    "timeout",
    "retry",
    "retry_on",
    "fail_on",
    "runner",
    "keep_args",
    "description",
)


def options_of(alias: str) -> Mapping[str, Any]:
    """OPTIONS of an alias of TASKS, as they are now."""
    return django_settings.TASKS.get(alias, {}).get("OPTIONS", {})


def database_of(alias: str) -> str:
    """The alias of DATABASES whose database has the jobs of an alias of TASKS."""
    return options_of(alias).get("database", "default")


def shares_jobs(alias: str, other: str) -> bool:
    """Whether two aliases of TASKS have their jobs in the same tables."""
    schemas = {options_of(each).get("schema") for each in (alias, other)}
    return database_of(alias) == database_of(other) and len(schemas) == 1


def checked_settings(alias: str) -> Settings:
    """The settings that OPTIONS make, or an error that says what they may be; nothing is opened."""
    options = options_of(alias)
    if unknown := [name for name in options if name not in KNOWN_OPTIONS]:
        raise ConfigError(f"OPTIONS has no {unknown[0]!r}; it takes {', '.join(sorted(KNOWN_OPTIONS))}")
    if outside := [name for name in KNOWN_OPTIONS if name in django_settings.TASKS.get(alias, {})]:
        raise ConfigError(f"{outside[0]!r} has no effect beside OPTIONS; write OPTIONS = {{{outside[0]!r}: …}}")
    url = address_of(database_of(alias), options.get("schema"))
    given = {name: options[name] for name in OF_APP if name in options}
    # Of a database in memory nothing is opened; the address only has to be one.
    place = str(IN_MEMORY) if url == MEMORY else url
    made = Settings.typed(place, imports=_shared_imports(alias), migrate=False, **given)
    locator = None if "." in alias else f"{LOCATION}:backends.{alias}"  # also "my-reports", for child processes
    return replace(made, url=url, imports=(*_task_modules(), *made.imports), locator=locator)


def _shared_imports(alias: str) -> list[str]:
    """OPTIONS["imports"] of all aliases whose jobs are in the same tables: its workers run them all."""
    sharing = (other for other in drays_aliases() if other != alias and shares_jobs(other, alias))
    found = (several("imports", options_of(each).get("imports", ()), "module names") for each in (alias, *sharing))
    return list(dict.fromkeys(module for modules in found for module in modules))


def check_tasks(alias: str) -> None:
    """Refuses options for tasks that no task could take."""
    options = options_of(alias)
    of_tasks = options.get("tasks", {})
    if not isinstance(of_tasks, Mapping):
        raise ConfigError("OPTIONS['tasks'] must be a dict of options by the path of a task")
    for path, given in {"…": {}, **of_tasks}.items():
        known_options(given, TASK_OPTIONS, f"OPTIONS['tasks'][{path!r}]")
        TaskOptions.of(
            _any_body, {"max_attempts": options.get("max_attempts", 1), "timeout": options.get("timeout"), **given}
        )


def _any_body() -> None: ...


def _task_modules() -> tuple[str, ...]:
    """The modules `tasks` of installed apps; workers import them."""
    if not apps.ready:
        return ()
    found = (config for config in apps.get_app_configs() if config.module is not None)
    return tuple(f"{config.name}.tasks" for config in found if module_has_submodule(config.module, "tasks"))


def task_options(alias: str, task: Any) -> TaskKeywords:
    """How Dray is to run a task: as OPTIONS say for all, then for this one, then as its decorator says."""
    options = options_of(alias)
    given: dict[str, Any] = {
        "max_attempts": options.get("max_attempts", 1),
        "timeout": options.get("timeout"),
        **options.get("tasks", {}).get(task.module_path, {}),
    }
    for name in ("max_attempts", "timeout", "runner"):
        if getattr(task, name, None) is not None:
            given[name] = getattr(task, name)
    known_options(given, TASK_OPTIONS, "OPTIONS['tasks'][…]")
    own = {"name": task.module_path, "queue": task.queue_name, "priority": task.priority}
    return cast("TaskKeywords", {**given, **own})


def drays_aliases() -> list[str]:
    """The aliases of TASKS that are Dray's."""
    found = list[str]()
    for alias, given in django_settings.TASKS.items():
        try:
            kind = import_string(given["BACKEND"])
        except (ImportError, KeyError):
            continue  # Django says what is wrong with it
        if getattr(kind, "is_drays", False):
            found.append(alias)
    return found
