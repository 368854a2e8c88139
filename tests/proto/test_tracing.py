"""Sending spans at the end of a process."""

import logging
import threading
from collections import Counter
from contextlib import closing
from socket import create_server

from grpo_proto import tracing
from grpo_proto.fewer_repeats import FewerRepeats


def test_a_receiver_that_does_not_answer_is_not_waited_for(monkeypatch, caplog):
    monkeypatch.setattr(tracing, "FLUSH_TIMEOUT_S", 0.5)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
    with closing(create_server(("127.0.0.1", 0))) as silent:
        provider = tracing.tracer_provider(f"http://127.0.0.1:{silent.getsockname()[1]}", service="test")
        for _ in range(10):
            provider.get_tracer("test").start_span("span").end()
        tracing.send_the_rest(provider)
    assert "they are lost" in caplog.text
    for sender in threading.enumerate():  # what it still says is this test's
        if sender.name == "last-spans":
            sender.join(20.0)
            assert not sender.is_alive()


def test_a_receiver_that_is_away_is_told_once_and_not_at_every_try(monkeypatch, caplog):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    lines: Counter[str] = Counter()

    class Counting(FewerRepeats):
        def filter(self, record: logging.LogRecord) -> bool:
            lines[record.msg] += 1
            return super().filter(record)

    monkeypatch.setattr(tracing, "_SELDOM", Counting(every_s=600.0, levels=(logging.WARNING, logging.ERROR)))
    monkeypatch.setattr(logging.getLogger(tracing.EXPORTER), "filters", [])
    with closing(create_server(("127.0.0.1", 0))) as gone:
        port = gone.getsockname()[1]
    provider = tracing.tracer_provider(f"http://127.0.0.1:{port}", service="test")
    for _ in range(3):
        provider.get_tracer("test").start_span("span").end()
        provider.force_flush()
    tracing.send_the_rest(provider)
    told = [record.msg for record in caplog.records if record.name == tracing.EXPORTER]
    assert told
    assert len(told) == len(set(told))
    assert max(lines.values()) >= 3
