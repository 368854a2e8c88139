"""The trainer's update against TRL's GRPOTrainer, and the chunked output head against whole logits and TRL's kernel.

    python benchmarks/trainer.py [--turns T]

`step`: one optimizer update on 256 completions of a Qwen2 model (hidden 128, 4 layers), the same sequences for both, in
turn, medians of CPU seconds divided (one thread: what else the machine does matters little). TRL's side is its
`_compute_loss` with backward, clip and optimizer step. `ragged` completions have 1 to 64 tokens, `equal` ones 64; in
`half` every second group of ragged ones has no spread, so that its advantages are 0. `padded` is ours with
`deepspeed.share_prefixes: never`. With `nothing in common`, or with a BOS or a short or long template's head, the first
1, 6 or 24 tokens of all, 256 prompts have a ragged completion each: ours against padded.

`head`: forward and backward of logprob and entropy from hidden states, 2,048 tokens × 65,536 entries; `ours, one pass`
for a loss that depends on each token alone. Extra memory is the peak of the process beyond what inputs, weight and its
gradient take. Each variant has a process of its own; times are medians of them, the variants in turn.
"""

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

COMPLETIONS, GROUP, PROMPT_TOKENS, MAX_COMPLETION_TOKENS = 256, 8, 16, 64
HEAD_TOKENS, HEAD_VOCABULARY, HEAD_WIDTH, HEAD_CHUNK = 2048, 65_536, 512, 256
BOUNDS = {"equal": 1.35, "ragged": 2.3, "half": 3.8}
"""How many times as fast as TRL's an update is to be."""
UNSHARED = {"nothing in common": 0, "a BOS": 1, "a short head": 6, "a long head": 24}
"""Tokens that all prompts begin with, where each prompt has one completion."""
UNSHARED_BOUND = 1.02
HEADS = ["ours", "ours, one pass", "trl", "whole logits"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7, help="measurements of each side")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.measure in (*BOUNDS, *UNSHARED):
        print(json.dumps(measure_step(arguments.measure, arguments.turns)))
    elif arguments.measure:
        print(json.dumps(measure_head(arguments.measure)))
    else:
        report(arguments.turns)


def report(turns: int) -> None:
    steps = {case: in_child(case, turns) for case in BOUNDS}
    print(f"{'update, 256 completions':<32}{'ours':>10}{'padded':>10}{'TRL':>10}{'TRL / ours':>12}{'bound':>8}")
    for case, seconds in steps.items():
        columns = "".join(f"{seconds[side]:>9.3f}s" for side in ("ours", "padded", "trl"))
        print(f"{case:<32}{columns}{seconds['trl'] / seconds['ours']:>12.2f}{BOUNDS[case]:>8.1f}")
    print(f"\n{'':<32}{'ours':>10}{'padded':>10}{'ours / padded':>22}{'bound':>8}")
    for case in UNSHARED:
        seconds = in_child(case, turns)
        columns = "".join(f"{seconds[side]:>9.3f}s" for side in ("ours", "padded"))
        print(f"{case:<32}{columns}{seconds['ours'] / seconds['padded']:>22.2f}{UNSHARED_BOUND:>8.2f}")
    measured = [{name: in_child(name, turns) for name in HEADS} for _ in range(turns)]
    heads = {
        name: {key: statistics.median(turn[name][key] for turn in measured) for key in ("seconds", "mib")}
        for name in HEADS
    }
    whole = heads["whole logits"]
    print(f"\n{'head, 2,048 × 65,536':<32}{'seconds':>10}{'MiB':>10}{'time':>12}{'memory':>10}")
    for name, found in heads.items():
        print(
            f"{name:<32}{found['seconds']:>10.2f}{found['mib']:>10.0f}"
            f"{found['seconds'] / whole['seconds']:>12.2f}{found['mib'] / whole['mib']:>10.2f}"
        )


def in_child(measure: str, turns: int) -> Any:
    command = [sys.executable, __file__, "--measure", measure, "--turns", str(turns)]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(finished.stdout.splitlines()[-1])


def measure_step(case: str, turns: int) -> dict[str, float]:
    with TemporaryDirectory() as folder:
        sequences = make_sequences(case)
        save_model(Path(folder))
        # TRL first: it must not find the process group of the other side.
        sides = {"trl": trl_step(Path(folder), sequences)} if case in BOUNDS else {}
        sides |= {
            name: our_step(Path(folder), sequences, share="never" if name == "padded" else "auto")
            for name in ("ours", "padded")
        }
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(turns + 1):
            for name, step in sides.items():
                started = time.process_time()
                step()
                if turn > 0:
                    seconds[name].append(time.process_time() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


def make_sequences(case: str) -> list[tuple[list[int], list[int], float]]:
    """Prompt, completion and advantage of each sample."""
    rng = random.Random(0)
    sequences = []
    head = [rng.randrange(5, 100) for _ in range(UNSHARED.get(case, 0))]
    for k in range(COMPLETIONS):
        if k % GROUP == 0 or case in UNSHARED:
            prompt = head + [rng.randrange(5, 100) for _ in range(PROMPT_TOKENS)]
        size = MAX_COMPLETION_TOKENS if case == "equal" else rng.randint(1, MAX_COMPLETION_TOKENS)
        completion, advantage = [rng.randrange(5, 100) for _ in range(size)], rng.gauss(0, 1)
        sequences.append((prompt, completion, 0.0 if case == "half" and k // GROUP % 2 else advantage))
    return sequences


def save_model(folder: Path) -> None:
    """The model of the demo's size: 0.8 M parameters, characters as tokens."""
    from tests.tiny_model import make_model, make_tokenizer

    make_model(tied=True, hidden_size=128, num_layers=4).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)


def our_step(folder: Path, sequences: list[tuple[list[int], list[int], float]], *, share: str) -> Callable[[], Any]:
    from tests.trainer.made_episodes import build_updates

    from grpo_trainer.algorithm.decisions import sequences_of
    from grpo_trainer.algorithm.sequences import single_turn
    from grpo_trainer.algorithm.skipping import sequences_to_compute
    from grpo_trainer.config.algorithm import AlgorithmConfig
    from grpo_trainer.config.optimization import DeepSpeedConfig, OptimizerConfig
    from grpo_trainer.config.run_config import ModelConfig
    from grpo_trainer.engine.training_engine import TrainingEngine

    algorithm, sharing = AlgorithmConfig(), DeepSpeedConfig(share_prefixes=share)
    engine = TrainingEngine(
        ModelConfig(name_or_path=str(folder), dtype="float32"),
        OptimizerConfig(),
        sharing,
        algorithm,
        temperature=1.0,
        total_updates=1000,
        seed=0,
    )
    taken = [
        (single_turn("e", prompt, tokens, versions=[(1, len(tokens))], finish_reason="stop"), advantage)
        for prompt, tokens, advantage in sequences
    ]

    def step() -> None:
        decided = sequences_of(taken, algorithm, max_completion_length=MAX_COMPLETION_TOKENS)
        (update,) = build_updates(
            sequences_to_compute(decided, algorithm),
            version=1,
            tokens_per_micro_batch=sharing.tokens_per_micro_batch,
            rank=0,
            world_size=1,
            pad_token_id=0,
            device=engine.device,
            prefixes=engine.prefixes,
        )
        engine.update(update)

    return step


def trl_step(folder: Path, sequences: list[tuple[list[int], list[int], float]]) -> Callable[[], Any]:
    from trl import import_utils

    # Nothing is sampled here, and importing vLLM takes long.
    import_utils.is_vllm_available = lambda min_version=None: False
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    trainer = GRPOTrainer(
        model=str(folder),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=str(folder / "trl"),
            use_cpu=True,
            bf16=False,
            report_to=[],
            per_device_train_batch_size=COMPLETIONS,
            num_generations=GROUP,
            max_completion_length=MAX_COMPLETION_TOKENS,
            gradient_checkpointing=False,
            model_init_kwargs={"dtype": "float32"},
        ),
        train_dataset=Dataset.from_list([{"prompt": "a"}]),
        processing_class=AutoTokenizer.from_pretrained(folder),
    )
    trainer.current_gradient_accumulation_steps = 1
    optimizer = trainer.create_optimizer()
    width = max(len(tokens) for _, tokens, _ in sequences)
    completion_ids = torch.tensor([tokens + [0] * (width - len(tokens)) for _, tokens, _ in sequences])
    completion_mask = torch.tensor([[1] * len(tokens) + [0] * (width - len(tokens)) for _, tokens, _ in sequences])
    prompt_ids = torch.tensor([prompt for prompt, _, _ in sequences])
    inputs = {
        "prompt_ids": prompt_ids,
        "prompt_mask": torch.ones_like(prompt_ids),
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "advantages": torch.tensor([advantage for _, _, advantage in sequences]),
        "num_items_in_batch": completion_mask.sum(),
    }

    def step() -> None:
        trainer.model.train()
        trainer._compute_loss(trainer.model, inputs).backward()
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure_head(name: str) -> dict[str, float]:
    torch.manual_seed(0)
    hidden = torch.randn(HEAD_TOKENS, HEAD_WIDTH, requires_grad=True)
    head = torch.nn.Linear(HEAD_WIDTH, HEAD_VOCABULARY, bias=False)
    targets = torch.randint(0, HEAD_VOCABULARY, (HEAD_TOKENS,))
    forward = head_variant(name, head, hidden, targets)
    # Gradients exist before the measurement: every variant needs them.
    hidden.grad, head.weight.grad = torch.zeros_like(hidden), torch.zeros_like(head.weight)
    base, started = peak_mib(), time.process_time()
    forward().backward()
    return {"seconds": time.process_time() - started, "mib": peak_mib() - base}


def head_variant(
    name: str, head: torch.nn.Linear, hidden: torch.Tensor, targets: torch.Tensor
) -> Callable[[], torch.Tensor]:
    """The sum of all logprobs; entropies are computed, too."""
    if name.startswith("ours"):
        from grpo_trainer.engine.output_head import LogitTransform, TokenHead

        ours = TokenHead(head, transform=LogitTransform(), temperature=1.0, chunk_tokens=HEAD_CHUNK)
        if name == "ours":
            return lambda: ours(hidden, targets)[0].sum()
        return lambda: ours(hidden, targets, lambda logprobs, entropy, chunk: logprobs.sum())[2]
    if name == "trl":
        from trl.kernels import ChunkedLogProbFunction
        from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE as WIDTH

        return lambda: ChunkedLogProbFunction.apply(
            hidden, head.weight, None, targets, 1.0, WIDTH, None, 1.0, ("entropy",)
        )[0].sum()

    def whole() -> tuple[torch.Tensor, torch.Tensor]:
        log_probabilities = head(hidden).log_softmax(dim=-1)
        with torch.no_grad():
            entropy = -(log_probabilities.exp() * log_probabilities).sum(dim=-1)
        return log_probabilities.gather(1, targets[:, None])[:, 0], entropy

    return lambda: whole()[0].sum()


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
