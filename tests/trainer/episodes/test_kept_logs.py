"""Files of what episodes printed do not fill the disk of a long run."""

import os
from pathlib import Path

import pytest

from grpo_trainer.episodes import kept_logs
from grpo_trainer.episodes.kept_logs import KeptLogs


def played(logs: KeptLogs, session_id: str) -> Path:
    file = logs.file_of(session_id)
    file.parent.mkdir(exist_ok=True)
    file.write_text(session_id)
    logs.ended(file)
    return file


def kept(logs: KeptLogs) -> set[str]:
    return {file.stem for file in logs.folder.iterdir()}


def test_the_newest_files_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(kept_logs, "MAX_FILES", 3)
    logs = KeptLogs(tmp_path / "agents")
    with caplog.at_level("INFO"):
        for session_id in ("a", "b", "c", "a", "d", "e"):  # `a` was played once more
            played(logs, session_id)
        logs.ended(logs.file_of("silent"))  # printed nothing, and is one of the newest three
    assert kept(logs) == {"d", "e"}
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/agents keeps what the newest 3 episodes printed: older files are removed"
    ]


def test_what_is_being_written_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kept_logs, "MAX_FILES", 2)
    logs = KeptLogs(tmp_path)
    oldest = played(logs, "a")
    again = logs.file_of("a")
    for session_id in ("b", "c", "d"):
        played(logs, session_id)
    assert again == oldest
    assert kept(logs) == {"a", "c", "d"}


def test_a_resumed_run_knows_the_files_from_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """And removes those that are too many a few at a time: of a run from before there may be a million."""
    monkeypatch.setattr(kept_logs, "MAX_FILES", 2)
    monkeypatch.setattr(kept_logs, "REMOVED_AT_ONCE", 2)
    for age_s, name in ((10, "d"), (30, "b"), (40, "a"), (20, "c")):
        file = tmp_path / f"{name}.log"
        file.touch()
        os.utime(file, (0, 1e9 - age_s))
    resumed = KeptLogs(tmp_path)
    played(resumed, "e")
    assert kept(resumed) == {"c", "d", "e"}
    played(resumed, "f")
    assert kept(resumed) == {"e", "f"}
