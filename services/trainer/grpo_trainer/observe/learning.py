"""Judge the last steps of a run by the rules of the section `guards`: warn, go back or stop.

A rule is broken when the last step and `MOST` of the last `guards.steps` show its sign, and has cleared when none of
them does. So a number that oscillates about its limit acts once, and a gap of one step does not suppress it.
"""

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..algorithm.skipping import SURVEYED
from ..config.guards import RULES, Action, GuardsConfig
from .curves import numbers_of
from .decisions import Decision, read_decisions
from .jsonl import read_records
from .live_groups import clean
from .missing_scores import MissingScores
from .run_files import METRICS_FILE

MOST = 0.8
"""Share of the last steps that must show a sign."""
BEST_OF = 5
"""Steps. The best reward of a run is a mean over as many: one lucky batch is no mark to fall from."""
FALLEN_TO = 0.5
"""Share of the best reward so far below which a reward has fallen. Entropy and KL alone do not distinguish a collapse
from a learned task."""
BASE, SHORTEST_BASE = 20, 5
"""Steps that the length of a step is compared with, and how many there must be."""
FAULTS = ("error", "timeout")
"""Statuses that are faults; `unscorable` is none, as a reward may decline to score a sample."""
MAX_DETAIL = 200
MISMATCH = "sampling/sampling_logp_difference/mean"

SEVERITY: tuple[Action, ...] = ("ignore", "warn", "rollback", "stop")
Sign = tuple[str, str]
"""A rule, and the reward it is about, or no word."""


@dataclass(frozen=True)
class StepSeen:
    """The input of the rules: the metrics of a step, its missing scores, and what went before."""

    metrics: Mapping[str, float]
    missing: Sequence[MissingScores] = ()
    usual_length: float = math.nan
    equal_rewards: float = math.nan
    """Share of samples in groups with equal rewards, among those that learn from rewards alone."""

    def get(self, name: str) -> float:
        """Return the metric, or NaN when it was not measured: no comparison with NaN is true."""
        return self.metrics.get(name, math.nan)

    def measured(self, name: str) -> list[float]:
        """Return the metric over computed samples and that over all: the first may be missing, or of few samples."""
        return [self.metrics[key] for key in (name, SURVEYED + name) if key in self.metrics]


def signs_of(step: StepSeen, guards: GuardsConfig, *, best_reward: float) -> set[Sign]:
    """Return the signs of one step. `best_reward` is the best mean reward of `BEST_OF` steps of the run."""
    fallen = step.get("reward") < best_reward - (1 - FALLEN_TO) * abs(best_reward) or not guards.with_fallen_reward
    broken = {
        "kl": fallen and any(value > guards.kl_limit for value in step.measured("kl")),
        "entropy": fallen and any(value < guards.entropy_limit for value in step.measured("entropy")),
        "mismatch": any(value > guards.mismatch_limit for value in step.measured(MISMATCH)),
        "zero_spread": step.equal_rewards >= guards.zero_spread_limit,
        "clipped": step.get("completions/clipped_ratio") >= guards.clipped_limit,
        "length_growth": step.get("completions/mean_length") > guards.length_growth_limit * step.usual_length,
        "repetition": step.get("completions/repeated_ratio") > guards.repetition_limit,
    }
    failing = {one.reward for one in step.missing if _failing_share(step, one.reward) > guards.failing_reward_limit}
    return {(rule, "") for rule, shown in broken.items() if shown} | {("failing_reward", name) for name in failing}


def sentence_of(sign: Sign, steps: Sequence[StepSeen], guards: GuardsConfig, *, best_reward: float) -> str:
    """Describe a sign that `steps` show, and what to inspect or to change."""
    rule, reward = sign
    last, most = steps[-1], f"in most of the last {len(steps)} steps"
    if rule == "zero_spread":
        return (
            f"{most} nearly every group of completions had equal rewards (mean reward "
            f"{last.get('reward'):.3g}): nothing is learnt from them. Look at the completions and their rewards; if "
            "the rewards are right, take prompts that the policy solves sometimes, or raise rollout.num_generations or "
            "rollout.temperature"
        )
    if rule == "clipped":
        share = 100 * last.get("completions/clipped_ratio")
        return (
            f"{most} nearly all completions ({share:.0f} %) were cut off: "
            "raise rollout.max_completion_length, or look at the completions for text that never ends"
        )
    if rule == "mismatch":
        return (
            f"{most} the logprobs of trainer and servers differed by more than {guards.mismatch_limit:g} (last "
            f"{max(last.measured(MISMATCH)):.3g}): the policy is not the one that samples. "
            "Compare dtype and engine flags of the servers with the trainer's"
        )
    if rule == "length_growth":
        return (
            f"{most} completions were more than {guards.length_growth_limit:g} times as long as before (last "
            f"{last.get('completions/mean_length'):.0f} tokens, before {last.usual_length:.0f}). Look at them for text "
            "that never ends, and at what the rewards pay for"
        )
    if rule == "repetition":
        return (
            f"{most} completions repeat themselves ({100 * last.get('completions/repeated_ratio'):.0f} % of their "
            "4-grams). Look at them; the reward `repetition` takes points for it"
        )
    if rule in ("kl", "entropy"):
        numbers = "".join(f", {name} {values[-1]:.3g}" for name in ("entropy", "kl") if (values := last.measured(name)))
        best = "" if math.isnan(best_reward) else f", at its best {best_reward:.3g}"
        limit = f"above guards.kl_limit {guards.kl_limit:g}" if rule == "kl" else f"below {guards.entropy_limit:g}"
        seen = "the policy has collapsed" if guards.with_fallen_reward else f"{most} the {rule} was {limit}"
        return (
            f"{seen}: reward {last.get('reward'):.3g}{best}{numbers}. Go back to an earlier checkpoint, with a lower "
            "optimizer.learning_rate or a higher algorithm.beta"
        )
    lost = next(one for one in last.missing if one.reward == reward and one.status in FAULTS)
    why = f", for instance: {clean(lost.detail, MAX_DETAIL)}" if lost.detail else ""
    return (
        f"reward {clean(lost.reward, MAX_DETAIL)} fails: in the last step {lost.count} of {lost.of} scores are missing "
        f"({lost.status}){why}. Where it has a weight, these samples are not trained on; fix the reward"
    )


class LearningWatch:
    """Keep the last steps and the signs that have acted. Used by the loop's thread."""

    def __init__(self, guards: GuardsConfig | None = None, *, untaught: Sequence[str] | None = None) -> None:
        """`untaught`: the datasets without a teacher, in a run that has teachers."""
        self.guards, self._untaught = guards or GuardsConfig(), untaught
        self._steps: deque[StepSeen] = deque(maxlen=self.guards.steps)
        self._rewards: deque[float] = deque(maxlen=BEST_OF)
        self._lengths: deque[float] = deque(maxlen=self.guards.steps + BASE)
        self._best = math.nan
        self._told: set[Sign] = set()

    def restore(self, run_dir: Path) -> None:
        """Read what the run knew before the resume: its best reward, its usual length, and its last steps, so that a
        rule acts when it would have acted. After a rule has stopped the run its window begins anew: somebody may have
        mended what it judged. Scores that were missing are not in the file."""
        decisions = [one for one in read_decisions(run_dir) if one["rule"] in RULES]
        stopped_after = max((one["step"] for one in decisions if one["action"] == "stop"), default=0)
        records = list(read_records(run_dir / METRICS_FILE))
        for place, record in enumerate(records, start=1):
            metrics = dict(numbers_of(record))
            if record["step"] > stopped_after and place > len(records) - self.guards.steps:
                self.step_done(metrics)
            else:
                self._remember(metrics)
        # A rule that may do more now than it did has not acted yet.
        acted = {(one["rule"], one["action"]) for one in decisions}
        shown = [sign for step in self._steps for sign in signs_of(step, self.guards, best_reward=self._best)]
        self._told = {sign for sign in shown if (sign[0], self.guards.action_of(sign[0])) in acted}

    def step_done(self, metrics: Mapping[str, float], missing: Sequence[MissingScores] = ()) -> list[Decision]:
        """Add a step. Return the decisions that it brings, the strictest last."""
        self._remember(metrics)
        equal = _equal_rewards(metrics, self._untaught)
        self._steps.append(StepSeen(metrics, missing, usual_length=self._usual_length(), equal_rewards=equal))
        shown = [signs_of(step, self.guards, best_reward=self._best) for step in self._steps]
        counts = Counter(sign for signs in shown for sign in signs)
        self._told &= counts.keys()
        most = math.ceil(MOST * self.guards.steps)
        full = len(shown) == self.guards.steps
        new = {sign for sign in shown[-1] if counts[sign] >= most} - self._told if full else set()
        self._told |= new
        found = [
            Decision(sign[0], action, sentence_of(sign, list(self._steps), self.guards, best_reward=self._best))
            for sign in sorted(new)
            if (action := self.guards.action_of(sign[0])) != "ignore"
        ]
        return sorted(found, key=lambda decision: SEVERITY.index(decision.action))

    def _remember(self, metrics: Mapping[str, float]) -> None:
        if math.isfinite(length := metrics.get("completions/mean_length", math.nan)):
            self._lengths.append(length)
        if math.isfinite(reward := metrics.get("reward", math.nan)):
            self._rewards.append(reward)
            if len(self._rewards) == BEST_OF:
                mean = sum(self._rewards) / BEST_OF
                self._best = mean if math.isnan(self._best) else max(self._best, mean)

    def _usual_length(self) -> float:
        """Mean length of the `BASE` steps before those that are judged, which so cannot raise it themselves."""
        before = list(self._lengths)[: -self.guards.steps]
        return sum(before) / len(before) if len(before) >= SHORTEST_BASE else math.nan


def _failing_share(step: StepSeen, reward: str) -> float:
    return sum(one.share for one in step.missing if one.reward == reward and one.status in FAULTS)


def _equal_rewards(metrics: Mapping[str, float], untaught: Sequence[str] | None) -> float:
    """Return `frac_reward_zero_std` over the datasets in `untaught`; None: over all. NaN without a score there."""
    key = "frac_reward_zero_std"
    if untaught is None:
        return metrics.get(key, math.nan)
    of_datasets = [f"data/{name}/" for name in untaught if f"data/{name}/{key}" in metrics]
    total = sum(metrics[dataset + "share"] for dataset in of_datasets)
    return sum(metrics[dataset + "share"] * metrics[dataset + key] for dataset in of_datasets) / (total or math.nan)
