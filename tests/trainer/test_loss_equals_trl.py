"""Advantages, loss, gradient and metrics against TRL's GRPOTrainer on the same tensors."""

import random
from typing import Any

import pytest
import torch
from tests.tiny_model import make_tokenizer
from tests.trainer.made_episodes import build_updates
from tests.trainer.trl_cases import CASES
from tests.trainer.trl_reference import MAX_COMPLETION_LENGTH, NUM_GENERATIONS, Completions, TrlReference, perturb

from grpo_trainer.algorithm.decisions import sequences_of
from grpo_trainer.algorithm.entropy_mask import mark_high_entropy
from grpo_trainer.algorithm.estimators.gdpo import gdpo
from grpo_trainer.algorithm.estimators.grpo import grpo
from grpo_trainer.algorithm.estimators.rewards import Rewards
from grpo_trainer.algorithm.estimators.statistics import reward_metrics
from grpo_trainer.algorithm.loss import old_logprobs
from grpo_trainer.algorithm.reduction import Tally
from grpo_trainer.algorithm.sequences import MicroBatch, TrainingSequence, single_turn
from grpo_trainer.algorithm.surrogates import surrogate_of
from grpo_trainer.config.algorithm import AlgorithmConfig
from grpo_trainer.engine.batch_loss import batch_loss
from grpo_trainer.engine.entropy_coefficient import EntropyCoefficient
from grpo_trainer.engine.policy import Policy

pytestmark = [
    # Third-party: TRL marks its own rollout hook, transformers and torch deprecate what TRL calls.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning"),
]
TEMPERATURE = 0.8
EOS = make_tokenizer().eos_token_id


@pytest.fixture(scope="module")
def trl(tmp_path_factory: pytest.TempPathFactory) -> TrlReference:
    return TrlReference(tmp_path_factory.mktemp("trl"), temperature=TEMPERATURE)


def make_batch(seed: int, num_groups: int = 3) -> Completions:
    rng = random.Random(seed)
    tokens = lambda low, high: [rng.randrange(5, 100) for _ in range(rng.randint(low, high))]  # noqa: E731
    prompts = [tokens(2, 7) for _ in range(num_groups) for _ in [None]]
    completions = [tokens(1, MAX_COMPLETION_LENGTH) for _ in range(num_groups * NUM_GENERATIONS)]
    return Completions(
        prompt_ids=[prompt for prompt in prompts for _ in range(NUM_GENERATIONS)],
        completion_ids=completions,
        logprobs=[[-4.5 + rng.gauss(0, 1.0) for _ in completion] for completion in completions],
        rewards=[rng.choice([0.0, 0.1, 1.1]) + rng.random() for _ in completions],
    )


def ours(batch: Completions, algorithm: AlgorithmConfig) -> list[TrainingSequence]:
    groups = [batch.rewards[k : k + NUM_GENERATIONS] for k in range(0, len(batch.rewards), NUM_GENERATIONS)]
    advantages = [a for group in grpo(Rewards(groups), algorithm) for a in group]
    episodes = [
        single_turn("e", prompt, completion, versions=[(1, len(completion))], finish_reason="stop", logprobs=logprobs)
        for prompt, completion, logprobs in zip(batch.prompt_ids, batch.completion_ids, batch.logprobs, strict=True)
    ]
    taken = [(episode, a) for episode, a in zip(episodes, advantages, strict=True) if a is not None]
    masked = [algorithm.mask_truncated_completions and ids[-1] != EOS for ids in batch.completion_ids]
    return sequences_of(taken, algorithm, max_completion_length=MAX_COMPLETION_LENGTH, masked=masked)


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo", "luspo"])
def test_what_is_cut_off_and_masked_counts_as_in_trl(trl: TrlReference, loss_type: str):
    """Among the completions, and not among their tokens."""
    algorithm = AlgorithmConfig(
        loss_type=loss_type, mask_truncated_completions=True, importance_sampling_correction=False
    )
    trl.configure(algorithm)
    batch = make_batch(seed=3)
    for ids in batch.completion_ids[::3]:
        ids[-1] = EOS
    (ours_batch,) = one_micro_batch(ours(batch, algorithm))
    expected_loss, expected_gradient = trl.loss_and_gradient(trl.score(batch))
    loss, gradient, _ = loss_and_gradient(trl.copy_of_model(), ours_batch, algorithm)
    assert loss == pytest.approx(expected_loss, rel=1e-5, abs=1e-7)
    assert relative_difference(gradient, expected_gradient) < 1e-5


def policy(model: Any) -> Policy:
    return Policy(model, temperature=TEMPERATURE, chunk_tokens=16)


def logprobs(model: Any, batch: MicroBatch) -> torch.Tensor:
    with torch.no_grad():
        return policy(model)(*batch.inputs)[0]


def one_micro_batch(sequences: list[TrainingSequence]) -> list[MicroBatch]:
    """The micro-batch of every update, each update in one piece."""
    updates = build_updates(
        sequences,
        version=1,
        tokens_per_micro_batch=100_000,
        rank=0,
        world_size=1,
        pad_token_id=0,
        device="cpu",
    )
    return [micro_batch for (micro_batch,) in updates]


def loss_and_gradient(
    model: Any, batch: MicroBatch, algorithm: AlgorithmConfig, *, entropy_coef: float | None = None
) -> tuple[float, dict[str, torch.Tensor], Tally]:
    model.zero_grad()
    with torch.no_grad():
        entropy_N = policy(model)(*batch.inputs)[1]
    mark_high_entropy([batch], [entropy_N], top_quantile=algorithm.top_entropy_quantile)
    surrogate = surrogate_of(algorithm)
    entropy_coef = algorithm.entropy_coef if entropy_coef is None else entropy_coef
    loss, tally = batch_loss(policy(model), batch, algorithm, surrogate, entropy_coef=entropy_coef, fills_old=True)
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}, tally


def relative_difference(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    assert found.keys() == expected.keys()
    flat = lambda tensors: torch.cat([tensors[name].flatten() for name in sorted(tensors)])  # noqa: E731
    return float((flat(found) - flat(expected)).norm() / flat(expected).norm())


CLIP_METRICS = {"clip_ratio/low_mean", "clip_ratio/high_max", "clip_ratio/region_mean"}
# VESPO's weight is a power of the product of an episode's ratios: it multiplies the rounding of a dozen logprobs by k.
ROUNDING = {"vespo": 1e-5}
METRICS: dict[str, set[str]] = {"cispo": {"cispo_clip_ratio"}, "vespo": {"vespo/phi_seq_mean"}, "sapo": set()}


def algorithm_of(case: dict[str, Any]) -> AlgorithmConfig:
    names = {
        "correction": "importance_sampling_mode",
        "correction_limit": "importance_sampling_clip_max",
        "correction_minimum": "importance_sampling_clip_min",
    }
    fields = {names.get(name, name): value for name, value in case.items()}
    return AlgorithmConfig(**fields, importance_sampling_correction="correction" in case)


@pytest.mark.parametrize("name", CASES)
def test_loss_gradient_and_metrics_equal_trl(trl: TrlReference, name: str):
    case = CASES[name]
    algorithm = algorithm_of(case)
    trl.configure(algorithm)
    batch = make_batch(seed=len(name))
    (ours_batch,) = one_micro_batch(ours(batch, algorithm))

    inputs = trl.score(batch)
    if algorithm.beta > 0:
        ours_batch.ref_logprobs_N = logprobs(trl.reference, ours_batch)
    if algorithm.num_iterations > 1:
        ours_batch.old_logprobs_N = old_logprobs(ours_batch, logprobs(trl.copy_of_model(), ours_batch))
        perturb(trl.model, seed=99, scale=0.1)
    expected_loss, expected_gradient = trl.loss_and_gradient(inputs)
    loss, gradient, tally = loss_and_gradient(trl.copy_of_model(), ours_batch, algorithm)

    bound = ROUNDING.get(algorithm.surrogate_name, 1e-6)
    assert loss == pytest.approx(expected_loss, abs=bound)
    assert relative_difference(gradient, expected_gradient) < bound
    metrics, expected = tally.reduce(), trl.metrics()
    compared = {key for key in metrics if key in expected}
    assert {"entropy", *METRICS.get(algorithm.surrogate_name, CLIP_METRICS)} <= compared
    assert ("kl" in compared) == (algorithm.beta > 0)
    assert ("sampling/importance_sampling_ratio/mean" in compared) == algorithm.importance_sampling_correction
    for key in compared:
        assert metrics[key] == pytest.approx(expected[key], rel=2e-6, abs=2e-6), key
    for share in {"clip_ratio/region_mean", "cispo_clip_ratio"} & compared if algorithm.num_iterations > 1 else ():
        assert metrics[share] > 0, "the case clips nothing and shows little"
    if algorithm.off_policy_mask_threshold is not None:
        assert 0 < metrics["sampling/off_policy_masked"] < 1, "the case masks nothing, or everything"
    if algorithm.masks_low_entropy:
        assert metrics["entropy_mask/masked"] == pytest.approx(1 - algorithm.top_entropy_quantile, abs=0.06), "ties"
        assert metrics["entropy_mask/entropy"] > metrics["entropy"]


@pytest.mark.parametrize("top_quantile", [1.0, 0.4])
def test_an_adaptive_entropy_coefficient_moves_and_is_applied_like_trls(trl: TrlReference, top_quantile: float):
    adaptive = {"entropy_coef_delta": 0.02, "entropy_coef_max": 0.04, "use_adaptive_entropy": True}
    case = {"loss_type": "grpo", "entropy_coef": 0.01, "top_entropy_quantile": top_quantile, "entropy_target": 4.5}
    algorithm = algorithm_of({**case, **adaptive})
    measured = "entropy" if top_quantile == 1.0 else "entropy_mask/entropy"

    def entropy(batch: Completions) -> float:
        (ours_batch,) = one_micro_batch(ours(batch, algorithm))
        return loss_and_gradient(trl.copy_of_model(), ours_batch, algorithm)[2].reduce()[measured]

    lowest, low, high, highest = sorted((make_batch(seed) for seed in range(4)), key=entropy)
    algorithm = algorithm.model_copy(update={"entropy_target": (entropy(low) + entropy(high)) / 2})
    trl.configure(algorithm)
    coefficient, applied, moved = EntropyCoefficient(algorithm), [], []
    for batch in (low, lowest, high, highest, low, high):
        (ours_batch,) = one_micro_batch(ours(batch, algorithm))
        expected_loss, expected_gradient = trl.loss_and_gradient(trl.score(batch))
        applied.append(coefficient.applied)
        loss, gradient, tally = loss_and_gradient(
            trl.copy_of_model(), ours_batch, algorithm, entropy_coef=coefficient.applied
        )
        assert loss == pytest.approx(expected_loss, abs=1e-6)
        assert relative_difference(gradient, expected_gradient) < 1e-6
        moved.append(coefficient.move(tally.reduce())["entropy_coef"])
        assert moved[-1] == trl.metrics()["entropy_coef"]
    assert applied == pytest.approx([0.0, 0.03, 0.04, 0.0, 0.0, 0.02])
    assert moved == pytest.approx([0.03, 0.04, 0.02, 0.0, 0.02, 0.0])


def test_dapo_spreads_the_tokens_of_the_generation_batch_over_its_updates_like_trl(trl: TrlReference):
    case = {"loss_type": "dapo", "steps_per_generation": 2}
    algorithm = algorithm_of(case)
    trl.configure(algorithm)
    batch = make_batch(seed=5, num_groups=4)
    inputs = trl.score(batch)
    half = len(batch.prompt_ids) // 2
    for k, ours_batch in enumerate(one_micro_batch(ours(batch, algorithm))):
        rows = slice(k * half, (k + 1) * half)
        theirs = {
            key: value[rows] if torch.is_tensor(value) and value.dim() > 0 else value for key, value in inputs.items()
        }
        expected_loss, expected_gradient = trl.loss_and_gradient(theirs)
        loss, gradient, _ = loss_and_gradient(trl.copy_of_model(), ours_batch, algorithm)
        assert loss == pytest.approx(expected_loss, abs=1e-6)
        assert relative_difference(gradient, expected_gradient) < 1e-6


@pytest.mark.parametrize("scale_rewards", ["group", "batch", "none"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_advantages_equal_trl(trl: TrlReference, scale_rewards: str, seed: int):
    trl.configure(algorithm_of({"scale_rewards": scale_rewards}))
    batch = make_batch(seed, num_groups=4)
    inputs = trl.score(batch)
    groups = [batch.rewards[k : k + NUM_GENERATIONS] for k in range(0, len(batch.rewards), NUM_GENERATIONS)]
    advantages = grpo(Rewards(groups), AlgorithmConfig(scale_rewards=scale_rewards))
    metrics = reward_metrics(groups)
    found = torch.tensor([a for group in advantages for a in group])
    torch.testing.assert_close(found, inputs["advantages"], rtol=1e-6, atol=1e-6)
    expected = trl.metrics()
    for key in ("reward", "reward_std", "frac_reward_zero_std"):
        assert metrics[key] == pytest.approx(expected[key], rel=1e-6)


@pytest.mark.parametrize("scale_rewards", ["group", "batch", "none"])
def test_a_missing_reward_is_left_out_where_trl_leaves_it_out(trl: TrlReference, scale_rewards: str):
    trl.configure(algorithm_of({"scale_rewards": scale_rewards}))
    batch = make_batch(seed=4, num_groups=4)
    for position in (1, 4, 5, 6, 10, 11):
        batch.rewards[position] = None
    inputs = trl.score(batch)
    groups = [batch.rewards[k : k + NUM_GENERATIONS] for k in range(0, len(batch.rewards), NUM_GENERATIONS)]
    algorithm = AlgorithmConfig(scale_rewards=scale_rewards)
    advantages = [a for group in grpo(Rewards(groups), algorithm) for a in group]
    for position, expected in enumerate(inputs["advantages"].tolist()):
        if batch.rewards[position] is None:
            # TRL gives it advantage 0 and counts its tokens in the denominator; here it is not there at all.
            assert advantages[position] is None
            assert expected == 0.0
        else:
            assert advantages[position] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("missing", [False, True])
def test_rewards_normalised_one_by_one_equal_trl(trl: TrlReference, missing: bool, monkeypatch: pytest.MonkeyPatch):
    trl.configure(algorithm_of({}))
    batch = make_batch(seed=5, num_groups=4)
    rewards = torch.rand(len(batch.rewards), 3, generator=torch.Generator().manual_seed(5)) * torch.tensor([1, 10, 0.1])
    if missing:
        rewards[[1, 6, 7], 1] = torch.nan
    weights = torch.tensor([1.0, 0.5, -2.0])
    for name, value in {
        "multi_objective_aggregation": "normalize_then_sum",
        "reward_funcs": [None] * 3,
        "reward_func_names": ["a", "b", "c"],
        "reward_weights": weights,
        "_calculate_rewards": lambda *_: rewards,
    }.items():
        monkeypatch.setattr(trl.trainer, name, value)
    expected = trl.score(batch)["advantages"]

    def grouped(scores: torch.Tensor) -> list[list[float | None]]:
        values = [None if score != score else score for score in scores.tolist()]
        return [values[k : k + NUM_GENERATIONS] for k in range(0, len(values), NUM_GENERATIONS)]

    given = Rewards(
        totals=grouped((rewards * weights).nansum(dim=1)),
        by_name={name: grouped(rewards[:, k]) for k, name in enumerate("abc")},
        weights=dict(zip("abc", weights.tolist(), strict=True)),
    )
    found = torch.tensor([a for group in gdpo(given, AlgorithmConfig()) for a in group])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
