"""The canary: agreement passes, a served policy that computes something else stops the run."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.trainer.made_vision import picture

from grpo_proto import ErrorDetail, InfrastructureError, Prompt, RolloutRequest
from grpo_trainer.algorithm.agreement import Rule
from grpo_trainer.algorithm.sequences import MicroBatch, Segment, Turn, untrained_sequence
from grpo_trainer.config.run_config import RunConfig
from grpo_trainer.config.weights import CanaryConfig
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.data.sent_images import ImagesOfPrompts
from grpo_trainer.engine.own_logprobs import own_logprobs
from grpo_trainer.errors import RunError
from grpo_trainer.fleet.canary import (
    Probe,
    canary_prompts,
    compare,
    compared_urls,
    rule_for,
    sample_probes,
)
from grpo_trainer.fleet.fleet import Fleet


def probe(url: str, *logprobs: float) -> Probe:
    return Probe(url, segment([1], [2] * len(logprobs), list(logprobs)))


def segment(prompt: list[int], completion: list[int], logprobs: list[float] | None = None) -> Segment:
    turn = Turn(len(prompt), len(prompt) + len(completion), [(1, len(completion))], "stop")
    return Segment([*prompt, *completion], [turn], logprobs)


def test_servers_that_agree_pass_and_the_difference_is_a_metric():
    probes = [probe("http://a", -1.0, -2.0), probe("http://b", -3.0)]
    metrics = compare(probes, [[-1.01, -2.0], [-3.02]], rule=Rule(0.03), version=3)
    assert metrics["canary/logprob_difference_mean"] == pytest.approx(0.01)
    assert metrics["canary/logprob_difference_max"] == pytest.approx(0.02)


@pytest.mark.parametrize("served", [-1.5, -0.5, math.nan])
def test_one_server_that_is_wrong_stops_the_run_and_is_named(served: float):
    probes = [probe("http://right", -1.0, -1.0, -1.0), probe("http://wrong", served)]
    with pytest.raises(RunError, match=r"http://wrong serves another policy than version 3"):
        compare(probes, [[-1.0, -1.0, -1.0], [-1.0]], rule=Rule(0.03), version=3)


def test_a_logprob_too_few_is_an_error_and_no_silent_cut():
    with pytest.raises(ValueError, match="zip"):
        compare([probe("http://a", -1.0)], [[-1.0, -2.0]], rule=Rule(0.02), version=1)


def test_without_a_server_there_is_no_number():
    assert compare([], [], rule=Rule(0.02), version=1) == {}
    assert compared_urls([probe("http://a", -1.0), probe("http://b")]) == {"http://a"}, "b sampled no token"


@pytest.mark.parametrize(("device", "dtype", "bound"), [("cpu", "float32", 1e-4), ("cuda", "bfloat16", 0.1)])
def test_two_engines_on_gpus_may_be_further_apart(device: str, dtype: str, bound: float):
    run = {
        "run_dir": "run",
        "model": {"name_or_path": "m", "dtype": dtype},
        "data": {"dataset": "rows.jsonl"},
        "reward": {"reward_funcs": ["format"]},
    }
    assert rule_for(RunConfig.model_validate(run), device, has_experts=False) == Rule(bound)
    own = run | {"canary": {"max_logprob_difference": 0.5}}
    assert rule_for(RunConfig.model_validate(own), device, has_experts=False) == Rule(0.5)


def test_a_few_tokens_that_took_other_experts_are_no_other_policy():
    """In bf16 the quantile counts; wrong weights move most tokens, and it stops the run."""
    run = {
        "run_dir": "run",
        "model": {"name_or_path": "m", "dtype": "bfloat16"},
        "data": {"dataset": "rows.jsonl"},
        "reward": {"reward_funcs": ["format"]},
    }
    rule = rule_for(RunConfig.model_validate(run), "cpu", has_experts=True)
    flipped = probe("http://a", -1.0, -1.0, -1.0, -1.0, -3.0)
    assert compare([flipped], [[-1.0] * 5], rule=rule, version=1)["canary/logprob_difference_max"] == 2.0
    with pytest.raises(RunError, match="at the 75% quantile"):
        compare([probe("http://a", *[-1.2] * 4, -1.0)], [[-1.0] * 5], rule=rule, version=1)
    fp32 = RunConfig.model_validate(run | {"model": {"name_or_path": "m", "dtype": "float32"}})
    assert rule_for(fp32, "cpu", has_experts=True).quantile is None


@pytest.mark.parametrize(
    ("num_prompts", "longest", "lengths"),
    [(4, 47, [3, 7, 11, 15]), (1, 47, [15]), (2, 20, [3, 3])],
    ids=["four", "one alone", "completions shorter than the canary's"],
)
def test_its_prompts_span_the_lengths_of_the_run(num_prompts: int, longest: int, lengths: list[int]):
    rows = [PromptRow(number, [number] * (3 + number), "p", {}) for number in range(3)]
    config = CanaryConfig(num_prompts=num_prompts, max_tokens=32)
    prompts = canary_prompts(rows, config, shortest=3, longest=longest)
    assert [len(prompt.token_ids or []) for prompt in prompts] == lengths
    assert prompts == canary_prompts(rows, config, shortest=3, longest=longest)
    if num_prompts == 4:
        assert [prompt.token_ids for prompt in prompts[:2]] == [[0, 0, 0], [1, 1, 1, 1, 2, 2, 2]]


def test_the_row_with_images_is_behind_the_others_which_have_none_of_their_tokens():
    rows = [PromptRow(0, [5, 9, 5], "p", {})]
    seen = PromptRow(3, [5, 9], "p", {}, images=(picture(1),))
    config, images = CanaryConfig(num_prompts=2, max_tokens=8), ImagesOfPrompts(token_id=9)
    *texts, last = canary_prompts(rows, config, shortest=3, longest=20, seen=seen, images=images)
    assert len(texts) == 2
    assert all(set(prompt.token_ids or []) == {5} and not prompt.images for prompt in texts)
    assert (last.token_ids, last.images) == ([5, 9], [picture(1)])


def test_what_is_sampled_behind_images_has_the_bound_by_itself():
    rule, far = Rule(0.01), probe("http://a", -1.03)
    behind = replace(far, segment=replace(far.segment, images=("encoded",)))
    texts = [probe("http://a", *[-1.0] * 9)]
    with pytest.raises(RunError, match=r"its logprobs behind images differ by 0\.03"):
        compare([*texts, behind], [[-1.0] * 9, [-1.0]], rule=rule, version=1)
    assert compare([*texts, far], [[-1.0] * 9, [-1.0]], rule=rule, version=1)


@pytest.mark.parametrize(("status", "stays"), [(504, True), (None, False)])
async def test_a_server_that_is_too_busy_to_be_checked_stays(status: int | None, stays: bool, caplog):
    async def too_late(_: RolloutRequest) -> None:
        detail = ErrorDetail(type="deadline", message="too late", retryable=True)
        raise InfrastructureError(detail, url="http://busy", status=status)

    fleet = Fleet(["http://busy"], min_replicas=1)
    await fleet.admit(fleet.replicas, session=1)
    fleet.replicas[0].rollouts.rollouts = too_late  # type: ignore[assignment,method-assign]
    assert (
        await sample_probes(fleet, [Prompt(token_ids=[1])], CanaryConfig(), session=1, version=1, temperature=1.0) == []
    )
    assert fleet.members == (fleet.replicas if stays else [])
    assert ("has not checked http://busy" in caplog.text) == stays
    await fleet.close()


def test_the_trainers_own_logprobs_keep_to_the_budget_of_a_micro_batch_and_come_in_order():
    seen: list[tuple[int, ...]] = []

    def logprobs(micro_batches: list[MicroBatch]) -> list[torch.Tensor]:
        seen.extend(tuple(batch.input_ids_BL.shape) for batch in micro_batches)
        return [batch.target_N.float() for batch in micro_batches]

    engine: Any = SimpleNamespace(device="cpu", logprobs=logprobs)
    completions = [list(range(1, 1 + n)) for n in (4, 1, 6, 2) * 5]
    sequences = [untrained_sequence(segment([9] * 3, completion)) for completion in completions]
    own = own_logprobs(engine, sequences, version=1, tokens_per_micro_batch=24, pad_token_id=0)
    assert own == [list(map(float, completion)) for completion in completions]
    assert all(rows * columns <= 24 for rows, columns in seen)
    assert own_logprobs(engine, [], version=1, tokens_per_micro_batch=24, pad_token_id=0) == []
