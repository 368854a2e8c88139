"""A script or notebook that calls TRL's GRPOTrainer: what it says becomes settings, the rest is named, nothing runs."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.trainer.importing import imported, refused

SCRIPT = """
import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import think_format_reward
from my.rewards import polite as kind

open("was_run", "w")
MODEL, OUT = "Qwen/Qwen2.5-3B-Instruct", "out"
LONGEST = 1024
SYSTEM = ("You think first. "
          "Then you answer.")


def rows(split="train"):
    data = load_dataset("openai/gsm8k", "main", split="train[:500]")
    return data.map(lambda row: {"prompt": [{"role": "system", "content": SYSTEM},
                                            {"role": "user", "content": row["question"]}], "answer": row["answer"]})


def short(completions, **kwargs):
    return [0.0 for _ in completions]


config = GRPOConfig(
    output_dir=f"{OUT}/{MODEL}", learning_rate=1e-6, num_generations=4, per_device_train_batch_size=2 * 2,
    max_completion_length=LONGEST - 256, lr_scheduler_type="cosine_with_min_lr",
    lr_scheduler_kwargs={"min_lr_rate": 0.1}, report_to=["wandb"], max_steps=len(range(9)),
    mask_truncated_completions=True, **more,
)
model = AutoModelForCausalLM.from_pretrained(MODEL, torch_dtype=torch.bfloat16, attn_implementation="sdpa")
trainer = GRPOTrainer(
    model=model, args=config, train_dataset=rows(), reward_funcs=[short, think_format_reward, kind, lambda c: c],
    peft_config=LoraConfig(r=64, target_modules=["q_proj"]), processing_class=AutoTokenizer.from_pretrained(MODEL),
    callbacks=[print],
)
trainer.train()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my").mkdir()
    (tmp_path / "my/rewards.py").write_text(
        "def polite(completions, **kwargs):\n    return [1.0 for _ in completions]\n"
    )
    return tmp_path


def test_what_a_script_gives_to_the_trainer_becomes_settings(folder: Path, capsys: pytest.CaptureFixture[str]):
    Path("train.py").write_text(SCRIPT)
    text, said = imported(capsys, "train.py", "--num_processes", 2)
    run: dict[str, Any] = yaml.safe_load(text)
    assert not Path("was_run").exists()
    assert run["run_dir"] == "out/Qwen/Qwen2.5-3B-Instruct"
    assert run["model"] == {
        "name_or_path": "Qwen/Qwen2.5-3B-Instruct", "dtype": "bfloat16", "attn_implementation": "sdpa",
        "gradient_checkpointing": True, "lora": {"r": 64, "alpha": 8, "dropout": 0.0, "target_modules": ["q_proj"]},
    }  # fmt: skip
    data = {"dataset": "openai/gsm8k:main#500", "split": "train", "prompt_column": "question"}
    assert data.items() <= run["data"].items()
    assert run["data"]["system"] == "You think first. Then you answer."
    assert run["reward"]["reward_funcs"] == ["train.py:short", "regex", "my/rewards.py:polite"]
    assert (run["rollout"]["generation_batch_size"], run["rollout"]["max_completion_length"]) == (8, 768)
    assert run["optimizer"]["lr_scheduler_kwargs"] == {"min_lr_rate": 0.1}
    assert "--plugin train.py --plugin my/rewards.py &" in text
    for named in (
        "GRPOConfig(max_steps=…) is len(range(9)): the script computes it",
        "GRPOConfig gets **more, which is not read",
        "reward lambda c: c is no function of a file",
        "the reward server imports train.py, which would train there: put short into a file of their own",
        "callbacks of GRPOTrainer: hooks of your own are `callbacks`",
    ):
        assert named in said, named
        assert named.partition("(")[0] in text


@pytest.mark.parametrize("behind", ["if __name__ == '__main__':", "def main():"])
def test_a_script_that_trains_only_when_it_is_started_can_be_imported(
    behind: str, folder: Path, capsys: pytest.CaptureFixture[str]
):
    head, trainer = SCRIPT.split("config = ", 1)
    indented = "\n".join(f"    {line}" for line in f"config = {trainer}".splitlines())
    Path("train.py").write_text(f"{head}{behind}\n{indented}\n")
    text, said = imported(capsys, "train.py")
    assert "train.py:short" in text
    assert "which would train there" not in said
    assert "accelerate starts one for each GPU of the machine" in said


def test_a_notebook_is_read_without_its_commands(folder: Path, capsys: pytest.CaptureFixture[str]):
    cells = [
        {"cell_type": "markdown", "source": ["no code ("]},
        {"cell_type": "code", "source": ["!pip install trl\n"]},
    ]
    cells += [{"cell_type": "code", "source": [SCRIPT]}]
    Path("train.ipynb").write_text(json.dumps({"cells": cells}))
    text, said = imported(capsys, "train.ipynb")
    assert yaml.safe_load(text)["reward"]["reward_funcs"][0] == "train.py:short"
    assert "write short into train.py, for the reward server" in said


def test_options_that_a_script_takes_stand_behind_it(folder: Path, capsys: pytest.CaptureFixture[str]):
    Path("train.py").write_text(
        "parser = TrlParser((ScriptArguments, GRPOConfig, ModelConfig))\n"
        "script, args, model = parser.parse_args_and_config()\n"
        "def short(completions, **kwargs): return [0.0 for _ in completions]\n"
        "def main():\n    data = load_dataset('d', split='train')\n"
        "    GRPOTrainer(model=model.model_name_or_path, args=args, train_dataset=data, reward_funcs=short).train()\n"
    )
    Path("train.sh").write_text("accelerate launch --num_processes 2 train.py --model_name_or_path m --beta 0.5\n")
    run = yaml.safe_load(imported(capsys, "train.sh")[0])
    assert (run["model"]["name_or_path"], run["algorithm"]["beta"], run["data"]["dataset"]) == ("m", 0.5, "d")
    assert run["reward"]["reward_funcs"] == ["train.py:short"]
    said = refused(capsys, "import-trl", "train.py")
    assert "--model_name_or_path is missing" in said
    assert "the script reads TRL's options from its command line: give them behind it" in said


def test_a_script_without_options_is_started_by_accelerate(folder: Path, capsys: pytest.CaptureFixture[str]):
    Path("train.py").write_text(SCRIPT)
    Path("train.sh").write_text("export CUDA_VISIBLE_DEVICES=0,1\naccelerate launch train.py\n")
    run = yaml.safe_load(imported(capsys, "train.sh")[0])
    assert (run["deepspeed"]["nproc_per_node"], run["rollout"]["num_generations"]) == (2, 4)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("print('no trainer')\n", "there is no command trl grpo in it"),
        (SCRIPT + SCRIPT, "train.py makes 2 GRPOTrainer, and a run file is one run"),
        ("def broken(:\n", "train.py is no Python: "),
        (
            "x = x + 'a'\nGRPOTrainer(model=x, train_dataset=y, reward_funcs='m')\n",
            "the model is x: the script computes",
        ),
        ("GRPOTrainer(model='m', reward_funcs=make())\n", "reward make() is no function of a file"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    script: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
):
    Path("train.py").write_text(script)
    assert message in refused(capsys, "import-trl", "train.py")
