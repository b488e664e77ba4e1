"""The wheel holds all that Dray needs: built from the clone, it runs in an environment that has never seen one."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without isolation: that would download the build backend again."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*command, str(ROOT)], check=True, timeout=120)
    (built,) = folder.iterdir()
    return built


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    package = ROOT / "src"
    wanted = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    wanted = {path for path in wanted if "__pycache__" not in path}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert held == wanted
    assert {Path(path).suffix for path in held} == {".py", ".sql", ".typed", ".html", ".css", ".js", ".svg", ".md"}


def test_the_wheel_alone_passes_the_demo(wheel: Path, tmp_path: Path) -> None:
    """The dependencies come from the tests' environment. The clone does not: Python reads no .pth file there."""
    environment = tmp_path / "environment"
    venv.create(environment)
    (packages,) = (environment / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    python = [str(environment / "bin" / "python"), "-m"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DRAY_", "PYTHON"))}

    where = subprocess.run(
        [python[0], "-c", "import dray; print(dray.__file__)"],
        cwd=tmp_path,
        env=kept,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    demo = subprocess.run(
        [*python, "dray", "demo", "--jobs", "100"],
        cwd=tmp_path,
        env=kept,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert Path(where.stdout.strip()).parent == packages / "dray"
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "none lost, none completed twice" in demo.stdout
