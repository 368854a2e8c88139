"""The policy as its own teacher, with real services: what it finds of its samples is what its server found of them."""

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import Stack, read_jsonl

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), pytest.mark.xdist_group("stack")]


def test_a_policy_that_reads_more_teaches_itself_and_one_that_reads_the_same_agrees(stack: Stack, tmp_path: Path):
    rows = str(stack.folder / "rows.jsonl")
    same, more = ({"of_itself": True, "prompt_template": text} for text in ("{prompt}", "{prompt}, {target} letters"))
    sets = {
        name: {"dataset": rows, "ratio": 0.5, "rewards": {}, "teacher": teacher}
        for name, teacher in (("same", same), ("more", more))
    }
    flags = ("--data.dataset", "null", "--data.datasets", json.dumps(sets), "--eval.eval_steps", 0, "--max_steps", 2)
    ended = stack.train(tmp_path / "run", *flags)
    assert ended.returncode == 0, ended.stdout
    steps = [line for line in read_jsonl(tmp_path / "run" / "metrics.jsonl") if "loss" in line]
    assert len(steps) == 2
    for step in steps:
        assert abs(step["data/same/teacher/kl"]) < 1e-4  # type: ignore[arg-type]
        assert abs(step["data/more/teacher/kl"]) > 1e-3  # type: ignore[arg-type]
        assert step["grad_norm"] > 0  # type: ignore[operator]
