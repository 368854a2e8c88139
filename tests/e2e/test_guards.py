"""A rule that stops, in a real run."""

from pathlib import Path

import pytest

from tests.e2e.conftest import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.xdist_group("stack")]


def test_a_completion_limit_that_cuts_nearly_everything_ends_the_run_by_default(stack: Stack, tmp_path: Path):
    flags = ("--guards.clipped", "stop", "--guards.steps", 1, "--rollout.max_completion_length", 1)
    ended = stack.train(tmp_path / "run", *flags)
    assert ended.returncode == 2, ended.stdout
    assert "guards.clipped stops the run after step 1" in ended.stdout
    assert (tmp_path / "run/checkpoints/checkpoint-1").exists()
