"""What the tests of the reward server share."""

import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.reward.app_server import Server
from tests.reward.machinery import Machinery
from tests.reward.plugins_only import workers_of_plugins
from tests.reward.real_server import Server as RealServer

FOLDER = Path(__file__).parent
PLUGIN_MODULES = ("grpo_reward_plugin_", "swift")


@pytest.fixture(scope="session")
def misbehaving() -> Path:
    """A plugin whose rewards do what they must not."""
    return FOLDER / "plugins/misbehaving.py"


@pytest.fixture(scope="session", autouse=True)
def _compiled_once() -> Iterator[None]:
    """The processes that these tests start keep their compiled modules; compiling SymPy takes most of a start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_settings() -> Iterator[None]:
    """The settings of whoever runs the tests are not those of the servers in them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("GRPO_API_TOKEN", "GRPO_REWARD_"))]:
            patch.delenv(name)
        yield


@pytest.fixture
def fresh_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plugins stay imported; a test must not see those of another."""
    for name in [name for name in sys.modules if name.startswith(PLUGIN_MODULES)]:
        monkeypatch.delitem(sys.modules, name)
    known = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in set(sys.modules) - known:
        if name.startswith(PLUGIN_MODULES):
            del sys.modules[name]


@pytest.fixture
def plugins_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands in this process start no workers for the built-in rewards, which are not needed: see the module."""
    monkeypatch.setattr("grpo_reward.executors.separate.worker_processes", workers_of_plugins)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """The application in this process."""
    server = Server()
    async with server.http:
        yield server


@pytest.fixture
def real_server(misbehaving: Path) -> Iterator[RealServer]:
    """The command, with rewards that do what they must not."""
    server = RealServer("--plugin", str(misbehaving), "--grace-s", "0.3")
    yield server
    if server.process.poll() is None:
        server.stop(signal.SIGKILL)


@pytest.fixture
def machinery(started: Machinery) -> Machinery:
    """The executor that the module has `started`, without the restarts of the tests before."""
    started.restarts.clear()
    return started
