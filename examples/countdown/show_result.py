"""Show what a finished run of the demo has learnt.

    python examples/countdown/show_result.py runs/demo

Prints the numbers of summary.json, loads the trained policy with transformers, and has it solve some held-out rows.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_trainer.config.run_config import DataConfig
from grpo_trainer.data.rows import load_prompt_rows

NUM_ROWS = 5


def print_summary(run_dir: Path) -> None:
    summary = json.loads((run_dir / "summary.json").read_text())
    print(f"\n{summary['steps']} steps in {summary['wall_s']:.0f} s, held-out accuracy:")
    for name, kind in (("eval_accuracy", "sampled"), ("eval_greedy", "greedy")):
        before, after = summary[f"{name}_before"], summary[f"{name}_after"]
        print(f"  {kind:8} {before:.3f} -> {after:.3f}  ({after - before:+.3f})")
    stages = sorted(summary["seconds_per_stage"].items(), key=lambda item: -item[1])
    print("seconds per stage: " + ", ".join(f"{stage} {seconds:.0f}" for stage, seconds in stages))


def main(run_dir: Path) -> None:
    print_summary(run_dir)
    tokenizer = AutoTokenizer.from_pretrained(run_dir / "model")
    model = AutoModelForCausalLM.from_pretrained(run_dir / "model", dtype=torch.float32)
    data = DataConfig(dataset=f"{run_dir / 'data' / 'held_out.jsonl'}#{NUM_ROWS}", recipe="countdown")
    print("\nthe trained policy, loaded with transformers, on held-out rows:")
    for row in load_prompt_rows(data, tokenizer):
        prompt = torch.tensor([row.token_ids])
        answer = model.generate(prompt, max_new_tokens=48, do_sample=False)[0, prompt.shape[1] :]
        text = tokenizer.decode(answer, skip_special_tokens=True).replace("\n", " ")
        print(f"  {row.columns['nums']} -> {row.columns['target']}: {text}")
    print(f"\nreport: {run_dir / 'report.html'}")
    print(f"serve the policy: .venv/bin/grpo-rollout serve {run_dir / 'model'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
