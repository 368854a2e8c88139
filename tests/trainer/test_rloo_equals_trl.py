"""Advantages, also of rewards with the KL in them, against TRL's RLOOTrainer, whose sampling alone is replaced."""

from importlib import import_module
from typing import Any

import pytest
import torch
from tests.tiny_model import make_model, make_tokenizer
from tests.trainer.made_episodes import VERSION, build_updates, completion
from tests.trainer.trl_reference import NUM_GENERATIONS, import_trl, perturb

from grpo_trainer.algorithm.decisions import training_sequences
from grpo_trainer.algorithm.kl_in_reward import log_ratio_sums, penalize, sequences_to_compare
from grpo_trainer.algorithm.sequences import Group
from grpo_trainer.config.algorithm import AlgorithmConfig
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.engine.policy import Policy

# Third-party: transformers and torch deprecate what TRL calls.
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

REWARDS: list[float | None] = [1.0, 0.0, 0.3, 0.3, None, 0.2, 1.1, None, 0.5, 0.5, 0.5, 0.5, None, None, 0.9, None]


BETA = 0.3
PROMPT = [5, 6]
COMPLETIONS = [[7 + k, 8, 9 + k][: 1 + k % 3] for k in range(len(REWARDS))]


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    trl, folder = import_trl(), tmp_path_factory.mktemp("rloo")
    make_model(tied=True, hidden_size=64).save_pretrained(folder / "model")
    config = trl.RLOOConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        report_to=[],
        per_device_train_batch_size=NUM_GENERATIONS,
        num_generations=NUM_GENERATIONS,
        gradient_checkpointing=False,
        beta=BETA,  # makes TRL keep a reference model; tests set `beta` afterwards
        model_init_kwargs={"dtype": "float32"},
    )
    trainer = trl.RLOOTrainer(
        model=str(folder / "model"),
        reward_funcs=lambda completions, **_: REWARDS,
        args=config,
        train_dataset=import_module("datasets").Dataset.from_list([{"prompt": "a"}]),
        processing_class=make_tokenizer(),
    )
    trainer.model.train()
    perturb(trainer.model, seed=1, scale=0.02)  # the policy has moved away from the reference
    trainer._generate = lambda prompts: ([PROMPT] * len(REWARDS), COMPLETIONS, ["x"] * len(REWARDS))
    return trainer


def expected_advantages(trainer: Any) -> torch.Tensor:
    advantages: torch.Tensor = trainer._generate_and_score_completions([{"prompt": "a"}] * len(REWARDS))["advantages"]
    return advantages


def grouped_episodes() -> list[Group]:
    episodes = [
        completion(str(k), token_ids, [-1.0] * len(token_ids), "x", "stop", [(VERSION, len(token_ids))], prompt=PROMPT)
        for k, token_ids in enumerate(COMPLETIONS)
    ]
    for episode, reward in zip(episodes, REWARDS, strict=True):
        episode.total = reward
    row = PromptRow(0, PROMPT, "a", {})
    return [Group(k, row, episodes[k : k + NUM_GENERATIONS]) for k in range(0, len(episodes), NUM_GENERATIONS)]


def assert_equal(groups: list[Group], algorithm: AlgorithmConfig, expected: torch.Tensor) -> None:
    training_sequences(groups, algorithm, reward_weights={}, max_completion_length=14)
    advantages = [episode.advantage for group in groups for episode in group.episodes]
    assert [a is None for a in advantages] == [reward is None for reward in REWARDS]
    # TRL gives 0 to what has no score, and counts its tokens.
    torch.testing.assert_close(torch.tensor([a or 0.0 for a in advantages]), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scale_rewards", ["none", "batch"])
def test_advantages_equal_trl(trainer: Any, scale_rewards: str):
    trainer.beta, trainer.normalize_advantages = 0.0, scale_rewards == "batch"
    algorithm = AlgorithmConfig(advantage_estimator="rloo", scale_rewards=scale_rewards)
    assert_equal(grouped_episodes(), algorithm, expected_advantages(trainer))


def test_advantages_of_rewards_with_the_kl_equal_trl(trainer: Any):
    trainer.beta, trainer.normalize_advantages = BETA, False
    expected = expected_advantages(trainer)
    groups = grouped_episodes()
    episodes, sequences = sequences_to_compare(groups)
    ((batch,),) = build_updates(sequences, tokens_per_micro_batch=10_000)
    order = sorted(sequences, key=lambda sequence: -sequence.num_tokens)  # as the micro-batch has them
    own, reference = (
        Policy(model, temperature=trainer.temperature, chunk_tokens=16)(*batch.inputs)
        for model in (trainer.model, trainer.ref_model)
    )
    metrics = penalize(episodes, order, log_ratio_sums(batch, own[0], reference[0]), beta=BETA)
    assert max(abs(episode.kl_penalty) for episode in episodes) > 1e-3
    assert_equal(groups, AlgorithmConfig(advantage_estimator="rloo", beta=BETA, kl_in_reward=True), expected)
    assert metrics["kl"] != 0.0
