"""What all services' logs have in common. The rest of it is tested with the trainer's."""

import json
import logging

import pytest

from grpo_proto.log_lines import formatter


def line(service: str, message: str, *arguments: object) -> str:
    record = logging.LogRecord("a.logger", logging.WARNING, "file.py", 1, message, arguments, None)
    return formatter(service).format(record)


def test_text_unless_asked_otherwise(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("GRPO_LOG_FORMAT", raising=False)
    assert line("reward", "%d samples", 3).endswith(" WARNING reward: 3 samples")


def test_json_lines_hide_secrets(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRPO_LOG_FORMAT", "json")
    monkeypatch.setenv("GRPO_API_TOKEN", "s3cret-of-ours")
    found = json.loads(line("rollout", "two\nlines with s3cret-of-ours"))
    assert found.pop("time").endswith("Z")
    expected = {"level": "warning", "service": "rollout", "logger": "a.logger", "message": "two\nlines with ***"}
    assert found == expected


def test_a_secret_from_a_file_and_a_whole_password_are_hidden(monkeypatch: pytest.MonkeyPatch):
    """A file ends with a line break, and a password may have an @."""
    monkeypatch.setenv("GRPO_LOG_FORMAT", "json")
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh123\n")
    found = json.loads(line("rollout", "hf_abcdefgh123 is refused by http://user:p@ss@host/x"))
    assert found["message"] == "*** is refused by http://user:***@host/x"


def test_an_unknown_format_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRPO_LOG_FORMAT", "xml")
    with pytest.raises(ValueError, match="GRPO_LOG_FORMAT xml is unknown: text or json"):
        formatter("reward")
