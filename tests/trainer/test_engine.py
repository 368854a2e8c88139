"""The engine on real DeepSpeed and a real process group of one and of two ranks: see engine_worker.py."""

import errno
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny_model import make_model, make_tokenizer
from tests.tiny_vision_model import save_tiny_vision_model
from tests.trainer.engine_cases import BALANCED, EXPORTED, IN_A_ROW, LEARNT, SEEN, SHARED, TOGETHER
from tests.trainer.made_episodes import VERSION, build_updates, decided, made_imitation, make_taken
from tests.trainer.seen_engines import plain_gradient as plain_seen_gradient
from tests.trainer.seen_engines import plain_moves
from tests.trainer.spawned_ranks import MARKS, run_ranks
from torch import nn
from transformers import (
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from grpo_trainer.algorithm.entropy_mask import mark_high_entropy
from grpo_trainer.algorithm.loss import old_logprobs, policy_loss
from grpo_trainer.algorithm.surrogates.clipped import clipped
from grpo_trainer.config.algorithm import AlgorithmConfig
from grpo_trainer.config.optimization import DeepSpeedConfig
from grpo_trainer.config.run_config import ModelConfig
from grpo_trainer.engine.imitation import Imitation
from grpo_trainer.engine.model import load_policy
from grpo_trainer.engine.prefix_sharing import prefix_sharing_for
from grpo_trainer.engine.state import read_engine_state
from grpo_trainer.errors import UnavailableError, UsageError

STAGES = [0, 1, 2, 3]
DTYPES = ["float32", "bfloat16"]

pytestmark = MARKS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engine")
    for tied in (True, False):
        target = folder / ("tied" if tied else "untied")
        make_model(tied=tied, hidden_size=64).save_pretrained(target)
        make_tokenizer().save_pretrained(target)
    experts = Qwen3MoeConfig(
        vocab_size=101, hidden_size=64, intermediate_size=64, moe_intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=32, num_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    model = Qwen3MoeForCausalLM(experts)
    for layer in model.model.layers:
        nn.init.normal_(layer.mlp.gate.weight, std=0.5)  # routers that prefer some experts
    save_tiny_vision_model(folder / "vision")
    model.save_pretrained(folder / "experts")
    make_tokenizer().save_pretrained(folder / "experts")
    return folder


@pytest.fixture(scope="module")
def one_rank(folder: Path) -> dict[str, Any]:
    return run_ranks("engine_worker.py", folder, 1)[0]


@pytest.fixture(scope="module")
def two_ranks(folder: Path) -> list[dict[str, Any]]:
    return run_ranks("engine_worker.py", folder, 2)


def plain_gradient(
    folder: Path, count: int, top_quantile: float, entropy_coef: float, imitation: Imitation | None = None
) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradient of the worker's `gradient` scenario: one model, one micro-batch, no DeepSpeed, two passes."""
    algorithm = AlgorithmConfig(
        loss_type="grpo", beta=0.1, entropy_coef=entropy_coef, top_entropy_quantile=top_quantile
    )
    policy = load_policy(ModelConfig(name_or_path=str(folder / "tied"), dtype="float32"), temperature=0.9, zero3=None)
    ((batch,),) = build_updates(
        decided(make_taken(count, seed=3, stale_share=0.3), algorithm),
        version=VERSION,
        tokens_per_micro_batch=10_000,
        rank=0,
        world_size=1,
        pad_token_id=0,
        device="cpu",
    )
    logprobs_N, entropy_N = policy(*batch.inputs)
    batch.old_logprobs_N, batch.ref_logprobs_N = old_logprobs(batch, logprobs_N), logprobs_N.detach()
    mark_high_entropy([batch], [entropy_N.detach()], top_quantile=top_quantile)
    loss, _ = policy_loss(logprobs_N, entropy_N, batch, algorithm, clipped)
    if imitation is None:
        loss.backward()
    else:
        [demonstrated] = imitation.micro_batches
        imitated, _ = imitation.loss(policy, demonstrated)
        ((1.0 - imitation.mu) * loss + imitation.mu * imitated).backward()
    return loss.item(), {name: p.grad.double() for name, p in policy.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    ("world_size", "budget", "checkpointing", "count", "top_quantile"),
    [(1, 40, True, 13, 0.3), (2, 40, True, 13, 0.3), (2, 10_000, False, 13, 1.0), (2, 10_000, False, 1, 0.3)],
)
def test_loss_and_gradient_do_not_depend_on_ranks_micro_batches_or_zero_stage(
    folder: Path,
    one_rank: dict[str, Any],
    two_ranks: list[dict[str, Any]],
    stage: int,
    world_size: int,
    budget: int,
    checkpointing: bool,
    count: int,
    top_quantile: float,
):
    results = [one_rank] if world_size == 1 else two_ranks
    metrics = [result[f"gradient {stage} {budget} {checkpointing} {count}"] for result in results]
    assert metrics[0]["micro_batches"] > 1 or budget > 40
    assert metrics[0]["shared_micro_batches"] == 0
    # Each layer is computed twice with recomputed activations.
    assert metrics[0]["layer_passes"] == metrics[0]["micro_batches"] * (2 if checkpointing else 1)
    if stage == 2:  # the other stages do not show it
        assert metrics[0]["overlaps"] is checkpointing
    found = torch.load(folder / f"gradient-{world_size}-{stage}-{budget}-{checkpointing}-{count}.pt", weights_only=True)
    assert_equals(plain_gradient(folder, count, top_quantile, 0.01 if checkpointing else 0.0), found, metrics)
    assert all(of_rank == metrics[0] for of_rank in metrics), "ranks report different metrics"


@pytest.mark.parametrize(("stage", "top_quantile", "entropy_coef"), SHARED)
def test_shared_prefixes_change_neither_loss_nor_gradient(
    folder: Path, two_ranks: list[dict[str, Any]], stage: int, top_quantile: float, entropy_coef: float
):
    metrics = [result[f"gradient {stage} 80 True 20 shared"] for result in two_ranks]
    assert len({of_rank["micro_batches"] for of_rank in metrics}) == 1
    assert all(of_rank["shared_micro_batches"] > 0 for of_rank in metrics)
    found = torch.load(folder / f"gradient-2-{stage}-80-True-20-shared.pt", weights_only=True)
    assert_equals(plain_gradient(folder, 20, top_quantile, entropy_coef), found, metrics)


@pytest.mark.parametrize(("stage", "top_quantile", "entropy_coef"), SHARED)
def test_demonstrations_have_their_share_of_the_gradient(
    folder: Path, two_ranks: list[dict[str, Any]], stage: int, top_quantile: float, entropy_coef: float
):
    metrics = [result[f"gradient {stage} 80 True 20 imitation"] for result in two_ranks]
    found = torch.load(folder / f"gradient-2-{stage}-80-True-20-imitation.pt", weights_only=True)
    alone = made_imitation(budget=10_000)
    assert_equals(plain_gradient(folder, 20, top_quantile, entropy_coef, alone), found, metrics)
    assert all(of_rank["chord/mu"] == alone.mu for of_rank in metrics)


@pytest.mark.parametrize(("stage", "top_quantile", "entropy_coef"), TOGETHER)
def test_ranks_that_compute_rows_together_have_the_gradient_of_one(
    folder: Path, two_ranks: list[dict[str, Any]], stage: int, top_quantile: float, entropy_coef: float
):
    metrics = [result[f"gradient {stage} 80 True 20 together"] for result in two_ranks]
    assert metrics[0] == metrics[1]
    assert metrics[0]["micro_batches"] > 1
    found = torch.load(folder / f"gradient-2-{stage}-80-True-20-together.pt", weights_only=True)
    alone = made_imitation(budget=10_000)
    assert_equals(plain_gradient(folder, 20, top_quantile, entropy_coef, alone), found, metrics)


@pytest.mark.parametrize(("stage", "kind"), SEEN)
def test_an_update_with_images_has_the_gradient_of_one_model(
    folder: Path, two_ranks: list[dict[str, Any]], stage: int, kind: str
):
    """Of the text alone. Under ZeRO-3 a rank with fewer images looks at blank ones: a pass is a collective."""
    found = torch.load(folder / f"seen-{stage}-{kind}.pt", weights_only=True)
    expected = plain_seen_gradient(folder, kind)
    assert {name for name in found if "vision" in name or "connector" in name}.isdisjoint(expected)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected.get(name, torch.zeros_like(gradient)), rtol=1e-4, atol=2e-6)
    of_ranks = [of_rank[f"seen {stage} {kind}"] for of_rank in two_ranks]
    most = max(of_rank["images"] for of_rank in of_ranks)
    assert [of_rank["looks"] for of_rank in of_ranks] == [most if stage == 3 else one["images"] for one in of_ranks]
    assert sum(of_rank["with_images"] > 0 for of_rank in of_ranks) == (1 if kind == "one rank sees" else 2)


@pytest.mark.parametrize(("stage", "kind"), LEARNT)
def test_a_tower_that_is_trained_has_the_gradient_of_one_graph(
    folder: Path, two_ranks: list[dict[str, Any]], stage: int, kind: str
):
    """And sees with its new weights afterwards, while the reference keeps the first ones."""
    found = torch.load(folder / f"learnt-{stage}-{kind}.pt", weights_only=True)
    expected = plain_seen_gradient(folder, kind, learns=True)
    of_tower = [name for name in expected if "vision" in name or "connector" in name]
    assert (len(of_tower) > 10) is (kind != "text")
    assert all(expected[name].abs().max() > 1e-5 for name in of_tower if name.endswith("weight"))
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected.get(name, torch.zeros_like(gradient)), rtol=1e-4, atol=2e-6)
    for of_rank in (result[f"learnt {stage} {kind}"] for result in two_ranks):
        assert of_rank["reference"] < 1e-5
        assert of_rank["after"] < 1e-5


@pytest.fixture(scope="module")
def moves_of_one_graph(folder: Path) -> list[dict[str, torch.Tensor]]:
    return plain_moves(folder)


@pytest.mark.parametrize(("stage", "setting"), IN_A_ROW)
def test_updates_in_a_row_move_the_tower_as_one_graph_does(
    folder: Path,
    two_ranks: list[dict[str, Any]],
    moves_of_one_graph: list[dict[str, torch.Tensor]],
    stage: int,
    setting: str,
):
    """In one micro-batch and in several, with images and without: nothing of an update before is left in a sum."""
    assert all(f"in a row {stage} {setting}" in of_rank for of_rank in two_ranks)
    for found, expected in zip(torch.load(folder / f"row-{stage}-{setting}.pt"), moves_of_one_graph, strict=True):
        for is_of_tower in (True, False):
            names = [name for name in sorted(expected) if ("text_model" not in name) is is_of_tower]
            own, theirs = (torch.cat([moves[name].flatten().double() for name in names]) for moves in (found, expected))
            assert (own - theirs).norm() < 1e-4 * theirs.norm() + 1e-6


def test_layers_that_do_not_read_the_shared_prefixes_are_an_error_on_every_rank(two_ranks: list[dict[str, Any]]):
    """One raised on some ranks alone would leave the others in a collective."""
    found = [of_rank["unread"] for of_rank in two_ranks]
    assert all("0 of 2 layers of qwen2 read the shared prefixes" in of_rank["message"] for of_rank in found)
    assert min(of_rank["num_trained"] for of_rank in found) == 0


def assert_equals(
    plain: tuple[float, dict[str, torch.Tensor]], found: dict[str, torch.Tensor], metrics: list[dict[str, Any]]
) -> None:
    """Loss and gradient of the ranks are those of one model, to 1e-6."""
    expected_loss, expected = plain
    assert found.keys() == expected.keys()
    flat, flat_expected = (torch.cat([g[name].flatten() for name in sorted(g)]) for g in (found, expected))
    assert (flat - flat_expected).norm() < 1e-6 * flat_expected.norm()
    for of_rank in metrics:
        # The bonus, 0.01 times an entropy of 4.6 nats, cancels most of the policy term.
        assert of_rank["loss"] == pytest.approx(expected_loss, rel=1e-6, abs=1e-6 * 0.046)
        assert of_rank["grad_norm"] == pytest.approx(float(flat_expected.norm()), rel=1e-6)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("world_size", "dtype"), [(1, "bfloat16"), (2, "float32"), (2, "bfloat16")])
def test_a_loaded_checkpoint_goes_on_to_the_bit(
    one_rank: dict[str, Any], two_ranks: list[dict[str, Any]], stage: int, world_size: int, dtype: str
):
    for result in [one_rank] if world_size == 1 else two_ranks:
        seen = result[f"continued {stage} {dtype}"]
        assert seen["moved"]
        assert seen["same_start"], "the weights loaded are not those saved"
        assert seen["same_metrics"]
        assert seen["same_end"], "training went on differently"
        assert seen["same_after_going_back"], "an engine that has trained does not load as a new one does"
        assert seen["same_random_numbers"]
        assert seen["updates_done"] == [6, 6]
        assert seen["rates"] == pytest.approx([1e-3, 0.98e-3, 0.95e-3])
        assert seen["kl"] > 0, "the reference moved with the policy"
        assert seen["entropy_coefs"] == pytest.approx([0.025, 0.03, 0.035, 0.04])


@pytest.mark.parametrize("stage", STAGES)
def test_the_reference_moves_as_trls_does_and_is_what_the_kl_reads(
    folder: Path, two_ranks: list[dict[str, Any]], stage: int
):
    """What it is after a checkpoint is seen in `continued`: the metrics of a resumed run are the same."""
    from trl.trainer.callbacks import SyncRefModelCallback  # which takes seconds

    first, policy, reference = torch.load(folder / f"moved-{stage}.pt", weights_only=True)
    names = sorted(first)
    expected, trained = (nn.ParameterList(tensors[name] for name in names) for tensors in (first, policy))
    SyncRefModelCallback._sync_target_model(trained, expected, 0.3)
    for name, parameter in zip(names, expected, strict=True):
        torch.testing.assert_close(reference[name], parameter.data, rtol=1e-6, atol=1e-6)
    assert any(not torch.equal(first[name], reference[name]) for name in names)
    for result in two_ranks:
        assert result[f"continued {stage} float32"]["reference_difference"] < 1e-5


def test_bf16_trains_alike_in_every_zero_stage(one_rank: dict[str, Any]):
    """DeepSpeed's own ZeRO 0 would differ here: it steps once on zero gradients and sums micro-batches in bf16.

    From the second update on a weight that is rounded to either side makes a larger difference than the stages do.
    """
    seen = [one_rank[f"continued {stage} bfloat16"] for stage in STAGES]
    norms, kl = ([of_stage[name] for of_stage in seen] for name in ("first_grad_norm", "kl"))
    assert norms[:2] == pytest.approx([norms[2]] * 2, rel=1e-6)
    assert kl == pytest.approx([kl[2]] * 4, rel=0.05), "steps of another size"


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_update_without_a_finite_gradient_is_skipped_by_all_ranks(
    two_ranks: list[dict[str, Any]], stage: int, dtype: str
):
    for result in two_ranks:
        seen = result[f"not_finite {stage} {dtype}"]
        assert seen["skipped"]["update_skipped"] == 1.0
        assert "grad_norm" not in seen["skipped"]
        assert "loss" not in seen["skipped"]
        assert seen["unchanged"], "weights moved although one rank had no gradient"
        assert seen["normal"]["update_skipped"] == 0.0
        assert seen["moved"], "the update after a skipped one did nothing"
        # `max_skipped_updates` is 2: the third in a row ends the run.
        assert seen["tolerated"] == 2
        assert seen["message"].startswith("3 updates in a row had no finite gradient")
        assert seen["count"] == 4


@pytest.mark.parametrize("name", EXPORTED)
def test_the_weights_pushed_saved_and_trained_are_one_model(two_ranks: list[dict[str, Any]], name: str):
    seen = two_ranks[0][f"exported {name}"]
    assert seen["equal"], "a push and the saved model differ in names or values"
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= set(seen["files"])
    assert seen["difference"] < (1e-5 if "float32" in name else 0.02)


@pytest.mark.parametrize("stage", BALANCED)
@pytest.mark.parametrize("world_size", [1, 2])
def test_experts_are_balanced(
    one_rank: dict[str, Any], two_ranks: list[dict[str, Any]], folder: Path, stage: int, world_size: int
):
    seen = (one_rank if world_size == 1 else two_ranks[0])[f"balanced {stage}"]
    *of_all, of_one = seen["found"]
    config = ModelConfig(name_or_path=str(folder / "experts"), dtype="float32")
    policy, sequences, expected = load_policy(config, temperature=0.9, zero3=None), decided(make_taken(9)), 0.0
    how = {"world_size": world_size, "tokens_per_micro_batch": 60}
    how["prefixes"] = prefix_sharing_for(policy.model.config, config, DeepSpeedConfig(), device=torch.device("cpu"))
    for rank in range(world_size):
        for batch in build_updates(sequences, rank=rank, **how)[0]:
            *_, balance = policy(*batch.inputs, None, batch.token_counts_BL)
            balance = balance * sum(batch.trained_Q) / batch.update_tokens
            balance.backward()
            expected += balance.item()
    gradients = [parameter.grad for parameter in policy.parameters() if parameter.grad is not None]
    assert of_all[0]["aux_loss"] == pytest.approx(expected, rel=1e-5)
    assert of_all[0]["loss"] == pytest.approx(0.5 * expected, rel=1e-5)
    assert of_all[0]["grad_norm"] == pytest.approx(0.5 * nn.utils.get_total_norm(gradients).item(), rel=1e-4)
    # Two experts for each token: 2 where they are used alike.
    assert of_all[0]["aux_loss"] > 2.2
    assert of_all[-1]["aux_loss"] < 2.1
    assert 1.5 < of_one["aux_loss"] < 2.5
    assert of_one["update_skipped"] == 0.0


@pytest.mark.parametrize("stage", STAGES)
def test_old_logprobs_are_those_before_the_first_update_of_the_batch(two_ranks: list[dict[str, Any]], stage: int):
    for result in two_ranks:
        seen = result[f"several_updates {stage}"]
        assert all(seen["same"])
        assert len(seen["same"]) >= 2
        assert seen["losses"][2] < seen["losses"][0], "the second pass has not learnt from the first"


@pytest.mark.parametrize("stage", STAGES)
def test_updates_are_the_same_without_the_samples_that_have_no_gradient(two_ranks: list[dict[str, Any]], stage: int):
    for result in two_ranks:
        seen = result[f"skipped {stage}"]
        assert seen["share"] == 9 / 24
        for name in ("loss", "grad_norm"):
            everything, computed = ([metrics[name] for metrics in of_run] for of_run in seen["results"])
            assert computed == pytest.approx(everything, rel=1e-6, abs=1e-9)
            assert computed[1] == 0.0, "nothing is computed in the second update"
        assert seen["difference"] < 1e-6
        assert seen["surveys"][0]["entropy"] != seen["surveys"][1]["entropy"], "both are of all samples"


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_reduced_once_an_update_are_those_reduced_once_a_micro_batch(
    two_ranks: list[dict[str, Any]], dtype: str
):
    for result in two_ranks:
        seen = result[f"one_reduction {dtype}"]
        usual, found = seen["metrics"]
        assert found == pytest.approx(usual, rel=1e-6, abs=1e-9)
        # A weight of 2 may be rounded to either side in bfloat16.
        assert seen["difference"] < (1e-6 if dtype == "float32" else 2**-7)
        each, together, failed = seen["reductions"]
        assert (each > together, together, failed) == (True, 1, 0), "an update that fails must not wait for other ranks"
        assert seen["resumed"], "an update after a checkpoint is not repeated to the bit"


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_optimizer_in_cpu_memory_makes_the_same_updates(two_ranks: list[dict[str, Any]], stage: int):
    for result in two_ranks:
        seen = result[f"offloaded {stage}"]
        assert seen["offloads"] == [False, True]
        assert seen["difference"] < 1e-6


def test_a_long_update_push_or_checkpoint_is_heard_of_meanwhile(two_ranks: list[dict[str, Any]]):
    for result in two_ranks:
        seen = result["heard"]
        assert seen["update"] == seen["micro_batches"] > 2
        assert seen["push"] > 2, "a beat for each bucket"
        assert seen["save"] >= 2, "the model's file, and the optimizer's of this rank"


def test_a_checkpoint_of_another_layout_is_refused_with_its_name(two_ranks: list[dict[str, Any]]):
    other_stage, no_checkpoint = two_ranks[0]["other_layout"]["messages"]
    assert "written with zero_stage 2, and this run has 3" in other_stage
    assert "holds no engine state" in no_checkpoint


@pytest.mark.parametrize(("code", "kind"), [(errno.ESTALE, UnavailableError), (errno.EACCES, UsageError)])
def test_a_checkpoint_on_a_disk_that_is_away_may_be_there_at_the_next_try(
    code: int, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from grpo_trainer.engine.saved_state import SavedState  # which imports DeepSpeed

    away = OSError(code, os.strerror(code))
    for owner, name, load in (
        (Path, "read_text", partial(read_engine_state, layout={})),
        (SavedState, "_load", object.__new__(SavedState).load),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, lambda *_, **__: (_ for _ in ()).throw(away))
            with pytest.raises(kind, match=f"can be read: .*{os.strerror(code)}"):
                load(tmp_path)
