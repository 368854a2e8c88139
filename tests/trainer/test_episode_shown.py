"""How the pages show an episode: which message is which turn, what was trained on, forks, and nothing that is HTML."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.made_episodes import completion, conversation
from tests.trainer.test_observe_report import ATTACK, Page, completion_of, metrics_of, write_lines

from grpo_trainer.algorithm.sequences import Episode, Group, Segment, Turn
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.observe.completions import CompletionLog, completion_records
from grpo_trainer.observe.episode_shown import MAX_MESSAGES, MIN_TEXT, EpisodeShown, episode_shown, fair_limit
from grpo_trainer.observe.live_groups import MAX_COMPLETIONS, MAX_GROUPS, groups_shown
from grpo_trainer.observe.live_view import to_json
from grpo_trainer.observe.report import write_report
from grpo_trainer.observe.report_samples import shorten
from grpo_trainer.observe.run_files import COMPLETIONS_FILE

ROW = PromptRow(0, [], "", {})


def shown_of(episode: Episode, *, advantage: float | None = 0.5, mask_truncated: bool = False) -> EpisodeShown:
    episode.advantage = advantage
    (record,) = completion_records(1, [Group(0, ROW, [episode])])
    shown = episode_shown(record, budget=4000, cut=shorten, mask_truncated=mask_truncated)
    assert shown
    return shown


def turn(start: int, end: int, text: str, **more: Any) -> Turn:
    return Turn(start, end, [(1, end - start)], "stop", text, **more)


def said_by(*texts: str) -> list[dict[str, Any]]:
    """A question, and after it by turns answers and questions."""
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": text} for at, text in enumerate(("q", *texts))]


def test_an_answer_has_its_turn_and_a_branch_stands_beside_with_its_reason():
    shown = shown_of(conversation())
    assert (shown.status, shown.cause, shown.num_turns) == ("truncated", "policy", 3)
    assert (shown.num_sampled, shown.num_trained) == (6, 4)
    call, result, answer = shown.messages
    assert call.turn
    assert answer.turn
    assert (call.calls[0].name, call.turn.left_out, call.turn.num_tokens, call.turn.versions) == ("calc", None, 2, "v1")
    assert (result.role, result.turn) == ("tool", None)
    assert (answer.text, answer.turn.left_out, answer.turn.fork) == ("12", None, None)
    (beside,) = shown.aside
    assert beside.turn
    assert (beside.text, beside.turn.left_out) == ("notes", "undelivered")
    assert beside.turn.fork == "segment 1 forks from segment 0 at token 2: another program"


def test_an_image_stands_where_a_message_shows_it():
    question = {"role": "user", "content": [{"type": "text", "text": "Is "}, {"type": "image"}]}
    tool = {"role": "tool", "content": [{"type": "image"}, {"type": "text", "text": " it"}]}
    transcript = [question, {"role": "assistant", "content": "a"}, tool]
    episode = replace(conversation(), transcript=transcript, opening=1)
    assert [message.text for message in shown_of(episode).messages] == ["a", "<image> it"]
    (line,) = completion_records(1, [Group(0, ROW, [episode])])
    assert (line["prompt"][0]["content"], line["messages"][2]["content"]) == (question["content"], tool["content"])
    json.dumps(groups_shown([Group(0, ROW, [episode])]))
    assert groups_shown([Group(0, ROW, [episode])])[0]["prompt"] == "[user]\nIs <image>"


@pytest.mark.parametrize(
    ("status", "cause", "advantage", "mask_truncated", "left_out"),
    [
        ("completed", None, 0.0, True, None),
        ("truncated", "policy", 0.5, True, "truncated"),
        ("truncated", "policy", 0.5, False, None),
        ("truncated", "policy", None, True, "unscored"),
        ("failed", "program", None, False, "failed"),
    ],
)
def test_a_turn_is_trained_on_only_when_its_episode_is(status, cause, advantage, mask_truncated, left_out):
    episode = replace(conversation(), status=status, cause=cause)
    shown = shown_of(episode, advantage=advantage, mask_truncated=mask_truncated)
    assert [said.turn.left_out for said in shown.messages if said.turn] == [left_out, left_out]
    assert shown.aside[0].turn
    assert shown.aside[0].turn.left_out == "undelivered", "its own reason"
    assert shown.num_trained == (0 if left_out else 4)


def test_a_conversation_that_forks_goes_on_behind_the_turns_before_its_fork():
    first = Segment([5, 1, 6, 7, 2, 8, 9], [turn(2, 4, "a"), turn(5, 7, "b")])
    second = Segment([5, 1, 6, 7, 3, 9], [turn(5, 6, "c", reward=0.25)], parent=0, fork_at=4, fork_reason="branch")
    shown = shown_of(Episode("e", [first, second], transcript=said_by("a", "r", "c"), opening=1))
    a, _, c = shown.messages
    assert a.turn
    assert c.turn
    assert (a.turn.segment, c.turn.segment, c.turn.reward) == (0, 1, 0.25)
    assert c.turn.fork == "segment 1 forks from segment 0 at token 4: another answer, or other messages, at this place"
    assert [said.text for said in shown.aside] == ["b"]


def test_an_answer_that_was_put_into_the_mouth_of_the_policy_has_no_turn():
    first = Segment([5, 1, 6, 7], [turn(2, 4, "a")])
    anew = Segment([5, 1, 9, 9, 2, 8], [turn(5, 6, "c")], fork_reason="edited")
    shown = shown_of(Episode("e", [first, anew], transcript=said_by("edited", "r", "c"), opening=1))
    assert [said.turn.segment if said.turn else None for said in shown.messages] == [None, None, 1]
    assert shown.messages[2].turn
    assert shown.messages[2].turn.fork == "segment 1 begins anew: an answer of the policy was edited"
    assert [said.text for said in shown.aside] == ["a"]


def test_as_many_turns_as_answers_are_the_same_ones_when_a_parser_has_rewritten_the_text():
    segment = Segment([5, 1, 6, 2, 8], [turn(2, 3, "<call>a</call>"), turn(4, 5, "b")])
    shown = shown_of(Episode("e", [segment], transcript=said_by("A", "r", "b"), opening=1))
    assert [said.turn.segment if said.turn else None for said in shown.messages] == [0, None, 0]
    assert shown.aside == []


def test_a_turn_that_a_push_interrupted_has_both_versions_and_an_end_that_is_none_is_said():
    cut = Turn(2, 6, [(3, 2), (4, 2)], "length", "a")
    shown = shown_of(Episode("e", [Segment([5, 1, 6, 7, 8, 9], [cut])], transcript=said_by("a"), opening=1))
    assert shown.messages[0].turn
    assert (shown.messages[0].turn.versions, shown.messages[0].turn.finish) == ("v3 to v4", "length")


def test_a_line_of_a_single_turn_is_no_episode_and_a_foreign_one_breaks_nothing():
    (record,) = completion_records(1, [Group(0, ROW, [completion("p", [1], [-0.1], "hello", "stop", [(3, 1)])])])
    assert episode_shown(record, budget=4000, cut=shorten, mask_truncated=False) is None
    foreign = {"messages": [7, {"role": None, "content": 3, "tool_calls": [{}, 1]}], "turns": [{}, "x"], "forks": 5}
    shown = episode_shown(foreign, budget=4000, cut=shorten, mask_truncated=False)
    assert shown
    assert (shown.num_turns, shown.num_sampled) == (1, 0)


def test_short_texts_leave_their_room_to_long_ones():
    assert fair_limit([10, 20, 5000, 6000], 4030) == 2000
    assert fair_limit([10, 20], 4000) == 4000
    assert fair_limit([1000] * 100, 4000) == MIN_TEXT
    assert fair_limit([], 4000) == 4000


def test_a_long_episode_stays_small_and_keeps_its_end():
    texts = ["x" * 100_000] * 199 + ["the end"]
    turns = [turn(2 * at + 1, 2 * at + 2, text) for at, text in enumerate(texts[::2])]
    long = Episode("e", [Segment([1] * 400, turns)], transcript=said_by(*texts[:-1], "r", "the end"), opening=1)
    shown = groups_shown([Group(at, ROW, [long] * 20) for at in range(9)])
    episode = shown[0]["completions"][0]["episode"]
    assert episode["messages"][-1]["text"] == "the end"
    assert (len(episode["messages"]), episode["num_left_out"]) == (MAX_MESSAGES, 201 - MAX_MESSAGES)
    assert len(to_json(shown)) < MAX_GROUPS * MAX_COMPLETIONS * 2 * MAX_MESSAGES * 600


def hostile_episode() -> Episode:
    call = {"id": ATTACK, "type": "function", "function": {"name": ATTACK, "arguments": ATTACK}}
    episode = conversation()
    first, branch = episode.segments
    first.turns[:] = [replace(one, text=ATTACK, finish_reason=ATTACK) for one in first.turns]
    branch = replace(branch, fork_reason=ATTACK, turns=[replace(branch.turns[0], text=ATTACK, masked=ATTACK)])
    transcript = [
        {"role": "user", "content": ATTACK},
        {"role": "assistant", "content": ATTACK, "reasoning_content": ATTACK, "tool_calls": [call]},
        {"role": ATTACK, "tool_call_id": ATTACK, "name": ATTACK, "content": ATTACK},
        {"role": "assistant", "content": ATTACK},
    ]
    return replace(
        episode, segments=[first, branch], transcript=transcript, status=ATTACK, cause=ATTACK, attempt=1, advantage=0.5
    )  # type: ignore[arg-type]


def test_the_report_shows_it_and_what_a_model_says_stays_text(tmp_path: Path):
    write_lines(tmp_path / "metrics.jsonl", [metrics_of(1)])
    write_lines(tmp_path / "completions.jsonl", [completion_of(1)])
    plain = Page(write_report(tmp_path))
    assert "tokens trained" not in plain.text
    assert "talk" not in (tmp_path / "report.html").read_text().split('<script type="application/json"')[0]
    (tmp_path / "completions.jsonl").unlink()
    log = CompletionLog(tmp_path / COMPLETIONS_FILE, resumed_step=None, part_mib=1)
    told, hostile = replace(conversation(), total=1.0, advantage=0.5), replace(hostile_episode(), total=0.0)
    log.write(1, [Group(0, ROW, [told, hostile])])
    log.close()
    page = Page(write_report(tmp_path))
    text = " ".join(page.text.split())
    assert "truncated, cause policy" in text
    assert "4 of 6 tokens trained" in text
    assert "assistant trained 2 tokens v1 calls calc" in text
    assert "segment 1 forks from segment 0 at token 2: another program masked: undelivered" in text
    assert page.count("script") == plain.count("script")
    assert page.count("img") == 0
    assert page.text.count(ATTACK) >= 14
    classes = {
        attributes.get("class") for name, attributes in page.elements if name == "li" and attributes.get("class")
    }
    assert classes == {"trained", "masked", "observation"}


def test_the_live_page_gets_it_as_data_without_the_characters_that_turn_text():
    episode = replace(hostile_episode(), transcript=said_by("a\u202eb"), opening=1)
    (group,) = groups_shown([Group(0, ROW, [episode])])
    assert json.loads(to_json(group))["completions"][0]["episode"]["messages"][0]["text"] == "a\\u202eb"


def test_the_live_page_masks_what_the_run_masks():
    (group,) = groups_shown([Group(0, ROW, [replace(conversation(), advantage=0.5)])], mask_truncated=True)
    said = group["completions"][0]["episode"]["messages"]
    assert [one["turn"]["left_out"] for one in said if one["turn"]] == ["truncated", "truncated"]
