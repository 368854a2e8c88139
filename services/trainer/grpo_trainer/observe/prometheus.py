"""`GET /metrics`: read from a snapshot of the run at every scrape; nothing is counted twice."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ..algorithm.sequences import DROP_REASONS
from .live_history import LiveHistory
from .run_status import STALENESS_BUCKETS, RunStatus, Snapshot
from .stage_clock import STAGES

LEARNING = {
    "frac_reward_zero_std": (
        "zero_spread_groups_ratio",
        "Share of the scored samples of the last step in groups whose rewards were all equal: they teach nothing.",
    ),
    "completions/mean_length": (
        "completion_length_tokens",
        "Mean length of the completions of the last step, in tokens.",
    ),
    "completions/clipped_ratio": (
        "completions_truncated_ratio",
        "Share of the completions of the last step that were cut off at the limit of their length.",
    ),
    "entropy": ("entropy_nats", "Mean entropy of the policy in the last step, in nats per computed token."),
    "kl": ("kl_nats", "Mean KL divergence from the reference model in the last step, in nats per token."),
    "grad_norm": ("gradient_norm", "Norm of the gradient in the last step, before it is clipped."),
    "learning_rate": ("learning_rate", "Learning rate of the last update."),
    "clip_ratio/region_mean": (
        "clipped_tokens_ratio",
        "Share of the computed tokens of the last step whose probability ratio was clipped.",
    ),
    "sampling/sampling_logp_difference/mean": (
        "sampling_logprob_difference_nats",
        "Mean distance between the log-probabilities of the rollout servers and of the trainer, in nats per token.",
    ),
    "eval_accuracy": ("evaluation_accuracy", "Share of correct completions, sampled, in the last evaluation."),
    "eval_greedy": ("evaluation_greedy_accuracy", "Share of correct completions, greedy, in the last evaluation."),
}
"""Gauges for monitoring a run: name in metrics.jsonl → name of the gauge, and its help."""


class RunMetrics:
    """Metrics in a separate registry, so that several runs fit into one process."""

    def __init__(self, status: RunStatus):
        self._registry = CollectorRegistry()
        self._registry.register(_RunCollector(status))

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _RunCollector(Collector):
    def __init__(self, status: RunStatus):
        self._status, self._last_step = status, _LastStep(status.history)

    def describe(self) -> list[Metric]:
        return []  # registering must not depend on the state of a run

    def collect(self) -> Iterator[Metric]:
        state = self._status.snapshot()
        yield _gauge("step", "Last finished step.", state.step)
        yield _gauge("policy_version", "Policy version that the rollout servers have.", state.policy_version)
        if self._status.has_heartbeat():
            yield _gauge("heartbeat_timestamp_seconds", "When the loop last moved on.", state.heartbeat_timestamp_s)
        bound_s = self._status.heartbeat_bound_s
        yield _gauge("heartbeat_bound_seconds", "A loop that has not moved on for so long is stuck.", bound_s)
        for name, text, value in (
            ("max_steps", "Steps of the whole run.", state.max_steps or None),
            ("reward", "Mean total reward of the last step.", state.reward),
            ("accuracy", "Share of correct completions in the last step.", state.accuracy),
            ("weight_push_seconds", "Duration of the last push.", state.push_s),
        ):
            if value is not None:
                yield _gauge(name, text, value)
        yield _counter("tokens", "Tokens of prompts and completions trained on.", state.tokens)
        yield _counter("weight_push_bytes", "Bytes of weights pushed to each server.", state.push_bytes)
        # Start at 0, also after a resume: with the seconds of the earlier process the counter would go back by the
        # steps that are done again, and rate() would take that for a reset.
        seconds = dict.fromkeys(STAGES, 0.0) | dict(state.seconds_per_stage)
        yield _labelled("stage_seconds", "Time in each stage, of this process.", "stage", seconds)
        text = (
            "Samples that took no part in the training, by reason, such as stale (too old) or error (a reward failed)."
        )
        # Start every reason at 0: Prometheus misses the first 80 of a series that begins at 80.
        dropped: dict[str, float] = {reason: state.dropped.get(reason, 0) for reason in DROP_REASONS}
        yield _labelled("samples_dropped", text, "reason", dropped)
        yield _staleness(state)
        yield from _learning(self._last_step.numbers())


class _LastStep:
    """The numbers of the last finished step. Each scrape reads only the steps since the last scrape."""

    def __init__(self, history: LiveHistory):
        self._history = history
        self._sequence = 0
        self._numbers: dict[str, float] = {}
        self._step: int | None = None

    def numbers(self) -> dict[str, float]:
        """Return the numbers of the last step, as metrics.jsonl names them; unmeasured numbers are absent. Numbers of
        an evaluation stay until the next evaluation."""
        found = self._history.since(self._sequence)
        if found is None:  # more new steps than the history keeps one by one
            self._sequence, curves = self._history.whole()
            evaluated = {name: curve["latest"] for name, curve in curves.items() if name.startswith("eval_")}
            self._numbers = {name: value for name, value in evaluated.items() if value is not None}
            found = self._history.since(self._sequence - 1)
            if found is None:  # no step, or too many since `whole`
                return self._numbers
        self._sequence, steps = found
        for step in steps:
            same = step["step"] == self._step  # completed late
            kept = {name: value for name, value in self._numbers.items() if same or name.startswith("eval_")}
            self._step = step["step"]
            self._numbers = kept | step["values"]
        return self._numbers


def _learning(numbers: Mapping[str, float]) -> Iterator[Metric]:
    for metric, (name, text) in LEARNING.items():
        yield GaugeMetricFamily(f"grpo_trainer_{name}", text, value=numbers.get(metric))
    text = "Mean of each reward in the last step, before weights."
    family = GaugeMetricFamily("grpo_trainer_reward_component", text, labels=["reward"])
    for metric, value in numbers.items():
        if metric.startswith("rewards/") and metric.endswith("/mean"):
            family.add_metric([metric.removeprefix("rewards/").removesuffix("/mean")], value)
    yield family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"grpo_trainer_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"grpo_trainer_{name}", text, value=value)


def _labelled(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(f"grpo_trainer_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _staleness(state: Snapshot) -> Metric:
    cumulative, buckets = 0, []
    bounds = [*(str(float(bound)) for bound in STALENESS_BUCKETS), "+Inf"]
    for bound, count in zip(bounds, state.staleness_counts, strict=True):
        cumulative += count
        buckets.append((bound, cumulative))
    family = HistogramMetricFamily(
        "grpo_trainer_sample_staleness", "Versions a trained sample's oldest token lagged behind."
    )
    family.add_metric([], buckets=buckets, sum_value=state.staleness_sum)
    return family
