"""What of a row's messages and tools reaches the chat template, the token ids and the reward server."""

import json
import logging

import pytest
from tests.tiny_model import make_tokenizer

from grpo_trainer.config.data import DataConfig
from grpo_trainer.data.messages import wire_message
from grpo_trainer.data.rows import load_prompt_rows
from grpo_trainer.data.tokenizer import check_stop_tokens
from grpo_trainer.errors import UsageError

TEMPLATE = (
    "{% if tools %}[{% for tool in tools %}{{ tool.function.name }}{{ tool.function.parameters | tojson }}"
    "{% endfor %}]{% endif %}"
    "{% for m in messages %}<{{ m.role }}{{ ' ' + m.name if m.name is defined else '' }}>"
    "{{ '(' + m.reasoning_content + ')' if m.reasoning_content }}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.name }}={{ call.function.arguments | tojson }}{% endfor %}"
    "{% endfor %}<assistant>"
)
PARTS = (
    "{% for m in messages %}{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endfor %}"
)
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "x": None}}}


@pytest.fixture
def tokenizer():
    made = make_tokenizer()
    made.chat_template = TEMPLATE
    return made


def load(tmp_path, tokenizer, *rows, **settings):
    dataset = tmp_path / "rows.jsonl"
    dataset.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_prompt_rows(DataConfig(dataset=str(dataset), **settings), tokenizer)


def asks(*messages: dict) -> dict:
    return {"prompt": [{"role": "user", "content": "hi"}, *messages]}


class TestMessages:
    def test_messages_as_json_text_are_messages(self, tmp_path, tokenizer):
        """As a CSV file and some datasets of the Hub have them. Other text that begins so stays text."""
        messages = [{"role": "user", "content": "hi"}]
        given = [json.dumps(messages), "[1, 2]", '["role"]', "[]", "[role"]
        rows = load(tmp_path, tokenizer, *({"prompt": one} for one in given))
        assert [row.prompt for row in rows] == [messages, *given[1:]]

    def test_a_system_message_that_data_system_replaces_is_named(self, tmp_path, tokenizer, caplog):
        row = {"prompt": [{"role": "system", "content": "S1"}, {"role": "user", "content": "hi"}]}
        assert load(tmp_path, tokenizer, row, system="S2")[0].prompt[0]["content"] == "S2"
        assert "row 1: the prompt has data.system in place of the system message of its row" in caplog.text
        caplog.clear()
        load(tmp_path, tokenizer, row | {"q": "hi"}, system="S2", prompt_template="{q}")
        load(tmp_path, tokenizer, {"prompt": ["hi"]}, system="S2", prompt_template="{prompt[0]}")
        assert "in place of" not in caplog.text

    @pytest.mark.parametrize(
        "call",
        [
            {"type": "function", "id": "c1", "function": {"name": "add", "arguments": {"a": 1, "b": None}}},
            {"function": {"name": "add", "arguments": '{"a": 1}'}, "index": None},
            {"name": "add", "arguments": {"a": 1}},
        ],
        ids=["OpenAI's", "arguments as JSON text", "a bare function"],
    )
    def test_calls_names_and_thoughts_reach_the_template(self, tmp_path, tokenizer, call):
        assistant = {
            "role": "assistant",
            "content": None,
            "tool_calls": [call],
            "reasoning_content": "hm",
            "name": None,
        }
        tool = {"role": "tool", "name": "add", "content": "3", "tool_call_id": "c1", "tool_calls": None}
        [row] = load(tmp_path, tokenizer, asks(assistant, tool))
        assert tokenizer.decode(row.token_ids) == '<user>hi<assistant>(hm)add={"a": 1}<tool add>3<assistant>'

    def test_text_parts_are_joined_where_the_template_wants_text(self, tmp_path, tokenizer):
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        [row] = load(tmp_path, tokenizer, {"prompt": [{"role": "user", "content": parts}]})
        assert tokenizer.decode(row.token_ids) == "<user>ab<assistant>"

    @pytest.mark.parametrize("content", ["ab", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]])
    def test_a_template_of_parts_gets_parts(self, tmp_path, tokenizer, content):
        tokenizer.chat_template = PARTS
        [row] = load(tmp_path, tokenizer, {"prompt": [{"role": "user", "content": content}]})
        assert tokenizer.decode(row.token_ids) == "ab"

    @pytest.mark.parametrize(
        ("message", "mistake"),
        [
            ({"role": "user", "content": None}, "without a text `role` and a text `content`"),
            ({"role": "user", "content": [{"type": "image", "image": "x"}]}, "with a part of type image"),
            ({"role": "user", "content": "x", "tool_calls": [{"type": "function"}]}, "call without a function's name"),
            ({"role": "user", "content": "x", "tool_calls": "add"}, "tool_calls are no JSON"),
            ({"role": "user", "content": "x", "name": 5}, "name: Input should be a valid string"),
        ],
        ids=["no content", "an image", "no name", "text", "a wrong type"],
    )
    def test_what_is_no_message_names_the_row(self, tmp_path, tokenizer, message, mistake):
        with pytest.raises(UsageError, match=mistake) as caught:
            load(tmp_path, tokenizer, asks(), asks(message))
        assert "row 2: prompt" in str(caught.value)

    def test_a_reward_server_is_sent_openai_s_form(self, tmp_path, tokenizer):
        call = {"name": "add", "arguments": {"a": "é"}}
        assistant = {"role": "assistant", "tool_calls": [call], "reasoning_content": "hm", "weight": 1}
        [row] = load(tmp_path, tokenizer, asks(assistant, {"role": "tool", "content": "3", "tool_call_id": "c"}))
        assert [wire_message(message).model_dump() for message in row.prompt] == [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": "hm",
                "tool_calls": [
                    {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": '{"a": "é"}'}}
                ],
            },
            {"role": "tool", "content": "3", "tool_call_id": "c"},
        ]


def test_a_stop_token_that_the_tokenizer_does_not_have_is_named(tokenizer):
    check_stop_tokens([0, len(tokenizer) - 1], tokenizer)
    with pytest.raises(UsageError, match=r"rollout.stop_token_ids holds 5000, and the tokenizer's last token is 100"):
        check_stop_tokens([3, 5000], tokenizer)


class TestTools:
    def test_each_row_has_its_own(self, tmp_path, tokenizer):
        other = {"type": "function", "function": {"name": "sub", "parameters": {}}}
        rows = [asks(), asks() | {"tools": [TOOL]}, asks() | {"tools": json.dumps([other])}, asks() | {"tools": None}]
        assert [tokenizer.decode(row.token_ids) for row in load(tmp_path, tokenizer, *rows)] == [
            "<user>hi<assistant>",
            '[add{"type": "object"}]<user>hi<assistant>',
            "[sub{}]<user>hi<assistant>",
            "<user>hi<assistant>",
        ]

    def test_beside_a_prompt_template(self, tmp_path, tokenizer):
        [row] = load(tmp_path, tokenizer, {"q": "2+2", "tools": [TOOL]}, prompt_template="{q}?")
        assert tokenizer.decode(row.token_ids) == '[add{"type": "object"}]<user>2+2?<assistant>'

    def test_another_column_of_that_name_is_refused(self, tmp_path, tokenizer):
        with pytest.raises(UsageError, match="row 1: the column tools is no list of objects: 5"):
            load(tmp_path, tokenizer, asks() | {"tools": 5})


class TestDoubts:
    @pytest.mark.parametrize(
        ("row", "template", "doubt"),
        [
            (asks(), "<unk>{{ messages[0].content }}", None),
            (asks(), "<unk><unk>{{ messages[0].content }}", "row 1: the prompt begins with <unk> twice"),
            (asks(), "<unk>{{ messages[0].content }}<eos>", "row 1: the prompt ends with <eos>"),
            (asks() | {"tools": [TOOL]}, "<unk>x", "row 1: the prompt does not show the tool add of its row"),
            ({"prompt": "x", "tools": [TOOL]}, "<unk>x", "does not show the tool add of its row: it is plain text"),
        ],
        ids=["none", "two BOS", "an EOS", "hidden tools", "tools beside text"],
    )
    def test_are_logged_of_the_first_row(self, tmp_path, tokenizer, caplog, row, template, doubt):
        tokenizer.bos_token, tokenizer.chat_template = "<unk>", template
        with caplog.at_level(logging.WARNING):
            load(tmp_path, tokenizer, row, row)
        assert [doubt in record.message for record in caplog.records] == ([True] if doubt else [])

    def test_text_that_was_rendered_before_has_two_bos(self, tmp_path, tokenizer, caplog):
        from tokenizers.processors import TemplateProcessing

        tokenizer.bos_token = "<unk>"
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="<unk> $A <eos>",
            special_tokens=[("<unk>", tokenizer.bos_token_id), ("<eos>", tokenizer.eos_token_id)],
        )
        load(tmp_path, tokenizer, {"prompt": "<unk>x"})
        assert [record.message.split(" with ")[1][:11] for record in caplog.records] == ["<unk> twice", "<eos>, the "]
        caplog.clear()
        tokenizer.chat_template = "{{ messages[0].content }}"
        load(tmp_path, tokenizer, asks())
        assert "does not begin with <unk>, which the tokenizer puts before text" in caplog.text
