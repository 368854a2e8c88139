"""The record of a session: where requests belong, what forks, and that each sampled token is in one turn."""

import random
from typing import Any

import pytest

from grpo_rollout.sessions.chat_form import BadMessagesError, chat_message, check_new
from grpo_rollout.sessions.forest import Forest, Shown, Turn

TOOLS, OTHER_TOOLS = b"tools", b"other tools"
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"b": 2, "a": 1}'}}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def says(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text} | more


def formed(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [chat_message(message, number) for number, message in enumerate(messages)]


class Recorded:
    """A forest whose answers are given, one token id for each."""

    def __init__(self) -> None:
        self.forest = Forest()
        self.next_id = 1000

    def begin(self, messages: list[dict[str, Any]], tools: bytes = TOOLS) -> Turn:
        attachment = self.forest.find(tools, formed(messages))
        return self.forest.begin(tools, attachment, [len(messages)] * 2)

    def finish(self, turn: Turn, answer: dict[str, Any], version: int = 0) -> Turn:
        self.next_id += 1
        self.forest.finish(
            turn, token_ids=[self.next_id], logprobs=[-0.5], versions=[(version, 1)], finish_reason="stop",
            message=formed([answer])[0], text=answer["content"] or "",
        )  # fmt: skip
        turn.delivered = True
        return turn

    def turn(self, messages: list[dict[str, Any]], answer: dict[str, Any], tools: bytes = TOOLS) -> Turn:
        return self.finish(self.begin(messages, tools), answer)


def test_a_continuation_goes_on_in_its_segment():
    recorded = Recorded()
    first = recorded.turn([user("a")], says("b"))
    second = recorded.turn([user("a"), says("b"), user("c")], says("d"))
    assert first.segment is second.segment
    assert list(second.segment.token_ids) == [1, 1, 1001, 3, 3, 1002]
    assert [(turn.start, turn.end) for turn in (first, second)] == [(2, 3), (5, 6)]
    assert recorded.forest.stats()["forks"] == 0


@pytest.mark.parametrize(
    "echoed",
    [
        says(" b \n"),
        says("", content=[{"type": "text", "text": "b"}]),
        says("b", tool_calls=[]),
        says("b", reasoning="thought"),
        says("b", reasoning_content="thought"),
        says("", content=[{"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]),
    ],
)
def test_an_equal_message_is_the_recorded_one(echoed: dict[str, Any]):
    recorded = Recorded()
    first = recorded.turn([user("a")], says("b", reasoning_content="thought"))
    assert recorded.turn([user("a"), echoed, user("c")], says("d")).segment is first.segment


def test_arguments_are_compared_as_json():
    recorded = Recorded()
    first = recorded.turn([user("a")], says("", tool_calls=[CALL]))
    echoed = CALL | {"function": {"name": "f", "arguments": '{"a":1,"b":2}'}}
    result = {"role": "tool", "tool_call_id": "c1", "content": "r"}
    again = recorded.turn([user("a"), says("", content=None, tool_calls=[echoed]), result], says("d"))
    assert again.segment is first.segment


@pytest.mark.parametrize(
    ("messages", "tools", "reason"),
    [
        ([user("a"), says("edited"), user("c")], TOOLS, "edited"),
        ([user("a"), says("b", reasoning="another"), user("c")], TOOLS, "edited"),
        ([user("a"), says("b"), user("c")], OTHER_TOOLS, "tools"),
        ([user("a summary of all before"), user("c")], TOOLS, "other_prompt"),
    ],
)
def test_history_that_is_not_the_recorded_one_starts_a_segment_with_its_reason(
    messages: list[dict[str, Any]], tools: bytes, reason: str
):
    recorded = Recorded()
    first = recorded.turn([user("a")], says("b", reasoning_content="thought"))
    other = recorded.turn(messages, says("d"), tools)
    segment = other.segment
    assert (segment.fork_reason, segment.parent, segment.fork_at) == (reason, None, None)
    assert 1001 in first.segment.token_ids
    assert 1001 not in segment.token_ids
    assert recorded.forest.stats()["fork_reasons"] == {reason: 1}


def test_another_tail_branches_at_the_deepest_turn():
    recorded = Recorded()
    recorded.turn([user("a")], says("b"))
    path = [user("a"), says("b"), user("c"), says("d")]
    second = recorded.turn(path[:3], says("d"))
    third = recorded.turn([*path, user("e")], says("f"))
    branch = recorded.turn([*path, user("other")], says("g"))
    earlier = recorded.turn([*path[:2], user("another")], says("h"))
    assert (branch.segment.parent, branch.segment.fork_at, branch.segment.fork_reason) == (0, second.end, "branch")
    assert list(branch.segment.token_ids) == [*third.segment.token_ids[: second.end], 5, 5, 1004]
    assert earlier.segment.fork_at == 3
    assert all([turn.number for turn in segment.turns] for segment in recorded.forest.segments)


def test_the_same_prompt_again_is_sampled_from_the_same_ids():
    recorded = Recorded()
    first, second = recorded.begin([user("a")]), recorded.begin([user("a")])
    recorded.finish(second, says("b"))
    recorded.finish(first, says("c"))
    assert second.segment.fork_at == first.start == second.start
    assert list(second.segment.token_ids)[:2] == list(first.segment.token_ids)[:2]
    third = recorded.turn([user("a"), says("b"), user("d")], says("e"))
    assert third.segment is second.segment


def test_of_equal_answers_the_latest_is_continued():
    recorded = Recorded()
    recorded.turn([user("a")], says("b", reasoning_content="one"))
    second = recorded.turn([user("a")], says("b", reasoning_content="two"))
    assert recorded.turn([user("a"), says("b"), user("c")], says("d")).segment is second.segment
    first_again = recorded.turn([user("a"), says("b", reasoning_content="one"), user("c")], says("d"))
    assert first_again.segment is recorded.forest.segments[0]


def test_while_a_segment_samples_another_request_branches_off_it():
    recorded = Recorded()
    recorded.turn([user("a")], says("b"))
    running = recorded.begin([user("a"), says("b"), user("c")])
    beside = recorded.turn([user("a"), says("b"), user("d")], says("e"))
    recorded.finish(running, says("f"))
    assert (running.segment.index, beside.segment.parent, beside.segment.fork_at) == (0, 0, 3)


def test_a_turn_of_which_nothing_came_leaves_its_place_to_the_next():
    recorded = Recorded()
    recorded.forest.abandon(recorded.begin([user("a")]))
    turn = recorded.turn([user("a")], says("b"))
    assert (turn.segment.index, recorded.forest.num_turns, recorded.forest.num_segments) == (0, 1, 1)


def test_an_answer_that_nobody_got_is_masked_and_counted():
    recorded = Recorded()
    recorded.turn([user("a")], says("b")).delivered = False
    recorded.turn([user("a")], says("c"))
    stats = recorded.forest.stats()
    assert (stats["sampled"], stats["masked"]) == (2, {"undelivered": 1})


def test_each_sampled_token_is_in_one_turn_of_one_segment():
    """Of random programs that go on, branch, edit and start again."""
    for seed in range(200):
        rng, recorded = random.Random(seed), Recorded()
        histories: list[list[dict[str, Any]]] = [[user("a")]]
        for number in range(12):
            history = list(rng.choice(histories))
            if rng.random() < 0.2:
                history = [user(f"start {number}")]
            answer = says(f"answer {number % 5}")
            recorded.turn(history, answer)
            histories.append([*history, answer, user(f"then {number % 3}")])
        sampled = [token for segment in recorded.forest.segments for turn in segment.turns for token in turn.token_ids]
        assert sorted(sampled) == list(range(1001, 1013))
        assert all(len(segment.logprobs) == len(segment.turns) for segment in recorded.forest.segments)


def test_versions_that_do_not_count_the_tokens_are_an_error():
    recorded = Recorded()
    turn = recorded.begin([user("a")])
    with pytest.raises(ValueError, match="2 tokens, 2 logprobs and 1 versions"):
        recorded.forest.finish(
            turn, token_ids=[1, 2], logprobs=[0, 0], versions=[(0, 1)], finish_reason="stop", message=says("x"), text=""
        )


@pytest.mark.parametrize(
    ("messages", "names"),
    [
        ([{"role": "robot", "content": "x"}], "message 0 has the role 'robot'"),
        ([user("a"), {"role": "tool", "tool_call_id": "c9", "content": "r"}], "result of call c9, which nobody made"),
        (
            [says("", tool_calls=[CALL]), *[{"role": "tool", "tool_call_id": "c1", "content": "r"}] * 2],
            "a second result of call c1",
        ),
        (
            [says("", tool_calls=[CALL | {"function": {"name": "f", "arguments": "[1]"}}])],
            "arguments of call c1 are no JSON object",
        ),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "a part of type image_url"),
        (["x"], "message 0 is no object"),
    ],
)
def test_messages_that_would_lose_something_are_refused_by_name(messages: list[Any], names: str):
    with pytest.raises(BadMessagesError, match=names):
        check_new(formed(messages))


def test_results_may_follow_what_is_recorded():
    before = formed([says("", tool_calls=[CALL])])
    check_new(formed([{"role": "tool", "tool_call_id": "c1", "content": "r"}]), before=before)


def test_a_fork_of_what_was_given_up_is_one_of_what_was_sampled_before_it():
    recorded, messages = Recorded(), [user("a"), says("b"), user("c")]
    recorded.turn(messages[:1], says("b"))
    recorded.turn(messages, says("d"))
    given_up, fork = (recorded.begin([*messages[:2], user("e")]) for _ in range(2))
    recorded.forest.abandon(given_up)
    found = recorded.finish(fork, says("g")).segment
    assert (found.parent, given_up.segment.parent) == (given_up.segment.index, 0)
    assert recorded.forest.origin(found) == (0, 3)


def test_a_fork_shows_the_images_before_it():
    recorded = Recorded()
    question, images = {"role": "user", "content": [{"type": "image", "image": "data:image/png;base64,aa=="}]}, {}
    first = chat_message(question, 0, images)
    [name] = images
    attachment = recorded.forest.find(TOOLS, [first])
    turn = recorded.forest.begin(TOOLS, attachment, [1, 2, 2, 3], shown=[Shown(name, 1, None, 0)])
    recorded.finish(turn, says("b"))
    messages = [first, *formed([says("b"), user("c")])]
    attachment = recorded.forest.find(TOOLS, messages)
    later = recorded.forest.begin(TOOLS, attachment, [7, 2, 2], shown=[Shown("other", 1, None, 0)])
    assert [(image.name, image.start) for image in later.segment.shown] == [(name, 1), ("other", 6)]
    recorded.finish(later, says("d"))
    fork = recorded.forest.begin(TOOLS, recorded.forest.find(TOOLS, [first, *formed([says("b"), user("e")])]), [8])
    assert fork.segment is not later.segment
    assert [(image.name, image.start) for image in fork.segment.shown] == [(name, 1)]
    other = [chat_message({**question, "content": [*question["content"], {"type": "text", "text": "x"}]}, 0, images)]
    assert recorded.forest.find(TOOLS, other).turn is None
