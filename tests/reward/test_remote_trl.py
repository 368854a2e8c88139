"""TRL's own GRPOTrainer trains with rewards of a real server."""

import importlib.util
import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pyarrow.parquet
import pytest
from tests.reward.real_server import Server
from tests.tiny_model import make_tokenizer, save_tiny_model
from tests.trainer.trl_reference import import_trl

from grpo_reward import RemoteReward
from grpo_reward.rewards.countdown import countdown
from grpo_reward.rewards.format import format_reward

pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
PLUGIN = Path(__file__).parent / "plugins/letters.py"
NUM_GENERATIONS, NUM_STEPS, MAX_TOKENS = 4, 2, 24


@pytest.fixture
def url() -> Iterator[str]:
    server = Server("--plugin", str(PLUGIN))
    yield server.url
    server.stop()


def plugin() -> ModuleType:
    spec = importlib.util.spec_from_file_location("letters_here", PLUGIN)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_two_steps_with_a_tiny_model(url, tmp_path):
    from datasets import Dataset

    trl = import_trl()
    data = [{"prompt": "Reach it.", "nums": [3, 5], "target": 8}, {"prompt": "Again.", "nums": [7], "target": 0}]
    trainer = trl.GRPOTrainer(
        model=str(save_tiny_model(tmp_path / "model", tied=True)),
        processing_class=make_tokenizer(),
        train_dataset=Dataset.from_list(data * 2),
        reward_funcs=[RemoteReward(url, "countdown"), RemoteReward(url, "format"), RemoteReward(url, "letters")],
        args=trl.GRPOConfig(
            output_dir=str(tmp_path),
            use_cpu=True,
            bf16=False,
            report_to=[],
            max_steps=NUM_STEPS,
            logging_steps=1,
            log_completions=True,
            num_completions_to_print=1,
            save_strategy="no",
            per_device_train_batch_size=2 * NUM_GENERATIONS,
            num_generations=NUM_GENERATIONS,
            max_completion_length=MAX_TOKENS,
            gradient_checkpointing=False,
            disable_tqdm=True,
        ),
    )
    trainer.train()

    logged = [entry for entry in trainer.state.log_history if "reward" in entry]
    files = sorted((tmp_path / "completions").glob("*.parquet"))
    assert len(logged) == len(files) == NUM_STEPS
    example = {row["prompt"]: row for row in data}
    letters = plugin().letters
    for step, (entry, file) in enumerate(zip(logged, files, strict=True)):
        rows = pyarrow.parquet.read_table(file).to_pylist()
        assert len(rows) == 2 * NUM_GENERATIONS
        for row in rows:
            nums, target = example[row["prompt"]]["nums"], example[row["prompt"]]["target"]
            assert row["countdown"] == countdown(row["completion"], nums=nums, target=target).score
            assert row["format"] == format_reward(row["completion"])
            ours = letters(row["completion"], target=target, completion_token_ids=[])
            if target == 0:
                assert is_missing(row["letters"])
                assert is_missing(row["letters/found"])
            else:
                assert row["letters"] == pytest.approx(ours.score, rel=1e-6)  # TRL keeps float32
                assert row["letters/found"] == ours.log["found"]
                assert row["letters/step"] == step
                assert 0 < row["letters/num_tokens"] <= MAX_TOKENS
        scored = [row for row in rows if example[row["prompt"]]["target"]]
        assert len({row["letters"] for row in scored}) > 1
        assert entry["rewards/letters/mean"] == pytest.approx(sum(row["letters"] for row in scored) / len(scored))
        assert entry["letters/found"] == pytest.approx(sum(row["letters/found"] for row in scored) / len(scored))
        assert {"rewards/countdown/mean", "rewards/format/mean"} <= set(entry)


def is_missing(value: float | None) -> bool:
    """Null in the file, or pandas' sign for it."""
    return value is None or math.isnan(value)
