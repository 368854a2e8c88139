"""A line that comes again and again is written now and then."""

import logging

import pytest

from grpo_proto import fewer_repeats
from grpo_proto.fewer_repeats import FewerRepeats


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now_s = [100.0]
    monkeypatch.setattr(fewer_repeats.time, "monotonic", lambda: now_s[0])
    return now_s


def passed(fewer: FewerRepeats, text: str, level: int = logging.WARNING) -> str | None:
    record = logging.makeLogRecord({"msg": text, "levelno": level})
    return record.getMessage() if fewer.filter(record) else None


def test_the_next_line_says_how_many_there_were(clock: list[float]):
    fewer = FewerRepeats(every_s=10.0)
    assert [passed(fewer, "odd") for _ in range(4)] == ["odd", None, None, None]
    assert passed(fewer, "another") == "another"
    clock[0] += 10.0
    assert [passed(fewer, text) for text in ("odd", "odd", "another")] == [
        "odd (3 more since the last such line)",
        None,
        "another",
    ]


def test_lines_of_other_levels_pass_always(clock: list[float]):
    assert [passed(FewerRepeats(), "grave", logging.ERROR) for _ in range(2)] == ["grave", "grave"]
    both = FewerRepeats(levels=(logging.WARNING, logging.ERROR))
    assert [passed(both, "grave", logging.ERROR) for _ in range(2)] == ["grave", None]
