"""Our Prometheus series, beside vLLM's on `GET /metrics`."""

from typing import get_args

from prometheus_client import Counter, Gauge, Histogram

from grpo_proto.messages.weights import WeightStateName

PUSHES = Counter("grpo_rollout_pushes", "Weight pushes by outcome.", ["outcome"])
PUSH_SECONDS = Histogram(
    "grpo_rollout_push_seconds", "From begin to commit.", buckets=(0.1, 0.3, 1, 3, 10, 30, 100, 300)
)
PUSH_BYTES = Counter("grpo_rollout_push_bytes", "Bytes of committed pushes.")
WEIGHT_STATE = Gauge("grpo_rollout_weight_state", "1 for the state that the weights are in.", ["state"])
WEIGHT_VERSION = Gauge("grpo_rollout_weight_version", "Policy version that is served.")
ADAPTERS = Gauge("grpo_rollout_adapters", "Adapter versions in memory.")
ROLLOUTS = Counter("grpo_rollout_requests", "Requests for rollouts by status.", ["status"])
SEQUENCES = Counter("grpo_rollout_sequences", "Sampled sequences by finish reason.", ["finish_reason"])
TOKENS = Counter("grpo_rollout_tokens", "Sampled tokens that were returned.")
LOGPROBS = Counter("grpo_rollout_logprobs_requests", "Requests for logprobs by status.", ["status"])
SESSIONS = Gauge("grpo_rollout_sessions", "Open sessions.")
SCORED_TOKENS = Counter("grpo_rollout_scored_tokens", "Given tokens whose logprobs were returned.")


def set_weight_state(state: str, version: int) -> None:
    for name in get_args(WeightStateName):
        WEIGHT_STATE.labels(name).set(name == state)
    WEIGHT_VERSION.set(version)


def count_push(outcome: str, *, seconds: float | None = None, num_bytes: int = 0) -> None:
    PUSHES.labels(outcome).inc()
    if seconds is not None:
        PUSH_SECONDS.observe(seconds)
        PUSH_BYTES.inc(num_bytes)
