"""The wheel and the source distribution, each installed into an empty environment.

`make test-dist` builds them in dist and runs these tests, which take some minutes.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
OUTSIDE = ("papers", "benchmarks", "tests", "website", "examples")
"""Folders of the repository that the wheel does not contain."""

pytestmark = pytest.mark.dist


def built(pattern: str) -> Path:
    """Return the only file in dist of this form."""
    (found,) = DIST.glob(pattern)
    return found


def readme_example() -> str:
    """Return the Python example of the README."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return str(code)


def run(*command: str | Path, cwd: Path) -> str:
    """Return the output of a command, which must succeed."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def test_the_wheel_contains_the_package_and_its_files_only():
    names = zipfile.ZipFile(built("*.whl")).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"coterie"}
    assert "coterie/py.typed" in names
    assert any(name.startswith("coterie/report/") and name.endswith(".html") for name in names)
    assert any(name.startswith("coterie/flower/local/template/") for name in names)


def test_the_source_distribution_contains_what_builds_the_wheel():
    with tarfile.open(built("*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "coterie/__init__.py", "coterie/py.typed"} <= names


@pytest.mark.parametrize("pattern", ["*.whl", "*.tar.gz"])
def test_an_empty_environment_runs_the_example_of_the_readme(pattern: str, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    programs = tmp_path / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
    run(
        programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
        "--constraint", ROOT / "constraints.txt", built(pattern), cwd=tmp_path,
    )  # fmt: skip
    for folder in OUTSIDE:
        missing = subprocess.run([programs / "python", "-c", f"import {folder}"], cwd=tmp_path, capture_output=True)
        assert missing.returncode != 0, f"{folder} was installed"
    accuracy, ari, cluster = run(programs / "python", "-c", readme_example(), cwd=tmp_path).split()[-3:]
    assert float(accuracy) > 0.9
    assert float(ari) == 1.0
    assert int(cluster) in range(4)
    assert "<html" in (tmp_path / "report.html").read_text()
    assert "ifca" in run(programs / "coterie", "methods", cwd=tmp_path)
    table = run(programs / "coterie", "compare", "rotated-digits", "--methods", "fedavg,ifca", "--rounds", "3", cwd=tmp_path)
    assert "accuracy" in table
