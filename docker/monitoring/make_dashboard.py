"""Writes dashboards/grpo-services.json: `python docker/monitoring/make_dashboard.py`. Its panels are listed below."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("dashboards") / "grpo-services.json"
PROMETHEUS = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT = 8, 7
"""Of a panel; a row is 24 wide."""


@dataclass(frozen=True)
class Panel:
    """One chart. `queries`: legend → PromQL; `unit` is one of Grafana's."""

    title: str
    text: str
    queries: dict[str, str]
    unit: str = "short"
    stacked: bool = False


ROWS: dict[str, list[Panel]] = {
    "Training": [
        Panel("Reward", "Mean total reward of the last step.", {"{{instance}}": "grpo_trainer_reward"}),
        Panel(
            "Accuracy",
            "Share of correct completions in the last step.",
            {"{{instance}}": "grpo_trainer_accuracy"},
            "percentunit",
        ),
        Panel(
            "Progress",
            "Finished steps of all.",
            {"{{instance}}": "grpo_trainer_step / grpo_trainer_max_steps"},
            "percentunit",
        ),
        Panel(
            "Who waits for whom",
            "Seconds of each second that the loop spends in a stage: wait is for samples, score for rewards.",
            {"{{stage}}": "sum by (stage) (rate(grpo_trainer_stage_seconds_total[$__rate_interval]))"},
            stacked=True,
        ),
        Panel(
            "Tokens trained on",
            "Prompts and completions.",
            {"{{instance}}": "rate(grpo_trainer_tokens_total[$__rate_interval])"},
            "reqps",
        ),
        Panel(
            "Staleness",
            "Versions that the oldest token of a sample lagged behind, mean.",
            {
                "{{instance}}": "rate(grpo_trainer_sample_staleness_sum[$__rate_interval])"
                " / rate(grpo_trainer_sample_staleness_count[$__rate_interval])"
            },
        ),
        Panel(
            "Samples dropped",
            "They took no part in the training.",
            {"{{reason}}": "sum by (reason) (increase(grpo_trainer_samples_dropped_total[$__rate_interval]))"},
        ),
        Panel(
            "Heartbeat",
            "Seconds since the loop last moved on.",
            {"{{instance}}": "time() - grpo_trainer_heartbeat_timestamp_seconds"},
            "s",
        ),
    ],
    "Weights": [
        Panel(
            "Policy version",
            "The trainer's, and what each rollout server has.",
            {"trainer": "max(grpo_trainer_policy_version)", "{{instance}}": "grpo_rollout_weight_version"},
        ),
        Panel(
            "State",
            "1 for the state that the weights of a server are in; stale serves nobody.",
            {"{{instance}} {{state}}": "grpo_rollout_weight_state == 1"},
        ),
        Panel(
            "Last push",
            "Seconds from begin to commit.",
            {"{{instance}}": "grpo_trainer_weight_push_seconds"},
            "s",
        ),
        Panel(
            "Pushes",
            "By outcome.",
            {"{{outcome}}": "sum by (outcome) (increase(grpo_rollout_pushes_total[$__rate_interval]))"},
        ),
        Panel(
            "Bytes pushed",
            "Received by each server.",
            {"{{instance}}": "rate(grpo_rollout_push_bytes_total[$__rate_interval])"},
            "Bps",
        ),
    ],
    "Rollout": [
        Panel(
            "Sampled tokens",
            "Returned to the trainer, and all that the engine made.",
            {
                "returned {{instance}}": "rate(grpo_rollout_tokens_total[$__rate_interval])",
                "engine {{instance}}": "rate(vllm:generation_tokens_total[$__rate_interval])",
            },
            "reqps",
        ),
        Panel(
            "Sequences",
            "Running and waiting.",
            {
                "running {{instance}}": "vllm:num_requests_running",
                "waiting {{instance}}": "vllm:num_requests_waiting",
            },
        ),
        Panel(
            "Key-value cache",
            "Share in use.",
            {"{{instance}}": "vllm:kv_cache_usage_perc"},
            "percentunit",
        ),
        Panel(
            "How completions end",
            "length: at the limit; abort: cut by a push, a deadline or a client that left.",
            {"{{finish_reason}}": "sum by (finish_reason) (rate(grpo_rollout_sequences_total[$__rate_interval]))"},
            "reqps",
            stacked=True,
        ),
        Panel(
            "Requests",
            "By status.",
            {"{{status}}": "sum by (status) (rate(grpo_rollout_requests_total[$__rate_interval]))"},
            "reqps",
        ),
    ],
    "Reward": [
        Panel(
            "Scores",
            "By reward and outcome.",
            {"{{reward}} {{status}}": "sum by (reward, status) (rate(grpo_reward_scores_total[$__rate_interval]))"},
            "reqps",
        ),
        Panel(
            "Seconds of a score",
            "Time of a worker.",
            {
                "{{reward}}": "sum by (reward) (rate(grpo_reward_score_seconds_total[$__rate_interval]))"
                " / sum by (reward) (rate(grpo_reward_scores_total[$__rate_interval]))"
            },
            "s",
        ),
        Panel(
            "Requests, 99th percentile",
            "Seconds of a request that scores.",
            {
                "{{instance}}": "histogram_quantile(0.99, sum by (le, instance)"
                " (rate(grpo_reward_request_seconds_bucket[$__rate_interval])))"
            },
            "s",
        ),
        Panel("Waiting", "Scores asked for and not answered.", {"{{instance}}": "grpo_reward_queue_depth"}),
        Panel(
            "Workers replaced",
            "By cause.",
            {"{{cause}}": "sum by (cause) (increase(grpo_reward_worker_restarts_total[$__rate_interval]))"},
        ),
        Panel(
            "Deadlines exceeded",
            "Requests that ended before their last score.",
            {"{{instance}}": "increase(grpo_reward_deadlines_exceeded_total[$__rate_interval])"},
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
        "templating": {
            "list": [{"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
        },
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
