"""The load-balancing loss of experts: transformers' own, whatever the rows are. What it does on real ranks:
test_engine.py."""

import pytest
import torch
from tests.rollout.families.models import FAMILIES
from tests.trainer.made_episodes import build_updates, decided, make_taken
from tests.trainer.made_forests import SHARING, batches, forest_of_all_kinds, of_family
from transformers import (
    AutoModelForCausalLM,
    DbrxConfig,
    JetMoeConfig,
    PretrainedConfig,
    Qwen3_5MoeConfig,
    Qwen3MoeConfig,
)

from grpo_trainer.algorithm.prefixes import PrefixSharing
from grpo_trainer.algorithm.surrogates import surrogate_of
from grpo_trainer.config.algorithm import AlgorithmConfig
from grpo_trainer.engine.batch_loss import batch_loss
from grpo_trainer.engine.load_balancing import router_aux_loss_coef
from grpo_trainer.engine.model import recompute_activations
from grpo_trainer.engine.policy import Policy
from grpo_trainer.errors import RunError, UsageError

BALANCING = AlgorithmConfig(loss_type="grpo", router_aux_loss_coef=0.5)


def gradient(model: torch.nn.Module) -> torch.Tensor:
    grads = [torch.zeros_like(one) if one.grad is None else one.grad for one in model.parameters()]
    return torch.cat([grad.flatten() for grad in grads])


def ours(name: str, prefixes: PrefixSharing | None, *, recomputed: bool = False) -> tuple[float, torch.Tensor]:
    model = of_family(name)
    if recomputed:
        recompute_activations(model)
    (batch,) = batches([forest_of_all_kinds()], prefixes)
    *_, loss = Policy(model, temperature=0.9, chunk_tokens=8)(*batch.inputs, None, batch.token_counts_BL)
    loss.backward()
    return loss.item(), gradient(model)


def theirs(name: str) -> tuple[float, torch.Tensor]:
    """Of padded rows with the tokens that our loss reads, and a mask over them."""
    model, rows = of_family(name), [sequence.needed_ids for sequence in forest_of_all_kinds()]
    ids, mask = torch.zeros(2, len(rows), max(map(len, rows)), dtype=torch.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)], mask[number, : len(row)] = torch.from_numpy(row), 1
    loss = model(input_ids=ids, attention_mask=mask, output_router_logits=True).aux_loss
    loss.backward()
    return loss.item(), gradient(model)


@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral", "gpt_oss", "qwen3_next"])
def test_it_is_transformers_own_without_padding_and_each_use_of_a_shared_token_counts(name: str):
    expected, expected_gradient = theirs(name)
    found = [ours(name, None), ours(name, None, recomputed=True)]
    if name != "qwen3_next":  # its linear attention has padded rows only
        found += [ours(name, SHARING), ours(name, SHARING, recomputed=True)]
    for loss, found_gradient in found:
        assert loss == pytest.approx(expected, rel=1e-5)
        assert (found_gradient - expected_gradient).norm() < 1e-5 * expected_gradient.norm()


@pytest.mark.parametrize("loss_type", ["grpo", "gspo"])
def test_a_micro_batch_counts_for_what_it_trains_of_the_update(loss_type: str):
    """In one pass through the output head and in two; one without sequences counts for nothing."""
    settings = {"loss_type": loss_type}
    plain = AlgorithmConfig.model_validate(settings)
    balancing = AlgorithmConfig.model_validate(settings | {"router_aux_loss_coef": 0.5})
    policy = Policy(of_family("mixtral"), temperature=0.9, chunk_tokens=8)
    (update,) = build_updates(decided(make_taken(5), plain), tokens_per_micro_batch=40, prefixes=SHARING)
    empty = build_updates(decided(make_taken(1), plain), tokens_per_micro_batch=40, rank=1, world_size=2)[0]
    assert len(update) > 1
    assert len(empty) == 1
    for batch in (*update, *empty):
        found = {}
        for algorithm in (plain, balancing):
            policy.zero_grad()
            settled = {"entropy_coef": 0.0, "fills_old": True}
            loss, tally = batch_loss(policy, batch, algorithm, surrogate_of(algorithm), **settled)
            loss.backward()
            found[algorithm is balancing] = loss.item(), gradient(policy), tally
        policy.zero_grad()
        *_, balance = policy(*batch.inputs, None, batch.token_counts_BL)
        share = sum(batch.trained_Q) / batch.update_tokens
        (balance * share).backward()
        expected, (without, of_loss, _), (loss, of_both, tally) = balance.item() * share, found[False], found[True]
        assert loss == pytest.approx(without + 0.5 * expected, rel=1e-5)
        assert tally.reduce()["aux_loss"] == pytest.approx(expected, rel=1e-6)
        assert tally.reduce()["loss"] == pytest.approx(loss, rel=1e-5)
        assert (of_both - of_loss - 0.5 * gradient(policy)).norm() <= 1e-5 * of_both.norm()


def dense(name: str) -> PretrainedConfig:
    """A family with experts, as a model without any."""
    family = FAMILIES[name].config()
    family.num_experts = family.num_local_experts = 0
    return family


def composite() -> PretrainedConfig:
    """A configuration with one for the text in it."""
    family = Qwen3_5MoeConfig()
    family.text_config.router_aux_loss_coef = 0.25
    return family


OWN = [
    (FAMILIES["mixtral"].config(), 0.25),
    (FAMILIES["qwen3_moe"].config(), 0.25),
    (composite(), 0.25),
    (dense("qwen3_moe"), 0.0),
    (FAMILIES["deepseek_v3"].config(), 0.0),
    (FAMILIES["qwen2"].config(), 0.0),
]


@pytest.mark.parametrize(("family", "expected"), OWN, ids=lambda value: getattr(value, "model_type", None))
def test_the_models_own_weight_is_read_and_is_0_without_such_a_loss(
    family: PretrainedConfig, expected: float, caplog: pytest.LogCaptureFixture
):
    own = AlgorithmConfig(router_aux_loss_coef="model")
    if not hasattr(family, "text_config"):
        family.router_aux_loss_coef = 0.25  # a configuration may say anything
    caplog.set_level("INFO")
    assert router_aux_loss_coef(own, family) == expected
    assert f"router_aux_loss_coef is {expected:g}: " in caplog.text
    if expected == 0.0:
        assert f"{family.model_type} has no load-balancing loss" in caplog.text
        with pytest.raises(UsageError, match=f"is 0.5, and {family.model_type} has no load-balancing loss of experts"):
            router_aux_loss_coef(BALANCING, family)
    assert router_aux_loss_coef(AlgorithmConfig(), family) == 0.0


@pytest.mark.parametrize("family", [JetMoeConfig(num_local_experts=4), DbrxConfig(ffn_config={"moe_num_experts": 4})])
def test_a_configuration_that_names_no_weight_is_told_apart(family: PretrainedConfig, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    assert router_aux_loss_coef(AlgorithmConfig(router_aux_loss_coef="model"), family) == 0.0
    assert "router_aux_loss_coef is 0: the model's configuration names none" in caplog.text
    assert router_aux_loss_coef(BALANCING, family) == 0.5


def test_the_models_own_code_is_not_taken_for_that_of_transformers():
    family = type("Qwen3MoeConfig", (Qwen3MoeConfig,), {"__module__": "modeling_of_its_own"})(num_experts=4)
    assert router_aux_loss_coef(AlgorithmConfig(router_aux_loss_coef="model"), family) == 0.0


def test_a_weight_that_was_not_read_is_an_error():
    with pytest.raises(ValueError, match="has not been read"):
        _ = AlgorithmConfig(router_aux_loss_coef="model").load_balancing_coef


def test_a_model_whose_layers_all_have_no_experts_ends_the_run():
    config = FAMILIES["qwen3_moe"].config()
    config.mlp_only_layers = list(range(config.num_hidden_layers))
    policy = Policy(AutoModelForCausalLM.from_config(config), temperature=0.9, chunk_tokens=8)
    (batch,) = batches([forest_of_all_kinds()], None)
    with pytest.raises(RunError, match="no layer of this qwen3_moe has experts"):
        policy(*batch.inputs, None, batch.token_counts_BL)


@pytest.mark.parametrize("given", ["own", -1, "nan", "inf", True, [1]])
def test_a_weight_is_a_number_of_0_or_more(given: object):
    with pytest.raises(ValueError, match="takes a weight of 0 or more, or model"):
        AlgorithmConfig.model_validate({"router_aux_loss_coef": given})
