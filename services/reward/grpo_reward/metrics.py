"""What `GET /metrics` shows."""

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from grpo_proto import RewardScore

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """One registry per server, so that two of them fit into one process."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter("grpo_reward_requests", "Answered requests.", ["route", "status"], registry=registry)
        self.request_seconds = Histogram(
            "grpo_reward_request_seconds", "Duration of a request that scores.", buckets=BUCKETS_S, registry=registry
        )
        self.scores = Counter("grpo_reward_scores", "Scores by outcome.", ["reward", "status"], registry=registry)
        self.score_seconds = Counter(
            "grpo_reward_score_seconds", "Time workers spent in a reward.", ["reward"], registry=registry
        )
        self.remembered = Counter("grpo_reward_scores_remembered", "Scores that --memo had already.", registry=registry)
        self.queued = Gauge("grpo_reward_queue_depth", "Scores asked for and not answered yet.", registry=registry)
        self.restarts = Counter(
            "grpo_reward_worker_restarts",
            "Worker processes replaced: timeout, death, leaving (a reward left something behind), cancelled, "
            "unread (what it was given), lost (all of them, with the process that starts them).",
            ["cause"],
            registry=registry,
        )
        self.deadlines = Counter(
            "grpo_reward_deadlines_exceeded", "Requests whose deadline came before their last score.", registry=registry
        )
        self._workers = Gauge("grpo_reward_workers", "Worker processes.", registry=registry)

    def watch_workers(self, count: Callable[[], int]) -> None:
        self._workers.set_function(count)

    def count_scores(self, reward: str, scores: Sequence[RewardScore]) -> None:
        for status in {score.status for score in scores}:
            self.scores.labels(reward, status).inc(sum(score.status == status for score in scores))

    def text(self) -> bytes:
        return generate_latest(self._registry)
