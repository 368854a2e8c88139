"""What `GET /metrics` shows: read from a snapshot of the run at every scrape, nothing is counted twice."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from .run_status import STALENESS_BUCKETS, RunStatus, Snapshot


class RunMetrics:
    """A registry of its own, so that several runs fit into one process."""

    def __init__(self, status: RunStatus):
        self._registry = CollectorRegistry()
        self._registry.register(_RunCollector(status))

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _RunCollector(Collector):
    def __init__(self, status: RunStatus):
        self._status = status

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
        yield _labelled("stage_seconds", "Time in each stage.", "stage", dict(state.seconds_per_stage))
        text = "Samples dropped as stale, aborted, or with a reward that gave no score."
        yield _labelled("samples_dropped", text, "reason", dict(state.dropped))
        yield _staleness(state)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"grpo_trainer_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"grpo_trainer_{name}", text, value=value)


def _labelled(name: str, text: str, label: str, values: dict[str, float]) -> Metric:
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
