"""What `RemoteReward` refuses before it asks a server: a reward must not say 0 to what it could not read."""

import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from grpo_reward import RemoteReward
from grpo_reward.remote import _token_ids

NOWHERE = "http://127.0.0.1:9"
ANSWER = "<answer>1</answer>"
HALF_PAIR = "half of a surrogate pair as character 1, and cannot be sent"


@pytest.fixture
def reward() -> RemoteReward:
    return RemoteReward(NOWHERE, "accuracy", retry_for_s=0.0)


class TestCompletions:
    @pytest.mark.parametrize(
        ("completion", "told"),
        [
            (ANSWER.encode(), r"completions[1] is b'<answer>1</answer>' of type bytes: a completion is a text or "),
            (None, "completions[1] is None of type NoneType"),
            (5, "completions[1] is 5 of type int"),
            ({"role": "assistant", "content": ANSWER}, "completions[1] is {'content': '<answer>1</answer>', 'role'"),
            ([ANSWER], "completions[1][0] is '<answer>1</answer>' of type str"),
            ((ANSWER,), "completions[1][0] is '<answer>1</answer>' of type str"),
            ([{"content": ANSWER}], "completions[1][0] is {'content': '<answer>1</answer>'} of type dict"),
            ([{"role": None, "content": ANSWER}], "completions[1][0] is {"),
            ([{"type": "text", "text": ANSWER}], "completions[1][0] is {"),
            ([{"role": "assistant"}], "completions[1][0] is {"),
            ([{"role": "assistant", "text": ANSWER}], "completions[1][0] is {"),
            ([{"role": "assistant", "content": ANSWER}, None], "completions[1][1] is None of type NoneType"),
            ([{"role": "assistant", "content": ANSWER.encode()}], "completions[1][0] is {"),
            ([{"role": "assistant", "content": {"type": "text", "text": ANSWER}}], "completions[1][0] is {"),
            ([{"role": "assistant", "content": [ANSWER]}], "completions[1][0] is {"),
            ([{"role": "assistant", "content": [{"type": "text", "content": ANSWER}]}], "completions[1][0] is {"),
            ([], "completions[1] has no message of the assistant: a completion is a text or "),
            ([{"role": "user", "content": ANSWER}], "completions[1] has no message of the assistant"),
        ],
    )
    def test_another_shape_is_named(self, reward, completion, told):
        with pytest.raises(TypeError, match=re.escape(told)) as caught:
            reward([ANSWER, completion], solution=["1", "1"])
        assert "a list of messages with role and content" in str(caught.value)

    @pytest.mark.parametrize("completions", [ANSWER, ANSWER.encode(), None, 5, {0: ANSWER}, {ANSWER}, np.array("a")])
    def test_what_is_no_list_of_them(self, reward, completions):
        with pytest.raises(TypeError, match=r"completions is .* of type .*, not a list: a completion is a text or "):
            reward(completions)

    def test_of_verl(self, reward):
        for solution in (None, ANSWER.encode(), [{"role": "assistant", "content": ANSWER}]):
            with pytest.raises(TypeError, match=r"solution_str is .* of type .*, not a text"):
                reward.compute_score("d", solution, "1")


class TestUnscorable:
    @pytest.mark.parametrize("number", [float("nan"), float("-inf"), "x", "0", True, False, [1], 10**400, 1j])
    def test_it_must_be_a_finite_number(self, number):
        with pytest.raises(ValueError, match=r"unscorable is .*, not a finite number"):
            RemoteReward(NOWHERE, "accuracy", unscorable=number)

    def test_the_value_is_named(self):
        with pytest.raises(ValueError, match="unscorable is nan, not a finite number"):
            RemoteReward(NOWHERE, "accuracy", unscorable=float("nan"))

    def test_numbers_become_floats(self):
        for number in (-1, -1.0, np.float32(-1), np.int64(-1), Fraction(-1)):
            unscorable = RemoteReward(NOWHERE, "accuracy", unscorable=number).unscorable  # type: ignore[arg-type]
            assert (unscorable, type(unscorable)) == (-1.0, float)
        assert RemoteReward(NOWHERE, "accuracy").unscorable is None


class TestCounts:
    @pytest.mark.parametrize("name", ["prompts", "completion_ids"])
    @pytest.mark.parametrize("values", [[], [[1]], [[1], [2], [3]], "ab", b"ab", {0: [1], 1: [2]}, 5])
    def test_one_value_for_each_completion(self, reward, name, values):
        with pytest.raises(ValueError, match=f"the argument {name} is no list of 2 values, one for each completion"):
            reward(["a", "b"], **{name: values})

    @pytest.mark.parametrize("name", ["messages", "response_token_ids", "is_truncated"])
    @pytest.mark.parametrize("surplus", [-1, 1])
    def test_of_swift(self, reward, name, surplus):
        dialogue = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
        given: dict[str, list] = {"messages": [dialogue] * 2, "response_token_ids": [[1]] * 2, "is_truncated": [0] * 2}
        given[name] = given[name][:1] * (2 + surplus)
        with pytest.raises(ValueError, match=f"the argument {name} is no list of 2 values"):
            reward(["a", "a"], **given)

    @pytest.mark.parametrize("values", [b"ab", {1, 2}, torch.tensor(2), ["1"]])
    def test_of_columns(self, reward, values):
        with pytest.raises(ValueError, match="the argument solution is no list of 2 values: name the columns to send"):
            reward(["a", "b"], solution=values)


@pytest.mark.parametrize(
    "ids", [[1, 2, 3], ((1, 2), (3,)), [np.array([1, 2]), np.array([3])], [[1, 2], [3]], torch.tensor([1, 2, 3])]
)
def test_token_ids_may_come_in_turns(ids):
    assert _token_ids(ids) == [1, 2, 3]


class TestWhatJsonCannotCarry:
    @pytest.mark.parametrize("missing", [float("nan"), np.float32("nan")])
    def test_what_pandas_puts_where_there_is_no_value(self, reward, missing):
        with pytest.raises(
            TypeError, match=r"column solution of sample 1 is nan, .*: put None where there is no value"
        ):
            reward(["a", "b"], solution=["1", missing])

    def test_half_of_a_surrogate_pair_in_a_completion(self, reward):
        conversation = [{"role": "assistant", "content": [{"type": "text", "text": "a\ud83d"}]}]
        for completion in ("a\ud83d", conversation):
            with pytest.raises(ValueError, match=rf"^completions\[2\] has {HALF_PAIR}$"):
                reward(["a", "b", completion])
        with pytest.raises(ValueError, match=f"^solution_str has {HALF_PAIR}$"):
            reward.compute_score("d", "a\ud83d", "1")

    @pytest.mark.parametrize("prompt", ["q\ud83d", [{"role": "user", "content": "q\ud83d"}]])
    def test_in_a_prompt(self, reward, prompt):
        with pytest.raises(ValueError, match=f"^the prompt of sample 1 has {HALF_PAIR}$"):
            reward(["a", "b"], prompts=["q", prompt])

    @pytest.mark.parametrize("value", ["a\ud83d", ["a\ud83d"], {"a\ud83d": 1}, np.array(["a\ud83d"])])
    def test_in_a_column(self, reward, value):
        with pytest.raises(ValueError, match=f"^column solution of sample 1 has {HALF_PAIR}$"):
            reward(["a", "b"], solution=["1", value])
        with pytest.raises(ValueError, match=f"^ground_truth has {HALF_PAIR}$"):
            reward.compute_score("d", ANSWER, value)

    def test_columns_that_are_too_deep(self, reward):
        cycle: list[Any] = []
        cycle.append({"again": cycle})
        deep: Any = 1
        for _ in range(3000):
            deep = [deep]

        class Unending:
            def tolist(self):
                return self

        for value in (cycle, deep, Unending()):
            with pytest.raises(
                ValueError, match="column meta of sample 1 has more than 196 nested levels, or contains"
            ):
                reward(["a", "b"], meta=[1, value])
            with pytest.raises(ValueError, match="ground_truth has more than 196 nested levels"):
                reward.compute_score("d", ANSWER, value)

    def test_what_is_not_json_is_shown_without_going_through_it(self, reward):
        deep: Any = 1
        for _ in range(3000):
            deep = [deep]
        with pytest.raises(TypeError, match=r"column meta of sample 0 is {1: .*} of type dict, which is not JSON"):
            reward(["a"], meta=[{1: deep}])


class TestWhenItIsMade:
    @pytest.mark.parametrize("url", ["127.0.0.1:8001", "", "ftp://here"])
    def test_an_address_that_is_none(self, url):
        with pytest.raises(ValueError, match="begins with http:// or https://"):
            RemoteReward(url, "accuracy")

    def test_two_rewards_in_one(self):
        with pytest.raises(ValueError, match="make a RemoteReward for each"):
            RemoteReward(NOWHERE, "accuracy,format")
