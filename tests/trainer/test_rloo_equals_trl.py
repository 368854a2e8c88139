"""Advantages against TRL's RLOOTrainer, whose sampling alone is replaced."""

import pytest
import torch
from datasets import Dataset
from tests.tiny_model import make_model, make_tokenizer
from tests.trainer.trl_reference import NUM_GENERATIONS
from trl import RLOOConfig, RLOOTrainer

from grpo_trainer.algorithm.estimators import estimator_of
from grpo_trainer.algorithm.estimators.rewards import Rewards
from grpo_trainer.config.algorithm import AlgorithmConfig

# Third-party: transformers and torch deprecate what TRL calls.
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

REWARDS: list[float | None] = [1.0, 0.0, 0.3, 0.3, None, 0.2, 1.1, None, 0.5, 0.5, 0.5, 0.5, None, None, 0.9, None]


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> RLOOTrainer:
    folder = tmp_path_factory.mktemp("rloo")
    make_model(tied=True, hidden_size=64).save_pretrained(folder / "model")
    config = RLOOConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        report_to=[],
        per_device_train_batch_size=NUM_GENERATIONS,
        num_generations=NUM_GENERATIONS,
        gradient_checkpointing=False,
        beta=0.0,
        model_init_kwargs={"dtype": "float32"},
    )
    trainer = RLOOTrainer(
        model=str(folder / "model"),
        reward_funcs=lambda completions, **_: REWARDS,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "a"}]),
        processing_class=make_tokenizer(),
    )
    count = len(REWARDS)
    trainer._generate = lambda prompts: ([[5, 6]] * count, [[7, 8, 9]] * count, ["x"] * count)
    return trainer


@pytest.mark.parametrize("scale_rewards", ["none", "batch"])
def test_advantages_equal_trl(trainer: RLOOTrainer, scale_rewards: str):
    trainer.normalize_advantages = scale_rewards == "batch"
    expected = trainer._generate_and_score_completions([{"prompt": "a"}] * len(REWARDS))["advantages"]
    algorithm = AlgorithmConfig(advantage_estimator="rloo", scale_rewards=scale_rewards)
    totals = [REWARDS[k : k + NUM_GENERATIONS] for k in range(0, len(REWARDS), NUM_GENERATIONS)]
    advantages = [a for group in estimator_of(algorithm)(Rewards(totals), algorithm) for a in group]
    assert [a is None for a in advantages] == [reward is None for reward in REWARDS]
    # TRL gives 0 to what has no score, and counts its tokens.
    torch.testing.assert_close(torch.tensor([a or 0.0 for a in advantages]), expected, rtol=1e-6, atol=1e-6)
