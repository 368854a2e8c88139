"""The log: formats, levels, a bar that stays whole, and no secrets."""

import io
import json
import logging
import warnings
from collections.abc import Iterator

import pytest

from grpo_proto import fewer_repeats
from grpo_trainer.errors import UsageError
from grpo_trainer.observe.run_log import ALIKE, BesideTheBar, configure_logging


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    level = root.level
    yield
    for handler in [handler for handler in root.handlers if isinstance(handler, BesideTheBar)]:
        root.removeHandler(handler)
    root.setLevel(level)
    for name in ALIKE:
        logging.getLogger(name).setLevel(logging.NOTSET)
    logging.captureWarnings(False)


def logged(*messages: str, **options: int) -> list[str]:
    stream = io.StringIO()
    configure_logging(stream=stream, **options)
    for message in messages:
        logging.getLogger("grpo_trainer.test").info(message)
    return stream.getvalue().splitlines()


def test_a_line_has_time_level_and_service():
    [line] = logged("step %d done")
    date, clock, rest = line.split(" ", 2)
    assert len(date) == 10
    assert len(clock) == 8
    assert rest == "INFO trainer: step %d done"


def warned(rank: int, *loggers: str) -> list[str]:
    stream = io.StringIO()
    configure_logging(rank=rank, stream=stream)
    for name in loggers:
        logging.getLogger(name).warning("odd in %s", name)
    return [line.partition(": ")[2] for line in stream.getvalue().splitlines()]


def test_what_all_ranks_do_alike_is_warned_of_once(monkeypatch: pytest.MonkeyPatch):
    own = ("grpo_trainer.engine.model", "grpo_trainer.lora.adapter", "grpo_trainer.fleet.push", "httpx")
    assert warned(0, *own) == [f"odd in {name}" for name in own]
    assert warned(1, *own) == [f"odd in {name}" for name in own[2:]]
    monkeypatch.setenv("GRPO_LOG_LEVEL", "warning")
    assert warned(1, *own) == [f"odd in {name}" for name in own]


def test_equal_warnings_are_one_line(monkeypatch: pytest.MonkeyPatch):
    now_s = [100.0]
    monkeypatch.setattr(fewer_repeats.time, "monotonic", lambda: now_s[0])
    stream = io.StringIO()
    configure_logging(stream=stream)
    for url in ["http://a"] * 8 + ["http://b"]:
        logging.getLogger("grpo_trainer.test").warning("lost %s", url)
    now_s[0] += 60.0
    logging.getLogger("grpo_trainer.test").warning("lost %s", "http://a")
    assert [line.partition(": ")[2] for line in stream.getvalue().splitlines()] == [
        "lost http://a",
        "lost http://b",
        "lost http://a (7 more since the last such line)",
    ]


def test_json_lines_on_request(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRPO_LOG_FORMAT", "json")
    [line] = logged('say "hi"')
    record = json.loads(line)
    assert record["message"] == 'say "hi"'
    assert (record["level"], record["service"], record["logger"]) == ("info", "trainer", "grpo_trainer.test")
    assert record["time"].endswith("Z")


def test_the_level_is_a_setting_and_third_parties_only_warn(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRPO_LOG_LEVEL", "warning")
    assert logged("quiet") == []
    monkeypatch.setenv("GRPO_LOG_LEVEL", "info")
    stream = io.StringIO()
    configure_logging(stream=stream)
    logging.getLogger("httpx").info("HTTP Request: POST …")
    logging.getLogger("httpx").warning("odd")
    assert [line.split(": ", 1)[1] for line in stream.getvalue().splitlines()] == ["odd"]


def test_other_ranks_only_warn_and_say_who_they_are(monkeypatch: pytest.MonkeyPatch):
    assert logged("step 1", rank=1) == []
    monkeypatch.setenv("GRPO_LOG_LEVEL", "info")
    [line] = logged("step 1", rank=1)
    assert line.endswith("INFO trainer[1]: step 1")


@pytest.mark.parametrize(("variable", "value"), [("GRPO_LOG_LEVEL", "loud"), ("GRPO_LOG_FORMAT", "xml")])
def test_unknown_settings_are_named(monkeypatch: pytest.MonkeyPatch, variable: str, value: str):
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=variable):
        configure_logging(stream=io.StringIO())


def test_secrets_never_reach_the_log(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRPO_API_TOKEN", "s3cret-of-ours")
    lines = logged(
        "token s3cret-of-ours was refused",
        "Authorization: Bearer abcdefgh.ijk-lmn",
        "GET https://user:passw0rd@host/x?a=1&token=zzzzzz&b=2",
    )
    text = "\n".join(lines)
    assert not [secret for secret in ("s3cret-of-ours", "abcdefgh", "passw0rd", "zzzzzz") if secret in text]
    assert "a=1&token=***&b=2" in text
    assert "https://user:***@host/x" in text


def test_a_stack_trace_is_logged_without_secrets(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijk")
    stream = io.StringIO()
    configure_logging(stream=stream)
    try:
        raise ValueError("bad token hf_abcdefghijk")
    except ValueError:
        logging.getLogger("x").exception("failed")
    assert "Traceback" in stream.getvalue()
    assert "hf_abcdefghijk" not in stream.getvalue()


def test_set_up_twice_writes_once():
    configure_logging(stream=io.StringIO())
    assert len(logged("once")) == 1


def test_warnings_of_python_come_through_the_log():
    stream = io.StringIO()
    configure_logging(stream=stream)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)
        logging.captureWarnings(True)
        warnings.warn("old option", stacklevel=1)
    assert "WARNING trainer: " in stream.getvalue()
    assert "old option" in stream.getvalue()
