"""The learning rate against transformers' own schedulers, stepped as its Trainer steps them."""

import warnings
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import get_scheduler

from grpo_trainer.config.lr_schedule import LrSchedulerKwargs
from grpo_trainer.config.optimization import OptimizerConfig
from grpo_trainer.engine.schedule import learning_rates, schedule_doubts
from grpo_trainer.errors import UsageError

DECAY = {"num_decay_steps": 4, "min_lr_ratio": 0.1, "decay_type": "1-sqrt"}


@pytest.mark.parametrize("warmup", [0, 3])
@pytest.mark.parametrize(
    ("ours", "theirs", "kwargs"),
    [
        ("constant", "constant_with_warmup", {}),
        ("linear", "linear", {}),
        ("cosine", "cosine", {}),
        ("cosine", "cosine", {"num_cycles": 1.5}),
        ("cosine_with_min_lr", "cosine_with_min_lr", {"min_lr_rate": 0.1}),
        ("cosine_with_min_lr", "cosine_with_min_lr", {"min_lr": 1e-7}),
        ("cosine_warmup_with_min_lr", "cosine_warmup_with_min_lr", {"min_lr": 0.1, "warmup_lr_rate": 0.2}),
        ("cosine_with_restarts", "cosine_with_restarts", {"num_cycles": 2}),
        ("polynomial", "polynomial", {"power": 2.0, "lr_end": 0.0}),
        ("inverse_sqrt", "inverse_sqrt", {}),
        ("inverse_sqrt", "inverse_sqrt", {"timescale": 5}),
        ("warmup_stable_decay", "warmup_stable_decay", DECAY),
        ("warmup_stable_decay", "warmup_stable_decay", DECAY | {"num_stable_steps": 2}),
    ],
)
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step", "ignore:Both num_training_steps")
def test_equals_transformers(ours: Any, theirs: str, kwargs: dict[str, Any], warmup: int):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    scheduler = get_scheduler(
        theirs, optimizer, num_warmup_steps=warmup, num_training_steps=10, scheduler_specific_kwargs=kwargs
    )
    written = {name: str(value) for name, value in kwargs.items()}  # as YAML 1.1 has 1e-7, and a flag every number
    config = OptimizerConfig.model_validate(
        {"learning_rate": 0.5, "lr_scheduler_type": ours, "lr_scheduler_kwargs": written, "warmup_steps": warmup}
    )
    rate_of = learning_rates(config, total_updates=10)
    for update in range(11):
        assert rate_of(update) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12), update
        scheduler.step()


def test_the_warmup_ratio_is_rounded_up():
    rate_of = learning_rates(OptimizerConfig(learning_rate=1.0, warmup_ratio=0.25), total_updates=10)
    assert [rate_of(update) for update in range(4)] == [0.0, 1 / 3, 2 / 3, 1.0]


def test_a_decay_that_is_longer_than_the_run_is_refused():
    kwargs = LrSchedulerKwargs(num_decay_steps=8, warmup_type="cosine")
    config = OptimizerConfig(lr_scheduler_type="warmup_stable_decay", lr_scheduler_kwargs=kwargs, warmup_steps=3)
    with pytest.raises(UsageError, match="num_decay_steps 8 is more than the 7 updates after the warm-up"):
        learning_rates(config, total_updates=10)
    assert learning_rates(config, total_updates=11)(11) == 0.0


def test_a_run_may_end_in_the_warm_up_and_says_so():
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=8, lr_scheduler_type="linear")
    rate_of = learning_rates(config, total_updates=4)
    assert [rate_of(update) for update in range(4)] == [0.0, 1 / 8, 2 / 8, 3 / 8]
    [doubt] = schedule_doubts(config, total_updates=4)
    assert "by optimizer.warmup_steps: 8 of 4 updates" in doubt
    assert schedule_doubts(config, total_updates=9) == []


def test_a_decay_that_the_run_ends_before_is_named():
    kwargs = LrSchedulerKwargs(num_decay_steps=2, num_stable_steps=5)
    config = OptimizerConfig(lr_scheduler_type="warmup_stable_decay", lr_scheduler_kwargs=kwargs, warmup_steps=1)
    [doubt] = schedule_doubts(config, total_updates=7)
    assert "ends after 8 updates, and the run after 7" in doubt
    assert schedule_doubts(config, total_updates=8) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert config.model_dump(mode="json")["lr_scheduler_kwargs"] == {"num_decay_steps": 2, "num_stable_steps": 5}


def test_a_rate_that_has_come_down_stays_down():
    config = OptimizerConfig(learning_rate=1.0, lr_scheduler_type="cosine")
    rate_of = learning_rates(config, total_updates=10)
    assert rate_of(12) == rate_of(10) == 0.0


@pytest.mark.parametrize(
    ("schedule", "kwargs", "message"),
    [
        ("cosine", {"min_lr": 0.1}, "min_lr is of cosine_with_min_lr, cosine_warmup_with_min_lr, not of cosine"),
        ("constant", {"power": 2}, "power is of polynomial, not of constant"),
        ("cosine_with_min_lr", {}, "needs lr_scheduler_kwargs.min_lr or min_lr_rate"),
        ("cosine_with_min_lr", {"min_lr": 0.0, "min_lr_rate": 0.1}, "needs lr_scheduler_kwargs.min_lr or min_lr_rate"),
        ("cosine_with_min_lr", {"min_lr": 0.5}, "min_lr 0.5 is not below learning_rate 0.5"),
        ("warmup_stable_decay", {}, "needs lr_scheduler_kwargs.num_decay_steps"),
        ("polynomial", {"lr_end": 1}, "lr_end 1 is not below learning_rate 0.5"),
        ("cosine_with_min_lr", {"min_lr_ratee": 0.1}, "Extra inputs are not permitted"),
    ],
)
def test_parameters_that_the_schedule_does_not_read_are_refused(schedule: str, kwargs: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        OptimizerConfig.model_validate(
            {"learning_rate": 0.5, "lr_scheduler_type": schedule, "lr_scheduler_kwargs": kwargs}
        )
