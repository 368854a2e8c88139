"""What the live page remembers of a run: curves, new steps, completions, warnings; always JSON, always bounded."""

import json
import logging
from pathlib import Path

import pytest
from tests.trainer.made_episodes import completion

from grpo_proto import RewardScore
from grpo_trainer.algorithm.sequences import Episode, Group
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.observe.jsonl import StepFile
from grpo_trainer.observe.live_groups import MAX_COMPLETIONS, MAX_GROUPS, MAX_TEXT, groups_shown
from grpo_trainer.observe.live_history import MAX_NEW_STEPS, MAX_POINTS, MAX_REWARD_CURVES, LiveHistory
from grpo_trainer.observe.live_view import LiveView, to_json
from grpo_trainer.observe.live_warnings import MAX_WARNINGS, recent_warnings
from grpo_trainer.observe.missing_scores import MissingScores
from grpo_trainer.observe.run_files import METRICS_FILE
from grpo_trainer.observe.run_status import RunStatus


def sample(text: str, total: float | None, *, advantage: float | None = None, detail: str | None = None) -> Episode:
    status = "ok" if total is not None else "error"
    rewards = {"right": RewardScore(score=total, status=status, detail=detail)}
    return completion("s", [1, 2], [-0.1, -0.1], text, "stop", [(3, 2)], rewards, total, advantage)


def group(*episodes: Episode, position: int = 0, prompt: str = "1 + 1 = ?") -> Group:
    return Group(position, PromptRow(position, [1], prompt, {}), list(episodes))


class TestCurves:
    def test_a_reader_gets_the_history_once_and_then_only_new_steps(self):
        history = LiveHistory()
        history.add(1, {"reward": 0.25})
        sequence, curves = history.whole()
        assert (curves["reward"]["x"], curves["reward"]["y"]) == ([1], [0.25])
        assert history.since(sequence) == (sequence, [])
        history.add(2, {"reward": 0.5, "accuracy": 1.0})
        later, steps = history.since(sequence) or (0, [])
        assert steps == [{"sequence": later, "step": 2, "values": {"reward": 0.5, "accuracy": 1.0}}]
        assert history.since(later) == (later, [])

    def test_a_run_that_goes_back_is_shown_without_the_abandoned_steps_to_every_reader(self, tmp_path: Path):
        history, file = LiveHistory(), StepFile(tmp_path / METRICS_FILE, keep_through_step=None)
        for step in range(1, 5):
            history.add(step, {"reward": step})
            file.append([{"step": step, "reward": step}])
        seen = [history.whole()[0], history.whole()[0] - 3]
        history.restore(tmp_path, through_step=2)
        file.close()
        assert [history.since(sequence) for sequence in seen] == [None, None], "they begin anew"
        assert history.whole()[1]["reward"]["x"] == [1, 2]
        history.add(3, {"reward": 0.5})
        assert history.whole()[1]["reward"]["y"] == [1, 2, 0.5]

    def test_memory_and_answers_are_bounded_for_any_number_of_steps(self):
        history = LiveHistory()
        for step in range(1, 5001):
            history.add(step, {"reward": step, "grad_norm": 7.0 if step == 2500 else 0.0})
        _, curves = history.whole()
        assert len(curves["reward"]["x"]) <= MAX_POINTS
        assert curves["reward"]["x"] == sorted(curves["reward"]["x"])
        counts = [curves["reward"]["per"]] * (len(curves["reward"]["x"]) - 1) + [curves["reward"]["last"]]
        assert sum(counts) == 5000, "every step is in one point"
        assert max(curves["grad_norm"]["y"]) == 7.0, "a spike of the gradient is not averaged away"
        assert history.since(0) is None, "who missed too much begins anew"
        assert len((history.since(5000 - MAX_NEW_STEPS) or (0, []))[1]) == MAX_NEW_STEPS

    def test_numbers_that_json_lacks_are_left_out(self):
        history = LiveHistory()
        history.add(1, {"reward": float("nan"), "kl": float("inf"), "entropy": 1.0})
        _, curves = history.whole()
        assert set(curves) == {"entropy"}
        to_json(history.recent())

    def test_any_number_of_rewards_makes_a_bounded_number_of_curves(self):
        history = LiveHistory()
        history.add(1, {f"rewards/r{index}/mean": 0.5 for index in range(50)})
        assert len(history.whole()[1]) == MAX_REWARD_CURVES

    def test_every_stage_has_a_value_at_every_step(self):
        history = LiveHistory()
        history.add(0, {"step_time": 99.0, "time/eval_s": 98.0})
        history.add(1, {"step_time": 4.0, "time/wait_s": 1.0, "time/train_s": 2.0})
        history.add(2, {"step_time": 4.0, "time/wait_s": 3.0, "time/train_s": 1.0, "time/eval_s": 0.0})
        _, curves = history.whole()
        assert curves["time/eval_s"]["x"] == [1, 2], "what came before the first step would dwarf the others"
        assert curves["time/other_s"]["y"] == [1.0, 0.0]
        shares = history.recent()["shares"]
        assert (shares["wait"], shares["train"], shares["other"]) == (0.5, 0.375, 0.125)
        assert history.recent()["step_s"] == 4.0

    def test_what_was_left_out_is_added_up_with_its_reason(self):
        history = LiveHistory()
        history.add(1, {"samples/used": 8, "samples/dropped_stale": 2, "samples/error": 4})
        history.add(2, {"samples/used": 8, "samples/dropped_stale": 1, "samples/dropped_timeout": 4})
        assert history.recent()["left_out"] == {"stale": 3, "timeout": 4}, "with another score a sample is trained on"

    def test_scores_that_single_rewards_did_not_give_are_those_of_the_last_step(self):
        history = LiveHistory()
        history.show_missing([MissingScores("raises", "error", 3, 8, "ValueError")])
        history.show_missing([MissingScores("raises", "error", 94, 256, "ValueError")])
        assert history.recent()["missing"] == [{"reward": "raises", "status": "error", "count": 94, "of": 256}]
        history.show_missing([])
        assert history.recent()["missing"] == []

    def test_the_newest_value_is_exact_when_a_point_stands_for_several_steps(self):
        history = LiveHistory()
        for step in range(1, 1001):
            history.add(step, {"reward": step, "grad_norm": 9.0 if step == 999 else 0.5})
        _, curves = history.whole()
        assert curves["reward"]["per"] > 1
        assert (curves["reward"]["latest"], curves["grad_norm"]["latest"]) == (1000, 0.5)

    def test_one_outage_does_not_change_the_usual_step_and_evaluations_count_with_their_share(self):
        history = LiveHistory()
        for step in range(1, 21):
            evaluation = 10.0 if step == 10 else 0.0
            outage = 50.0 if step == 15 else 0.0
            history.add(step, {"step_time": 2.0 + evaluation + outage, "time/eval_s": evaluation})
        assert history.recent()["usual_step_s"] == 2.5
        assert history.recent()["step_s"] == 5.0

    def test_a_resumed_run_has_the_curves_of_the_run_before_it(self, tmp_path: Path):
        written = LiveHistory()
        file = StepFile(tmp_path / METRICS_FILE, keep_through_step=None)
        for step in range(900):
            metrics = {"reward": step / 900, "step_time": 2.0, "num_tokens": 100 * step, "samples/dropped_timeout": 1}
            written.add(step, metrics)
            file.append([{"step": step, **metrics}])
        file.close()
        with (tmp_path / METRICS_FILE).open("ab") as torn:
            torn.write(b'{"step": 900, "rew')
        resumed = LiveHistory()
        resumed.restore(tmp_path, through_step=899)
        assert resumed.whole() == written.whole()
        assert resumed.recent() == written.recent()
        assert resumed.recent()["left_out"] == {"timeout": 900}
        resumed.add(900, {"step_time": 7.0})
        assert resumed.recent()["step_s"] == 7.0, "the run before may have been on another machine"
        assert resumed.recent()["steps"] == 1

    def test_steps_that_will_be_done_again_are_not_restored(self, tmp_path: Path):
        file = StepFile(tmp_path / METRICS_FILE, keep_through_step=None)
        file.append({"step": step, "reward": step} for step in range(1, 9))
        file.close()
        resumed = LiveHistory()
        resumed.restore(tmp_path, through_step=5)
        assert resumed.whole()[1]["reward"]["x"] == [1, 2, 3, 4, 5]

    def test_a_run_folder_without_metrics_is_no_error(self, tmp_path: Path):
        history = LiveHistory()
        history.restore(tmp_path, through_step=9)
        assert history.whole() == (0, {})


class TestGroups:
    def test_the_groups_that_differ_most_are_shown_best_completion_first(self):
        flat = group(sample("a", 0.0), sample("b", 0.0), position=7)
        telling = group(sample("worst", -1.0, advantage=-0.7), sample("best", 1.0, advantage=0.7), position=8)
        shown = groups_shown([flat, telling])
        assert [one["position"] for one in shown] == [8, 7]
        assert [one["text"] for one in shown[0]["completions"]] == ["best", "worst"]
        best = shown[0]["completions"][0]
        assert (best["total"], best["advantage"], best["tokens"], best["version"]) == (1.0, 0.7, 2, 3)
        assert best["rewards"] == [{"name": "right", "score": 1.0, "status": "ok"}]

    def test_what_has_no_score_says_why_and_is_not_zero(self):
        [shown] = groups_shown([group(sample("x", None, detail="no answer"), sample("y", 0.0))])
        assert shown["unscored"] == 1
        assert [one["total"] for one in shown["completions"]] == [0.0, None]
        assert shown["completions"][1]["rewards"][0] == {
            "name": "right", "score": None, "status": "error", "detail": "no answer"
        }  # fmt: skip

    def test_large_groups_and_long_texts_are_cut(self):
        million = "a" * 1_000_000 + " the answer is 42"
        groups = [group(*(sample(million, float(index)) for index in range(64)), prompt=million) for _ in range(20)]
        shown = groups_shown(groups)
        assert len(shown) == MAX_GROUPS
        assert [one["total"] for one in shown[0]["completions"]] == [63.0, 62.0, 61.0, 60.0, 3.0, 2.0, 1.0, 0.0]
        assert shown[0]["count"] == 64
        text = shown[0]["completions"][0]["text"]
        assert text.endswith("the answer is 42"), "the answer stands at the end"
        assert "characters left out" in text
        assert len(to_json(shown)) < MAX_GROUPS * (MAX_COMPLETIONS + 1) * (MAX_TEXT + 500)

    def test_texts_of_any_characters_are_one_line_of_utf8(self):
        hostile = "<script>alert(1)</script>\r\n\ndata: x\u2028\x00\ud83d\udc00 \ud83d"
        text = to_json(groups_shown([group(sample(hostile, 1.0))]))
        assert "\n" not in text
        assert "\r" not in text
        read = json.loads(text.encode("utf-8"))
        assert read[0]["completions"][0]["text"].startswith("<script>alert(1)</script>\r\n\ndata: x")

    def test_text_that_turns_the_reading_direction_is_shown_by_its_numbers(self):
        [shown] = groups_shown([group(sample("a\u202eb\u2066c", 1.0), sample("plain \u05d0", 0.0))])
        assert [one["text"] for one in shown["completions"]] == ["a\\u202eb\\u2066c", "plain \u05d0"]

    def test_a_step_without_groups_leaves_the_last_ones(self):
        history = LiveHistory()
        assert history.groups is None
        history.show_groups(1, [group(sample("x", 1.0))])
        history.show_groups(2, [])
        assert (history.groups or {})["step"] == 1


class TestSections:
    def test_the_whole_state_is_json(self):
        status = RunStatus("demo", max_steps=10, heartbeat_bound_s=60.0, step=3)
        status.pushed(5, seconds=0.5, num_bytes=100)
        status.pushed(6, seconds=0.25, num_bytes=100)
        status.enter_stage("train")
        _, text = LiveView(status).whole()
        state = json.loads(text)
        now = state["sections"]["now"]
        assert (now["step"], now["stage"], now["policy_version"]) == (3, "train", 6)
        assert (now["push_s"], now["push_bytes"]) == (0.25, 100)
        assert now["problem"] is None
        assert state["sections"]["run"]["max_steps"] == 10
        assert state["curves"] == {}

    def test_a_stuck_loop_is_shown(self):
        status = RunStatus("demo", max_steps=10, heartbeat_bound_s=60.0)
        with status.watching("the event loop", lambda: False):
            assert LiveView(status).sections()["now"]["problem"] == "the event loop is dead"

    def test_a_source_that_fails_takes_nothing_else_away(self, caplog: pytest.LogCaptureFixture):
        status = RunStatus("demo", max_steps=10, heartbeat_bound_s=60.0)
        status.show("replicas", lambda: 1 / 0)
        status.show("facts", lambda: {"model": "m"})
        view = LiveView(status)
        for _ in range(3):
            sections = view.sections()
        assert sections["replicas"] is None
        assert sections["facts"] == {"model": "m"}
        assert caplog.text.count("the live page cannot show replicas: ZeroDivisionError") == 1

    def test_the_end_says_why_without_secrets(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("GRPO_API_TOKEN", "correct-horse-battery")
        status = RunStatus("demo", max_steps=10, heartbeat_bound_s=60.0)
        status.ended("RunError: http://x:correct-horse-battery@host refused")
        end = json.loads(LiveView(status).end())
        assert end["reason"].startswith("RunError: ")
        assert "correct-horse" not in end["reason"]


class TestWarnings:
    def test_the_newest_come_first_repeated_ones_are_counted_and_their_number_is_bounded(self):
        with recent_warnings() as found:
            for index in range(100):
                logging.getLogger("any").warning("number %d", index)
            logging.getLogger("any").error("twice")
            logging.getLogger("any").error("twice")
            logging.getLogger("any").info("nothing to see")
        logging.getLogger("any").warning("after the run")
        shown = found.shown()
        assert len(shown) == MAX_WARNINGS
        assert (shown[0]["text"], shown[0]["count"], shown[0]["level"]) == ("twice", 2, "error")
        assert shown[1]["text"] == "number 99"

    def test_no_secret_and_no_endless_text(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("GRPO_API_TOKEN", "correct-horse-battery")
        with recent_warnings() as found:
            logging.getLogger("any").warning(
                "token correct-horse-battery refused, Bearer abcdefghijklmnop " + "x" * 10**6
            )
        [shown] = found.shown()
        assert "correct-horse" not in shown["text"]
        assert "abcdefgh" not in shown["text"]
        assert len(shown["text"]) < 1000
