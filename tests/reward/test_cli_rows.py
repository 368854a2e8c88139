"""What a line of a file means, and what is said about a line that means nothing."""

import json
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.made_episodes import completion

from grpo_proto import Message, RewardScore
from grpo_reward.cli.options import CommandFailed
from grpo_reward.cli.requests import cut
from grpo_reward.cli.rows import Row, missing_columns, read_rows
from grpo_reward.config import ConfigError
from grpo_trainer.algorithm.sequences import Group
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.observe.completions import CompletionLog
from grpo_trainer.observe.run_files import COMPLETIONS_FILE, EVAL_COMPLETIONS_FILE


def file_of(folder: Path, *lines: dict[str, Any] | str) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def one(folder: Path, line: dict[str, Any], **options: Any) -> Row:
    (row,) = read_rows(file_of(folder, line), **options)
    return row


def test_every_other_key_of_a_plain_line_is_a_column(tmp_path):
    row = one(tmp_path, {"completion": "c", "prompt": "p", "solution": "5", "nums": [1, 2], "id": 7, "step": 3})
    assert row.sample.columns == {"solution": "5", "nums": [1, 2]}
    assert (row.sample.completion, row.sample.prompt, row.name, row.step) == ("c", "p", "7", 3)
    assert (row.where, row.sample.id) == ("rows.jsonl:1", "rows.jsonl:1")


def test_with_columns_nothing_else_is_one(tmp_path):
    row = one(tmp_path, {"completion": "c", "columns": {"total": 4, "id": "x"}, "solution": "not a column", "total": 1})
    assert row.sample.columns == {"total": 4, "id": "x"}
    assert row.total == 1.0


def test_fields_of_a_sample(tmp_path):
    messages = [{"role": "user", "content": "Hi"}]
    row = one(tmp_path, {"completion": "c", "prompt": messages, "completion_token_ids": [1, 2], "truncated": True})
    assert row.sample.prompt == [Message(role="user", content="Hi")]
    assert (row.sample.completion_token_ids, row.sample.truncated, row.sample.columns) == ([1, 2], True, {})


def test_of_messages_counts_what_the_assistant_says(tmp_path):
    said = [{"role": "assistant", "content": "a"}, {"role": "tool", "content": "b"}]
    said.append({"role": "assistant", "content": [{"type": "text", "text": "c"}]})
    assert one(tmp_path, {"completion": said}).sample.completion == "a\nc"


CALL = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'


@pytest.mark.parametrize(
    ("message", "written"),
    [
        ({"reasoning_content": "t\n", "content": "a"}, "<think>\nt\n</think>\n\na"),
        ({"reasoning": "t", "content": None}, "<think>\nt\n</think>\n\n"),
        ({"thinking": "t", "content": [{"type": "text", "text": "a"}]}, "<think>\nt\n</think>\n\na"),
        ({"reasoning_content": None, "content": "a", "tool_calls": None}, "a"),
        ({"content": "a", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}, f"a\n{CALL}"),
        ({"content": "", "tool_calls": [{"function": {"name": "f", "arguments": '{"x": 1}'}}] * 2}, f"{CALL}\n{CALL}"),
        ({"content": "", "tool_calls": [{"name": "f", "arguments": {"x": 1}}]}, CALL),
        ({"content": "", "tool_calls": [{"function": {"name": "f", "arguments": ""}}]}, CALL.replace('{"x": 1}', "{}")),
        ({"tool_calls": [{"function": {"name": "f", "arguments": "}"}}]}, CALL.replace('{"x": 1}', '"}"')),
    ],
)  # fmt: skip
def test_a_message_that_was_taken_apart_is_put_together(tmp_path, message, written):
    assert one(tmp_path, {"completion": [{"role": "assistant", **message}]}).sample.completion == written


def test_messages_of_a_prompt_may_have_parts_or_no_content(tmp_path):
    prompt = [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": None, "tool_calls": []},
    ]
    found = one(tmp_path, {"completion": "c", "prompt": prompt}).sample.prompt
    assert found == [Message(role="user", content="Hi"), Message(role="assistant", content="")]


@pytest.mark.parametrize(
    "rewards", [{"format": 1.0, "judge": None}, {"format": {"score": 1}, "judge": {"score": None}}]
)
def test_scores_of_a_line_in_both_forms(tmp_path, rewards):
    row = one(tmp_path, {"completion": "c", "rewards": rewards})
    assert row.scores == {"format": 1.0, "judge": None}
    assert (row.total, row.has_total) == (None, False)


def test_groups(tmp_path):
    path = file_of(
        tmp_path,
        {"completion": "1", "prompt": "p"},
        {"completion": "2", "prompt": "p", "group": "other"},
        {"completion": "3", "prompt": "p"},
        {"completion": "4"},
        {"completion": "5", "prompt": "p", "step": 1},
    )
    groups = [row.group for row in read_rows(path)]
    assert groups[0] == groups[2]
    assert len(set(groups)) == 4
    assert groups[3] is None


def trainer_file(folder: Path) -> Path:
    """What the trainer's own code writes."""
    prompt = PromptRow(index=1, token_ids=[1], prompt=[{"role": "user", "content": "Hi"}], columns={"target": 3})
    scored = completion("a", [1, 2], [-1.0] * 2, "<b>", "length", [(4, 2)])
    scored.rewards = {"countdown": RewardScore(score=1.0, status="ok", log={"equation": "1 + 2"})}
    scored.total, scored.advantage = 1.0, 0.7
    lost = completion("b", [], [], "", "abort", [])
    log = CompletionLog(folder / COMPLETIONS_FILE, resumed_step=None, part_mib=256)
    log.write(3, [Group(17, prompt, [scored, lost])])
    log.close()
    return folder / "completions.jsonl"


def test_a_trainer_s_file(tmp_path):
    first, second = read_rows(trainer_file(tmp_path))
    assert first.sample.completion == "<b>"
    assert first.sample.columns == {}
    assert (first.sample.truncated, second.sample.truncated) == (True, False)
    assert (first.name, first.step, first.scores, first.total) == (
        "step 3 group 17 index 0", 3, {"countdown": 1.0}, 1.0,
    )  # fmt: skip
    assert (second.scores, second.total, second.has_total) == ({}, None, True)
    assert first.group == second.group


def test_a_trainer_s_file_in_parts_is_read_as_one(tmp_path):
    trainer_file(tmp_path).rename(tmp_path / "completions-part-0001.jsonl")
    trainer_file(tmp_path)
    found = [row.where for row in read_rows(tmp_path / "completions.jsonl")]
    assert found == [f"completions{part}.jsonl:{number}" for part in ("-part-0001", "") for number in (1, 2)]
    assert len(read_rows(tmp_path / "completions-part-0001.jsonl")) == 2


def test_the_samples_of_an_evaluation_belong_together_in_their_set_and_decoding(tmp_path):
    """A held-out set counts its rows from 0, and samples each twice: at temperature 1 and greedily."""
    log = CompletionLog(tmp_path / EVAL_COMPLETIONS_FILE, resumed_step=None, part_mib=256)
    for step, name, decoding in product((0, 5), ("eval/a", "eval/b"), ("sampled", "greedy")):
        prompt = PromptRow(index=0, token_ids=[1], prompt="Hi", columns={}, dataset=name)
        episodes = [completion("a", [1], [-1.0], "x", "stop", [(1, 1)])] * (2 if decoding == "sampled" else 1)
        log.write_evaluation(step, {decoding: [Group(0, prompt, episodes)]})
    log.close()
    found = Counter(row.group for row in read_rows(tmp_path / "eval_completions.jsonl"))
    assert sorted(found.values()) == [1] * 4 + [2] * 4


def test_parts_of_other_files_are_not_read(tmp_path):
    file_of(tmp_path, {"completion": "c"}).rename(tmp_path / "rows-part-0001.jsonl")
    assert len(read_rows(file_of(tmp_path, {"completion": "c"}))) == 1


def test_a_trainer_s_file_with_the_columns_of_its_dataset(tmp_path):
    dataset = tmp_path / "train.jsonl"
    dataset.write_text('{"target": 1}\n\n{"target": 2, "nums": [2]}\n')
    assert read_rows(trainer_file(tmp_path), dataset=dataset)[0].sample.columns == {"target": 2, "nums": [2]}
    dataset.write_text('{"target": 1}\n')
    with pytest.raises(CommandFailed, match=r"completions.jsonl:1: row is 1, but --dataset .* has the rows 0 to 0"):
        read_rows(trainer_file(tmp_path), dataset=dataset)


def test_an_episodes_conversation_is_a_column(tmp_path):
    conversation = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    rows = read_rows(file_of(tmp_path, {"completion": "Ho", "messages": conversation}))
    assert list(missing_columns(rows, {"chat": ["messages"]})) == []
    rows = read_rows(file_of(tmp_path, {"completion": "Ho"}))
    assert len(list(missing_columns(rows, {"chat": ["messages"]}))) == 1


def test_the_rows_of_one_dataset_are_not_taken_for_those_of_another(tmp_path):
    lines = [{"completion": "x", "step": 1, "group": 0, "index": 0, "rewards": {}, "row": 0}] * 2
    path = file_of(tmp_path, *({**line, "dataset": name} for line, name in zip(lines, "ab", strict=True)))
    with pytest.raises(CommandFailed, match="has samples of the datasets a, b, and --dataset names the rows of one"):
        read_rows(path, dataset=path)


def test_the_dataset_needs_a_row(tmp_path):
    path = file_of(tmp_path, {"completion": "c"})
    with pytest.raises(CommandFailed, match=r"rows.jsonl:1: there is no row"):
        read_rows(path, dataset=path)


@pytest.mark.parametrize(
    ("gold", "completion"),
    [
        ("solution", "5"),
        ("<answer>{solution}</answer>", "<answer>5</answer>"),
        ("\\boxed{{solution}}", "\\boxed{5}"),
        ("{solution} {other}", "5 {other}"),
    ],
)
def test_gold_makes_the_completion(tmp_path, gold, completion):
    assert one(tmp_path, {"question": "?", "solution": 5}, gold=gold).sample.completion == completion


@pytest.mark.parametrize("gold", ["solutoin", "<answer>{solutoin}</answer>"])
def test_gold_that_fits_no_column(tmp_path, gold):
    with pytest.raises(ConfigError, match="did you mean solution"):
        one(tmp_path, {"solution": 5}, gold=gold)


def test_expect_is_a_column_unless_it_is_asked_for(tmp_path):
    line = {"completion": "c", "expect": 0.5}
    assert one(tmp_path, line).sample.columns == {"expect": 0.5}
    row = one(tmp_path, line, with_expect=True)
    assert (row.sample.columns, row.expect, row.expects) == ({}, 0.5, True)
    row = one(tmp_path, {"completion": "c", "expect": None}, with_expect=True)
    assert (row.expect, row.expects) == (None, True)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "rows.jsonl, line 2: no JSON: "),
        ("[1]", "rows.jsonl, line 2: a line must be an object"),
        ('{"completion": "\\ud800"}', "rows.jsonl, line 2: no JSON: "),
        ('{"completion": "a", "x": NaN}', "rows.jsonl, line 2: no JSON: "),
        ({"complation": "a"}, "rows.jsonl:2: there is no completion; did you mean complation"),
        ({"prompt": "a"}, "rows.jsonl:2: there is no completion; the line has prompt$"),
        ({"response": "a", "solution": "5"}, "rows.jsonl:2: there is no completion; the line has response, solution$"),
        ('{"completion": x}', "rows.jsonl, line 2: no JSON: expected value at column 16$"),
        ('{"completion": "a",', "rows.jsonl, line 2: no JSON: EOF while parsing a value at column 19$"),
        ({"completion": 4}, "rows.jsonl:2: completion is 4 of type int: a completion is a text or a list of messages"),
        ({"completion": ["a"]}, r"rows.jsonl:2: completion\[0\] is 'a' of type str"),
        (
            {"completion": [{"role": "user", "content": "a"}]},
            "rows.jsonl:2: completion has no message of the assistant",
        ),
        ({"completion": "a", "prompt": 4}, "rows.jsonl:2: prompt"),
        ({"completion": "a", "columns": []}, "rows.jsonl:2: columns must be an object"),
        ({"completion": "a", "rewards": [1]}, "rows.jsonl:2: rewards must be an object"),
        ({"completion": "a", "rewards": {"f": "1"}}, "rows.jsonl:2: rewards.f must be a number or null, not '1'"),
        ({"completion": "a", "total": True}, "rows.jsonl:2: total must be a number or null, not True"),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path, line, message):
    with pytest.raises(CommandFailed, match=message):
        read_rows(file_of(tmp_path, {"completion": "fine"}, line))


def test_blank_lines_and_a_byte_order_mark_do_not_matter_and_an_empty_file_is_an_error(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"completion": "a"}\n \n{"completion": "b"}')
    assert [row.where for row in read_rows(path)] == ["rows.jsonl:1", "rows.jsonl:3"]
    path.write_text('{\n "completion": "a"\n}')
    with pytest.raises(CommandFailed, match=r"line 1: no JSON: .*; wanted is one object such as .* on each line"):
        read_rows(path)
    path.write_text("\n")
    with pytest.raises(CommandFailed, match=r"rows.jsonl is empty: wanted is one object such as"):
        read_rows(path)


def test_what_is_compared_stays_together(tmp_path):
    lines = [{"completion": f"{number}", "prompt": f"p{number % 100}", "step": number // 450} for number in range(600)]
    rows = read_rows(file_of(tmp_path, *lines))
    steps = cut(rows, compared=True)
    assert sorted(position for units in steps for unit in units for position in unit) == list(range(600))
    for units in steps:
        assert len({rows[position].step for unit in units for position in unit}) == 1
        assert len(units) == len({rows[position].group for unit in units for position in unit}) == 100


def test_lines_without_a_group_stay_together_only_when_they_are_compared(tmp_path):
    rows = read_rows(file_of(tmp_path, *[{"completion": "c"}] * 600))
    assert [len(units) for units in cut(rows, compared=False)] == [600]
    assert cut(rows, compared=True) == [[list(range(600))]]
