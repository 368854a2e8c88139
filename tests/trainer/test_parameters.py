"""Parameters that a run file gives to a user's own code, and to the entries of the tables that take some."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tests.trainer import losses_page
from tests.trainer.made_episodes import make_taken
from tests.trainer.test_extension import run_config

from grpo_trainer.algorithm.decisions import sequences_of
from grpo_trainer.algorithm.estimators import estimator_of
from grpo_trainer.algorithm.estimators.rewards import Rewards
from grpo_trainer.algorithm.surrogates import reads_of, surrogate_of
from grpo_trainer.algorithm.surrogates.reads import Reads
from grpo_trainer.algorithm.trial import check_algorithm
from grpo_trainer.config.algorithm import AlgorithmConfig
from grpo_trainer.errors import UsageError
from grpo_trainer.extension import module_of

OWN = """
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from grpo_trainer.algorithm.estimators import Estimator
from grpo_trainer.algorithm.surrogates import reads

if TYPE_CHECKING:
    from grpo_trainer.algorithm.sequences import MicroBatch

@dataclass
class Range:
    low: float
    high: float

GIVEN = []

@reads(old=False)
def loss(
    logprobs_N, batch: MicroBatch, algorithm, tally, scale=1.0, *, limit: Annotated[float, Field(gt=0)] = 2.0,
    kind: Literal["soft", "hard"] = "soft", span: Range | None = None, other: MicroBatch | None = None,
):
    GIVEN[:] = [scale, limit, kind, span]
    return -logprobs_N * limit

def least(logprobs_N, batch, algorithm, tally, top: int, /): ...

def too_few(logprobs_N, batch): ...

def shares(counts, *, share: float):
    return [share] * len(counts.tokens)

def with_anything(counts, **given):
    return [given["share"]] * len(counts.tokens)

def above(rewards, algorithm, threshold: float = 0.5):
    return [[None if total is None else total - threshold for total in group] for group in rewards.totals]

declared = Estimator(above, zero_without_spread=True)
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    return file


LOSS = "its parameters: scale = 1.0, limit = 2.0, kind = 'soft', span = None, other = None"
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": (
        {"loss": "loss", "params": {"limt": 3.0}},
        rf"algorithm\.params: \S+own\.py:loss has no parameter limt; did you mean limit\? \({LOSS}",
    ),
    "an argument of every surrogate": ({"loss": "loss", "params": {"batch": 1}}, "own.py:loss has no parameter batch"),
    "of another type": (
        {"loss": "loss", "params": {"limit": "much"}},
        rf"algorithm\.params\.limit: .* valid number, .*\(got 'much'\) \(\S+own\.py:loss; {LOSS}",
    ),
    "out of bounds": ({"loss": "loss", "params": {"limit": 0}}, r"params\.limit: .* greater than 0 \(got 0\)"),
    "not finite": ({"loss": "loss", "params": {"limit": float("inf")}}, r"params\.limit: .* finite number \(got inf\)"),
    "no choice": ({"loss": "loss", "params": {"kind": "firm"}}, r"params\.kind: .* 'soft' or 'hard' \(got 'firm'\)"),
    "inside": ({"loss": "loss", "params": {"span": {"low": "x", "high": 1}}}, r"params\.span\.low: .* \(got 'x'\)"),
    "text where the default is a number": ({"loss": "loss", "params": {"scale": "x"}}, r"params\.scale: .*\(got 'x'\)"),
    "of an annotation for type checkers": (
        {"loss": "loss", "params": {"other": 1}},
        r"params\.other: no value can be checked by the annotation .*MicroBatch.* is not defined",
    ),
    "not to be given": ({"loss": "least"}, r"algorithm\.loss: \S+own\.py:least cannot be called as .*argument: 'top'"),
    "a function of something else": (
        {"loss": "too_few"},
        r"algorithm\.loss: \S+ cannot be called as too_few\(logprobs_N, batch, algorithm, tally\): too many positional",
    ),
    "missing": (
        {"normaliser": "shares"},
        r"algorithm\.normaliser_params: \S+own\.py:shares needs a value for share \(its parameters: share\)",
    ),
    "null for a number": (
        {"normaliser": "shares", "normaliser_params": {"share": None}},
        r"algorithm\.normaliser_params\.share: .*\(got None\)",
    ),
    "of a declared estimator": (
        {"advantage_estimator": "declared", "advantage_estimator_params": {"treshold": 1}},
        r"algorithm\.advantage_estimator_params: \S+declared has no parameter treshold; did you mean threshold\?",
    ),
    "of a preset": ({"params": {"limit": 1}}, r"algorithm\.params: clipped has no parameter limit \(.*: none\)"),
    "of another preset": (
        {"loss_type": "sapo", "params": {"sapo_temperature_pos": 0}},
        r"algorithm\.params\.sapo_temperature_pos: .* greater than 0 .*sapo_temperature_neg = 1\.05",
    ),
    "true for a number": (
        {"loss_type": "fipo", "params": {"fipo_clip_range": True}},
        r"algorithm\.params\.fipo_clip_range: a number is expected \(got True\)",
    ),
    "of a built-in normaliser": ({"normaliser_params": {"x": 1}}, "dapo has no parameter x .its parameters: none"),
    "of a built-in estimator": ({"advantage_estimator_params": {"x": 1}}, "grpo has no parameter x .*: none"),
}


def in_file(own: Path, settings: dict[str, Any]) -> dict[str, Any]:
    names = ("loss", "normaliser", "advantage_estimator")
    return {setting: f"{own}:{value}" if setting in names else value for setting, value in settings.items()}


@pytest.mark.parametrize("what", WRONG)
def test_parameters_that_do_not_fit_are_refused_with_those_that_there_are(own: Path, what: str):
    settings, message = WRONG[what]
    with pytest.raises(UsageError, match=message):
        check_algorithm(run_config(own.parent, **in_file(own, settings)))


def test_a_loss_gets_its_parameters_as_its_annotations_say_and_keeps_what_it_declares(own: Path):
    span = {"low": 0, "high": "1e-3"}
    given = {"scale": "1e-3", "limit": 3, "kind": "hard", "span": span}  # YAML reads 1e-3 as text
    algorithm = AlgorithmConfig(loss=f"{own}:loss", params=given)
    check_algorithm(run_config(own.parent, loss=algorithm.loss, params=given))
    surrogate = surrogate_of(algorithm)
    logprobs_N = torch.tensor([-1.0, -2.0])
    assert surrogate(logprobs_N, None, algorithm, None).tolist() == [3.0, 6.0]  # type: ignore[arg-type]
    assert reads_of(surrogate) == Reads(old=False)
    scale, limit, kind, range_given = module_of(own).GIVEN
    assert (scale, limit, kind, range_given.low, range_given.high) == (0.001, 3.0, "hard", 0.0, 0.001)
    assert algorithm.params == given, "what the run file says stays as it is"


def test_the_parameters_of_the_page_of_losses_are_those_of_its_loss():
    (section,) = re.findall(r"```yaml\n(algorithm:.*?)```", losses_page.PAGE.read_text(), re.DOTALL)
    algorithm = AlgorithmConfig(**yaml.safe_load(section)["algorithm"])
    assert len(algorithm.params) == 2
    surrogate_of(algorithm)


def test_a_normaliser_and_an_estimator_get_theirs(own: Path):
    for name in ("shares", "with_anything"):
        algorithm = AlgorithmConfig(normaliser=f"{own}:{name}", normaliser_params={"share": 0.25})
        sequences = sequences_of(make_taken(3), algorithm, max_completion_length=14)
        assert all((sequence.weights_L[sequence.loss_mask_L] == 0.25).all() for sequence in sequences)
    for name in ("above", "declared"):
        algorithm = AlgorithmConfig(advantage_estimator=f"{own}:{name}", advantage_estimator_params={"threshold": 1})
        estimator = estimator_of(algorithm)
        assert estimator(Rewards([[1.5, None]]), algorithm) == [[0.5, None]]
        assert estimator.zero_without_spread is (True if name == "declared" else None)
