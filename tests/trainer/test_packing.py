"""Rows that several sequences share: planned within the budget, and nothing of a sequence depends on its neighbours."""

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from tests.rollout.families.models import FAMILIES
from tests.tiny_model import make_model
from tests.trainer.made_episodes import VERSION, build_updates, decided, make_sequences, make_taken, two_segments
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedModel, Qwen2Config
from transformers.modeling_flash_attention_utils import prepare_fa_kwargs_from_position_ids

from grpo_trainer.algorithm.batching import collate, plan_updates
from grpo_trainer.algorithm.loss import policy_loss
from grpo_trainer.algorithm.rows import RowLayout, place
from grpo_trainer.algorithm.sequences import MicroBatch, TrainingSequence
from grpo_trainer.algorithm.surrogates.clipped import clipped
from grpo_trainer.config.algorithm import AlgorithmConfig
from grpo_trainer.config.lora import LoraConfig
from grpo_trainer.engine.model import PACKED_FAMILIES, attention_for, row_layout_for
from grpo_trainer.engine.output_head import Policy
from grpo_trainer.lora.adapter import Adapter

BUDGET = 60


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of tiny products wait for each other longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def put_together(sequences: list[TrainingSequence], layout: RowLayout) -> MicroBatch:
    return collate(sequences, version=VERSION, update_tokens=1, pad_token_id=0, device="cpu", layout=layout)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("layout", ["packed", "one_row"])
def test_a_plan_fills_rows_within_the_budget_and_keeps_all_ranks_together(seed: int, layout: RowLayout):
    rng = random.Random(seed)
    taken = make_taken(rng.randint(1, 30), seed=seed) + [(two_segments(number), 0.5) for number in range(3)]
    sequences = decided(taken, AlgorithmConfig(steps_per_generation=rng.randint(1, 3)))
    world_size, budget = rng.randint(1, 3), rng.choice([20, 60, 100, 10_000])
    plan = plan_updates(sequences, world_size=world_size, tokens_per_micro_batch=budget, layout=layout)
    numbers = [i for update in plan for rank in update for indices in rank for i in indices]
    assert sorted(numbers) == list(range(len(sequences)))
    for update in plan:
        assert len({len(rank) for rank in update}) == 1
        for indices in (indices for rank in update for indices in rank):
            batch = put_together([sequences[i] for i in indices], layout)
            lengths = [sequences[i].num_tokens for i in indices]
            assert batch.input_ids_BL.numel() <= budget or len({sequences[i].episode for i in indices}) == 1
            if layout == "packed":
                assert batch.input_ids_BL.shape[1] == max(lengths, default=1)
            else:
                assert batch.input_ids_BL.shape == (1, max(sum(lengths), 1))


def test_packed_rows_have_less_padding_and_a_single_row_has_none():
    sequences = make_sequences(64, seed=1)
    tokens = {
        layout: sum(
            batch.input_ids_BL.numel()
            for batch in build_updates(sequences, tokens_per_micro_batch=1000, layout=layout)[0]
        )
        for layout in ("padded", "packed", "one_row")
    }
    assert tokens["one_row"] == sum(sequence.num_tokens for sequence in sequences)
    assert tokens["one_row"] < tokens["packed"] < 1.05 * tokens["one_row"] < tokens["padded"]


def test_short_sequences_fill_the_rows_that_longer_ones_leave_room_in():
    assert place([10, 6, 5, 4, 3, 2], "packed") == [(0, 0), (1, 0), (2, 0), (1, 6), (2, 5), (2, 8)]
    assert place([3, 2], "one_row") == [(0, 0), (0, 3)]
    assert place([3, 2], "padded") == [(0, 0), (1, 0)]


@pytest.mark.parametrize("layout", ["packed", "one_row"])
def test_a_packed_micro_batch_has_the_tokens_of_the_padded_one(layout: RowLayout):
    sequences = decided([*make_taken(9, seed=2, stale_share=0.5), (two_segments(), 0.5)])
    padded, packed = (put_together(sequences, how) for how in ("padded", layout))
    tokens = [batch.input_ids_BL[batch.row_N, batch.column_N].tolist() for batch in (padded, packed)]
    assert tokens[0] == tokens[1]
    assert packed.position_ids_BL is not None
    assert packed.position_ids_BL[packed.row_N, packed.column_N].tolist() == padded.column_N.tolist()
    for name in ("episode_N", "advantage_N", "weight_N", "fresh_N", "rollout_logprobs_N"):
        torch.testing.assert_close(getattr(packed, name), getattr(padded, name), rtol=0, atol=0, equal_nan=True)
    assert (packed.trained_Q, packed.num_episodes) == (padded.trained_Q, padded.num_episodes)


@pytest.mark.parametrize("layout", ["padded", "packed", "one_row"])
def test_rows_of_one_sequence_have_no_position_ids(layout: RowLayout):
    """transformers would make a mask of them, and attention with a mask is slower than causal attention."""
    assert put_together(make_sequences(1), layout).position_ids_BL is None
    assert put_together([], layout).position_ids_BL is None
    assert put_together(make_sequences(9), "padded").position_ids_BL is None


def test_flash_attention_finds_the_sequences_of_the_row():
    sequences = make_sequences(5, seed=4)
    (ends_q, ends_k), (longest, _) = prepare_fa_kwargs_from_position_ids(
        put_together(sequences, "one_row").position_ids_BL
    )
    lengths = [sequence.num_tokens for sequence in sequences]
    assert ends_q.diff().tolist() == ends_k.diff().tolist() == lengths
    assert longest == max(lengths)


def learnt(policy: Policy, sequences: list[TrainingSequence], layout: RowLayout) -> tuple[dict, float, torch.Tensor]:
    """Logprobs by token of each sequence, the loss and the gradient of one update."""
    algorithm = AlgorithmConfig(loss_type="grpo", entropy_coef=0.01)
    logprobs, total = {}, torch.zeros(())
    (update,) = build_updates(sequences, tokens_per_micro_batch=BUDGET, layout=layout)
    for batch in update:
        logprobs_N, entropy_N = policy(*batch.inputs)
        batch.old_logprobs_N = logprobs_N.detach()
        targets_N = batch.input_ids_BL[batch.row_N, batch.column_N]
        for part, tokens in zip(logprobs_N.split(batch.trained_Q), targets_N.split(batch.trained_Q), strict=True):
            logprobs[tuple(tokens.tolist())] = part.detach()
        total = total + policy_loss(logprobs_N, entropy_N, batch, algorithm, clipped)[0]
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    grads = torch.autograd.grad(total, trained, allow_unused=True)
    return logprobs, total.item(), torch.cat([grad.flatten().double() for grad in grads if grad is not None])


def assert_nothing_changes(model: PreTrainedModel, layout: RowLayout) -> None:
    policy, sequences = Policy(model, temperature=0.9, chunk_tokens=8), make_sequences(16, seed=7)
    expected, found = learnt(policy, sequences, "padded"), learnt(policy, sequences, layout)
    assert found[0].keys() == expected[0].keys()
    for tokens, logprobs in expected[0].items():
        torch.testing.assert_close(found[0][tokens], logprobs, rtol=1e-6, atol=1e-6)
    assert found[1] == pytest.approx(expected[1], rel=1e-6, abs=1e-7)
    assert found[2].norm().item() == pytest.approx(expected[2].norm().item(), rel=1e-6)
    assert (found[2] - expected[2]).norm() < 1e-6 * expected[2].norm()


def attention_by_sequence(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    *,
    scaling: float,
    position_ids: torch.Tensor,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """What flash attention computes of rows: without a mask, and each sequence of a row by itself."""
    assert attention_mask is None
    # Of several rows each is one sequence, with the same positions.
    (ends, _), _ = prepare_fa_kwargs_from_position_ids(position_ids[:1])
    key, value = (tensor.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for tensor in (key, value))
    found = []
    for span in (slice(start, end) for start, end in pairwise(ends.tolist())):
        scores = query[:, :, span] @ key[:, :, span].mT * scaling
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        column = torch.arange(scores.shape[-1])
        distance = column[:, None] - column
        hidden = (distance < 0) | (distance >= (sliding_window or len(column)))
        found.append(scores.masked_fill(hidden, float("-inf")).softmax(-1) @ value[:, :, span])
    return torch.cat(found, dim=2).transpose(1, 2).contiguous(), None


def of_family(name: str, attention: str | None = None) -> PreTrainedModel:
    """The tiny model of a family, with windows shorter than its sequences."""
    config = FAMILIES[name].config()
    text = config.get_text_config()
    if getattr(text, "sliding_window", None):
        text.sliding_window = 5
    torch.manual_seed(0)
    attention = attention or attention_for(config, "sdpa")
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention)


@pytest.mark.parametrize("name", [*PACKED_FAMILIES, "qwen2_untied"])
def test_a_packed_update_of_a_family_is_the_padded_one(name: str):
    model = of_family(name)
    assert row_layout_for(model.config, packing=True) == "packed"
    assert_nothing_changes(model, "packed")


@pytest.mark.parametrize("name", PACKED_FAMILIES)
def test_one_row_of_a_family_is_the_padded_update_where_attention_reads_the_position_ids(name: str):
    AttentionInterface.register("by_sequence", attention_by_sequence)
    assert_nothing_changes(of_family(name, "by_sequence"), "one_row")


@pytest.mark.parametrize("layout", ["packed", "one_row"])
def test_a_packed_update_with_windows_recomputed_activations_and_an_adapter_is_the_padded_one(layout: RowLayout):
    config = Qwen2Config(
        vocab_size=101, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, use_sliding_window=True, sliding_window=4, max_window_layers=1, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    assert set(config.layer_types) == {"full_attention", "sliding_attention"}
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    adapter = Adapter(model, LoraConfig(r=4, alpha=8), base_name="tiny", seed=1)
    with torch.no_grad():
        for tensor in adapter.tensors().values():
            tensor.normal_(0.0, 0.05)
    assert_nothing_changes(model.train(), layout)


@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5_text", "gpt_oss"])
def test_families_that_do_not_keep_the_sequences_of_a_row_apart_are_not_packed_and_the_log_says_so(
    name: str, caplog: pytest.LogCaptureFixture
):
    assert row_layout_for(FAMILIES[name].config(), packing=True) == "padded"
    (message,) = [record.getMessage() for record in caplog.records if record.name.startswith("grpo_trainer")]
    assert f"rows of {name} are not packed" in message
    assert "qwen2" in message


def test_rows_are_packed_on_request_and_one_row_is_for_flash_attention():
    config = make_model(tied=True, hidden_size=64).config
    assert row_layout_for(config, packing=False) == "padded"
    config._attn_implementation = "flash_attention_2"
    assert row_layout_for(config, packing=True) == "one_row"
