"""Build the wheels that an image installs, and look for every file of their packages in them."""

import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECTS = {"grpo_proto": "proto"} | {f"grpo_{name}": f"services/{name}" for name in ("rollout", "reward", "trainer")}


@pytest.mark.parametrize("package", PROJECTS)
def test_a_wheel_holds_every_file_of_its_package(package: str, tmp_path: Path) -> None:
    copy = tmp_path / "project"  # setuptools leaves a build folder beside what it builds
    shutil.copytree(ROOT / PROJECTS[package] / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / PROJECTS[package] / "pyproject.toml", copy)
    files = {str(path.relative_to(copy)) for path in (copy / package).rglob("*") if path.is_file()}
    build = [Path(sysconfig.get_path("scripts"), "uv"), "build", "--quiet", "--wheel", "--python", sys.executable]
    options = ["--no-build-isolation", "--no-index", "--out-dir", tmp_path]
    subprocess.run([*build, *options], cwd=copy, check=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    missing = files - set(zipfile.ZipFile(wheel).namelist())
    assert not missing, f"an image would lack {sorted(missing)}"
