"""Writes dashboards/grpo-services.json: `python docker/monitoring/make_dashboard.py`. Its panels are listed below."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("dashboards") / "grpo-services.json"
PROMETHEUS = {"type": "prometheus", "uid": "${datasource}"}
RUN = '{run=~"$run"}'
"""Several runs may share a Prometheus; the scrape names them."""
STEPS = "[15m]"
"""The window of counters that move once per step. One of seconds, as Grafana's own, lies within a step of minutes: it
sees nothing move, or the whole step at once. What can be a share is one: that is right before the window is full.
"""
WIDTH, HEIGHT = 8, 7
"""Of a panel; a row is 24 wide."""


DATASOURCE = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
RUNS = {
    "name": "run",
    "label": "Run",
    "type": "query",
    "datasource": PROMETHEUS,
    "query": {"query": 'label_values({__name__=~"grpo_.+"}, run)', "refId": "runs"},
    "refresh": 2,
    "includeAll": True,
    "multi": True,
    # A Prometheus that does not name the runs has series without this label.
    "allValue": ".*",
    "current": {"text": ["All"], "value": ["$__all"]},
}


@dataclass(frozen=True)
class Panel:
    """One chart. `queries`: legend → PromQL; `unit` is one of Grafana's; `si:` is one with its prefixes."""

    title: str
    text: str
    queries: dict[str, str]
    unit: str = "short"
    stacked: bool = False


ROWS: dict[str, list[Panel]] = {
    "Training": [
        Panel("Reward", "Mean total reward of the last step.", {"{{instance}}": f"grpo_trainer_reward{RUN}"}),
        Panel(
            "Accuracy",
            "Share of correct completions in the last step.",
            {"{{instance}}": f"grpo_trainer_accuracy{RUN}"},
            "percentunit",
        ),
        Panel(
            "Progress",
            "Finished steps of all.",
            {"{{instance}}": f"grpo_trainer_step{RUN} / grpo_trainer_max_steps{RUN}"},
            "percentunit",
        ),
        Panel(
            "Who waits for whom",
            "Share of the loop's time in each stage, last 15 minutes: wait is for samples, score for rewards.",
            {
                "{{stage}} {{run}}": f"sum by (run, stage) (rate(grpo_trainer_stage_seconds_total{RUN}{STEPS}))"
                f" / on (run) group_left () sum by (run) (rate(grpo_trainer_stage_seconds_total{RUN}{STEPS}))"
            },
            "percentunit",
            stacked=True,
        ),
        Panel(
            "Tokens trained on",
            "Prompts and completions, by second of the loop's time, last 15 minutes.",
            {
                "{{run}}": f"sum by (run) (rate(grpo_trainer_tokens_total{RUN}{STEPS}))"
                f" / sum by (run) (rate(grpo_trainer_stage_seconds_total{RUN}{STEPS}))"
            },
            "si: tokens/s",
        ),
        Panel(
            "Staleness",
            "Versions that the oldest token of a sample lagged behind, mean of the last 15 minutes.",
            {
                "{{instance}}": f"rate(grpo_trainer_sample_staleness_sum{RUN}{STEPS})"
                f" / rate(grpo_trainer_sample_staleness_count{RUN}{STEPS})"
            },
        ),
        Panel(
            "Samples dropped",
            "They took no part in the training: too old, without any score, or masked because they were cut off. "
            "Last 15 minutes. A sample that lacks one score of several is trained on: see Scores.",
            {"{{reason}} {{run}}": f"sum by (run, reason) (increase(grpo_trainer_samples_dropped_total{RUN}{STEPS}))"},
        ),
        Panel(
            "Heartbeat",
            "Seconds since the loop last moved on.",
            {"{{instance}}": f"time() - grpo_trainer_heartbeat_timestamp_seconds{RUN}"},
            "s",
        ),
    ],
    "Learning": [
        Panel(
            "Reward by name",
            "Mean of each reward in the last step, before weights.",
            {"{{reward}} {{run}}": f"grpo_trainer_reward_component{RUN}"},
        ),
        Panel(
            "Evaluation",
            "Share of correct completions in the last evaluation.",
            {
                "sampled {{instance}}": f"grpo_trainer_evaluation_accuracy{RUN}",
                "greedy {{instance}}": f"grpo_trainer_evaluation_greedy_accuracy{RUN}",
            },
            "percentunit",
        ),
        Panel(
            "What teaches nothing",
            "Groups whose samples all had the same reward, and completions that were cut off at the limit.",
            {
                "equal rewards {{instance}}": f"grpo_trainer_zero_spread_groups_ratio{RUN}",
                "cut off {{instance}}": f"grpo_trainer_completions_truncated_ratio{RUN}",
            },
            "percentunit",
        ),
        Panel(
            "Length of completions",
            "Tokens, mean of the last step.",
            {"{{instance}}": f"grpo_trainer_completion_length_tokens{RUN}"},
        ),
        Panel(
            "Entropy",
            "Nats per token. Towards 0 the policy says the same whatever is sampled.",
            {"{{instance}}": f"grpo_trainer_entropy_nats{RUN}"},
        ),
        Panel(
            "KL",
            "Nats per token, from the reference model; only with algorithm.beta above 0.",
            {"{{instance}}": f"grpo_trainer_kl_nats{RUN}"},
        ),
        Panel("Gradient norm", "Before it is clipped.", {"{{instance}}": f"grpo_trainer_gradient_norm{RUN}"}),
        Panel("Learning rate", "Of the last update.", {"{{instance}}": f"grpo_trainer_learning_rate{RUN}"}, "sci"),
        Panel(
            "Clipped tokens",
            "Share of the tokens whose probability ratio was clipped.",
            {"{{instance}}": f"grpo_trainer_clipped_tokens_ratio{RUN}"},
            "percentunit",
        ),
        Panel(
            "Rollout against trainer",
            "Mean distance of the log-probabilities that both computed for the same tokens, in nats.",
            {"{{instance}}": f"grpo_trainer_sampling_logprob_difference_nats{RUN}"},
        ),
    ],
    "Weights": [
        Panel(
            "Policy version",
            "The trainer's, and what each rollout server has.",
            {
                "trainer {{run}}": f"max by (run) (grpo_trainer_policy_version{RUN})",
                "{{instance}}": f"grpo_rollout_weight_version{RUN}",
            },
        ),
        Panel(
            "State",
            "1 for the state that the weights of a server are in; stale serves nobody.",
            {"{{instance}} {{state}}": f"grpo_rollout_weight_state{RUN} == 1"},
        ),
        Panel(
            "Last push",
            "Seconds from begin to commit.",
            {"{{instance}}": f"grpo_trainer_weight_push_seconds{RUN}"},
            "s",
        ),
        Panel(
            "Pushes",
            "By outcome, last 15 minutes.",
            {"{{outcome}}": f"sum by (outcome) (increase(grpo_rollout_pushes_total{RUN}{STEPS}))"},
        ),
        Panel(
            "Bytes pushed",
            "Received by each server, last 15 minutes.",
            {"{{instance}}": f"increase(grpo_rollout_push_bytes_total{RUN}{STEPS})"},
            "bytes",
        ),
    ],
    "Rollout": [
        Panel(
            "Sampled tokens",
            "Returned to the trainer, and all that the engine made.",
            {
                "returned {{instance}}": f"rate(grpo_rollout_tokens_total{RUN}[$__rate_interval])",
                "engine {{instance}}": f"rate(vllm:generation_tokens_total{RUN}[$__rate_interval])",
            },
            "si: tokens/s",
        ),
        Panel(
            "Sequences",
            "Running and waiting.",
            {
                "running {{instance}}": f"vllm:num_requests_running{RUN}",
                "waiting {{instance}}": f"vllm:num_requests_waiting{RUN}",
            },
        ),
        Panel(
            "Key-value cache",
            "Share in use.",
            {"{{instance}}": f"vllm:kv_cache_usage_perc{RUN}"},
            "percentunit",
        ),
        Panel(
            "How completions end",
            "length: at the limit; abort: cut by a push, a deadline or a client that left.",
            {
                "{{finish_reason}}": "sum by (finish_reason)"
                f" (rate(grpo_rollout_sequences_total{RUN}[$__rate_interval]))"
            },
            "si: completions/s",
            stacked=True,
        ),
        Panel(
            "Requests",
            "By status.",
            {"{{status}}": f"sum by (status) (rate(grpo_rollout_requests_total{RUN}[$__rate_interval]))"},
            "reqps",
        ),
    ],
    "Reward": [
        Panel(
            "Scores",
            "By reward and outcome.",
            {
                "{{reward}} {{status}}": "sum by (reward, status)"
                f" (rate(grpo_reward_scores_total{RUN}[$__rate_interval]))"
            },
            "si: scores/s",
        ),
        Panel(
            "Seconds of a score",
            "Time of a worker.",
            {
                "{{reward}}": f"sum by (reward) (rate(grpo_reward_score_seconds_total{RUN}[$__rate_interval]))"
                f" / sum by (reward) (rate(grpo_reward_scores_total{RUN}[$__rate_interval]))"
            },
            "s",
        ),
        Panel(
            "Requests, 99th percentile",
            "Seconds of a request that scores.",
            {
                "{{instance}}": "histogram_quantile(0.99, sum by (le, instance)"
                f" (rate(grpo_reward_request_seconds_bucket{RUN}[$__rate_interval])))"
            },
            "s",
        ),
        Panel("Waiting", "Scores asked for and not answered.", {"{{instance}}": f"grpo_reward_queue_depth{RUN}"}),
        Panel(
            "Workers replaced",
            "By cause.",
            {"{{cause}}": f"sum by (cause) (increase(grpo_reward_worker_restarts_total{RUN}[$__rate_interval]))"},
        ),
        Panel(
            "Deadlines exceeded",
            "Requests that ended before their last score.",
            {"{{instance}}": f"increase(grpo_reward_deadlines_exceeded_total{RUN}[$__rate_interval])"},
        ),
    ],
}


def dashboard() -> dict[str, Any]:
    """What Grafana imports."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row, members in ROWS.items():
        panels.append(
            {
                "type": "row",
                "title": row,
                "id": len(panels) + 1,
                "collapsed": False,
                "panels": [],
                "gridPos": {"h": 1, "w": 24, "x": 0, "y": top},
            }
        )
        top += 1
        for position, panel in enumerate(members):
            place = {"h": HEIGHT, "w": WIDTH, "x": WIDTH * (position % 3), "y": top + HEIGHT * (position // 3)}
            panels.append(_panel(panel, len(panels) + 1, place))
        top += HEIGHT * (1 + (len(members) - 1) // 3)
    return {
        "uid": "grpo-services",
        "title": "grpo-services",
        "tags": ["grpo"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [DATASOURCE, RUNS]},
        "panels": panels,
    }


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    style = {"lineWidth": 1, "fillOpacity": 30 if panel.stacked else 0, "showPoints": "never"}
    if panel.stacked:
        style["stacking"] = {"mode": "normal", "group": "A"}
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "id": number,
        "gridPos": place,
        "datasource": PROMETHEUS,
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": style}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + position), "expr": query, "legendFormat": legend, "datasource": PROMETHEUS}
            for position, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def text() -> str:
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
