"""Local stand-ins for what imported commands name: models, datasets, prompts, plugins, and files of settings."""

import json
from pathlib import Path
from typing import Any

from tests.tiny_model import save_tiny_model

MODELS = (
    "Qwen/Qwen2.5-7B-Instruct",
    "Qwen/Qwen2.5-3B-Instruct",
    "Qwen/Qwen2.5-Math-7B",
    "models/Qwen2.5-7B-Instruct-nf4",
)
MATH = [{"problem": f"What is {n} + 1?", "solution": f"${n + 1}$"} for n in range(8)]
COUNTDOWN = [{"nums": [n, 2, 3], "target": n + 5} for n in range(8)]
PROMPTS = [{"prompt": [{"role": "user", "content": f"What is {n} + 1?"}], "solution": f"${n + 1}$"} for n in range(8)]
ROWS: dict[str, list[dict[str, Any]]] = {
    "AI-MO/NuminaMath-TIR/train.jsonl": MATH,
    "zouxuhong/Countdown-Tasks-3to4/train.jsonl": COUNTDOWN,
    "open-r1/DAPO-Math-17k-Processed/train.jsonl": [
        {"prompt": row["problem"], "solution": row["solution"]} for row in MATH
    ],
    "trl-lib/DeepMath-103K/train.jsonl": PROMPTS,
    "trl-lib/DeepMath-103K/test.jsonl": PROMPTS[:2],
    "rows/math.jsonl": MATH,
    "rows/questions.jsonl": [{"question": row["problem"], "solution": row["solution"]} for row in MATH],
    "rows/held_out.jsonl": [{"question": row["problem"], "solution": row["solution"]} for row in MATH[:2]],
    "rows/prompts.jsonl": PROMPTS,
    "rows/talks.jsonl": [
        {"messages": [*row["prompt"], {"role": "assistant", "content": row["solution"]}]} for row in PROMPTS
    ],
}
FILES = {
    "examples/train/grpo/prompt.txt": "You think in <think> </think>, and answer in <answer> </answer>.\n",
    "swift/example/train/grpo/prompt.txt": "You think first.\n",
    "examples/train/grpo/plugin/plugin.py": "from swift.plugin import ORM, orms\n\n\n"
    "class CountdownORM(ORM):\n    def __call__(self, completions, target, nums, **kwargs):\n"
    "        return [0.0 for _ in completions]\n\n\norms['external_countdown'] = CountdownORM\n",
    "plugins/length.py": "from swift.plugin import ORM, orms\n\n\n"
    "class Short(ORM):\n    def __call__(self, completions, **kwargs):\n"
    "        return [float(len(text) < 9) for text in completions]\n\n\norms[\"short\"] = Short\n",
    "plugins/lake.py": "from swift.infer_engine.protocol import RolloutInferRequest\n"
    "from swift.rollout.gym_env import Env, envs\n\n\nclass Lake(Env):\n"
    "    async def reset(self, config: RolloutInferRequest):\n        return config.data_dict['problem'], {}, None\n\n"
    "    async def step(self, action):\n        return 'Go on.', 0.0, False, {}\n\n"
    "    async def close(self):\n        pass\n\n\nenvs['frozen_lake'] = Lake\n",
    "rewards/own.py": "def short(completions, **kwargs):\n    return [float(len(c) < 9) for c in completions]\n",
    "ds.json": json.dumps({"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}}),
    "accelerate_zero3.yaml": "distributed_type: DEEPSPEED\nnum_machines: 1\nnum_processes: 8\n"
    "deepspeed_config: {zero_stage: 3, offload_optimizer_device: none}\n",
    "grpo_base.yaml": "model_name_or_path: Qwen/Qwen2.5-3B-Instruct\ndataset_name: trl-lib/DeepMath-103K\n"
    "reward_funcs: [accuracy_reward]\nlearning_rate: 1.0e-6\nlr_scheduler_type: cosine\n"
    "per_device_train_batch_size: 8\ngradient_accumulation_steps: 4\n",
}  # fmt: skip


def make_stand_ins(folder: Path) -> None:
    """Write them all into `folder`, under the names that commands use from there."""
    model = save_tiny_model(folder / "tiny", num_layers=1)
    for name in MODELS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(model)
    texts = FILES | {name: "".join(json.dumps(row) + "\n" for row in rows) for name, rows in ROWS.items()}
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
