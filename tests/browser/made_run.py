"""A run as the loop would report it, without a loop: numbers and texts out of a seed."""

import math
import random
from collections.abc import Sequence
from pathlib import Path

from grpo_proto import RewardScore
from grpo_trainer.algorithm.sequences import Episode, Group
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.observe.jsonl import StepFile
from grpo_trainer.observe.missing_scores import MissingScores
from grpo_trainer.observe.run_files import METRICS_FILE
from grpo_trainer.observe.run_status import RunStatus
from tests.trainer.made_episodes import completion

MAX_STEPS = 160
HOSTILE = "<script>window.hacked = true</script><img src=x onerror='window.hacked = true'> \ud83d & </pre>"


def make_sample(index: int, text: str, total: float | None, advantage: float | None = None) -> Episode:
    status = "ok" if total is not None else "timeout"
    detail = None if total is not None else "no answer within 10 s"
    rewards = {
        "countdown": RewardScore(score=total, status=status, detail=detail),
        "format": RewardScore(score=1.0, status="ok"),
    }
    return completion(f"s-{index}", [1] * 12, [-0.1] * 12, text, "stop", [(3, 12)], rewards, total, advantage)


def make_groups(step: int, *, size: int = 6) -> list[Group]:
    rng = random.Random(step)
    groups = []
    for position in range(4):
        nums = [rng.randint(1, 12) for _ in range(3)]
        row = PromptRow(position, [1, 2, 3], f"Use {nums} to make {sum(nums)}. Think first.", {})
        samples = []
        for index in range(size):
            right = rng.random() < step / MAX_STEPS
            thoughts = "I add them up. " * rng.randint(1, 60)
            text = f"<think>{thoughts}</think>\n<answer>{' + '.join(map(str, nums))}</answer>"
            samples.append(make_sample(index, text, float(right), 0.7 if right else -0.4))
        samples[-1] = make_sample(size - 1, HOSTILE, None)
        groups.append(Group(4 * step + position, row, samples))
    return groups


def make_metrics(step: int) -> dict[str, float]:
    rng = random.Random(step)
    progress = 1 - math.exp(-3 * step / MAX_STEPS)
    wait, train, push = 1.1 + rng.random() * 0.3, 0.8 + rng.random() * 0.1, 0.12
    metrics = {
        "num_tokens": 4000 * step,
        "reward": progress + rng.gauss(0, 0.05),
        "rewards/countdown/mean": progress + rng.gauss(0, 0.05) - 0.1,
        "rewards/format/mean": 0.9,
        "accuracy": min(1.0, max(0.0, progress * 0.9 + rng.gauss(0, 0.04))),
        "completions/mean_length": 14 + rng.random(),
        "completions/clipped_ratio": 0.1 * rng.random(),
        "frac_reward_zero_std": 0.3 * rng.random(),
        "staleness/mean": rng.random(),
        "staleness/max": rng.randint(0, 2),
        "entropy": 1.2 * (1 - progress) + 0.1,
        "kl": 0.05 * progress,
        "teacher/kl": 0.5 - 0.4 * progress,
        "grad_norm": 0.4 + rng.expovariate(3),
        "reward_std": 0.3 + 0.1 * rng.random(),
        "loss": rng.gauss(0, 0.01),
        "learning_rate": 1e-4 * (1 - step / MAX_STEPS),
        "entropy_coef": 1e-3 * step,
        "clip_ratio/region_mean": 0.01 * rng.random(),
        "sampling/importance_sampling_ratio/mean": 1 + rng.gauss(0, 1e-4),
        "sampling/importance_sampling_ratio/max": 1 + 0.2 * rng.random(),
        "sampling/sampling_logp_difference/mean": 0.01 + 0.002 * rng.random(),
        "samples/unscorable": 4,
        "samples/dropped_timeout": int(step % 20 == 0),
        "step_time": wait + train + push + 0.3,
        "time/wait_s": wait,
        "time/score_s": 0.05,
        "time/prepare_s": 0.2,
        "time/train_s": train,
        "time/push_s": push,
    }
    if step % 40 == 0:
        metrics |= {"eval_accuracy": progress * 0.85, "eval_greedy": progress * 0.9, "time/eval_s": 0.6}
    return metrics


def advance(status: RunStatus, steps: Sequence[int], *, with_groups: bool = True) -> None:
    """Report steps as the journal does."""
    for step in steps:
        status.pushed(step + 1, seconds=0.12, num_bytes=3_400_000)
        status.step_done(
            step,
            make_metrics(step),
            seconds_per_stage={},
            groups=make_groups(step) if with_groups else (),
            missing=[MissingScores("countdown", "timeout", 4, 24, "no answer within 10 s")],
        )
        status.enter_stage("wait")


def show_servers(status: RunStatus) -> None:
    replica = {"live": True, "member": True, "state": "current", "version": 4, "reason": None, "in_flight": 12}
    lost = {"live": False, "member": False, "state": "stale", "version": 2, "reason": "a push was cut off"}
    shown = [
        {"url": "http://rollout-0.rollout:8000", **replica},
        {"url": "http://rollout-1.rollout:8000", **replica, **lost, "in_flight": 0},
    ]
    status.show("replicas", lambda: {"count": 2, "serving": 1, "shown": shown})
    status.show("reward_server", lambda: {"url": "http://reward:8001", "live": True, "detail": None})
    teacher = {"name": "teacher of math and code", "url": "http://teacher:8010", "live": False, "detail": "no route"}
    status.show("teachers", lambda: [teacher])
    status.show(
        "facts",
        lambda: {
            "model": "Qwen/Qwen2.5-1.5B",
            "num_generations": 6,
            "generation_batch_size": 24,
            "max_staleness": 0,
            "rewards": ["countdown", "format"],
            "accuracy_reward": "countdown",
            "log_completions": True,
        },
    )
    text = "rollout server http://rollout-1.rollout:8000 gets no more traffic until the next push: no answer"
    status.show("warnings", lambda: [{"level": "warning", "text": text, "count": 3, "time_s": 1_760_000_000}])


def make_status(*, steps: int) -> RunStatus:
    status = RunStatus("countdown-1.5b", max_steps=MAX_STEPS, heartbeat_bound_s=60.0)
    show_servers(status)
    advance(status, range(1, steps + 1))
    return status


def write_metrics(run_dir: Path, *, steps: int) -> None:
    """What a run of so many steps leaves for the one that resumes it."""
    file = StepFile(run_dir / METRICS_FILE, keep_through_step=None)
    file.append({"step": step, **make_metrics(step)} for step in range(1, steps + 1))
    file.close()
