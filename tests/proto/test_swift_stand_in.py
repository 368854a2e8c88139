"""The stand-in for ms-swift beside what else is called `swift`."""

import importlib.util
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from unittest import mock

import pytest

from grpo_proto.swift_stand_in import MODULES, bases, hint_for, stand_in


@pytest.fixture(autouse=True)
def _without_swift() -> Iterator[None]:
    with mock.patch.dict(sys.modules):
        for name in [name for name in sys.modules if name.partition(".")[0] == "swift"]:
            del sys.modules[name]
        yield


@pytest.mark.parametrize("is_imported", [False, True])
def test_a_real_package_is_never_shadowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_imported: bool):
    (tmp_path / "swift").mkdir()
    (tmp_path / "swift/__init__.py").write_text("is_real = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    if is_imported:
        import_module("swift")
        (tmp_path / "swift/__init__.py").unlink()
    stand_in()
    assert import_module("swift").is_real
    assert "swift.rewards" not in sys.modules
    assert not bases("Env")


def test_a_folder_of_the_same_name_stays_importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "swift").mkdir()
    (tmp_path / "swift/mine.py").write_text("from swift.rewards import ORM\n")
    monkeypatch.syspath_prepend(tmp_path)
    stand_in()
    assert import_module("swift.mine").ORM is import_module("swift.plugin").ORM


def test_libraries_can_ask_whether_it_is_there_and_what_is_missing_is_named():
    stand_in()
    assert all(importlib.util.find_spec(name) is not None for name in MODULES)
    assert importlib.util.find_spec("swift.trainers") is None
    with pytest.raises(ModuleNotFoundError, match=r"swift\.trainers") as raised:
        import_module("swift.trainers")
    assert "pip install ms-swift" in str(hint_for(raised.value))
