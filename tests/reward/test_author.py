"""What a reward's signature means, and what may come back from it."""

import asyncio
import functools
import json
import re
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Literal

import numpy as np
import pytest
import torch
from pydantic import AfterValidator, Field

from grpo_reward import Score, reward
from grpo_reward.author import Reward
from grpo_reward.scorer import MAX_CALL_CHARS, InvalidParamsError, checked_params, outcome, score_batch, score_sample


def mark_of(function) -> Reward:
    return function.__reward__


def run(function, sample, params=None, step=None):
    mark = mark_of(function)
    return score_sample(mark, checked_params(mark, params or {}), {"columns": {}, "completion": "", **sample}, step)


class TestSignature:
    def test_parameters_without_a_default_are_columns_and_the_others_params(self):
        @reward
        def fit(completion: str, *, gold: str, prompt: str, truncated: bool | None = None, bonus: float = 0.5) -> float:
            """Fits."""
            return 1.0

        mark = mark_of(fit)
        assert (mark.name, mark.documentation, mark.batch) == ("fit", "Fits.", False)
        assert mark.required_columns == ["gold"]
        assert mark.required_fields == ["prompt"]
        assert sorted(mark.fields.values()) == ["prompt", "truncated"]
        assert list(mark.params.model_fields) == ["bonus"]
        assert len(mark.code_hash) == 64

    def test_columns_can_be_named(self):
        @reward(name="other", columns=["gold", "hint"])
        def fit(completion: str, *, gold: str, limit: int, hint: str = "") -> float:
            return 1.0

        mark = mark_of(fit)
        assert mark.name == "other"
        assert mark.required_columns == ["gold"]
        assert list(mark.columns) == ["gold", "hint"]
        assert mark.params.model_json_schema()["required"] == ["limit"]

    def test_it_stays_a_function(self):
        @reward
        def fit(completion: str) -> float:
            return 2.0

        assert fit("") == 2.0

    def test_a_text_under_both_names_or_a_field_of_the_other_shape_is_refused(self):
        with pytest.raises(
            TypeError, match=r"takes both `completion` and `completions`: keep `completion` to score one"
        ):
            reward(lambda completions, completion: 1.0)
        with pytest.raises(TypeError, match=r"prompts belongs to a function of `completions`.*call it prompt, or say"):
            reward(lambda completion, prompts: 1.0)
        with pytest.raises(
            TypeError, match=r"completion_token_ids belongs to .* `completion`, .*: call it completion_ids"
        ):
            reward(lambda completions, completion_token_ids=None: 1.0)
        assert mark_of(reward(name="one", columns=["prompts"])(lambda completion, prompts: 1.0)).required_columns == [
            "prompts"
        ]

    @pytest.mark.parametrize(
        ("annotation", "default"),
        [
            (float, "x"), (float, "1e-3"), (int, 1.5), (bool, "yes"), (str, 7), (list[int], ["a"]),
            (float | None, "0.5"), (Literal["a", "b"], "c"), (Annotated[int, Field(ge=1)], 0),
        ],
    )  # fmt: skip
    def test_a_default_that_does_not_fit_its_annotation_is_refused(self, annotation, default):
        def fit(completion: str, *, tol: annotation = default) -> float:
            return 1.0

        for columns in (None, ["tol"]):
            with pytest.raises(
                TypeError, match=r"^reward fit: the default of tol, .*, does not fit its annotation .*: "
            ):
                reward(columns=columns)(fit)

    @pytest.mark.parametrize(
        ("annotation", "default"),
        [
            (float, 1), (str, None), (list[str], ()), (float, float("inf")),
            (Annotated[float, Field(gt=0)], float("inf")), (int, Field(3, ge=1)), (float | str, "x"),
            (Annotated[str, AfterValidator(lambda text: 1 / 0)], "x"),
        ],
    )  # fmt: skip
    def test_any_other_default_is_taken(self, annotation, default):
        @reward
        def fit(completion: str, *, tol: annotation = default) -> float:
            return 1.0

        assert run(fit, {})["score"] == 1.0

    def test_a_column_that_is_null_and_may_not_be_is_none_of_the_rewards_business(self):
        """As of the rows of another task in one dataset, where a column of JSON lines or of the Hub is null."""

        @reward
        def fit(completion: str, *, gold: str, hint: str | None) -> float:
            return 1.0 if hint is None else 0.0

        scored = run(fit, {"columns": {"gold": None, "hint": None}})
        assert scored == {"score": None, "status": "unscorable", "detail": "column gold is null"}
        assert run(fit, {"columns": {"gold": "7", "hint": None}})["score"] == 1.0
        assert run(fit, {"columns": {"gold": 7, "hint": None}})["status"] == "error"

    def test_what_fits_no_reward_is_refused(self):
        with pytest.raises(TypeError, match="must be called `completion` or `completions`"):
            reward(lambda text: 1.0)
        with pytest.raises(TypeError, match="its name must be a text, not 7"):
            reward(name=7)(lambda completion: 1.0)
        with pytest.raises(TypeError, match="gold must be a parameter that can be given by name"):
            reward(lambda gold, /, completion: 1.0)
        with pytest.raises(TypeError, match="no parameter for the column gold"):
            reward(columns=["gold"])(lambda completion: 1.0)
        with pytest.raises(TypeError, match=r"\*columns"):
            reward(lambda completion, **columns: 1.0)
        with pytest.raises(TypeError, match="is no name: it has letters"):
            reward(lambda completion: 1.0)
        for name in ("a b", "a\nb", "a,b", "a:1", "", "..", ".a", "a-"):
            with pytest.raises(TypeError, match="is no name: it has letters"):
                reward(name=name or " ")(lambda completion: 1.0)
        with pytest.raises(TypeError, match="is for functions"):
            reward(functools.partial(lambda completion, k: k, k=1.0))
        with pytest.raises(TypeError, match="it is a method"):

            class Mine:
                @reward
                def score(self, completion):
                    return 1.0

    def test_trl_functions_may_have_their_prompts_first(self):
        @reward
        def fit(prompts, completions, **columns):
            return [len(prompt + text) for prompt, text in zip(prompts, completions, strict=True)]

        mark = mark_of(fit)
        samples = [{"completion": "ab", "prompt": "c", "columns": {"gold": 1}}]
        assert score_batch(mark, checked_params(mark, {}), samples, None) == [{"score": 3.0, "status": "ok"}]


class TestArguments:
    def test_each_kind_arrives(self):
        @reward(columns=["gold", "hint"])
        def fit(
            completion: str,
            *,
            gold: int,
            prompt: str,
            hint: str = "no hint",
            bonus: Annotated[float, Field(ge=0)] = 1.0,
            step: int | None,
            truncated: bool | None = None,
            completion_token_ids: list[int] | None = None,
        ) -> Score:
            given = [completion, gold, prompt, hint, bonus, step, truncated, completion_token_ids]
            return Score(1.0, log={"given": given})

        sample = {"completion": "c", "prompt": "p", "columns": {"gold": "7", "other": 1}, "truncated": True}
        assert run(fit, sample, {"bonus": 2}, step=3)["log"] == {"given": ["c", 7, "p", "no hint", 2.0, 3, True, None]}

    def test_a_column_of_the_wrong_type_is_an_error_of_this_sample_that_names_it(self):
        @reward
        def fit(completion: str, *, gold: int) -> float:
            return 1.0

        result = run(fit, {"columns": {"gold": "seven"}})
        assert result["status"] == "error"
        assert result["score"] is None
        assert result["detail"].startswith("column gold: ")

    def test_a_number_where_a_text_belongs_is_shown(self):
        @reward
        def fit(completion: str, *, gold: str) -> float:
            return 1.0

        assert run(fit, {"columns": {"gold": 5}})["detail"] == "column gold: Input should be a valid string, not 5"
        assert run(fit, {"columns": {"gold": ["x" * 10**6]}})["detail"].startswith("column gold: ")

    def test_params_are_checked_against_their_annotations(self):
        @reward
        def fit(completion: str, *, unit: Literal["a", "b"] = "a", limit: Annotated[int, Field(ge=1)] = 1) -> float:
            return 1.0

        for params, name in (({"unit": "c"}, "unit"), ({"limit": 0}, "limit"), ({"limt": 1}, "limt")):
            with pytest.raises(InvalidParamsError, match=f"^{name}: "):
                checked_params(mark_of(fit), params)

    def test_params_that_break_their_own_check_are_wrong_params(self):
        @reward(columns=[])
        def fit(completion: str, *, pattern: re.Pattern[str]) -> float:
            return 1.0

        for pattern, fault in (("(" * 5000 + ")" * 5000, "nested too deeply$"), ("(", "^pattern: ")):
            with pytest.raises(InvalidParamsError, match=fault):
                checked_params(mark_of(fit), {"pattern": pattern})

    def test_a_function_of_completions_gets_lists(self):
        seen = {}

        @reward
        def fit(completions, prompts, completion_ids, gold, bonus=1.0, **columns):
            seen.update(locals())
            return [1.0, None]

        mark = mark_of(fit)
        assert mark.batch
        assert mark.required_columns == ["gold"]
        samples = [
            {"completion": "a", "prompt": "p", "completion_token_ids": [1], "columns": {"gold": 1, "x": 2, "y": 3}},
            {"completion": "b", "prompt": "q", "completion_token_ids": None, "columns": {"gold": 4, "x": 5}},
        ]
        results = score_batch(mark, checked_params(mark, {"bonus": 2.0}), samples, None)
        assert [result["status"] for result in results] == ["ok", "unscorable"]
        assert seen == {
            "completions": ["a", "b"], "prompts": ["p", "q"], "completion_ids": [[1], None], "gold": [1, 4],
            "bonus": 2.0, "columns": {"x": [2, 5], "y": [3, None]}, "seen": {},
        } | {"seen": seen["seen"]}  # fmt: skip

    @pytest.mark.parametrize("returned", [[1.0], [1.0, 2.0, 3.0], "12", 1.0, None])
    def test_a_function_of_completions_that_returns_another_number_of_scores_gets_none(self, returned):
        mark = mark_of(reward(name="one")(lambda completions: returned))
        samples = [{"completion": "", "columns": {}}] * 2
        results = score_batch(mark, checked_params(mark, {}), samples, None)
        assert [result["status"] for result in results] == ["error", "error"]

    def test_what_a_function_of_completions_logs_is_bounded(self):
        """All of it reaches the server at once."""

        @reward
        def talk(completions):
            return [Score(1.0 if number else None, log={"text": "x" * 60_000}) for number in range(len(completions))]

        mark = mark_of(talk)
        results = score_batch(mark, checked_params(mark, {}), [{"completion": "", "columns": {}}] * 400, None)
        kept = [result for result in results if "log" in result]
        assert 270 < len(kept) < 280
        assert sum(len(result["log"]["text"]) for result in kept) <= MAX_CALL_CHARS
        assert [result["score"] for result in results] == [None] + [1.0] * 399
        for result in results[len(kept) :]:
            assert (result["status"], set(result)) == ("ok", {"score", "status", "detail"})
            assert "log and metrics left out" in result["detail"]

    def test_a_function_of_completions_may_ask_for_what_belongs_to_the_request(self):
        @reward
        def fit(completions, truncated, trainer_state, timeout_s, log_extra, hint=None):
            log_extra("hint", hint or ["none"] * len(completions))
            return [trainer_state.global_step + timeout_s if cut else None for cut in truncated]

        mark = mark_of(fit)
        assert (mark.required_columns, list(mark.params.model_fields)) == ([], ["hint"])
        samples = [{"completion": "", "columns": {}, "truncated": cut} for cut in (True, False)]
        results = score_batch(mark, checked_params(mark, {}), samples, 3, 0.5)
        assert [(result["score"], result["log"]) for result in results] == [
            (3.5, {"hint": "none"}), (None, {"hint": "none"}),
        ]  # fmt: skip

    def test_a_column_never_takes_the_place_of_what_the_request_says(self):
        @reward
        def fit(completions, bonus=1.0, **columns):
            return [len(text) + bonus + len(columns) for text in completions]

        mark = mark_of(fit)
        columns = {"completions": "of the data set", "bonus": 100.0, "prompts": "p"}
        (result,) = score_batch(
            mark, checked_params(mark, {"bonus": 2.0}), [{"completion": "abc", "columns": columns}], 1
        )
        assert result["score"] == 3 + 2.0 + 1  # prompts is a column here: the function did not ask for the sample's

    def test_a_param_may_have_any_name(self):
        @reward
        def fit(completion: str, *, schema: str = "a", json: str = "b", model_name: str = "c") -> float:
            return float(schema + json + model_name == "abd")

        assert run(fit, {}, {"model_name": "d"})["score"] == 1.0

    def test_async_functions_are_awaited(self):
        @reward
        async def one(completion: str, *, gold: str) -> float:
            await asyncio.sleep(0)
            return float(completion == gold)

        @reward
        async def all_at_once(completions: list[str]) -> list[float]:
            return await asyncio.gather(*(asyncio.sleep(0.0, float(len(text))) for text in completions))

        @reward
        async def late(completion: str) -> float:
            raise ValueError("no")

        assert run(one, {"completion": "a", "columns": {"gold": "a"}}) == {"score": 1.0, "status": "ok"}
        assert run(late, {})["detail"] == "ValueError: no"
        mark = mark_of(all_at_once)
        samples = [{"completion": text, "columns": {}} for text in ("a", "abc")]
        assert [s["score"] for s in score_batch(mark, checked_params(mark, {}), samples, None)] == [1.0, 3.0]


class TestResults:
    @pytest.mark.parametrize(
        ("value", "score"),
        [
            (1, 1.0), (0.25, 0.25), (-3, -3.0), (Fraction(1, 4), 0.25), (Decimal("0.5"), 0.5),
            (True, 1.0), (False, 0.0), (np.bool_(True), 1.0), (np.bool_(False), 0.0),
            (np.float32(0.5), 0.5), (np.int64(2), 2.0),
            (np.array(0.25), 0.25), (torch.tensor(True), 1.0), (torch.tensor(0.5), 0.5),
        ],
    )  # fmt: skip
    def test_numbers_are_scores(self, value, score):
        for returned in (value, Score(value)):
            assert outcome(returned) == {"score": score, "status": "ok"}
            assert type(outcome(returned)["score"]) is float

    @pytest.mark.parametrize(
        "returned", [[True, False], (1, 0.0), np.array([True, False]), np.ones(2) - [0, 1], torch.tensor([True, False])]
    )
    def test_so_are_those_in_a_list(self, returned):
        mark = mark_of(reward(name="one")(lambda completions: returned))
        results = score_batch(mark, checked_params(mark, {}), [{"completion": "", "columns": {}}] * 2, None)
        assert results == [{"score": 1.0, "status": "ok"}, {"score": 0.0, "status": "ok"}]

    @pytest.mark.parametrize("value", [None, Score(None)])
    def test_none_is_unscorable(self, value):
        assert outcome(value) == {"score": None, "status": "unscorable"}

    def test_a_reason_can_be_given(self):
        assert outcome(Score(None, detail="why")) == {"score": None, "status": "unscorable", "detail": "why"}
        assert outcome(Score(0.5, detail="why")) == {"score": 0.5, "status": "ok", "detail": "why"}
        assert outcome(Score(None, status="timeout", detail="late", log={"asked": 2})) == {
            "score": None, "status": "timeout", "detail": "late", "log": {"asked": 2},
        }  # fmt: skip
        for returned in (Score(1.0, status="error"), Score(None, status="ok")):
            assert outcome(returned)["status"] == "error"
            assert "beside a score of None" in outcome(returned)["detail"]
        assert outcome(Score(0.5, detail="x" * 2000))["detail"] == "x" * 1000

    @pytest.mark.parametrize(
        "value", [float("nan"), float("inf"), -float("inf"), "1.0", b"1", [1.0], 1j, 10**400, Decimal("sNaN"), object()]
    )
    def test_everything_else_is_an_error(self, value):
        for returned in (value, Score(value)):
            result = outcome(returned)
            assert (result["score"], result["status"]) == (None, "error")
            assert "not a finite number" in result["detail"]

    def test_log_and_metrics_are_passed_on(self):
        result = outcome(Score(1.0, log={"seen": [1, "a"]}, metrics={"length": 3}))
        assert result == {"score": 1.0, "status": "ok", "log": {"seen": [1, "a"]}, "metrics": {"length": 3.0}}

    @pytest.mark.parametrize(
        "score",
        [
            Score(1.0, log={"seen": "x" * 100_000}),
            Score(1.0, log={"seen": "x" * 100_000, "bad": object()}),
            Score(1.0, log={"seen": json.loads("[" * 150 + "]" * 150)}),
            Score(1.0, metrics=dict.fromkeys(map(str, range(101)), 1.0)),
        ],
    )
    def test_log_and_metrics_beyond_the_limits_are_an_error(self, score):
        assert outcome(score)["status"] == "error"

    def test_an_exception_that_cannot_be_printed_is_an_error(self):
        class EvilError(Exception):
            def __str__(self):
                raise SystemExit(3)

        @reward
        def fail(completion: str) -> float:
            raise EvilError

        assert run(fail, {})["detail"] == "the reward raised an exception that cannot be printed"

    @pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), RecursionError()])
    def test_whatever_is_raised_is_an_error_of_this_sample(self, error):
        @reward
        def fail(completion: str) -> float:
            raise error

        result = run(fail, {})
        assert (result["score"], result["status"]) == (None, "error")
        assert type(error).__name__ in result["detail"]
