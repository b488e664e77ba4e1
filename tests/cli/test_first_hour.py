"""What a new user meets: which database and which app a command takes, and how it says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.shell import TASKS, Shell


@pytest.fixture
def elsewhere(local: Shell) -> Shell:
    """A folder below the project, where no app and no database is found."""
    (local.folder / "below").mkdir()
    return Shell(local.folder / "below", "")


@pytest.mark.parametrize("verb", ["init", "migrate"])
def test_tables_are_not_made_in_a_file_that_is_only_guessed(elsewhere: Shell, verb: str) -> None:
    done = elsewhere.try_("db", verb, DRAY_URL=None)

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("dray: no app was found here, and no database is named; name it as module:object")
    assert done.err.endswith("or name the database (--url)\n")
    assert list(elsewhere.folder.iterdir()) == []


@pytest.mark.parametrize("words", [["db", "status"], ["jobs"], ["stats"], ["db", "prune", "--yes"]], ids=" ".join)
def test_commands_that_look_say_that_nothing_is_named(elsewhere: Shell, words: list[str]) -> None:
    done = elsewhere.try_(*words, DRAY_URL=None)

    assert (done.code, done.out) == (6, "")
    assert done.err.startswith("dray: no app was found here, and no database is named")
    assert list(elsewhere.folder.iterdir()) == []


def test_a_default_file_that_is_there_is_upgraded_without_a_name(local: Shell, elsewhere: Shell) -> None:
    elsewhere("db", "init", "--url", "dray.db", DRAY_URL=None)

    assert elsewhere("db", "init", DRAY_URL=None).out == elsewhere("db", "status", DRAY_URL=None).out


def test_the_command_in_the_error_makes_the_tables_where_they_were_missed(local: Shell, tmp_path: Path) -> None:
    missing = local.try_("db", "status", DRAY_URL=str(tmp_path / "my shop.db"))
    assert missing.code == 6
    command = missing.err.partition("`")[2].partition("`")[0]
    assert command == f"dray db init --url sqlite:///{tmp_path}/my%20shop.db"

    local(*command.split()[1:], DRAY_URL=None)

    assert local("db", "status", DRAY_URL=str(tmp_path / "my shop.db")).code == 0


def test_a_worker_says_in_its_first_line_which_address_it_took_and_why(local: Shell) -> None:
    local.write("tasks.py", TASKS.replace("dray.App()", "dray.App('own.db')"))
    said = local("worker", "--burst", DRAY_URL="postgresql://ann:hidden@db.example.com/jobs").err

    own, other = f"sqlite:///{local.folder}/own.db", "postgresql://ann:***@db.example.com/jobs"
    first = said.splitlines()[0]
    assert f" on {own} (named by the app's code; DRAY_URL names {other}); queues: all; tasks: tasks.add" in first
    assert said.count(f"warning dray: {own} is used, as the code says: App(…); DRAY_URL names {other}") == 1
    assert "hidden" not in said


def test_an_address_that_was_typed_is_taken_without_a_word(local: Shell) -> None:
    local.write("tasks.py", TASKS.replace("dray.App()", "dray.App('own.db')"))

    said = local("enqueue", "tasks.add", "a=1", "b=2", "--url", "typed.db").err
    said += local("jobs", "--url", "typed.db").err + local("jobs", "--url", "typed.db", "--app", "tasks").err

    assert said == ""


@pytest.mark.parametrize("named", [(), ("tasks",)], ids=["found", "named by its module"])
def test_a_worker_names_the_app_it_took_of_two(local: Shell, named: tuple[str, ...]) -> None:
    local.write("tasks.py", f"{TASKS}\nother = dray.App()\n\n@other.task\ndef mine(): ...\n")

    said = local("worker", *named, "--burst").err

    assert "; app: tasks:app (to take another, name it: tasks:other)" in said.splitlines()[0]
    assert "app:" not in local("worker", "tasks:other", "--burst").err.splitlines()[0]


def test_several_names_of_one_app_leave_no_choice(local: Shell) -> None:
    local.write("tasks.py", f"{TASKS}\nqueue = app\n")

    assert "; app:" not in local("worker", "--burst").err


def test_the_doctor_names_files_of_the_same_name_in_folders_above(local: Shell, elsewhere: Shell) -> None:
    local("db", "init")
    above = f"{local.folder}/dray.db"
    found = {each["name"]: each for each in elsewhere.try_("doctor", "--json", DRAY_URL=None).json}

    assert found["other-files"]["verdict"] == "warning"
    assert found["other-files"]["text"] == f"there is no {elsewhere.folder}/dray.db, but there is {above}"
    assert found["other-files"]["fix"].startswith(f"if the jobs are there, name it: --url {above}")

    elsewhere("db", "init", "--url", "dray.db")
    found = {each["name"]: each for each in elsewhere.try_("doctor", "--json", DRAY_URL=None).json}
    assert (found["other-files"]["verdict"], above in found["other-files"]["text"]) == ("note", True)
    found = {each["name"]: each for each in local.try_("doctor", "--json").json}
    assert found["other-files"]["verdict"] == "ok"


def test_a_module_here_that_makes_an_app_is_named_where_none_is_found(elsewhere: Shell) -> None:
    elsewhere.write("broken.py", "import dray\napp = dray.App(")
    elsewhere.write("jobs.py", "import dray\napp = dray.App('shop.db')\n@app.task\ndef send(): ...\n")
    elsewhere.write("script.py", "from jobs import app\nprint('dray', app)\n")

    for words in (["worker"], ["db", "init"], ["enqueue", "jobs.send"]):
        done = elsewhere.try_(*words, DRAY_URL=None)
        assert done.code == 2
        assert "name it as module:object (--app jobs: jobs.py makes an App), or run this in" in done.err
    assert elsewhere("db", "init", "--app", "jobs", DRAY_URL=None).code == 0
    assert (elsewhere.folder / "shop.db").exists()
