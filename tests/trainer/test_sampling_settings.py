"""Settings of sampling: which are refused, beside what, and that the servers get them."""

import re
from pathlib import Path

import pytest
from tests.trainer.test_settings import read, run_file

from grpo_trainer.config.rollout import UNDISTORTED
from grpo_trainer.errors import UsageError
from grpo_trainer.sampling.sampler import training_sampling

__all__ = ["run_file"]

DISTORTING = {
    "top_p": "0.9", "top_k": "20", "min_p": "0.1", "repetition_penalty": "1.2", "presence_penalty": "0.5",
    "frequency_penalty": "-0.5", "min_tokens": "5", "logit_bias": '{"5": 1.5}', "bad_words": '["a"]',
    "structured_outputs_regex": "[0-9]+",
}  # fmt: skip
WRITTEN = {"logit_bias": "{5: 1.5}", "bad_words": "['a']"}


def test_every_setting_that_distorts_is_tried():
    assert DISTORTING.keys() == UNDISTORTED.keys()


@pytest.mark.parametrize("setting", DISTORTING)
def test_distorted_sampling_is_refused_where_the_servers_logprobs_enter_the_loss(run_file: Path, setting: str):
    given = DISTORTING[setting]
    value = re.escape(WRITTEN.get(setting, given))
    truncated = [f"--rollout.{setting}", given]
    uncorrected = ["--algorithm.importance_sampling_correction", "false"]
    with pytest.raises(UsageError, match=rf"rollout\.{setting} {value}: .*importance_sampling_correction true"):
        read(run_file, *truncated)
    with pytest.raises(UsageError, match=rf"rollout\.{setting} {value}: .*algorithm\.max_staleness 1"):
        read(run_file, *truncated, *uncorrected, "--algorithm.max_staleness", "1")
    masked = ["--algorithm.off_policy_mask_threshold", "0.1"]
    with pytest.raises(UsageError, match=rf"rollout\.{setting} {value}: .*algorithm\.off_policy_mask_threshold 0\.1"):
        read(run_file, *truncated, *uncorrected, *masked)
    distorted = read(run_file, *truncated, *uncorrected).rollout
    assert distorted.distorting == [f"rollout.{setting} {WRITTEN.get(setting, given)}"]
    undistorted = training_sampling(read(run_file).rollout)
    assert training_sampling(distorted) != undistorted, "the servers get it"


def test_what_cannot_be_sampled_is_refused_in_the_run_file(run_file: Path):
    with pytest.raises(UsageError, match=r"min_tokens 9 is more than max_completion_length 8"):
        read(run_file, "--rollout.min_tokens", "9", "--rollout.max_completion_length", "8")
    with pytest.raises(UsageError, match="bad_words may leave no token"):
        read(run_file, "--rollout.bad_words", '["a"]', "--rollout.structured_outputs_regex", "a")
    episodes = ["--episodes.environment", "e.py:E"]
    uncorrected = ["--algorithm.importance_sampling_correction", "false"]
    with pytest.raises(UsageError, match="turns are free text"):
        read(run_file, *episodes, *uncorrected, "--rollout.structured_outputs_regex", "a")
    with pytest.raises(UsageError, match=r"rollout\.min_tokens 9 is more than a turn has, 8"):
        read(run_file, *episodes, *uncorrected, "--rollout.min_tokens", "9", "--episodes.max_turn_tokens", "8")
