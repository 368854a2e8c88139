"""Held-out evaluation: avg@k, pass@k, and what several sets have in common."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from tests.trainer.made_episodes import completion
from tests.trainer.made_run_file import write_run_file

from grpo_proto import RewardScore, Sampling
from grpo_proto.messages.rollout import StructuredOutputs
from grpo_trainer.algorithm.at_k import at_k_metrics, pass_at_k
from grpo_trainer.algorithm.sequences import Group
from grpo_trainer.config.run_config import RunConfig
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.errors import RunError, ServersError, UnavailableError, UsageError
from grpo_trainer.evaluate import main, standard_error
from grpo_trainer.sampling.evaluation import EvalSet, Evaluation, eval_sets, mean_over_sets
from grpo_trainer.sampling.sampler import Asked

ROWS = [PromptRow(number, [1], "p", {}) for number in range(5)]


def group(*correct: bool | None) -> Group:
    group = Group(0, ROWS[0], [completion("a", [1], [-0.1], "a", "stop", [(0, 1)]) for _ in correct])
    for episode, value in zip(group.episodes, correct, strict=True):
        episode.correct = value
    return group


@pytest.mark.parametrize("n", [1, 4, 6])
def test_pass_at_k_is_the_share_of_all_choices_of_k_that_hold_a_correct_one(n: int):
    for num_correct in range(n + 1):
        for k in range(1, n + 1):
            choices = list(combinations([True] * num_correct + [False] * (n - num_correct), k))
            assert pass_at_k(n, num_correct, k) == pytest.approx(sum(map(any, choices)) / len(choices), abs=1e-15)
    assert pass_at_k(n, 1, n + 1) is None


def test_pass_at_k_of_many_completions_is_a_number():
    assert pass_at_k(5000, 1, 100) == pytest.approx(100 / 5000)


def test_what_could_not_be_scored_is_not_wrong():
    groups = [group(True, False, None, None), group(False, None, None, None), group(None, None, None, None)]
    metrics = at_k_metrics(groups, num_generations=4, pass_at=[1, 2, 4])
    assert metrics == {"avg@4": 1 / 3, "pass@1": 0.25, "pass@2": 1.0}
    assert at_k_metrics(groups[2:], num_generations=4, pass_at=[1]) == {}


def test_a_set_counts_the_same_however_many_rows_it_has_and_one_alone_is_its_own_mean():
    assert mean_over_sets({"a": {"x": 0.1, "y": 0.3}, "b": {"x": 0.3}}) == {"x": 0.2, "y": 0.3}
    odd = {"x": 0.1 + 0.2, "y": 1 / 3}
    assert mean_over_sets({"": odd}) == odd


def test_a_set_takes_from_the_section_eval_what_it_does_not_say():
    run = {"run_dir": "r", "model": {"name_or_path": "m"}, "reward": {"reward_funcs": ["format"]}}
    run |= {"eval": {"max_rows": 3, "num_generations_eval": 2}}
    sets = {"plain": {"dataset": "a"}, "own": {"dataset": "b", "num_generations": 8, "pass_at": [1, 8], "max_rows": 4}}
    config = RunConfig.model_validate(run | {"data": {"dataset": "t", "eval_datasets": sets}})
    assert eval_sets(config, {"plain": ROWS, "own": ROWS}) == {
        "plain": EvalSet([replace(row, dataset="eval/plain") for row in ROWS[:3]], 2, [2]),
        "own": EvalSet([replace(row, dataset="eval/own") for row in ROWS[:4]], 8, [1, 8]),
    }
    config = RunConfig.model_validate(run | {"data": {"dataset": "t", "eval_dataset": "a"}})
    assert eval_sets(config, {"": ROWS}) == {"": EvalSet(ROWS[:3], 2)}


async def test_what_has_no_score_is_counted():
    """An accuracy over fewer rows than were asked for would not say so."""
    none = RewardScore(score=None, status="error", detail="it broke")

    class Stage:
        async def sample(self, rows: list[Asked], *, n: int, **given: object) -> list[Group]:
            return [group(*[True] * n) for _ in rows]

        async def score(self, groups: list[Group], *, step: int) -> None:
            for episode in groups[0].episodes:
                episode.correct, episode.unscored_because = None, ("x", none)

    sets = {"": EvalSet(ROWS, 2)}
    evaluated = await Evaluation(Stage(), Stage(), sets, Sampling()).run(version=1, step=1)  # type: ignore[arg-type]
    metrics = evaluated.metrics
    assert (metrics["eval_accuracy"], metrics["eval_unscored"]) == (1.0, 3), "two sampled and a greedy one"
    num_episodes = {decoding: [len(one.episodes) for one in groups] for decoding, groups in evaluated.groups.items()}
    assert num_episodes == {"sampled": [2] * len(ROWS), "greedy": [1] * len(ROWS)}


async def test_all_but_the_temperature_is_sampled_as_in_the_training():
    asked = []
    training = Sampling(
        temperature=0.7, top_p=0.9, top_k=20, min_p=0.1, repetition_penalty=1.1, max_tokens=7, stop=["</answer>"],
        stop_token_ids=[4], presence_penalty=0.1, min_tokens=2, logit_bias={5: 1.0},
        structured_outputs=StructuredOutputs(regex="[a-z]*"),
    )  # fmt: skip

    class Stage:
        async def sample(self, rows: object, **given: object) -> list[Group]:
            asked.append(given["sampling"])
            return []

        async def score(self, groups: list[Group], *, step: int) -> None: ...

    sets = {"": EvalSet(ROWS, 2)}
    evaluated = await Evaluation(Stage(), Stage(), sets, training).run(version=1, step=1)  # type: ignore[arg-type]
    assert evaluated.metrics == {"eval_dropped_crash": 10}, "no row was sampled, at either temperature"
    assert sorted(asked, key=lambda sampling: sampling.temperature) == [
        training.model_copy(update={"temperature": temperature, "logprobs": False}) for temperature in (0.0, 1.0)
    ]


def test_an_accuracy_varies_as_its_prompts_do():
    """Four samples of a prompt that agree are no four measurements."""
    assert standard_error([group(True), group(False)]) == pytest.approx(0.5)
    assert standard_error([group(*[True] * 4), group(*[False] * 4), group(None)]) == pytest.approx(0.5)
    assert standard_error([group(True), group(None)]) is None


@pytest.fixture(autouse=True)
def logging_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_trainer.evaluate.configure_logging", lambda: None)  # it is the whole process's


def test_mistakes_of_the_command_are_named(tmp_path: Path):
    run_file = write_run_file(tmp_path, rollout={"urls": ["http://127.0.0.1:9"], "startup_timeout_s": 0.1})
    with pytest.raises(UsageError, match="the run file names no held-out rows"):
        main([str(run_file)])
    with pytest.raises(UsageError, match="--completions names no file"):
        main([str(run_file), "--completions"])
    with pytest.raises(UsageError, match=r"run\.yaml exists"):
        main([str(run_file), "--completions", str(run_file)])
    with pytest.raises(UnavailableError, match="did not come up within"):
        main([str(run_file), "--data.eval_dataset", str(tmp_path / "rows.jsonl")])
    assert not (tmp_path / "run").exists()


def test_what_is_trained_on_need_not_be_there(tmp_path: Path):
    gone = {"dataset": str(tmp_path / "gone.jsonl"), "eval_dataset": str(tmp_path / "rows.jsonl")}
    chord = {"sft_dataset": str(tmp_path / "gone-too.jsonl"), "sft_batch_size": 1, "mu_peak": 0.5}
    nowhere = {"urls": ["http://127.0.0.1:9"], "startup_timeout_s": 0.1}
    run_file = write_run_file(tmp_path, rollout=nowhere, data=gone, chord=chord)
    with pytest.raises(UnavailableError, match="did not come up within"):
        main([str(run_file)])


def test_a_failure_does_not_send_to_a_run_that_could_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def fail(*_: object) -> None:
        raise ServersError("the servers gave nothing", hint="start again with --resume", exit_status=2)

    monkeypatch.setattr("grpo_trainer.evaluate._evaluated", fail)
    run_file = write_run_file(tmp_path, rollout={})
    with pytest.raises(RunError, match="the servers gave nothing") as raised:
        main([str(run_file), "--data.eval_dataset", str(tmp_path / "rows.jsonl")])
    assert raised.value.hint is not None
    assert "evaluate again" in raised.value.hint
    assert "--resume" not in str(raised.value)
    assert raised.value.exit_status == 2
