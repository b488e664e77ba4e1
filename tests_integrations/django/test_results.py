"""A job as Django sees it: status, errors, attempts, signals."""

# Django has no annotations, and checkers guess wrong.
# pyright: reportGeneralTypeIssues=false, reportTypedDictNotRequiredAccess=false, reportFunctionMemberAccess=false
from __future__ import annotations

from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dray.testing import drain
from tests_integrations.django.conftest import BACKEND, Make, Project


@pytest.fixture
def told(project: Project) -> Generator[list[tuple[str, str]]]:
    """The signals that are sent, each with the status that the database has at that moment."""
    from django.tasks.signals import task_enqueued, task_finished, task_started

    def hear(name: str) -> Any:
        def receiver(sender: type, task_result: Any, **_: Any) -> None:
            assert sender.__name__ == "DrayBackend"
            stored = task_result.task.get_backend().get_result(task_result.id)
            assert stored.status == task_result.status
            heard.append((name, task_result.status))

        return receiver

    heard: list[tuple[str, str]] = []
    receivers = {task_enqueued: hear("enqueued"), task_started: hear("started"), task_finished: hear("finished")}
    for signal, receiver in receivers.items():
        signal.connect(receiver)
    yield heard
    for signal, receiver in receivers.items():
        signal.disconnect(receiver)


def test_a_failure_has_its_class_and_traceback(project: Project, told: list[tuple[str, str]]) -> None:
    result = project.tasks.refuse.enqueue("out of tea")
    assert drain(project.app) == 1  # one attempt, as Django's users expect
    result.refresh()

    assert (result.status, result.attempts, len(result.errors)) == ("FAILED", 1, 1)
    assert result.errors[0].exception_class is ValueError
    assert result.errors[0].traceback.endswith("ValueError: out of tea\n")
    assert "bodies.py" not in result.errors[0].traceback  # only the user's own code
    assert told == [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "FAILED")]


def test_an_error_of_the_users_own_can_be_imported(project: Project) -> None:
    result = project.tasks.run_out.enqueue()
    drain(project.app)
    result.refresh()
    assert result.errors[0].exception_class is project.tasks.OutOfStock


def test_a_cancelled_job_has_failed_with_an_error_that_says_so(project: Project, told: list[tuple[str, str]]) -> None:
    from dray.errors import JobCancelled

    result = project.tasks.echo.enqueue()
    project.app.cancel(result.id)
    result.refresh()

    assert (result.status, result.is_finished) == ("FAILED", True)
    assert result.errors[0].exception_class is JobCancelled
    assert told[-1] == ("finished", "FAILED")


def test_attempts_are_counted_and_their_errors_kept(make_project: Make) -> None:
    from django.test import override_settings

    project = make_project("sqlite")
    path = project.tasks.attempt.module_path
    options = {"tasks": {path: {"max_attempts": 3}}}
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": options}}):
        forget(project, path)
        result = project.tasks.attempt.enqueue(least=3)
        assert drain(project.app) == 3
        result.refresh()
    forget(project, path)

    assert (result.return_value, result.attempts) == (3, 3)
    assert [each.exception_class for each in result.errors] == [ValueError, ValueError]
    assert len(result.worker_ids) == 3


def test_options_of_the_decorator_come_last(make_project: Make) -> None:
    from dray.integrations.django import DrayTask
    from dray.integrations.django.options import task_options

    project = make_project("sqlite")
    given = DrayTask(func=project.tasks.echo.func, max_attempts=7, timeout=3.0, priority=0, backend="default",
                     queue_name="default", run_after=None)  # fmt: skip
    options = task_options("default", given)
    assert (options["max_attempts"], options["timeout"]) == (7, 3.0)
    assert task_options("default", project.tasks.echo)["max_attempts"] == 1


def forget(project: Project, path: str) -> None:
    """Lets a task be defined again, as a new process would."""
    core = project.app.core
    core.defined.pop(path, None)
    core.registry.forget(path)


def test_a_task_that_is_deferred_waits(project: Project) -> None:
    from django.utils import timezone

    later = timezone.now() + timedelta(hours=1)
    result = project.tasks.echo.using(run_after=later, priority=50, queue_name="mail").enqueue(1, two=[2])
    assert result == project.tasks.echo.get_result(result.id)
    assert (result.status, result.task.run_after, result.task.priority) == ("READY", later, 50)
    assert result.task.queue_name == "mail"
    (job,) = project.app.jobs()
    assert (job.state, job.run_at, job.priority) == ("scheduled", later, 50)
    assert drain(project.app, delays=False) == 0
    assert drain(project.app) == 1
    result.refresh()
    assert result.return_value == [[1], {"two": [2]}]


def test_a_body_enqueues_more(project: Project) -> None:
    project.tasks.order_twice.enqueue("tea")
    assert drain(project.app) == 2
    assert project.orders.get().is_paid


def test_a_schedule_and_a_command_line_may_leave_the_arguments_out(project: Project) -> None:
    project.app.schedule("count", project.tasks.count_orders.module_path, every=3600)
    scheduled = project.app.run_schedule("count")
    typed = project.app.enqueue(project.tasks.echo.module_path)
    assert drain(project.app) >= 2
    assert project.tasks.count_orders.get_result(scheduled.id).return_value == 0
    assert project.tasks.echo.get_result(typed.id).return_value == [[], {}]


def test_async_bodies_have_a_connection_each(project: Project) -> None:
    order = project.orders.create(what="tea")
    paid, shared = project.tasks.apay.enqueue(order.pk), project.tasks.connection_thread.enqueue()
    assert drain(project.app) == 2
    paid.refresh()
    shared.refresh()
    assert (paid.return_value, shared.return_value) == ("tea", True)


def test_a_job_of_an_unknown_task_is_no_result_and_imports_nothing(project: Project) -> None:
    from django.tasks import default_task_backend
    from django.tasks.exceptions import TaskResultDoesNotExist

    job = project.app.enqueue("antigravity.fly")
    with pytest.raises(TaskResultDoesNotExist, match="none of Django's tasks"):
        default_task_backend.get_result(job.id)
    import sys

    assert "antigravity" not in sys.modules


def test_names_that_django_allows_are_names_of_tasks(project: Project) -> None:
    """A path of more than 100 characters, and one that is not ASCII."""
    from django.tasks import task

    def longer() -> int:
        return 1

    longer.__qualname__ = longer.__name__ = "größe_" + 100 * "x"
    longer.__module__ = project.tasks.__name__
    result = task(longer).enqueue()
    assert drain(project.app) == 1
    assert project.app.job(result.id).task.endswith("größe_" + 100 * "x")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"databse": "default"}, "databse"),
        ({"database": "other"}, "no alias 'other'"),
        ({"durability": "some"}, "durability"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"tasks": {"shop.pay": {"queue": "x"}}}, "queue"),
        ({"imports": "shop.tasks"}, "imports"),
    ],
)
def test_wrong_options_are_an_error_of_check(make_project: Make, options: dict[str, Any], says: str) -> None:
    from django.core import checks
    from django.test import override_settings

    make_project("sqlite")
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": options}}):
        found = [each for each in checks.run_checks() if str(each.id).startswith("dray.")]
    assert [each.id for each in found] == ["dray.E001"]
    assert says in found[0].msg


def test_an_option_that_stands_beside_options_is_an_error_of_check(make_project: Make) -> None:
    from django.core import checks
    from django.test import override_settings

    make_project("sqlite")
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "max_attempts": 3}}):
        found = [each for each in checks.run_checks() if str(each.id).startswith("dray.")]
    assert [each.id for each in found] == ["dray.E001"]
    assert "OPTIONS = {'max_attempts': …}" in found[0].msg


def test_check_warns_of_an_app_that_is_not_installed(make_project: Make) -> None:
    from django.conf import settings
    from django.core import checks
    from django.test import override_settings

    make_project("sqlite")
    others = [name for name in settings.INSTALLED_APPS if name != "dray.integrations.django"]
    with override_settings(INSTALLED_APPS=others):
        found = [each for each in checks.run_checks() if str(each.id).startswith("dray.")]
    assert [each.id for each in found] == ["dray.W004"]


def test_check_warns_of_a_database_in_memory_that_no_worker_reaches(make_project: Make) -> None:
    from django.core import checks

    from tests_integrations.django.conftest import sqlite, use

    make_project("sqlite")
    use(sqlite(":memory:"))
    (found,) = [each for each in checks.run_checks() if str(each.id).startswith("dray.")]
    assert (found.id, found.level) == ("dray.W001", checks.WARNING)
    assert "no worker reaches it" in found.msg
    assert "Give NAME a file" in str(found.hint)


@pytest.mark.parametrize(
    ("kind", "options", "warned"),
    [
        ("postgres", {}, ["dray.W003"]),
        ("postgres", {"listen_url": "postgresql://db.internal/shop"}, []),
        ("sqlite", {}, []),  # it has no pooler, whatever is set
    ],
)
def test_check_warns_of_a_pooler_that_delivers_no_notifications(
    make_project: Make, kind: str, options: dict[str, Any], warned: list[str]
) -> None:
    from django.core import checks
    from django.test import override_settings

    from tests_integrations.django.conftest import use

    project = make_project(kind)
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": options}}):
        assert [each for each in checks.run_checks() if str(each.id).startswith("dray.")] == []
        use({**project.connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS": True})
        found = [each for each in checks.run_checks() if str(each.id).startswith("dray.")]
    assert [each.id for each in found] == warned
    assert all("around the pooler" in str(each.hint) for each in found)


def test_missing_tables_say_what_to_run(make_project: Make, tmp_path: Any) -> None:
    from django.db import ProgrammingError, transaction

    from tests_integrations.django.conftest import sqlite, use

    project = make_project("sqlite")
    (tmp_path / "empty.sqlite3").touch()
    use(sqlite(tmp_path / "empty.sqlite3"))
    with pytest.raises(ProgrammingError, match=r"manage\.py migrate"):
        project.tasks.echo.enqueue()
    with pytest.raises(ProgrammingError, match=r"manage\.py migrate"), transaction.atomic():
        project.tasks.echo.enqueue()


def test_a_broken_transaction_takes_no_job(project: Project) -> None:
    from django.db import transaction
    from django.db.transaction import TransactionManagementError

    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(TransactionManagementError):
            project.tasks.echo.enqueue()
    assert project.app.jobs() == []


def aliases(**options: Any) -> dict[str, Any]:
    """TASKS with a second backend of Dray's, which has these options."""
    return {"default": {"BACKEND": BACKEND}, "second": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": options}}


def test_a_worker_on_another_database_knows_the_task_too(make_project: Make) -> None:
    """Jobs of ``using(backend="second")`` are there, and its worker has only imported the module."""
    import importlib

    from django.test import override_settings

    from dray.integrations.django import backends

    project = make_project("sqlite")
    with override_settings(TASKS=aliases(database="elsewhere", max_attempts=7)):
        importlib.reload(project.tasks)
        there = backends.of("second").task_of(project.tasks.echo.module_path)
    assert there.options.max_attempts == 7


def test_a_result_is_found_where_only_another_alias_knows_the_task(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.tasks import task_backends
    from django.test import override_settings

    from dray.integrations.django import backends

    with override_settings(TASKS=aliases()):
        sent = project.tasks.echo.using(backend="second").enqueue(1)
        monkeypatch.setattr(backends.of("second").core, "defined", {})  # as in another process
        assert task_backends["second"].get_result(sent.id).args == [1]


def test_a_worker_runs_the_tasks_of_every_alias_on_its_database(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each as its own alias says: `manage.py dray_worker` is a worker of "default", and "second" has the task."""
    from django.tasks import task
    from django.test import override_settings

    from dray.integrations.django import backends

    monkeypatch.setattr(backends, "_apps", {})  # as in a new process
    function = project.tasks.refuse.func
    options = {"max_attempts": 2, "tasks": {f"{function.__module__}.refuse": {"retry": 0}}, "imports": ["json"]}
    with override_settings(TASKS=aliases(**options)):
        sent = task(backend="second")(function).enqueue()
        default, second = backends.of("default"), backends.of("second")

        assert "json" in default.core.settings.imports
        assert drain(default) == 2
        assert sent.task.get_result(sent.id).attempts == 2

        own = task(function)  # now "default" has it too, as its own OPTIONS say
        assert default.task_of(own.module_path).options.max_attempts == 1
        assert second.task_of(own.module_path).options.max_attempts == 2
        backends.close()


@pytest.mark.parametrize(
    "wrong",
    [{"queue_name": " x"}, {"queue_name": "x" * 201}, {"run_after": datetime.max.replace(tzinfo=UTC)}],
)
def test_what_no_job_can_have_makes_no_task(make_project: Make, wrong: dict[str, Any]) -> None:
    from django.tasks.exceptions import InvalidTask
    from django.test import override_settings

    project = make_project("sqlite")
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": []}}), pytest.raises(InvalidTask):
        project.tasks.echo.using(**wrong)


def test_arguments_in_a_circle_are_refused_as_no_json(make_project: Make) -> None:
    project = make_project("sqlite")
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(TypeError, match="nested too deep"):
        project.tasks.echo.enqueue(circle)


def test_options_that_change_in_place_are_seen(make_project: Make) -> None:
    from django.test import override_settings

    project = make_project("sqlite")
    options: dict[str, Any] = {"busy_timeout": 1}
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": options}}):
        assert project.app.core.settings.busy_timeout == 1
        options["busy_timeout"] = 2
        assert project.app.core.settings.busy_timeout == 2


def test_an_attempt_without_a_traceback_says_what_happened() -> None:
    """A worker that was killed has left none."""
    from dray.handle.job import AttemptError
    from dray.integrations.django.results import _errors

    error = AttemptError("WorkerDied", "worker 7 was lost", None, "dray.errors.WorkerDied")
    job: Any = SimpleNamespace(state="failed")
    (told,) = _errors(job, [cast("Any", SimpleNamespace(error=error))])
    assert told.traceback == "dray.errors.WorkerDied: worker 7 was lost\n"


def test_child_processes_find_the_app_of_an_alias_that_is_no_identifier(make_project: Make) -> None:
    from django.test import override_settings

    from dray.integrations.django import backends
    from dray.runtime.loading import _app_at

    make_project("sqlite")
    with override_settings(TASKS={"default": {"BACKEND": BACKEND}, "my-reports": {"BACKEND": BACKEND}}):
        core = backends.of("my-reports").core
        assert _app_at(str(core.settings.locator)) is core
