"""Signs that a run learns nothing: told once each, with what to change, and never of a run that learns."""

import json
import logging
import math
from pathlib import Path

import pytest
from tests.trainer.made_episodes import completion

from grpo_proto import RewardScore
from grpo_trainer.algorithm.sequences import Episode, Group
from grpo_trainer.config.guards import RULES, GuardsConfig
from grpo_trainer.config.run_config import RunConfig
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.errors import RunError
from grpo_trainer.journal import Journal
from grpo_trainer.observe.decisions import Decision, DecisionLog
from grpo_trainer.observe.jsonl import StepFile
from grpo_trainer.observe.learning import LearningWatch
from grpo_trainer.observe.live_view import LiveView
from grpo_trainer.observe.missing_scores import MissingScores
from grpo_trainer.observe.prometheus import RunMetrics
from grpo_trainer.observe.repetition import repeated_ratio
from grpo_trainer.observe.run_files import METRICS_FILE
from grpo_trainer.observe.run_status import RunStatus
from grpo_trainer.observe.summary import RunTotals
from grpo_trainer.ranks.stop_signal import StopRequested, StopSignal
from grpo_trainer.sampling.batch import Batch, Counts

WINDOW = GuardsConfig().steps
ALL_MISMATCH = "all_samples__sampling__sampling_logp_difference__mean"
GOOD = {
    "reward": 0.4,
    "frac_reward_zero_std": 0.3,
    "completions/clipped_ratio": 0.1,
    "entropy": 0.1,
    "kl": 0.02,
}


def told(watch: LearningWatch, steps: int, missing: tuple[MissingScores, ...] = (), **changes: float) -> list[str]:
    metrics = GOOD | {name.replace("__", "/"): value for name, value in changes.items()}
    return [decision.text for _ in range(steps) for decision in watch.step_done(metrics, missing)]


def test_a_run_that_learns_has_no_signs():
    watch = LearningWatch()
    assert told(watch, 3, reward=0.0, frac_reward_zero_std=1.0) == [], "the first batches of a hard task are often flat"
    for step in range(100):
        assert told(watch, 1, reward=step / 100, entropy=0.3 - 0.002 * step, frac_reward_zero_std=0.009 * step) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"frac_reward_zero_std": 1.0}, "Look at the completions and their rewards"),
        ({"completions__clipped_ratio": 0.95}, "raise rollout.max_completion_length"),
        ({"reward": 0.1, "entropy": 1e-5}, "a lower optimizer.learning_rate"),
        ({"reward": 0.1, "kl": 11.6}, "a lower optimizer.learning_rate"),
        ({"sampling__sampling_logp_difference__mean": 0.3}, "Compare dtype and engine flags"),
        ({"sampling__sampling_logp_difference__mean": 0.0, ALL_MISMATCH: 0.3}, "Compare dtype and engine flags"),
        ({"completions__repeated_ratio": 0.7}, "the reward `repetition`"),
    ],
)
def test_a_sign_is_told_once_until_it_has_cleared(changes: dict[str, float], words: str):
    watch = LearningWatch()
    told(watch, WINDOW)
    assert told(watch, 3, **changes) == []
    [sentence] = told(watch, 20, **changes)
    assert words in sentence
    told(watch, WINDOW - 1)
    assert told(watch, 20, **changes) == [], "it was never away for long enough"
    told(watch, WINDOW)
    assert len(told(watch, 20, **changes)) == 1


def test_equal_rewards_are_judged_only_where_no_teacher_teaches():
    equal = {"frac_reward_zero_std": 1.0, "data__own__share": 0.5, "data__own__frac_reward_zero_std": 1.0}
    mixed = {"data__a__share": 0.25, "data__b__share": 0.25, "data__a__frac_reward_zero_std": 1.0}
    assert told(LearningWatch(untaught=[]), 20, **equal) == []
    some = LearningWatch(untaught=["a", "b", "c"])
    assert told(some, 20, **equal, **mixed, data__b__frac_reward_zero_std=0.5) == []
    assert len(told(some, 20, **equal, **mixed, data__b__frac_reward_zero_std=1.0)) == 1


def test_low_entropy_at_a_good_reward_is_a_task_that_is_learnt():
    watch = LearningWatch()
    told(watch, WINDOW)
    assert told(watch, 20, reward=0.9, entropy=1e-5) == []


def test_a_sign_that_is_away_for_a_step_now_and_then_is_told():
    watch = LearningWatch()
    fails = MissingScores("raises", "error", 32, 32, None)
    found = [sentence for step in range(50) for sentence in told(watch, 1, (fails,) if step % 5 else ())]
    assert len(found) == 1


def test_a_sign_that_the_last_step_does_not_show_is_not_told():
    watch = LearningWatch()
    fails = MissingScores("raises", "error", 32, 32, None)
    assert told(watch, 4, (fails,)) == []
    assert told(watch, 1) == [], "four of five, and it may have gone"
    assert len(told(watch, 1, (fails,))) == 1


def test_a_collapse_after_a_rise_is_told_also_above_the_reward_of_the_start():
    watch = LearningWatch()
    told(watch, WINDOW, reward=0.1)
    told(watch, 100, reward=0.8)
    [sentence] = told(watch, 20, reward=0.2, kl=9.0)
    assert "reward 0.2, at its best 0.8" in sentence


def test_a_collapse_that_is_told_before_there_is_a_best_reward_names_none():
    watch = LearningWatch(GuardsConfig(steps=1, entropy="stop", with_fallen_reward=False))
    [sentence] = told(watch, 1, reward=0.3, entropy=0.0001)
    assert "the entropy was below 0.001: reward 0.3, entropy 0.0001, kl 0.02. Go back" in sentence


def test_a_collapse_is_told_below_half_of_the_best_also_when_rewards_are_negative():
    watch = LearningWatch()
    told(watch, WINDOW, reward=-1.0)
    assert told(watch, 20, reward=-1.2, entropy=0.0) == []
    assert len(told(watch, 20, reward=-2.0, entropy=0.0)) == 1


def test_every_rule_has_an_action_and_a_limit_of_its_own():
    fields = GuardsConfig.model_fields
    assert {name for name in fields if name.endswith("_limit")} == {f"{rule}_limit" for rule in RULES}
    assert [rule for rule in RULES if GuardsConfig().action_of(rule) != "warn"] == ["clipped"]


def test_a_rule_decides_what_its_action_says_and_the_strictest_comes_last():
    guards = GuardsConfig(steps=1, clipped="stop", kl="stop", with_fallen_reward=False, entropy="ignore")
    found = LearningWatch(guards).step_done(
        GOOD | {"kl": 6.0, "completions/clipped_ratio": 1.0, "entropy": 0.0, "frac_reward_zero_std": 1.0}
    )
    assert [(decision.rule, decision.action) for decision in found] == [
        ("zero_spread", "warn"), ("clipped", "stop"), ("kl", "stop")
    ]  # fmt: skip


def test_completions_that_grow_fast_are_told_and_those_that_grow_slowly_are_not():
    watch = LearningWatch()
    assert [told(watch, 1, completions__mean_length=100 * 1.03**step) for step in range(150)] == [[]] * 150
    watch = LearningWatch()
    told(watch, 30, completions__mean_length=100)
    [sentence] = told(watch, 20, completions__mean_length=350)
    assert "last 350 tokens, before 100" in sentence


def test_repetition_is_the_share_of_4_grams_that_came_before():
    assert repeated_ratio([[1, 2, 3, 4] * 25]) == pytest.approx(1 - 4 / 97)
    assert repeated_ratio([list(range(100)), [7] * 100]) == pytest.approx((0 + 1 - 1 / 97) / 2)
    assert repeated_ratio([[5] * 15, []]) is None


def test_a_resumed_run_is_compared_with_its_best_steps(tmp_path: Path):
    file = StepFile(tmp_path / METRICS_FILE, keep_through_step=None)
    file.append({"step": step, "reward": 0.8 if step else math.nan} for step in range(50))
    file.close()
    watch = LearningWatch()
    watch.restore(tmp_path)
    [sentence] = told(watch, WINDOW, reward=0.1, kl=9.0)
    assert "reward 0.1, at its best 0.8, entropy 0.1, kl 9" in sentence


def test_a_resumed_run_goes_on_with_the_window_that_it_had(tmp_path: Path):
    """One that is stopped again and again would never be judged otherwise. After a rule has stopped it, it begins anew:
    somebody may have mended what it judged."""
    bad = GOOD | {"completions/clipped_ratio": 1.0}
    file = StepFile(tmp_path / METRICS_FILE, keep_through_step=None)
    file.append({"step": step, **bad} for step in range(WINDOW))
    file.close()
    watch = LearningWatch()
    watch.restore(tmp_path)
    assert [decision.rule for decision in watch.step_done(bad)] == ["clipped"], "the step 0 is none of the window"
    decisions = DecisionLog(tmp_path, resumed_step=None)
    decisions.write(WINDOW - 1, [Decision("clipped", "stop", "nearly all were cut off")])
    decisions.close()
    watch = LearningWatch()
    watch.restore(tmp_path)
    found = [watch.step_done(bad) for _ in range(WINDOW)]
    assert [bool(decisions) for decisions in found] == [False] * (WINDOW - 1) + [True]


def test_equal_rewards_are_no_sign_where_an_estimator_learns_from_them(config: RunConfig):
    algorithm = config.algorithm.model_copy(update={"advantage_estimator": "reinforce_plus_plus"})
    for own, told_of in ((config, True), (config.model_copy(update={"algorithm": algorithm}), False)):
        with Journal(own, RunStatus("demo", heartbeat_bound_s=60.0, max_steps=3), StopSignal(), max_steps=3,
                     resumed_step=None, totals=RunTotals()) as journal:  # fmt: skip
            found = told(journal.learning, WINDOW, frac_reward_zero_std=1.0)
        assert bool(found) == told_of


def test_a_rule_that_has_warned_acts_again_when_it_may_stop_now(tmp_path: Path):
    bad = GOOD | {"completions/clipped_ratio": 1.0}
    file = StepFile(tmp_path / METRICS_FILE, keep_through_step=None)
    file.append({"step": step, **bad} for step in range(1, 30))
    file.close()
    decisions = DecisionLog(tmp_path, resumed_step=None)
    decisions.write(WINDOW, [Decision("clipped", "warn", "nearly all were cut off"), Decision("callbacks", "stop", "")])
    decisions.close()
    for action, acts in (("warn", []), ("stop", ["stop"])):
        watch = LearningWatch(GuardsConfig.model_validate({"clipped": action}))
        watch.restore(tmp_path)
        assert [decision.action for decision in watch.step_done(bad)] == acts


def test_a_reward_that_fails_is_named_with_its_first_reason_and_one_that_does_not_judge_is_not():
    watch = LearningWatch()
    fails = MissingScores("raises", "error", 94, 256, "ValueError: \u202eno number")
    declines = MissingScores("picky", "unscorable", 200, 256, "not a proof")
    few = MissingScores("slow", "timeout", 3, 256, None)
    [sentence] = told(watch, 20, (fails, declines, few))
    assert "reward raises fails: in the last step 94 of 256 scores are missing (error)" in sentence
    assert "ValueError: \\u202eno number" in sentence


def test_metrics_that_are_missing_or_no_numbers_are_no_signs():
    watch = LearningWatch()
    assert [watch.step_done({}) for _ in range(10)] == [[]] * 10
    assert told(watch, 10, reward=math.nan, entropy=math.nan, kl=math.inf) == []


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return RunConfig.model_validate(
        {
            "run_dir": str(tmp_path / "run"),
            "model": {"name_or_path": "any"},
            "data": {"dataset": "any"},
            "reward": {"url": "http://127.0.0.1:1", "reward_funcs": ["right", "raises"], "reward_weights": [1, 0]},
            "logging": {"report_to": [], "progress": False},
        }
    )


def test_the_journal_logs_signs_and_counts_only_samples_that_took_no_part(
    config: RunConfig, caplog: pytest.LogCaptureFixture
):
    def sample(name: str, score: float | None) -> Episode:
        raises = RewardScore(score=None, status="error", detail="ValueError")
        right = RewardScore(score=score, status="ok" if score is not None else "timeout")
        rewards = {"right": right, "raises": raises}
        because = None if score is not None else ("right", right)
        return completion(name, [1], [-0.1], "text", "stop", [(1, 1)], rewards, score, score and 0.5, because)

    status = RunStatus("demo", heartbeat_bound_s=60.0)
    with Journal(config, status, StopSignal(), max_steps=9, resumed_step=None, totals=RunTotals()) as journal:
        for step in range(1, WINDOW + 1):
            samples = [sample("a", 1.0), sample("b", 2.0), sample("c", None)]
            batch = Batch([Group(step, PromptRow(0, [1], "p", {}), samples)], 0.0, epoch=1.0)
            journal.batch_arrived(batch, {}, Counts(dropped_crash=step), lost_requests=0, version=1)
            journal.decisions.write(step, journal.judge())
            journal.finish_step(step)
    dropped = {"timeout": WINDOW, "crash": WINDOW * config.rollout.num_generations}  # a group of each step crashed
    assert status.snapshot().dropped == dropped, "a reward without a weight that raises drops nothing"
    assert status.history.recent()["left_out"] == dropped
    assert status.history.recent()["missing"] == [
        {"reward": "right", "status": "timeout", "count": 1, "of": 3},
        {"reward": "raises", "status": "error", "count": 3, "of": 3},
    ]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [text.split(":")[0] for text in warnings] == [f"step {WINDOW}"] * 2
    assert "reward raises fails: in the last step 3 of 3 scores are missing (error)" in warnings[0]
    assert "reward right fails: in the last step 1 of 3 scores are missing (timeout)" in warnings[1]


def test_an_evaluation_that_comes_late_is_shown_like_any_other(config: RunConfig):
    status = RunStatus("demo", heartbeat_bound_s=60.0, max_steps=3)
    with Journal(config, status, StopSignal(), max_steps=3, resumed_step=None, totals=RunTotals()) as journal:
        for step, accuracy in ((1, 0.25), (2, None), (3, None)):
            journal.add({"reward": step / 10})
            if accuracy is not None:
                journal.evaluated(step, {"eval_accuracy": accuracy}, {})
            journal.finish_step(step)
        metrics = RunMetrics(status)
        assert "grpo_trainer_evaluation_accuracy 0.25" in metrics.text().decode()
        journal.evaluated(3, {"eval_accuracy": 0.75, "eval/few/pass@4": 1.0}, {})
        journal.complete_step(3)
        found = metrics.text().decode()
    assert "grpo_trainer_evaluation_accuracy 0.75" in found
    assert "grpo_trainer_reward 0.3" in found
    assert "grpo_trainer_step 3.0" in found
    assert status.history.whole()[1]["eval_accuracy"]["latest"] == 0.75
    last = json.loads((config.run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["eval_accuracy"], last["eval/few/pass@4"]) == (0.75, 1.0)


def test_seconds_of_the_run_before_are_in_the_totals_and_not_in_the_counters(config: RunConfig):
    """From an older checkpoint a counter with both would go back, and rate() see all of them at once."""
    status, before = RunStatus("demo", heartbeat_bound_s=60.0), RunTotals(seconds_per_stage={"train": 600.0})
    with Journal(config, status, StopSignal(), max_steps=9, resumed_step=5, totals=before) as journal:
        with journal.stage("train"):
            pass
        journal.finish_step(6)
        assert 0 <= status.snapshot().seconds_per_stage["train"] < 60
        assert journal.final_totals().seconds_per_stage["train"] >= 600


@pytest.mark.parametrize(
    ("ending", "reason"),
    [(RunError("http://u:secret-word@host is gone"), "RunError: http://u:***@host is gone"), (StopRequested(), None)],
)
def test_a_stop_is_no_failure(config: RunConfig, ending: Exception, reason: str | None):
    status = RunStatus("demo", heartbeat_bound_s=60.0)
    journal = Journal(config, status, StopSignal(), max_steps=9, resumed_step=None, totals=RunTotals())
    told: list[str | None] = []
    journal.sinks.close = lambda stop, *, failure: told.append(failure)  # type: ignore[method-assign]
    with pytest.raises(type(ending)), journal:
        raise ending
    assert (json.loads(LiveView(status).end())["reason"], told) == (reason, [reason])
