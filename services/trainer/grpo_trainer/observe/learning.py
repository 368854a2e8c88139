"""Warn of signs that a run learns nothing, read from its last steps. Training does not depend on them.

A sign counts when the last step and `MOST` of the last `WINDOW` show it, and has cleared when none of them does. So a
number that oscillates about its threshold warns once, and a gap of one step does not suppress the warning.
"""

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .curves import numbers_of
from .jsonl import read_records
from .live_groups import clean
from .missing_scores import MissingScores
from .run_files import METRICS_FILE

WINDOW = 5
"""Steps. One bad batch is no sign, and five steps of a run of hundreds are early enough to stop it."""
MOST = 4
"""How many of the last `WINDOW` steps must show a sign before it is logged."""
ZERO_SPREAD = 0.95
"""Share of samples in groups with equal rewards: the other twentieth gives hardly any gradient."""
CUT_OFF = 0.9
"""Share of truncated completions: most policies have some; a policy that answers never has nearly all."""
NO_ENTROPY = 1e-3
"""Entropy in nats per token: below it the policy repeats one completion. Runs that learn end at some hundredths."""
FAR_FROM_REFERENCE = 5.0
"""KL in nats per token: a policy that learns stays below 1; beyond this its text is noise."""
FALLEN_TO = 0.5
"""Share of the best reward so far, a mean over `WINDOW` steps, below which a reward has fallen. Entropy and KL alone
do not distinguish a collapse from a learned task."""
MISSING = 0.05
"""Share of a reward's scores: a few timeouts are normal; one score in twenty is a fault of the reward."""
FAULTS = ("error", "timeout")
"""Statuses that are faults; `unscorable` is none, as a reward may decline to score a sample."""
MAX_DETAIL = 200


EQUAL_REWARDS, CUT_OFF_EARLY, COLLAPSE, FAILING = "equal rewards", "cut off", "collapse", "failing reward "
"""Signs; the last one is followed by the reward's name."""


@dataclass(frozen=True)
class StepSeen:
    """The input of the rules: the metrics of a step and its missing scores."""

    metrics: Mapping[str, float]
    missing: Sequence[MissingScores] = ()

    def get(self, name: str) -> float:
        """Return the metric, or NaN when it was not measured: no comparison with NaN is true."""
        return self.metrics.get(name, math.nan)


def signs_of(step: StepSeen, *, best_reward: float) -> set[str]:
    """Return the signs of one step. `best_reward` is the best mean reward of `WINDOW` steps of the run."""
    signs = {FAILING + one.reward for one in step.missing if _failing_share(step, one.reward) > MISSING}
    if step.get("frac_reward_zero_std") >= ZERO_SPREAD:
        signs.add(EQUAL_REWARDS)
    if step.get("completions/clipped_ratio") >= CUT_OFF:
        signs.add(CUT_OFF_EARLY)
    # The first is missing when no sample was computed, the second while most are.
    no_entropy = any(step.get(name) < NO_ENTROPY for name in ("entropy", "all_samples/entropy"))
    gone = no_entropy or step.get("kl") > FAR_FROM_REFERENCE
    if gone and step.get("reward") < best_reward - (1 - FALLEN_TO) * abs(best_reward):
        signs.add(COLLAPSE)
    return signs


def sentence_of(sign: str, steps: Sequence[StepSeen], *, best_reward: float) -> str:
    """Describe a sign that `steps` show, and what to inspect or to change."""
    last = steps[-1]
    if sign == EQUAL_REWARDS:
        return (
            f"in most of the last {len(steps)} steps nearly every group of completions had equal rewards (mean reward "
            f"{last.get('reward'):.3g}): nothing is learnt from them. Look at the completions and their rewards; if "
            "the rewards are right, take prompts that the policy solves sometimes, or raise rollout.num_generations or "
            "rollout.temperature"
        )
    if sign == CUT_OFF_EARLY:
        share = 100 * last.get("completions/clipped_ratio")
        return (
            f"in most of the last {len(steps)} steps nearly all completions ({share:.0f} %) were cut off: "
            "raise rollout.max_completion_length, or look at the completions for text that never ends"
        )
    if sign == COLLAPSE:
        numbers = "".join(f", {name} {last.get(name):.3g}" for name in ("entropy", "kl") if name in last.metrics)
        return (
            f"the policy has collapsed: reward {last.get('reward'):.3g}, at its best {best_reward:.3g}{numbers}. "
            "Go back to an earlier checkpoint, with a lower optimizer.learning_rate or a higher algorithm.beta"
        )
    lost = next(one for one in last.missing if FAILING + one.reward == sign and one.status in FAULTS)
    why = f", for instance: {clean(lost.detail, MAX_DETAIL)}" if lost.detail else ""
    return (
        f"reward {clean(lost.reward, MAX_DETAIL)} fails: in the last step {lost.count} of {lost.of} scores are missing "
        f"({lost.status}){why}. Where it has a weight, these samples are not trained on; fix the reward"
    )


class LearningWatch:
    """Keep the last steps and the logged signs. Used by the loop's thread."""

    def __init__(self) -> None:
        self._steps: deque[StepSeen] = deque(maxlen=WINDOW)
        self._rewards: deque[float] = deque(maxlen=WINDOW)
        self._best = math.nan
        self._told: set[str] = set()

    def restore(self, run_dir: Path) -> None:
        """Read the best reward of the run before the resume."""
        for record in read_records(run_dir / METRICS_FILE):
            self._learn_best(dict(numbers_of(record)))

    def step_done(self, metrics: Mapping[str, float], missing: Sequence[MissingScores] = ()) -> list[str]:
        """Add a finished step. Return the warnings to log now."""
        self._learn_best(metrics)
        self._steps.append(StepSeen(metrics, missing))
        shown = [signs_of(step, best_reward=self._best) for step in self._steps]
        counts = Counter(sign for signs in shown for sign in signs)
        self._told &= counts.keys()
        new = {sign for sign in shown[-1] if counts[sign] >= MOST} - self._told if len(shown) == WINDOW else set()
        self._told |= new
        return [sentence_of(sign, list(self._steps), best_reward=self._best) for sign in sorted(new)]

    def _learn_best(self, metrics: Mapping[str, float]) -> None:
        if math.isfinite(reward := metrics.get("reward", math.nan)):
            self._rewards.append(reward)
            if len(self._rewards) == WINDOW:
                mean = sum(self._rewards) / WINDOW
                self._best = mean if math.isnan(self._best) else max(self._best, mean)


def _failing_share(step: StepSeen, reward: str) -> float:
    return sum(one.share for one in step.missing if one.reward == reward and one.status in FAULTS)
