"""Training samples out of a seed, for tests that need many."""

import random

from grpo_trainer.algorithm.sequences import TrainingSample

MAX_COMPLETION_LENGTH = 14


def make_samples(count: int, *, seed: int = 0, stale_share: float = 0.0, logprobs: bool = True) -> list[TrainingSample]:
    """Prompts of 1 to 9 and completions of 1 to 14 tokens, with any advantage."""
    rng = random.Random(seed)
    samples = []
    for _ in range(count):
        prompt = [rng.randrange(5, 100) for _ in range(rng.randint(1, 9))]
        completion = [rng.randrange(5, 100) for _ in range(rng.randint(1, MAX_COMPLETION_LENGTH))]
        rollout = [rng.gauss(-4.5, 0.5) for _ in completion] if logprobs else []
        samples.append(TrainingSample(prompt, completion, rollout, rng.gauss(0, 1), fresh=rng.random() >= stale_share))
    return samples
