"""``dray config``: what counts, and where it comes from."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.shell import TASKS, Shell, plain


def settings(shell: Shell, *words: str, **environment: str | None) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in shell("config", "--json", *words, stdin="", **environment).json}


def source(setting: dict[str, Any]) -> tuple[Any, str, str | None]:
    return setting["value"], setting["source"], setting["key"]


def test_everything_has_a_value_and_a_source(local: Shell) -> None:
    found = settings(local, DRAY_URL=None)

    assert {"app", "url", "imports", "durability", "default_timeout", "busy_timeout", "file_mode", "migrate"} <= set(
        found
    )
    assert {"notify", "listen_url", "worker.lease", "worker.grace", "worker.concurrency"} <= set(found)
    assert source(found["url"]) == (local.url, "default", None)
    assert source(found["app"]) == ("tasks:app", "default", None)
    assert source(found["file_mode"]) == ("0o600", "default", None)
    assert (found["worker.grace"]["value"], found["worker.grace"]["unit"]) == (25.0, "seconds")
    assert found["worker.lease"]["value"] == 15.0
    assert found["retention.failed"]["value"] == 30 * 86_400
    assert (found["limits.args"]["value"], found["limits.args"]["unit"]) == (256 * 1024, "bytes")
    assert found["limits.log_lines"]["value"] == 1000
    assert {each["source"] for each in found.values()} == {"default"}
    assert {tuple(each) for each in found.values()} == {("name", "value", "source", "key", "unit")}
    assert not list(local.folder.glob("*.db")), "no database is made"


def test_an_address_comes_from_the_command_line_the_code_or_a_variable(local: Shell) -> None:
    folder = local.folder
    assert source(settings(local)["url"]) == (local.url, "environment", "DRAY_URL")
    assert source(settings(local, "--url", "typed.db")["url"]) == (
        f"sqlite:///{folder}/typed.db",
        "command line",
        None,
    )

    local.write("tasks.py", TASKS.replace("dray.App()", "dray.App('dray.db')"))
    done = local("config", "--json")
    assert source(done.json[1]) == (local.url, "code", None), "though the variable says the same"
    assert done.err == ""

    local.write("tasks.py", TASKS.replace("dray.App()", "dray.App('other.db')"))
    done = local("config", "--json")
    assert source(done.json[1]) == (f"sqlite:///{folder}/other.db", "code", None)
    assert done.err == f"dray: DRAY_URL names {local.url}, which is not used: the app's own code names its database\n"


def test_what_the_code_sets_is_from_the_code(local: Shell) -> None:
    made = "dray.App(durability='full', default_timeout=60, imports=['json'], file_mode=0o660, notify=False)"
    local.write("tasks.py", TASKS.replace("dray.App()", made))

    found = settings(local)

    assert {name for name, each in found.items() if each["source"] == "code"} == {
        *("durability", "default_timeout", "imports", "file_mode", "notify"),
    }
    assert (found["imports"]["value"], found["file_mode"]["value"]) == (["json"], "0o660")


def test_the_app_comes_from_the_command_line_a_variable_or_pyproject(local: Shell) -> None:
    local.write("shop.py", TASKS)
    local.write("pyproject.toml", '[tool.dray]\napp = "shop:app"\n')

    assert source(settings(local)["app"]) == ("shop:app", "pyproject", "app")
    assert source(settings(local, DRAY_APP="tasks")["app"]) == ("tasks", "environment", "DRAY_APP")
    assert source(settings(local, "--app", "tasks:app")["app"]) == ("tasks:app", "command line", None)


def test_options_that_variables_set_are_shown(local: Shell) -> None:
    found = settings(local, DRAY_WORKER_CONCURRENCY="3", DRAY_WORKER_GRACE="1m", DRAY_JOBS_LIMIT="7")

    assert source(found["worker.concurrency"]) == (3, "environment", "DRAY_WORKER_CONCURRENCY")
    assert source(found["worker.grace"]) == (60.0, "environment", "DRAY_WORKER_GRACE")
    assert source(found["jobs.limit"]) == (7, "environment", "DRAY_JOBS_LIMIT")
    assert "jobs.after" not in found


def test_an_unknown_variable_is_reported_with_a_close_match(local: Shell) -> None:
    done = local("config", DRAY_WORKER_CONCURENCY="3", DRAY_WORKER_GRACE="never", DRAY_APP="tasks:app")

    assert "DRAY_WORKER_CONCURENCY is no variable that Dray knows; did you mean DRAY_WORKER_CONCURRENCY?" in done.err
    assert "DRAY_WORKER_GRACE: 'never' is no duration" in done.err
    assert len(done.err.splitlines()) == 2


def test_variables_of_every_kind_are_known(local: Shell) -> None:
    done = local(
        "config",
        DRAY_JOB_CANCEL_STATE="failed",
        DRAY_WORKER_IMPORTS="json",
        DRAY_ENQUEUE_MAX_ATTEMPTS="2",
        DRAY_SCHEDULES_NEXT_COUNT="2",
    )

    assert done.err == ""


def test_an_unknown_key_is_reported(local: Shell) -> None:
    local.write("pyproject.toml", '[tool.dray]\napp = "tasks:app"\napps = "x"\nqueues = "mail"\n')

    said = local("config").err

    assert "[tool.dray] has a key 'apps' that Dray does not know; did you mean app?" in said
    assert "'queues'" in said


@pytest.mark.parametrize("text", ["[tool.dray", "[tool.dray]\napp = 3\n", "[tool]\ndray = 3\n"])
@pytest.mark.parametrize("words", [[], ["--url", "jobs.db"]], ids=["found", "typed"])
def test_a_project_file_that_cannot_be_read_is_said_once(local: Shell, text: str, words: list[str]) -> None:
    local.write("pyproject.toml", text)

    done = local.try_("config", *words)

    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("dray: pyproject.toml")
    assert done.err.count("\n") == 1


def test_the_app_that_the_project_file_names_does_not_count_where_another_is_named(local: Shell) -> None:
    local.write("pyproject.toml", "[tool.dray]\napp = 3\n")

    assert source(settings(local, "--app", "tasks:app")["app"]) == ("tasks:app", "command line", None)


def test_a_password_never_shows(local: Shell) -> None:
    url = "postgresql://user:canary@host/db"
    made = f"dray.App({url!r}, listen_url='postgresql://user:canary@other/db')"
    local.write("tasks.py", TASKS.replace("dray.App()", made))

    for words in ([], ["--json"]):
        done = local("config", *words, DRAY_URL=url, DRAY_DEV_QUEUES=url, DRAY_NOSUCH=url)
        assert "canary" not in done.out + done.err
    found = settings(local, DRAY_URL=url)
    assert found["url"]["value"] == "postgresql://user:***@host/db"
    assert source(found["listen_url"]) == ("postgresql://user:***@other/db", "code", None)
    assert found["notify"]["source"] == "default"


def test_an_app_that_cannot_be_had_is_said_and_the_rest_is_shown(local: Shell) -> None:
    local.write("tasks.py", "import dray\nx = 1 / 0\n")

    done = local("config", "--json")

    assert "ZeroDivisionError" in done.err
    assert source(done.json[1]) == (local.url, "environment", "DRAY_URL")


def test_without_an_app_there_are_settings_too(local: Shell) -> None:
    (local.folder / "tasks.py").unlink()

    assert source(settings(local)["app"]) == (None, "default", None)


@pytest.mark.parametrize("columns", [20, 200])
def test_on_a_terminal_it_is_a_table_with_units(local: Shell, columns: int) -> None:
    shown = plain(local.on_terminal("config", columns=columns).out)

    assert shown.startswith("sett")
    if columns == 200:
        assert "worker.lease" in shown
        assert "environment DRAY_URL" in shown
        assert "256 KiB" in shown
        assert "7d" in shown
