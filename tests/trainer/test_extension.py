"""Tables of the algorithm, and a user's own entries by file and name."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tests.trainer.made_episodes import VERSION, make_sequences, make_taken

from grpo_proto import RewardScore
from grpo_trainer import extension
from grpo_trainer.algorithm.batching import collate
from grpo_trainer.algorithm.correction import rollout_correction
from grpo_trainer.algorithm.decisions import sequences_of, training_sequences
from grpo_trainer.algorithm.estimators import ESTIMATORS, estimator_of
from grpo_trainer.algorithm.estimators.rewards import Rewards
from grpo_trainer.algorithm.loss import old_logprobs, policy_loss
from grpo_trainer.algorithm.normalisers import NORMALISERS
from grpo_trainer.algorithm.reduction import Tally
from grpo_trainer.algorithm.sequences import Group
from grpo_trainer.algorithm.surrogates import SURROGATES, reads, reads_of, surrogate_of
from grpo_trainer.algorithm.surrogates.reads import Reads, prepared_for
from grpo_trainer.algorithm.trial import check_algorithm, try_out
from grpo_trainer.config.algorithm import LOSS_TYPES, AlgorithmConfig
from grpo_trainer.config.run_config import ModelConfig, RunConfig
from grpo_trainer.config.teacher import TeacherConfig
from grpo_trainer.data import recipes
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.errors import RunError, UsageError
from grpo_trainer.extension import named

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"
DOCUMENTATION = Path(__file__).parents[2] / "docs" / "trainer.md"


def test_a_file_that_hangs_at_its_import_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(extension, "SLOW_IMPORT_S", 0.2)
    for name, seconds in {"quick": 0.0, "slow": 1.0}.items():
        (tmp_path / f"{name}.py").write_text(f"import time; time.sleep({seconds})\ndef loss(): ...")
        named(f"{tmp_path}/{name}.py:loss", {}, setting="algorithm.loss")
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"importing {tmp_path}/slow.py for 0.2 s; its code runs or waits"]


def test_files_that_import_each_other_stay_one_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "neighbour_of_pay.py").write_text("class Game: ...\ndef check(): ...")
    (tmp_path / "pay_by_game.py").write_text(
        "from neighbour_of_pay import Game\ndef pay(game): return isinstance(game, Game)"
    )
    (tmp_path / "json.py").write_text("def pay(): return 'mine'")
    game: Any = named(f"{tmp_path}/neighbour_of_pay.py:Game", {}, setting="episodes.environment_factory")
    assert named(f"{tmp_path}/pay_by_game.py:pay", {}, setting="episodes.reward_funcs")(game())
    assert named(f"{tmp_path}/json.py:pay", {}, setting="episodes.reward_funcs")() == "mine"
    assert json.loads("1") == 1


def test_an_unknown_name_lists_those_that_are_known():
    with pytest.raises(UsageError, match=r"algorithm\.loss cliped is unknown; did you mean clipped") as refused:
        named("cliped", SURROGATES, setting="algorithm.loss")
    assert refused.value.hint == f"known are {', '.join(sorted(SURROGATES))}; your own is FILE.py:NAME"


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (None, "loss", "there is no file"),
        ("x = 1", "loss", "has no function loss"),
        ("x = 1", "x", "has no function x"),
        ("1 / 0", "loss", "cannot be imported: ZeroDivisionError"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, content: str | None, name: str, message: str):
    file = tmp_path / "own.py"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UsageError, match=message):
        named(f"{file}:{name}", SURROGATES, setting="algorithm.loss")


def test_the_loss_of_the_contributing_page_works_as_it_stands(tmp_path: Path):
    (text,) = re.findall(r"```python\n(.*?)```", CONTRIBUTING.read_text(), re.DOTALL)
    assert len(text.splitlines()) <= 30
    (tmp_path / "bounded_reinforce.py").write_text(text)
    (section,) = re.findall(r"```yaml\n(algorithm:.*?)```", CONTRIBUTING.read_text(), re.DOTALL)
    given = yaml.safe_load(section)["algorithm"]
    algorithm = AlgorithmConfig(**given | {"loss": f"{tmp_path}/{given['loss']}", "loss_type": "grpo"})
    try_out(algorithm)
    surrogate = surrogate_of(algorithm)
    sequences = make_sequences(6, algorithm, seed=2)
    batch = collate(sequences, version=VERSION, update_tokens=9, pad_token_id=0, device="cpu")
    batch.old_logprobs_N = batch.rollout_logprobs_N
    logprobs_N = (batch.rollout_logprobs_N + torch.linspace(-1, 1, batch.target_N.numel())).requires_grad_()
    loss, tally = policy_loss(logprobs_N, torch.zeros_like(logprobs_N), batch, algorithm, surrogate)
    loss.backward()
    ratio_N = torch.exp(logprobs_N.detach() - batch.rollout_logprobs_N)
    torch.testing.assert_close(logprobs_N.grad, -batch.weight_N * batch.advantage_N * ratio_N.clamp(max=3.0))
    assert 2.0 < ratio_N.max() < 3.0, "between the default and the limit of the run file"
    assert {"ratio/mean", "ratio/bounded", "loss"} <= tally.reduce().keys()


OWN_LOSSES = {
    "raises": ("1 / 0", r"own.py:loss raised ZeroDivisionError in line 4: division by zero"),
    "needs a value that is not there": ("return logprobs_N * batch.entropy_N", "raised TypeError in line 4"),
    "is NaN": ("return logprobs_N * float('nan')", "own.py:loss is nan for 7 tokens"),
    "reads the reference undeclared": (
        "return logprobs_N - batch.ref_logprobs_N",
        "(?s)raised TypeError in line 4.*declares, such as @reads.reference=True",
    ),
    "raises without tokens": ("return -logprobs_N * logprobs_N.max()", "own.py:loss raised RuntimeError in line 4"),
    "has a gradient that is NaN": (
        "return (logprobs_N - logprobs_N).sqrt()",
        "gradient of .*own.py:loss is not finite",
    ),
    "is a scalar": ("return -logprobs_N.sum()", r"own.py:loss returned \(\) for 7 tokens"),
    "is no tensor": ("return 0.0", "own.py:loss returned float for 7 tokens"),
    "teaches nothing": ("return batch.advantage_N * 2", "own.py:loss does not depend on logprobs_N"),
}


@pytest.mark.parametrize("what", OWN_LOSSES)
def test_a_loss_file_that_cannot_be_trained_with_is_refused_by_name(tmp_path: Path, what: str):
    body, message = OWN_LOSSES[what]
    file = tmp_path / "own.py"
    file.write_text(f"import torch\n\ndef loss(logprobs_N, batch, algorithm, tally):\n    {body}\n")
    with pytest.raises(UsageError, match=message):
        check_algorithm(run_config(tmp_path, loss=f"{file}:loss"))


def test_a_loss_file_that_declares_by_token_and_reads_other_tokens_is_refused(tmp_path: Path):
    for share in ("0.0", "0.1"):
        (tmp_path / f"own-{share}.py").write_text(f"""
from grpo_trainer.algorithm.surrogates import reads

@reads(by_token=True)
def loss(logprobs_N, batch, algorithm, tally):
    return -batch.advantage_N * (logprobs_N - {share} * logprobs_N.sum())
""")
    check_algorithm(run_config(tmp_path, loss=f"{tmp_path}/own-0.0.py:loss", entropy_coef=0.1))
    with pytest.raises(UsageError, match="declares by_token, and the losses of single tokens do not add up"):
        check_algorithm(run_config(tmp_path, loss=f"{tmp_path}/own-0.1.py:loss"))


def test_a_loss_of_whole_episodes_is_tried_on_whole_episodes(tmp_path: Path):
    (tmp_path / "own.py").write_text("""
import torch

def loss(logprobs_N, batch, algorithm, tally):
    of_episodes = [part - part.detach().max() for part in logprobs_N.split(batch.trained_Q)]
    return -torch.cat([logprobs_N[:0], *of_episodes])
""")
    check_algorithm(run_config(tmp_path, loss=f"{tmp_path}/own.py:loss"))


def run_config(tmp_path: Path, rollout: dict[str, object] | None = None, **algorithm: object) -> RunConfig:
    sections = {"data": {"dataset": "d.jsonl"}, "reward": {"reward_funcs": ["r"]}, "rollout": rollout or {}}
    return RunConfig(run_dir=tmp_path, model={"name_or_path": "m"}, algorithm=algorithm, **sections)


@pytest.mark.parametrize(
    ("lora", "algorithm", "message"),
    [
        (None, {}, "and the loss reads none .set algorithm.beta above 0"),
        ({"r": 4}, {"beta": 0.1}, "which with model.lora is the frozen model"),
    ],
)
def test_a_reference_that_cannot_move_is_refused(
    tmp_path: Path, lora: dict[str, int] | None, algorithm: dict[str, float], message: str
):
    config = run_config(tmp_path, sync_ref_model=True, **algorithm)
    with pytest.raises(UsageError, match=f"algorithm.sync_ref_model moves the reference model, .*{message}"):
        check_algorithm(config.model_copy(update={"model": ModelConfig(name_or_path="m", lora=lora)}))
    check_algorithm(run_config(tmp_path, sync_ref_model=True, beta=0.1, kl_in_reward=True))


BEHAVIOUR = """
from grpo_trainer.algorithm.surrogates import reads

@reads(behaviour=True, corrects_mismatch=True, old=False)
def own(logprobs_N, batch, algorithm, tally):
    assert algorithm.beta > 0 or batch.old_logprobs_N is not None
    return -batch.advantage_N * (logprobs_N - batch.rollout_logprobs_N).exp()
"""


def test_what_a_users_loss_declares_is_what_the_run_prepares(tmp_path: Path):
    file = tmp_path / "own.py"
    file.write_text(BEHAVIOUR)
    algorithm = AlgorithmConfig(loss=f"{file}:own")
    surrogate = surrogate_of(algorithm)
    assert reads_of(surrogate) == Reads(old=False, behaviour=True, corrects_mismatch=True)
    assert not prepared_for(surrogate, algorithm).old
    assert prepared_for(surrogate, AlgorithmConfig(beta=0.1)).reference
    check_algorithm(run_config(tmp_path, loss=algorithm.loss))
    distorted = {"importance_sampling_correction": False, "loss": algorithm.loss}
    with pytest.raises(UsageError, match=r"own.py:own reads the servers' logprobs, and with rollout.top_p 0.9"):
        check_algorithm(run_config(tmp_path, rollout={"top_p": 0.9}, **distorted))

    (known, a), (unknown, b) = make_taken(1)[0], make_taken(1, logprobs=False)[0]
    known.total, unknown.total = a, b
    groups = [Group(0, PromptRow(0, [1], "p", {}), [known, unknown])]
    with pytest.raises(RunError, match=r"own.py:own reads the servers' logprobs, and 1 of 2 samples came without"):
        training_sequences(groups, algorithm, reward_weights={}, max_completion_length=14)


DECLARED = """
from grpo_trainer.algorithm.surrogates import reads

@reads(corrects_mismatch=True, token_correction=True)
def products(logprobs_N, batch, algorithm, tally):
    return -batch.advantage_N * logprobs_N

@reads(episode_advantage=True)
def means(logprobs_N, batch, algorithm, tally):
    return -batch.advantage_N * logprobs_N
"""


def test_what_a_loss_cannot_do_with_is_what_it_declares_whoever_wrote_it(tmp_path: Path):
    (tmp_path / "own.py").write_text(DECLARED)
    for loss in ("vespo", f"{tmp_path}/own.py:products"):
        check_algorithm(run_config(tmp_path, loss=loss))
        with pytest.raises(UsageError, match=f"{loss} combines the corrections of single tokens, and .* sequence_mask"):
            check_algorithm(run_config(tmp_path, loss=loss, importance_sampling_mode="sequence_mask"))
    teacher = TeacherConfig(url="http://127.0.0.1:8010")
    for loss in ("gmpo", f"{tmp_path}/own.py:means"):
        config = run_config(tmp_path, loss=loss)
        check_algorithm(config)
        with pytest.raises(UsageError, match=f"{loss} reads one advantage for a whole .* leave teacher out"):
            check_algorithm(config.model_copy(update={"teacher": teacher}))


def test_a_correction_that_the_surrogate_contains_is_not_applied_again():
    """And π_old is not asked for by a loss that reads none."""
    batch = collate(make_sequences(6, seed=1), version=VERSION, update_tokens=9, pad_token_id=0, device="cpu")
    algorithm = AlgorithmConfig()

    @reads(old=False, corrects_mismatch=True)
    def plain(logprobs_N, batch, algorithm, tally):
        return -batch.advantage_N * logprobs_N

    logprobs_N = batch.rollout_logprobs_N + 0.3
    loss, tally = policy_loss(logprobs_N, logprobs_N, batch, algorithm, plain)
    torch.testing.assert_close(loss, -(batch.weight_N * batch.advantage_N * logprobs_N).sum())
    assert not any(name.startswith("sampling/") for name in tally.names)


def test_the_proximal_policy_is_the_trainers_own_for_stale_tokens_too_and_the_correction_sees_it():
    sequences = make_sequences(8, seed=3, stale_share=0.5)
    batch = collate(sequences, version=VERSION, update_tokens=9, pad_token_id=0, device="cpu")
    own_N = batch.rollout_logprobs_N + 0.2
    assert torch.equal(old_logprobs(batch, own_N, proximal=True), own_N)
    batch.old_logprobs_N = own_N
    correction_N = rollout_correction(batch, AlgorithmConfig(importance_sampling_clip_max=9.0), Tally())
    torch.testing.assert_close(correction_N, torch.full_like(own_N, 0.2).exp())


OWN = """
from __future__ import annotations
from dataclasses import dataclass

@dataclass
class Calls:
    count: int = 0

CALLS = Calls()

def halves(counts):
    return [0.5] * len(counts.tokens)

def calls(rewards, algorithm):
    CALLS.count += 1
    return [[float(CALLS.count) for _ in group] for group in rewards.totals]

def by_format(rewards, algorithm):
    weight = rewards.weights["format"]
    return [[None if score is None else weight * score for score in group] for group in rewards.by_name["format"]]
"""


def test_an_estimator_of_ones_own_keeps_its_state_and_gives_nothing_to_what_has_no_score(tmp_path: Path):
    file = tmp_path / "own.py"
    file.write_text(OWN)
    algorithm = AlgorithmConfig(advantage_estimator=f"{file}:calls")
    for call in (1.0, 2.0):
        scored, unscored = [episode for episode, _ in make_taken(2)]
        scored.total = 0.0
        group = Group(0, PromptRow(0, [1], "p", {}), [scored, unscored])
        sequences, _ = training_sequences([group], algorithm, reward_weights={}, max_completion_length=14)
        assert (scored.advantage, unscored.advantage) == (call, None)
        assert [sequence.episode for sequence in sequences] == [0]


def test_an_estimator_of_ones_own_reads_each_reward_by_name_and_weight(tmp_path: Path):
    file = tmp_path / "own.py"
    file.write_text(OWN)
    algorithm = AlgorithmConfig(advantage_estimator=f"{file}:by_format")
    judged, unjudged = [episode for episode, _ in make_taken(2)]
    judged.total = unjudged.total = 1.0
    judged.rewards["format"] = RewardScore(score=0.5, status="ok")
    unjudged.rewards["format"] = RewardScore(score=None, status="unscorable")
    group = Group(0, PromptRow(0, [1], "p", {}), [judged, unjudged])
    training_sequences([group], algorithm, reward_weights={"answer": 1.0, "format": 0.1}, max_completion_length=14)
    assert judged.advantage == pytest.approx(0.05)
    assert unjudged.advantage is None


def test_the_estimator_of_the_documentation_works_as_it_stands(tmp_path: Path):
    (text,) = re.findall(r"```python\n(def halved.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    (tmp_path / "halved.py").write_text(text)
    (section,) = re.findall(r"```yaml\n(algorithm: {advantage_estimator:.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    given = yaml.safe_load(section)["algorithm"]
    algorithm = AlgorithmConfig(**given | {"advantage_estimator": f"{tmp_path}/{given['advantage_estimator']}"})
    assert estimator_of(algorithm)(Rewards([[1.0, None]]), algorithm) == [[pytest.approx(0.3), None]]
    assert not estimator_of(algorithm).zero_without_spread


def test_a_normaliser_may_be_a_users_own(tmp_path: Path):
    file = tmp_path / "own.py"
    file.write_text(OWN)
    algorithm = AlgorithmConfig(normaliser=f"{file}:halves")
    sequences = sequences_of(make_taken(3), algorithm, max_completion_length=14)
    assert all((sequence.weights_L[sequence.loss_mask_L] == 0.5).all() for sequence in sequences)


def test_a_built_in_has_the_file_that_the_run_file_names_or_that_of_the_beginning_of_its_name():
    for table in (SURROGATES, NORMALISERS, {name: estimator.function for name, estimator in ESTIMATORS.items()}):
        for name, function in table.items():
            assert f"{name}_".startswith(f"{function.__module__.rpartition('.')[2]}_"), name
    assert all((Path(recipes.__file__).parent / f"{name}.py").is_file() for name in recipes.RECIPES)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_each_loss_type_is_a_preset_that_a_name_of_its_own_overrides(loss_type: str):
    assert AlgorithmConfig(loss_type=loss_type).normaliser_name == LOSS_TYPES[loss_type].normaliser
    assert AlgorithmConfig(loss_type=loss_type, normaliser="bnpo").normaliser_name == "bnpo"


def test_a_group_of_one_has_nothing_to_compare_with(tmp_path: Path):
    alone = {"num_generations": 1}
    for name in set(ESTIMATORS) - {"reinforce_plus_plus"}:
        with pytest.raises(UsageError, match=f"advantage_estimator {name} compares .* every advantage would be 0"):
            check_algorithm(run_config(tmp_path, rollout=alone, advantage_estimator=name))
        check_algorithm(run_config(tmp_path, advantage_estimator=name))
    check_algorithm(run_config(tmp_path, rollout=alone, advantage_estimator="reinforce_plus_plus"))
