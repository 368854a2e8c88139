"""The trial of shared prefixes before the first step: a right model passes, a wrong one has padded rows."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.rollout.families.models import FAMILIES
from transformers import AutoModelForCausalLM

from grpo_trainer.algorithm import attention_layout
from grpo_trainer.algorithm.named_arrays import to_arrays
from grpo_trainer.algorithm.prefixes import PrefixSharing, grow
from grpo_trainer.algorithm.sharing_trial import trial_sequences
from grpo_trainer.config.run_config import RunConfig
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.engine.policy import Policy
from grpo_trainer.rank_work import RankWork
from grpo_trainer.sharing import try_sharing

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [12, 13, 14], [15, 16, 17, 18, 19]]


def work_with(family: str) -> RankWork:
    config = FAMILIES[family].config()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa").eval()
    policy = Policy(model, temperature=0.9, chunk_tokens=8)

    @torch.no_grad()
    def logprobs(batches: list[Any]) -> list[torch.Tensor]:
        return [policy(*batch.inputs)[0] for batch in batches]

    engine: Any = SimpleNamespace(
        device=torch.device("cpu"), logprobs=logprobs, policy=policy, prefixes=PrefixSharing(), has_experts=False
    )
    return RankWork(engine, SimpleNamespace(), pad_token_id=0, tokens_per_micro_batch=64)  # type: ignore[arg-type]


class OneRank:
    """The crew of a run with one rank."""

    def __init__(self, work: RankWork):
        self.work, self.ranks = work, SimpleNamespace(world_size=1)

    def gather(self, command: str, *arguments: Any, each: Any = None) -> list[Any]:
        return [getattr(self.work, command)(*(each or [])[:1], *arguments)]

    def do(self, command: str) -> Any:
        return getattr(self.work, command)()


def tried(work: RankWork) -> None:
    config = RunConfig.model_validate(
        {
            "run_dir": "runs/test",
            "model": {"name_or_path": "some/model", "dtype": "float32"},
            "data": {"dataset": "rows.jsonl"},
            "reward": {"reward_funcs": ["countdown"]},
            "rollout": {"max_completion_length": 20},
        }
    )
    rows = [PromptRow(number, ids, "p", {}) for number, ids in enumerate(PROMPTS)]
    try_sharing(OneRank(work), config, rows, work.engine)  # type: ignore[arg-type]


def test_the_trial_shares_in_every_way_and_keeps_to_the_length_of_the_run():
    sequences = trial_sequences(PROMPTS, window=None, longest=40)
    tokens = [tuple(sequence.needed_ids) for sequence in sequences]
    assert len(set(tokens)) < len(tokens), "an equal pair"
    assert any(a != b and b[: len(a)] == a for a in tokens for b in tokens), "a sequence that another goes on from"
    forest = grow([sequence.needed_ids for sequence in sequences])
    assert forest.num_unique < 0.6 * sum(map(len, tokens))
    for longest, expected in ((60, 30 + 2 * 12 - 1), (20, 19)):
        windowed = trial_sequences(PROMPTS, window=30, longest=longest)
        assert max(len(sequence.needed_ids) for sequence in windowed) == expected
    assert all(sequence.num_trained for sequence in trial_sequences([[3]], window=4, longest=2))


def test_a_model_that_agrees_with_its_padded_rows_goes_on_sharing():
    work = work_with("mistral")
    tried(work)
    assert work.engine.prefixes is not None


def test_a_model_that_does_not_has_padded_rows_and_the_log_gives_the_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def blind(block: attention_layout.Block, window: int | None, dtype: torch.dtype) -> None:
        return None  # as a layer would that takes shared runs for whole sequences

    monkeypatch.setattr(attention_layout.Block, "mask", blind)
    work = work_with("qwen2")
    tried(work)
    assert work.engine.prefixes is None
    assert "shared prefixes are off" in caplog.text
    assert "from those of padded rows" in caplog.text


def test_layers_that_do_not_read_the_layout_are_a_reason():
    work = work_with("qwen3_next")
    (sequences,) = [to_arrays(trial_sequences(PROMPTS, window=None, longest=40))]
    assert "1 of 4 layers of qwen3_next" in str(work.try_sharing(sequences, 1e-5, None))
