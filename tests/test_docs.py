"""What the docs show runs as shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def run(*words: str, cwd: Path = ROOT) -> str:
    done = subprocess.run([sys.executable, *words], cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_tour_ends_with_everything_completed(empty_url: str) -> None:
    assert "done: fetch completed, report completed" in run("examples/storage_tour.py", empty_url)


def test_the_tour_says_what_the_readme_shows(tmp_path: Path) -> None:
    shown = re.findall(
        r"^  (.+)$", (ROOT / "README.md").read_text().partition("$ make demo")[2].partition("```")[0], re.M
    )
    said = run(str(ROOT / "examples" / "storage_tour.py"), cwd=tmp_path)

    assert len(shown) > 5
    assert [line for line in shown if line not in said] == []


def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.+?)```", (ROOT / "README.md").read_text(), re.S)
    script = tmp_path / "readme.py"
    script.write_text(code + "\nprint(backend.job_get([claim.id])[0].state)\nbackend.close()\n")

    assert run(str(script), cwd=tmp_path) == "completed\n"


def test_links_between_the_docs_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_importing_dray_and_its_sqlite_side_loads_nothing_from_elsewhere() -> None:
    code = "import dray, dray.backends, dray.task, sys; print(*sys.modules)"
    ours = {"dray", "__main__", "sitecustomize", "usercustomize"}
    loaded = {name.partition(".")[0] for name in run("-c", code).split()} - set(sys.stdlib_module_names) - ours
    assert {name for name in loaded if not name.startswith("_")} == set()
