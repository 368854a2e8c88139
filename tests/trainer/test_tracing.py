"""Traces of groups, with the real SDK and a receiver that speaks its protocol."""

import random
import re
import sys
from itertools import pairwise

import pytest
from tests.otlp_receiver import otlp_receiver

from grpo_trainer.errors import UsageError
from grpo_trainer.group_trace import NO_TRACE
from grpo_trainer.sampling.tracing import Tracing

STAGES = ["sample", "score", "wait", "train"]


def test_the_stages_of_a_group_follow_each_other_below_one_root():
    with otlp_receiver() as receiver:
        tracing = Tracing(receiver.url, run="a-run")
        trace = tracing.group(7)
        parents = {}
        for stage in STAGES:
            trace.enter(stage)
            parents[stage] = trace.traceparent
        trace.end("trained", step=3)
        tracing.close()
    spans = {span.name: span for span in receiver.spans}
    assert set(spans) == {"group", *STAGES}
    root = spans["group"]
    assert (root.service, root.parent_id, root.trace_id) == ("grpo-trainer", "", trace.trace_id)
    assert root.attributes == {
        "grpo.run": "a-run",
        "grpo.group": 7,
        "grpo.outcome": "trained",
        "grpo.step": 3,
    }
    for stage in STAGES:
        assert spans[stage].parent_id == root.span_id
        assert re.fullmatch(f"00-{root.trace_id}-{spans[stage].span_id}-0[0-9a-f]", parents[stage] or "")
        assert root.start_ns <= spans[stage].start_ns <= spans[stage].end_ns <= root.end_ns
    for earlier, later in pairwise(STAGES):
        assert spans[earlier].end_ns <= spans[later].start_ns


def test_groups_have_traces_of_their_own():
    with otlp_receiver() as receiver:
        tracing = Tracing(receiver.url, run="a-run")
        for position in range(3):
            tracing.group(position).end("stale")
        tracing.close()
    assert len({span.trace_id for span in receiver.spans}) == len(receiver.spans) == 3


def test_runs_with_one_seed_have_traces_of_their_own_and_draw_nothing_from_it():
    ids, states = [], []
    for _ in range(2):
        random.seed(42)
        tracing = Tracing("http://127.0.0.1:9", run="a-run")
        ids.append(tracing.group(0).trace_id)
        states.append(random.getstate())
        tracing.close()
    assert ids[0] != ids[1]
    random.seed(42)
    assert states == [random.getstate()] * 2


def test_without_an_endpoint_nothing_is_recorded():
    tracing = Tracing(None, run="a-run")
    trace = tracing.group(1)
    assert trace is NO_TRACE
    trace.enter("sample")
    assert (trace.trace_id, trace.traceparent) == (None, None)
    trace.end("trained", step=1)
    tracing.close()


@pytest.mark.processes
def test_a_receiver_that_is_away_costs_only_the_spans(caplog):
    tracing = Tracing("http://127.0.0.1:9", run="a-run")
    trace = tracing.group(1)
    trace.enter("sample")
    trace.end("trained", step=1)
    assert re.fullmatch("[0-9a-f]{32}", str(trace.trace_id))
    tracing.close()


def test_a_missing_library_is_told_before_the_run(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(UsageError, match=r"grpo-trainer\[tracing\]"):
        Tracing("http://127.0.0.1:9", run="a-run")
