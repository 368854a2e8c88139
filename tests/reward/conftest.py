"""What the tests of the reward server share."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
PLUGIN_MODULES = ("grpo_reward_plugin_", "swift")


@pytest.fixture(scope="session")
def misbehaving() -> Path:
    """A plugin whose rewards do what they must not."""
    return FOLDER / "plugins/misbehaving.py"


@pytest.fixture(scope="session", autouse=True)
def _compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The processes that these tests start share their compiled modules; compiling SymPy takes most of a start."""
    folder = tmp_path_factory.mktemp("compiled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "PYTHONPYCACHEPREFIX", str(folder))
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
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
