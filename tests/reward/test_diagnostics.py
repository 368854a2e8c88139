"""What a reward logs beside its score comes as plain JSON, or is left out and named; the score stays."""

import math

import numpy as np
import pytest
import torch

from grpo_reward import Score, reward
from grpo_reward.scorer import Outcome, checked_params, outcome, score_batch


def scored(function, num_samples: int = 2) -> list[Outcome]:
    mark = reward(function).__reward__
    return score_batch(mark, checked_params(mark, {}), [{"completion": "", "columns": {}}] * num_samples, None)


class Hostile:
    def __repr__(self):
        raise ValueError("no text")

    def tolist(self):
        raise ValueError("no list")

    item = __float__ = tolist


class Endless:
    def tolist(self):
        return [Endless()]


@pytest.mark.parametrize(
    ("values", "first"),
    [
        (np.ones(2, np.float32), 1.0),
        ([np.int64(3), np.int64(4)], 3),
        (np.array([[1, 2], [3, 4]]), [1, 2]),
        ([np.bool_(True), None], True),
        (torch.tensor([0.5, 1.0]), 0.5),
        ([{"inner": [np.float32(0.5)]}, {}], {"inner": [0.5]}),
    ],
)
def test_log_columns_of_numpy_and_torch_are_plain_json(values, first):
    def fit(completions, log_extra):
        log_extra("x", values)
        return [1.0] * len(completions)

    assert scored(fit)[0] == {"score": 1.0, "status": "ok", "log": {"x": first}}
    assert outcome(Score(1.0, log={"x": next(iter(values))})) == {"score": 1.0, "status": "ok", "log": {"x": first}}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (object(), "a value of type object is no JSON"),
        ({1, 2}, "a value of type set is no JSON"),
        (float("nan"), "Out of range float values are not JSON compliant"),
        (np.float32("nan"), "Out of range float values are not JSON compliant"),
        (np.array([1.0, np.inf]), "Out of range float values are not JSON compliant"),
        (np.float32, "a value of type type is no JSON"),
        (Hostile(), "no list"),
        (Endless(), "maximum recursion depth exceeded"),
    ],
)
def test_a_log_column_that_is_no_json_is_left_out_and_named(value, why):
    def fit(completions, log_extra):
        log_extra("bad", [value, 1])
        log_extra("good", ["a", "b"])
        return [1.0, None]

    first, second = scored(fit)
    assert (first["score"], first["log"]) == (1.0, {"good": "a"})
    assert first["detail"].startswith(f"log column bad left out: {why}")
    assert second == {"score": None, "status": "unscorable", "log": {"bad": 1, "good": "b"}}
    said = outcome(Score(None, detail="not mine", log={"bad": value}))
    assert (said["status"], set(said)) == ("unscorable", {"score", "status", "detail"})
    assert said["detail"].startswith(f"not mine; log column bad left out: {why}")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (math.nan, "nan"), (np.float32("inf"), "inf"), ("abc", "'abc'"), (None, "None"), ([1.0], "[1.0]"),
        (Hostile(), "Hostile"), (10**400, "1000000"),
    ],
)  # fmt: skip
def test_a_metric_that_is_no_finite_number_is_left_out_and_named(value, told):
    def fit(completions, log_metric):
        log_metric("bad", value)
        log_metric("good", 2)
        return [1.0] * len(completions)

    for found in (*scored(fit), outcome(Score(1.0, metrics={"bad": value, "good": 2}))):
        assert (found["score"], found["status"], found["metrics"]) == (1.0, "ok", {"good": 2.0})
        assert found["detail"].startswith("metric bad left out: it is ")
        assert told in found["detail"]


@pytest.mark.parametrize("value", [np.float32(0.5), torch.tensor(0.5), np.array(0.5), 0.5])
def test_metrics_of_numpy_and_torch_are_numbers_and_true_is_one(value):
    def fit(completions, log_metric):
        log_metric("m", value)
        log_metric("t", True)
        return [1.0] * len(completions)

    for found in (*scored(fit), outcome(Score(1.0, metrics={"m": value, "t": np.bool_(True)}))):
        assert found == {"score": 1.0, "status": "ok", "metrics": {"m": 0.5, "t": 1.0}}


@pytest.mark.parametrize("values", [(math.inf, -math.inf), (1e308, 1e308)])
def test_metrics_without_a_mean_cost_no_score(values):
    def fit(completions, log_metric):
        for value in values:
            log_metric("m", value)
        return [1.0] * len(completions)

    for found in scored(fit):
        assert found == {
            "score": 1.0, "status": "ok", "detail": "metric m left out: it is nan, not a finite number",
        }  # fmt: skip


def test_a_log_or_metrics_that_are_no_dict_are_left_out_and_named():
    def fit(completions, log_extra, log_metric):
        log_extra("x", [1] * len(completions))
        log_metric("m", 1)
        return [Score(1.0, log=["a"], metrics=3.0), Score(1.0)]

    first, second = scored(fit)
    assert first == {
        "score": 1.0, "status": "ok",
        "detail": "metrics left out: they are a float, not a dict of numbers; "
        "log left out: it is a list, not a dict of columns",
    }  # fmt: skip
    assert second == {"score": 1.0, "status": "ok", "log": {"x": 1}, "metrics": {"m": 1.0}}


def test_the_detail_stays_within_its_limit():
    found = outcome(Score(1.0, log={f"column {number}": object() for number in range(100)}))
    assert (found["score"], len(found["detail"])) == (1.0, 1000)
