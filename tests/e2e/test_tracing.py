"""One trace from prompt to gradient: the trainer's spans, and those of the two servers below them."""

from pathlib import Path

import pytest

from tests.e2e.conftest import Stack, read_jsonl
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.xdist_group("stack")]


def test_a_trace_of_each_group_reaches_both_servers(stack: Stack, tmp_path: Path):
    flags = ("--logging.otlp_endpoint", stack.receiver.url, "--max_steps", 2, "--algorithm.max_staleness", 1)
    result = stack.train(tmp_path / "run", *flags)
    assert result.returncode == 0, result.stdout
    completions = read_jsonl(tmp_path / "run" / "completions.jsonl")
    traces = {(line["step"], line["group"]): str(line["trace_id"]) for line in completions}
    assert len(set(traces.values())) == len(traces) == 16
    # Four completions, the request for a score and the trainer's five.
    wait_until(lambda: all(len(stack.receiver.of(trace)) >= 10 for trace in traces.values()), "spans are missing")
    for (step, group), trace_id in traces.items():
        of_group = stack.receiver.of(trace_id)
        spans = {span.name: span for span in of_group if span.service == "grpo-trainer"}
        assert set(spans) == {"group", "sample", "score", "wait", "train"}
        servers = [span for span in of_group if span.service != "grpo-trainer"]
        scored = [span for span in servers if span.service == "grpo-reward"]
        assert [(span.name, span.parent_id, span.attributes["grpo.scores.ok"]) for span in scored] == [
            ("POST /v1/score", spans["score"].span_id, 4)
        ]
        sampled = [span.parent_id for span in servers if span.service != "grpo-reward"]
        assert sampled == [spans["sample"].span_id] * 4, "one for each completion"
        assert spans["group"].attributes == {
            "grpo.run": "run", "grpo.group": group, "grpo.outcome": "trained", "grpo.step": step,
        }  # fmt: skip
