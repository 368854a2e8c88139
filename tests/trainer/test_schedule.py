"""The learning rate against transformers' own schedulers."""

import pytest
import torch
from transformers import get_scheduler

from grpo_trainer.config.optimization import OptimizerConfig
from grpo_trainer.engine.schedule import learning_rate


@pytest.mark.parametrize("warmup", [0, 3])
@pytest.mark.parametrize(
    ("ours", "theirs"), [("constant", "constant_with_warmup"), ("linear", "linear"), ("cosine", "cosine")]
)
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")  # no weights are trained here
def test_equals_transformers(ours: str, theirs: str, warmup: int):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    scheduler = get_scheduler(theirs, optimizer, num_warmup_steps=warmup, num_training_steps=10)
    config = OptimizerConfig(learning_rate=0.5, lr_scheduler_type=ours, warmup_steps=warmup)
    for update in range(11):
        expected = optimizer.param_groups[0]["lr"]
        assert learning_rate(config, update=update, total_updates=10) == pytest.approx(expected), update
        scheduler.step()


def test_the_warmup_ratio_is_rounded_up():
    config = OptimizerConfig(learning_rate=1.0, warmup_ratio=0.25)
    assert [learning_rate(config, update=k, total_updates=10) for k in range(4)] == [0.0, 1 / 3, 2 / 3, 1.0]
