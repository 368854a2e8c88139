"""docker/install.sh and docker/build_tools.sh, run for real: what wheels in a folder are good for."""

import hashlib
import os
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

INSTALL = Path(__file__).resolve().parents[3] / "docker/install.sh"
BUILD_TOOLS = INSTALL.with_name("build_tools.sh")
UV = Path(sys.executable).with_name("uv")
NO_INDEX = "http://127.0.0.1:9/simple"

Install = Callable[[Path, str, str], subprocess.CompletedProcess[str]]

pytestmark = [pytest.mark.processes, pytest.mark.skipif(not UV.exists(), reason="no uv")]


def _wheel(folder: Path, name: str) -> str:
    """Makes a wheel; returns its line of the pins."""
    file = folder / f"{name}-1.0-py3-none-any.whl"
    about = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name}.py", "")
        for part, text in about.items():
            archive.writestr(f"{name}-1.0.dist-info/{part}", text)
    return f"{name}==1.0 --hash=sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}\n"


def _install(
    tmp_path: Path, pins: str, index: str = NO_INDEX, variant: str = "any"
) -> subprocess.CompletedProcess[str]:
    (tmp_path / "pins.txt").write_text(pins)
    environment = {
        "PATH": f"{UV.parent}:{os.environ['PATH']}",
        "WHEELS": str(tmp_path / "wheels"),
        "UV_DEFAULT_INDEX": index,
        "UV_HTTP_RETRIES": "0",
        "UV_CACHE_DIR": str(tmp_path / "cache"),
    }
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "env"], check=True, timeout=60)
    command = ["sh", INSTALL, tmp_path / "env", variant, tmp_path / "pins.txt"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def quick_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a python3 whose `-m venv` copies an environment: making one with pip takes seconds."""
    folder = tmp_path_factory.mktemp("quick")
    subprocess.run([sys.executable, "-m", "venv", folder / "made"], check=True, timeout=120)
    python = folder / "python3"
    python.write_text(f'#!/bin/sh\n[ "$1 $2" = "-m venv" ] && [ $# = 3 ] && exec cp -a {folder}/made "$3"\nexit 1\n')
    python.chmod(0o755)
    return folder


def _build_tools(
    quick_python: Path, tmp_path: Path, pins: str, index: str = NO_INDEX
) -> subprocess.CompletedProcess[str]:
    (tmp_path / "pins.txt").write_text(pins)
    environment = {
        "PATH": f"{quick_python}:{os.environ['PATH']}",
        "WHEELS": str(tmp_path / "wheels"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": index,
        "PIP_RETRIES": "0",
    }
    command = ["sh", BUILD_TOOLS, tmp_path / "env", tmp_path / "pins.txt"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(params=["install.sh", "build_tools.sh"])
def install(request: pytest.FixtureRequest) -> Install:
    return _install if request.param == "install.sh" else partial(_build_tools, request.getfixturevalue("quick_python"))


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    (tmp_path / "wheels").mkdir()
    return tmp_path / "wheels"


@dataclass(frozen=True)
class Index:
    url: str
    folder: Path

    def project(self, name: str) -> Path:
        """The folder whose wheels are those of `name`."""
        (self.folder / name).mkdir(parents=True)
        return self.folder / name


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    """A package index on loopback: a folder for each project, as the simple API has it."""
    folder = tmp_path / "index"
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield Index(f"http://127.0.0.1:{server.server_port}", folder)
    server.shutdown()
    thread.join(10)
    server.server_close()


@pytest.mark.parametrize("variant", ["any", "cpu"])
def test_a_folder_with_every_pin_needs_no_index(tmp_path: Path, wheels: Path, variant: str) -> None:
    done = _install(tmp_path, _wheel(wheels, "one") + _wheel(wheels, "two"), variant=variant)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "env").rglob("one.py"))) == len(list((tmp_path / "env").rglob("two.py"))) == 1


def test_build_tools_of_a_folder_need_no_index(tmp_path: Path, wheels: Path, quick_python: Path) -> None:
    done = _build_tools(quick_python, tmp_path, _wheel(wheels, "one") + _wheel(wheels, "two"))
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "env").rglob("one.py"))) == len(list((tmp_path / "env").rglob("two.py"))) == 1


def test_what_the_folder_lacks_comes_from_the_index(
    tmp_path: Path, wheels: Path, index: Index, install: Install
) -> None:
    done = install(tmp_path, _wheel(wheels, "one") + _wheel(index.project("two"), "two"), index.url)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "env").rglob("one.py"))) == len(list((tmp_path / "env").rglob("two.py"))) == 1


def test_plugins_go_beside_a_vllm_that_overrides_its_own_installs(tmp_path: Path, wheels: Path) -> None:
    """The block of the Dockerfile, with the variable that vLLM's image leaves set."""
    dockerfile = (INSTALL.parent / "rollout.Dockerfile").read_text()
    (block,) = re.findall(
        r"^RUN --mount=type=bind,[^\n]*target=/wheels (\\\n    export .*?)\n\n", dockerfile, re.DOTALL | re.M
    )
    (tmp_path / "pins.txt").write_text(_wheel(wheels, "one"))
    (tmp_path / "dist").mkdir()
    _wheel(tmp_path / "dist", "ours")
    (tmp_path / "overrides.txt").write_text("two==2.0\n")
    for inside, here in (
        ("/src/rollout-gpu.txt", tmp_path / "pins.txt"), ("/wheels", wheels), ("/dist/", f"{tmp_path}/dist/"),
        ("/opt/grpo-plugins", tmp_path / "plugins"),
    ):  # fmt: skip
        block = block.replace(inside, str(here))
    environment = {
        "PATH": f"{UV.parent}:{os.environ['PATH']}",
        "UV_OVERRIDE": str(tmp_path / "overrides.txt"),
        "UV_DEFAULT_INDEX": NO_INDEX,
        "UV_HTTP_RETRIES": "0",
    }
    done = subprocess.run(
        ["sh", "-c", block], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {file.stem for file in (tmp_path / "plugins").glob("*.py")} == {"one", "ours"}


def test_what_is_nowhere_is_named(tmp_path: Path, wheels: Path, index: Index, install: Install) -> None:
    done = install(tmp_path, _wheel(wheels, "one") + f"missing==1.0 --hash=sha256:{'0' * 64}\n", index.url)
    assert done.returncode != 0
    assert "missing" in done.stderr


def test_another_file_than_the_pinned_one_is_refused(tmp_path: Path, wheels: Path, install: Install) -> None:
    pins = _wheel(wheels, "one").replace("sha256:", "sha256:0000")[: len("one==1.0 --hash=sha256:") + 64] + "\n"
    done = install(tmp_path, pins, NO_INDEX)
    assert done.returncode != 0
    assert not list((tmp_path / "env").rglob("one.py"))
