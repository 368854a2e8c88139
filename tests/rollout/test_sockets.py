"""Where vLLM's processes have the sockets between them."""

import os
import tempfile
from pathlib import Path

import pytest

from grpo_rollout.sockets import VARIABLE, folder_for_sockets


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")  # restored at the end, also when the code sets it


def test_it_is_private_and_goes_with_the_server():
    with folder_for_sockets():
        folder = Path(os.environ[VARIABLE])
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "socket").touch()
    assert not folder.exists()


def test_who_has_chosen_one_keeps_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with folder_for_sockets():
        assert os.environ[VARIABLE] == str(tmp_path)
    assert tmp_path.exists()


def test_a_temporary_folder_with_a_long_name_is_not_made_longer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with folder_for_sockets():
        assert not os.environ[VARIABLE]
