"""What episodes printed does not fill the disk of a long run."""

import os
from pathlib import Path

import pytest

from grpo_trainer.episodes import kept_logs
from grpo_trainer.episodes.kept_logs import KeptLogs


def printed(logs: KeptLogs, session_id: str) -> Path:
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
            printed(logs, session_id)
        logs.ended(logs.file_of("silent"))
    assert kept(logs) == {"a", "d", "e"}
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/agents keeps what the newest 3 episodes printed: older files are removed"
    ]


def test_a_resumed_run_knows_the_files_from_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kept_logs, "MAX_FILES", 2)
    before = KeptLogs(tmp_path)
    for age_s, session_id in ((30, "b"), (40, "a")):
        os.utime(printed(before, session_id), (0, 1e9 - age_s))
    resumed = KeptLogs(tmp_path)
    printed(resumed, "c")
    assert kept(resumed) == {"b", "c"}
