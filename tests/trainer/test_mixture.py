"""Training on several datasets: the ratios hold at every prompt, and nothing of one dataset is taken for another's."""

import json
import random
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.tiny_model import make_tokenizer
from tests.trainer.made_episodes import completion
from tests.trainer.test_difficulty import Solved, drawn, steps_of
from tests.trainer.test_pipeline import FakeRollout, make

from grpo_proto import RewardScore
from grpo_trainer.algorithm.decisions import training_sequences
from grpo_trainer.algorithm.sequences import Group
from grpo_trainer.config.algorithm import AlgorithmConfig
from grpo_trainer.config.data import DataConfig, DifficultyConfig
from grpo_trainer.data.difficulty import DifficultyMemory
from grpo_trainer.data.mixture import RatioSchedule
from grpo_trainer.data.order import PromptOrder, Share
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.data.run_rows import load_training_rows
from grpo_trainer.errors import UsageError
from grpo_trainer.observe.completions import completion_records
from grpo_trainer.observe.dataset_metrics import dataset_metrics
from grpo_trainer.sampling.pipeline import Cursor, Pipeline


@pytest.mark.parametrize("seed", range(40))
def test_after_each_prompt_each_dataset_is_within_one_of_its_ratio(seed: int):
    rng = random.Random(seed)
    weights = [rng.choice([1, 1, 2, 9, 90]) * rng.random() for _ in range(rng.randint(1, 20))]
    ratios = [max(1e-6, round(weight / sum(weights), 6)) for weight in weights]
    schedule, counts = RatioSchedule(ratios), [0] * len(ratios)
    for position in range(2000):
        dataset, place = schedule.at(position)
        assert place == counts[dataset], "every prompt of a dataset comes once, in its order"
        counts[dataset] += 1
        for count, ratio in zip(counts, ratios, strict=True):
            assert abs(count - ratio / sum(ratios) * (position + 1)) < 1


def test_a_position_needs_nothing_that_came_before():
    ratios = [0.123457, 0.3, 0.576543]
    schedule = RatioSchedule(ratios)
    whole = [schedule.at(position) for position in range(3000)]
    assert RatioSchedule(ratios).at(2999) == whole[2999]
    assert RatioSchedule([0.7, 0.3]).at(10**12)[1] == 7 * 10**11
    # Fixed for good: another order would continue an older run at the wrong prompts.
    assert [RatioSchedule([0.6, 0.3, 0.1]).at(position)[0] for position in range(10)] == [0, 1, 0, 0, 1, 0, 2, 0, 0, 1]


def mixed(difficulty: DifficultyMemory | None = None) -> PromptOrder:
    """Two rows of `few` for each of the six of `many`."""
    rows = [PromptRow(n, [1], "p", {}, name) for name, count in (("few", 2), ("many", 6)) for n in range(count)]
    shares = [Share("few", 2, 0.5), Share("many", 6, 0.5)]
    return PromptOrder(rows, seed=3, shuffle=True, difficulty=difficulty, shares=shares)


def test_each_dataset_has_its_own_epochs_in_an_order_of_its_own():
    prompts = mixed()
    rows = [prompts.row_at(position) for position in range(24)]
    assert Counter(row.dataset for row in rows) == {"few": 12, "many": 12}
    for name, count in (("few", 2), ("many", 6)):
        numbers = [row.index for row in rows if row.dataset == name]
        epochs = [numbers[start : start + count] for start in range(0, 12, count)]
        assert all(sorted(epoch) == list(range(count)) for epoch in epochs)
    assert prompts.metrics(23) == {"data/few/epoch": 6.0, "data/many/epoch": 2.0}
    twins = PromptOrder(
        [PromptRow(n % 50, [1], "p", {}) for n in range(100)],
        seed=3,
        shuffle=True,
        shares=[Share("a", 50, 0.5), Share("b", 50, 0.5)],
    )
    drawn_rows = [twins.row_at(position).index for position in range(100)]
    assert drawn_rows[::2] != drawn_rows[1::2], "datasets of equal length are not gone through in step"


def test_difficulty_is_remembered_by_dataset_and_rests_in_its_epochs():
    memory = DifficultyMemory(DifficultyConfig(rest_epochs=1), seed=1)
    prompts = mixed(memory)
    first_of_few = next(position for position in range(24) if prompts.row_at(position).dataset == "few")
    prompts.learn(first_of_few, solved=1.0, teaches=False)
    row = prompts.row_at(first_of_few)
    assert memory.state() == [(row.index, 1.0, 2)], "until the third epoch of `few`"
    passed_over = sorted(set(range(8)) - set(drawn(prompts, 8)))
    assert [prompts.row_at(position) for position in passed_over] == [row, row], "and in the first: two of its epochs"
    assert row.index in [one.index for one in map(prompts.row_at, range(12)) if one.dataset == "many"]
    assert prompts.metrics(3)["difficulty/resting"] == 1


async def test_a_resumed_run_goes_on_at_the_same_prompts_of_each_dataset():
    def pipeline(cursor: Cursor | None = None) -> Pipeline:
        made = make(FakeRollout(), cursor=cursor)
        made.reward = Solved()  # type: ignore[assignment]
        known = cursor.difficulty if cursor else ()
        made.prompts = mixed(DifficultyMemory.of(DifficultyConfig(), seed=1, known=known))
        return made

    whole = pipeline()
    expected = await steps_of(whole, range(1, 9))
    first = pipeline()
    found = await steps_of(first, range(1, 4))
    resumed = pipeline(Cursor(**json.loads(json.dumps(asdict(first.cursor())))))
    assert found + await steps_of(resumed, range(4, 9)) == expected
    assert asdict(resumed.cursor()) == asdict(whole.cursor())


def group(dataset: str, *totals: float | None) -> Group:
    episodes = [completion("a", [1], [-0.1], "a", "stop", [(0, 1)]) for _ in totals]
    for episode, total in zip(episodes, totals, strict=True):
        episode.total, episode.correct = total, None if total is None else total >= 1
    return Group(0, PromptRow(7, [1], "p", {}, dataset), episodes)


def test_what_an_estimator_takes_over_the_batch_is_of_one_dataset():
    """A dataset whose rewards are a hundred times those of the other gets the same advantages."""
    algorithm = AlgorithmConfig(advantage_estimator="reinforce_plus_plus")
    groups = [group("small", 0.0, 1.0), group("large", 0.0, 100.0), group("small", 1.0, 0.0)]
    training_sequences(groups, algorithm, reward_weights={}, max_completion_length=14)
    small, large, last = [[episode.advantage for episode in one.episodes] for one in groups]
    assert large == pytest.approx([-0.7071, 0.7071], abs=1e-4)
    assert small == last[::-1] == pytest.approx([-0.8660, 0.8660], abs=2e-4)


def test_an_estimator_of_each_reward_gets_the_weights_of_the_dataset():
    algorithm = AlgorithmConfig(advantage_estimator="gdpo")
    groups = [group("plain", 1.0, 0.0), group("own", 1.0, 0.0)]
    for one in groups:
        for episode, first in zip(one.episodes, (1.0, 0.0), strict=True):
            episode.rewards = {
                "first": RewardScore(score=first, status="ok"),
                "second": RewardScore(score=1.0 - first, status="ok"),
            }
    weights = {"first": 1.0, "second": 0.5}
    own = {"own": {"second": 1.0}}
    training_sequences(groups, algorithm, reward_weights=weights, own_rewards=own, max_completion_length=14)
    signs = [[(episode.advantage or 0.0) > 0 for episode in one.episodes] for one in groups]
    assert signs == [[True, False], [False, True]]


def test_metrics_and_completions_name_the_dataset():
    groups = [group("a", 1.0, 1.0), group("a", 1.0, 0.0), group("b", None, None), group("a", 0.0, None)]
    assert dataset_metrics(groups, ["a", "b", "c"]) == pytest.approx(
        {
            "data/a/share": 0.75,
            "data/a/accuracy": 0.6,
            "data/a/reward": 0.6,
            "data/a/reward_std": 0.5477,
            "data/a/frac_reward_zero_std": 0.6,
            "data/b/share": 0.25,
            "data/c/share": 0.0,
        },
        abs=1e-4,
    )
    assert dataset_metrics(groups, []) == {}
    found = [(line["dataset"], line["row"]) for line in completion_records(1, groups[1:3])]
    assert found == [("a", 7), ("a", 7), ("b", 7), ("b", 7)]


def write(path: Path, *rows: dict[str, object]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_the_rows_of_each_dataset_with_its_own_prompts(tmp_path: Path):
    sums = write(tmp_path / "sums.jsonl", {"a": 1}, {"a": 2})
    texts = write(tmp_path / "texts.jsonl", {"prompt": "x"})
    config = DataConfig(
        datasets={
            "sums": {"dataset": sums, "ratio": 0.9, "prompt_template": "Add {a}."},
            "texts": {"dataset": texts, "ratio": 0.1},
        }  # type: ignore[arg-type]
    )
    rows = load_training_rows(config, make_tokenizer(), folder=tmp_path)
    assert [(row.dataset, row.index) for row in rows] == [("sums", 0), ("sums", 1), ("texts", 0)]
    assert rows[1].prompt == [{"role": "user", "content": "Add 2."}]
    assert [row.columns for row in rows.first_rows] == [{"a": 1}, {"prompt": "x"}]
    assert rows.shares(config) == [Share("sums", 2, 0.9), Share("texts", 1, 0.1)]
    assert {path.name for path in tmp_path.glob("rows-*")} == {"rows-train-sums.arrow", "rows-train-texts.arrow"}
    write(tmp_path / "texts.jsonl")
    with pytest.raises(UsageError, match=r"data\.datasets\.texts: dataset .*texts\.jsonl has no rows"):
        load_training_rows(config, make_tokenizer())
