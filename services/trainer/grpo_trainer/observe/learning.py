"""Signs that a run learns nothing, read from its last steps. They only warn: what is trained does not depend on them.

A sign counts when the last step and `MOST` of the last `WINDOW` show it, and has cleared when none of them does: a
number that swings about its threshold warns once, not at every swing, and one that is away for a step still warns.
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
"""How many of the last `WINDOW` steps must show a sign before it is told."""
ZERO_SPREAD = 0.95
"""Share of samples in groups with equal rewards: of the other twentieth hardly any gradient comes."""
CUT_OFF = 0.9
"""Share of completions cut off: most policies cut off some, none that answers cuts off nearly all."""
NO_ENTROPY = 1e-3
"""Entropy in nats per token: below it the policy always says the same. Runs that learn end at some hundredths."""
FAR_FROM_REFERENCE = 5.0
"""KL in nats per token: a policy that learns stays below one, beyond this its text is no language any more."""
FALLEN_TO = 0.5
"""Share of the best reward so far, a mean over `WINDOW` steps, below which a reward has fallen. Entropy and KL alone
do not tell a collapse from a task that has been learnt."""
MISSING = 0.05
"""Share of a reward's scores: a few time-outs happen, one in twenty is a fault in the reward."""
FAULTS = ("error", "timeout")
"""A reward may also decline to judge a sample: `unscorable` is no fault."""
MAX_DETAIL = 200


EQUAL_REWARDS, CUT_OFF_EARLY, COLLAPSE, FAILING = "equal rewards", "cut off", "collapse", "failing reward "
"""Signs; the last one is followed by the reward's name."""


@dataclass(frozen=True)
class StepSeen:
    """What the rules look at: the metrics of a step, and the scores that rewards did not give in it."""

    metrics: Mapping[str, float]
    missing: Sequence[MissingScores] = ()

    def get(self, name: str) -> float:
        """NaN when it was not measured: no comparison with it is true."""
        return self.metrics.get(name, math.nan)


def signs_of(step: StepSeen, *, best_reward: float) -> set[str]:
    """The signs that one step shows. `best_reward` is the best mean reward of some steps of the run."""
    signs = {FAILING + one.reward for one in step.missing if _failing_share(step, one.reward) > MISSING}
    if step.get("frac_reward_zero_std") >= ZERO_SPREAD:
        signs.add(EQUAL_REWARDS)
    if step.get("completions/clipped_ratio") >= CUT_OFF:
        signs.add(CUT_OFF_EARLY)
    gone = step.get("entropy") < NO_ENTROPY or step.get("kl") > FAR_FROM_REFERENCE
    if gone and step.get("reward") < best_reward - (1 - FALLEN_TO) * abs(best_reward):
        signs.add(COLLAPSE)
    return signs


def sentence_of(sign: str, steps: Sequence[StepSeen], *, best_reward: float) -> str:
    """What a sign that `steps` show means, and what to look at or to change."""
    last = steps[-1]
    if sign == EQUAL_REWARDS:
        return (
            f"in most of the last {len(steps)} steps nearly every group of completions had equal rewards (mean reward "
            f"{last.get('reward'):.3g}): nothing is learnt from them. Look at the completions and their rewards; if "
            "those are right, take prompts that the policy solves sometimes, or raise rollout.num_generations or "
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
            "Go back to a checkpoint from before it, with a lower optimizer.learning_rate or a higher algorithm.beta"
        )
    lost = next(one for one in last.missing if FAILING + one.reward == sign and one.status in FAULTS)
    why = f", for instance: {clean(lost.detail, MAX_DETAIL)}" if lost.detail else ""
    return (
        f"reward {clean(lost.reward, MAX_DETAIL)} fails: in the last step {lost.count} of {lost.of} scores are missing "
        f"({lost.status}){why}. Where it has a weight, these samples are trained on no more; mend the reward"
    )


class LearningWatch:
    """Remembers the last steps and what has been told. Used by the loop's thread."""

    def __init__(self) -> None:
        self._steps: deque[StepSeen] = deque(maxlen=WINDOW)
        self._rewards: deque[float] = deque(maxlen=WINDOW)
        self._best = math.nan
        self._told: set[str] = set()

    def restore(self, run_dir: Path) -> None:
        """The run before it was resumed counts as well."""
        for record in read_records(run_dir / METRICS_FILE):
            self._learn_best(dict(numbers_of(record)))

    def step_done(self, metrics: Mapping[str, float], missing: Sequence[MissingScores] = ()) -> list[str]:
        """The sentences to be told now."""
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
