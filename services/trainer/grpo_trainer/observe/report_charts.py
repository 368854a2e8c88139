"""Curves → the report's charts: plain dicts in plotly's form; the page adds its own colours.

A chart has panels, stacked over the same steps. A panel without data is left out; a chart without panels names what is
missing.
"""

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .curves import Curves
from .stage_clock import OTHER, STAGES
from .thinned import ThinnedSeries, trailing_mean

BLUE, ORANGE, GREEN, PURPLE, RED, TEAL, BROWN, GREY = (
    "#4c8dd6", "#d0752a", "#2f9668", "#9a78d0", "#d9605b", "#2a93a5", "#a9825a", "#8c96a3",
)  # fmt: skip
"""At least 3:1 against the page's light and dark background."""
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, RED, TEAL, BROWN, GREY)
STAGE_COLORS = dict(zip((*STAGES, OTHER), (ORANGE, BROWN, TEAL, BLUE, RED, PURPLE, GREEN, GREY), strict=True))
PANEL_GAP = 0.07
SMOOTH_FROM = 30
"""Points from which a curve of noisy batches is shown faintly, below its trailing mean."""

Trace = dict[str, Any]


@dataclass
class Panel:
    """One pair of axes. `weight` is its share of the chart's height."""

    y_title: str
    traces: list[Trace]
    weight: float = 1.0
    y_axis: dict[str, Any] = field(default_factory=dict)


@dataclass
class Chart:
    """`figure` is None when none of its metrics was measured; `notes` are sentences below it."""

    id: str
    title: str
    explanation: str
    missing: str
    figure: dict[str, Any] | None
    height_px: int
    notes: list[str] = field(default_factory=list)


def make_charts(curves: Curves) -> list[Chart]:
    """All charts of the report, in its order."""
    return [
        _chart(
            "reward",
            "Reward",
            "Mean over the samples of a step that have a score; below it, the share of these samples in groups whose "
            "rewards are all equal, from which nothing is learnt.",
            "No sample of this run has a score.",
            [
                Panel("reward", list(_reward_traces(curves)), 3.0),
                Panel(
                    "equal groups",
                    list(_lines(curves, {"frac_reward_zero_std": "in groups without spread"}, [GREY])),
                    1.0,
                    SHARE,
                ),
            ],
        ),
        _chart(
            "accuracy",
            "Accuracy",
            "Share of correct completions: of each training batch, and of the held-out rows.",
            "No accuracy was measured.",
            [Panel("accuracy", list(_accuracy_traces(curves)), 4.0, SHARE)],
        ),
        _chart(
            "lengths",
            "Completion length",
            "Tokens per completion: mean, and the range from the shortest to the longest; below it, the share cut off "
            "at the length limit.",
            "No completion was sampled.",
            [
                Panel("tokens", list(_length_traces(curves)), 3.0, {"rangemode": "tozero"}),
                Panel("clipped", list(_lines(curves, {"completions/clipped_ratio": "clipped"}, [RED])), 1.0, SHARE),
            ],
        ),
        _chart(
            "policy",
            "KL, entropy and clipping",
            "How far the policy is from the reference model and from teachers, how spread out its choices are, and how "
            "often the clip was active; over the computed samples of a step.",
            "None of these was measured.",
            [
                Panel(
                    "KL",
                    list(_lines(curves, {"kl": "KL to the reference", "teacher/kl": "to teachers"}, [PURPLE, ORANGE])),
                    1.3,
                ),
                Panel("entropy", list(_lines(curves, {"entropy": "entropy"}, [TEAL])), 1.3, {"rangemode": "tozero"}),
                Panel("clip ratio", list(_lines(curves, CLIP_RATIOS)), 1.4, {"rangemode": "tozero"}),
                Panel("aux loss", list(_lines(curves, {"aux_loss": "load balancing of experts"}, [GREEN])), 1.0),
                Panel("log π", list(_lines(curves, {"chord/logprob": "of demonstrations"}, [RED])), 1.0),
            ],
        ),
        _chart(
            "time",
            "Seconds per stage",
            "Where the time of a step goes. Waiting is sampling that training did not hide.",
            "No stage was timed.",
            [Panel("seconds", list(_stage_traces(curves)), 4.0)],
            notes=list(_stage_notes(curves)),
        ),
        _chart(
            "staleness",
            "Staleness",
            "How many policy versions the oldest token of a sample lags behind the policy that is trained.",
            "No staleness was measured.",
            [
                Panel(
                    "versions",
                    list(_lines(curves, {"staleness/mean": "mean", "staleness/max": "largest"}, [BLUE, GREY])),
                    2.2,
                    {"rangemode": "tozero"},
                ),
                Panel("samples left out", list(_lost_traces(curves)), 1.8, {"rangemode": "tozero"}),
            ],
        ),
        _chart(
            "mismatch",
            "Trainer against server",
            "The same tokens, the logprob the rollout server reported and the one the trainer computes: absolute "
            "difference. The canary is a fixed set of prompts.",
            "No mismatch was measured.",
            [
                Panel("mean |Δ|", list(_mismatch_traces(curves, "mean")), 1.4, {"rangemode": "tozero"}),
                Panel("largest |Δ|", list(_mismatch_traces(curves, "max")), 1.3, {"rangemode": "tozero"}),
                Panel("ratio", list(_lines(curves, RATIOS, [TEAL, GREY, BROWN])), 1.3),
            ],
        ),
        _chart(
            "optimizer",
            "Optimizer",
            "Gradient norm before clipping, learning rate and loss. The loss of policy gradients is no measure of "
            "progress.",
            "No update was made.",
            [
                Panel("grad norm", list(_lines(curves, {"grad_norm": "gradient norm"})), 1.4, {"rangemode": "tozero"}),
                Panel("rate", list(_lines(curves, {"learning_rate": "learning rate"}, [GREEN])), 1.3, EXPONENT),
                Panel("loss", list(_lines(curves, {"loss": "loss"}, [BROWN])), 1.3),
            ],
        ),
    ]


SHARE = {"range": [-0.03, 1.03], "tickformat": ".0%"}
EXPONENT = {"rangemode": "tozero", "exponentformat": "e"}
CLIP_RATIOS = {
    "clip_ratio/region_mean": "clipped, either side",
    "clip_ratio/low_mean": "clipped low",
    "clip_ratio/high_mean": "clipped high",
}
RATIOS = {
    "sampling/importance_sampling_ratio/mean": "ratio: mean",
    "sampling/importance_sampling_ratio/min": "ratio: smallest",
    "sampling/importance_sampling_ratio/max": "ratio: largest",
}
LOST = {
    "samples/dropped_stale": "too stale",
    "samples/dropped_crash": "prompt kills servers",
    "samples/dropped_unscorable": "unscorable",
    "samples/dropped_timeout": "reward timed out",
    "samples/dropped_error": "reward failed",
    "samples/dropped_small_group": "too few of the group scored",
    "samples/dropped_truncated": "cut off, and masked",
    "samples/dropped_empty": "no token",
}


def _chart(
    id: str,
    title: str,
    explanation: str,
    missing: str,
    panels: Sequence[Panel],
    *,
    notes: list[str] | None = None,
) -> Chart:
    shown = [panel for panel in panels if panel.traces]
    if not shown:
        return Chart(id, title, explanation, missing, None, 0)
    height_px = 130 + int(90 * sum(panel.weight for panel in shown))
    return Chart(id, title, explanation, missing, _figure(shown), height_px, notes or [])


def _figure(panels: Sequence[Panel]) -> dict[str, Any]:
    """Panels from top to bottom, on one x axis."""
    unit = (1.0 - PANEL_GAP * (len(panels) - 1)) / sum(panel.weight for panel in panels)
    traces: list[Trace] = []
    axes: dict[str, Any] = {}
    top = 1.0
    for number, panel in enumerate(panels, start=1):
        suffix = "" if number == 1 else str(number)
        bottom = max(0.0, top - unit * panel.weight)
        axes[f"yaxis{suffix}"] = {"title": {"text": panel.y_title}, "domain": [bottom, top], **panel.y_axis}
        traces += [{**trace, "yaxis": f"y{suffix}"} for trace in panel.traces]
        top = bottom - PANEL_GAP
    axes["xaxis"] = {"title": {"text": "step"}, "anchor": f"y{len(panels)}" if len(panels) > 1 else "y"}
    if max((step for trace in traces for step in trace["x"]), default=0) <= 10:
        axes["xaxis"]["dtick"] = 1  # there is no step 1.5
    longest = max(len(trace["x"]) for trace in traces)
    bars = {"barmode": "stack", "bargap": 0.08 if longest <= 60 else 0}
    return {"data": traces, "layout": {**axes, **bars, "showlegend": True}}


def _line(series: ThinnedSeries, name: str, color: str, **changes: Any) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines" if len(series) > 1 else "markers",
        "name": name,
        "x": _rounded(series.steps),
        "y": _rounded(series.values),
        "line": {"color": color, "width": 2},
        **changes,
    }


def _bars(series: ThinnedSeries, name: str, color: str) -> Trace:
    """Bars of means, without a last bar of fewer steps, which would stand out for no reason."""
    end = len(series) - (1 if series.last_is_partial and len(series) > 1 else 0)
    return {
        "type": "bar",
        "name": name,
        "x": _rounded(series.steps[:end]),
        "y": _rounded(series.values[:end]),
        "marker": {"color": color, "line": {"width": 0}},
    }


def _lines(curves: Curves, names: Mapping[str, str], colors: Sequence[str] = PALETTE) -> Iterator[Trace]:
    """One line for each metric that exists."""
    for index, (metric, name) in enumerate(names.items()):
        if series := curves.get(metric):
            yield _line(series, name, colors[index % len(colors)])


def _noisy_line(series: ThinnedSeries, name: str, color: str) -> Iterator[Trace]:
    """A curve of batches; a long curve faintly, with its trailing mean."""
    if len(series) < SMOOTH_FROM:
        yield _line(series, name, color)
        return
    window = max(5, len(series) // 40)
    yield _line(series, name, color, opacity=0.3, showlegend=False, line={"color": color, "width": 1})
    smooth = trailing_mean(series.values, window)
    steps = window * series.per_point
    yield _line(series, f"{name} (mean of {steps} steps)", color, y=_rounded(smooth))


def _reward_traces(curves: Curves) -> Iterator[Trace]:
    if total := curves.get("reward"):
        yield from _noisy_line(total, "reward", BLUE)
    for index, (reward, series) in enumerate(curves.matching("rewards/", "/mean").items(), start=1):
        name = html.escape(reward, quote=False)  # plotly reads names as a kind of HTML
        color = PALETTE[index % len(PALETTE)]
        yield _line(series, name, color, line={"color": color, "width": 1.5, "dash": "dot"})


def _accuracy_traces(curves: Curves) -> Iterator[Trace]:
    if batches := curves.get("accuracy"):
        yield from _noisy_line(batches, "training batches", GREY)
    for metric, name, color, symbol in (
        ("eval_accuracy", "held out, sampled", BLUE, "circle"),
        ("eval_greedy", "held out, greedy", ORANGE, "diamond"),
    ):
        if series := curves.get(metric):
            yield _line(series, name, color, mode="lines+markers", marker={"symbol": symbol, "size": 8, "color": color})
    for index, (name, series) in enumerate(curves.matching("eval/", "").items()):  # `<set>/avg@8`
        color = PALETTE[index % len(PALETTE)]
        yield _line(series, name, color, line={"color": color, "width": 1.5, "dash": "dot"})


def _length_traces(curves: Curves) -> Iterator[Trace]:
    low, high = curves.get("completions/min_length"), curves.get("completions/max_length")
    if low and high:
        edge = {"color": GREY, "width": 0.5}
        yield _line(high, "longest", GREY, line=edge, showlegend=False)
        fill = {"fill": "tonexty", "fillcolor": "rgba(140, 150, 163, 0.22)"}
        yield _line(low, "shortest to longest", GREY, line=edge, **fill)
    yield from _lines(
        curves,
        {"completions/mean_length": "mean", "completions/mean_terminated_length": "mean of those that ended"},
        [BLUE, GREEN],
    )


def _stage_traces(curves: Curves) -> Iterator[Trace]:
    for stage, series in curves.stage_seconds.items():
        if curves.stage_totals.get(stage, 0.0) > 0.0:
            yield _bars(series, stage, STAGE_COLORS[stage])


def _stage_notes(curves: Curves) -> Iterator[str]:
    total = sum(curves.stage_totals.values())
    if total > 0.0:
        shares = sorted(curves.stage_totals.items(), key=lambda item: item[1], reverse=True)
        yield "Of the whole run: " + ", ".join(f"{name} {part / total:.0%}" for name, part in shares if part > 0) + "."
    widest = max((series.per_point for series in curves.stage_seconds.values()), default=1)
    if widest > 1:
        yield f"Each bar is the mean of {widest} steps."


def _mismatch_traces(curves: Curves, statistic: str) -> Iterator[Trace]:
    """`statistic` is mean or max. The legend has each name once, for both panels."""
    for metric, name, color in (
        (f"sampling/sampling_logp_difference/{statistic}", "training samples", BLUE),
        (f"sampling/mixed_logp_difference/{statistic}", "samples across a push", ORANGE),
        (f"canary/logprob_difference_{statistic}", "canary", PURPLE),
    ):
        if series := curves.get(metric):
            trace = _line(series, name, color, legendgroup=name, showlegend=statistic == "mean")
            yield {**trace, "mode": "lines+markers"} if name == "canary" else trace


def _lost_traces(curves: Curves) -> Iterator[Trace]:
    """Bars of the samples left out; all-zero bars are omitted."""
    for (metric, name), color in zip(LOST.items(), (ORANGE, TEAL, PURPLE, BROWN, RED, GREEN, BLUE, GREY), strict=True):
        if (series := curves.get(metric)) and any(series.values):
            yield _bars(series, name, color)


def _rounded(values: Sequence[float]) -> list[float]:
    """Round to six digits: more is invisible and would double the page."""
    return [float(f"{value:.6g}") for value in values]
