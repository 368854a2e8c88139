"""The weight of the entropy bonus. Equal to TRL's: test_loss_equals_trl.py; resumed on real ranks: engine_worker.py."""

import json
import math

import pytest
from pydantic import ValidationError

from grpo_trainer.config.algorithm import AlgorithmConfig
from grpo_trainer.engine.entropy_coefficient import EntropyCoefficient

ADAPTIVE = AlgorithmConfig(use_adaptive_entropy=True, entropy_target=1.0, entropy_coef=0.02)


def test_a_fixed_coefficient_never_moves_and_leaves_nothing_in_a_checkpoint():
    coefficient = EntropyCoefficient(AlgorithmConfig(entropy_coef=0.3))
    assert coefficient.move({"entropy": 0.1}) == {}
    assert coefficient.applied == 0.3
    assert coefficient.state == {}
    coefficient.restore({"entropy_coef": 0.9, "last_entropy": 0.1})
    assert coefficient.applied == 0.3


def test_it_goes_on_from_its_state_to_the_bit():
    first, resumed = EntropyCoefficient(ADAPTIVE), EntropyCoefficient(ADAPTIVE)
    for entropy in (0.7, 0.1 + 0.2, 1.3, 0.9):
        first.move({"entropy": entropy})
    resumed.restore(json.loads(json.dumps(first.state)))
    assert resumed.state == first.state
    assert resumed.applied == first.applied > 0.02


def test_from_a_checkpoint_of_a_fixed_coefficient_it_starts_anew():
    coefficient = EntropyCoefficient(ADAPTIVE)
    coefficient.restore({"updates_done": 3})
    assert coefficient.state == {"entropy_coef": 0.02, "last_entropy": None}


@pytest.mark.parametrize("metrics", [{}, {"entropy": math.nan}, {"entropy": math.inf}], ids=str)
def test_it_stays_where_it_is_without_a_finite_entropy(metrics: dict[str, float]):
    coefficient = EntropyCoefficient(ADAPTIVE)
    coefficient.move({"entropy": 0.5})
    before = coefficient.state
    assert coefficient.move(metrics) == {"entropy_coef": before["entropy_coef"]}
    assert coefficient.state == before


TARGET = {"use_adaptive_entropy": True, "entropy_target": 1.0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"entropy_target": 0.5}, "entropy_target 0.5 is for an adaptive entropy_coef, and use_adaptive_entropy is"),
        ({"entropy_coef_delta": 0.1}, "set it true, or leave entropy_coef_delta out"),
        ({"use_adaptive_entropy": True}, "use_adaptive_entropy needs entropy_target, in nats per token"),
        (TARGET | {"entropy_coef_min": 2.0}, "entropy_coef_min 2 is above entropy_coef_max 1"),
        (TARGET | {"entropy_coef": 3.0}, "entropy_coef 3, .* is not between entropy_coef_min 0 and entropy_coef_max 1"),
        (TARGET | {"entropy_target": -1.0}, "greater than 0"),
        (TARGET | {"entropy_coef_min": -0.1}, "greater than or equal to 0"),
        (TARGET | {"entropy_coef_delta": 0.0}, "greater than 0"),
        ({"top_entropy_quantile": 1.5}, "less than or equal to 1"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, object], message: str):
    with pytest.raises(ValidationError, match=message):
        AlgorithmConfig(**settings)  # type: ignore[arg-type]


def test_the_settings_as_a_run_resolves_them_are_read_again():
    for settings in (AlgorithmConfig(), ADAPTIVE):
        assert AlgorithmConfig(**settings.model_dump()) == settings
