"""Prompts of a run: messages or text, token ids made once, lengths checked before the run starts."""

import json
import random
from pathlib import Path

import pytest
from tests.tiny_model import make_tokenizer

from grpo_trainer.config.run_config import DataConfig
from grpo_trainer.data.order import PromptOrder, epoch_order, sampling_seed
from grpo_trainer.data.rows import load_prompt_rows
from grpo_trainer.errors import UsageError

COUNTDOWN = {"nums": [44, 19, 35], "target": 98, "level": "easy"}


@pytest.fixture
def tokenizer():
    return make_tokenizer()


def write(path: Path, *rows: dict) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def config(dataset: str, **changes) -> DataConfig:
    return DataConfig(dataset=dataset, **changes)


class TestPrompts:
    def test_countdown_through_the_chat_template(self, tmp_path, tokenizer):
        dataset = write(tmp_path / "rows.jsonl", COUNTDOWN)
        [row] = load_prompt_rows(config(dataset, recipe="countdown"), tokenizer)
        text = tokenizer.decode(row.token_ids)
        assert text.startswith("<|im_start|>user\nUsing the numbers [44, 19, 35], create an equation that equals 98.\n")
        assert text.endswith("</answer>.<|im_end|>\n<|im_start|>assistant\n")
        assert row.columns == COUNTDOWN
        assert row.prompt[0]["role"] == "user"
        assert row.index == 0

    def test_without_a_chat_template_texts_are_joined(self, tmp_path, tokenizer):
        tokenizer.chat_template = None
        dataset = write(tmp_path / "rows.jsonl", COUNTDOWN)
        [row] = load_prompt_rows(config(dataset, recipe="countdown", system="Think."), tokenizer)
        assert tokenizer.decode(row.token_ids).startswith("Think.\nUsing the numbers")
        assert tokenizer.decode(row.token_ids).endswith("</answer>.\n")

    def test_text_stays_text(self, tmp_path, tokenizer):
        dataset = write(tmp_path / "rows.jsonl", {"prompt": "3,7,2=8>"})
        [row] = load_prompt_rows(config(dataset), tokenizer)
        assert row.prompt == "3,7,2=8>"
        assert tokenizer.decode(row.token_ids) == "3,7,2=8>"

    def test_text_with_a_system_prompt_is_a_message(self, tmp_path, tokenizer):
        dataset = write(tmp_path / "rows.jsonl", {"question": "2+2?"})
        (tmp_path / "system.txt").write_text("Be brief.\n")
        [row] = load_prompt_rows(
            config(dataset, prompt_column="question", system=str(tmp_path / "system.txt")), tokenizer
        )
        assert row.prompt == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]

    def test_messages_stay_messages(self, tmp_path, tokenizer):
        messages = [{"role": "user", "content": "2+2?"}]
        dataset = write(tmp_path / "rows.jsonl", {"prompt": messages}, {"prompt": "text"})
        first, second = load_prompt_rows(config(dataset), tokenizer)
        assert first.prompt == messages
        assert tokenizer.decode(first.token_ids) == "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
        assert tokenizer.decode(second.token_ids) == "text"

    def test_a_template_of_ones_own(self, tmp_path, tokenizer):
        dataset = write(tmp_path / "rows.jsonl", COUNTDOWN)
        (tmp_path / "question.txt").write_text("{nums} -> {target}\n")
        for template in ("{nums} -> {target}", str(tmp_path / "question.txt")):
            [row] = load_prompt_rows(config(dataset, prompt_template=template), tokenizer)
            assert row.prompt == [{"role": "user", "content": "[44, 19, 35] -> 98"}]

    def test_chat_template_kwargs_are_passed_on(self, tmp_path, tokenizer):
        tokenizer.chat_template = "{{ mood }}: {{ messages[0]['content'] }}"
        dataset = write(tmp_path / "rows.jsonl", {"prompt": [{"role": "user", "content": "x"}]})
        [row] = load_prompt_rows(config(dataset, chat_template_kwargs={"mood": "calm"}), tokenizer)
        assert tokenizer.decode(row.token_ids) == "calm: x"

    def test_held_out_rows(self, tmp_path, tokenizer):
        dataset = write(tmp_path / "rows.jsonl", {"prompt": "a"})
        held_out = write(tmp_path / "held_out.jsonl", {"prompt": "b"})
        assert len(load_prompt_rows(config(dataset), tokenizer, split="eval")) == 0
        [row] = load_prompt_rows(config(dataset, eval_dataset=held_out), tokenizer, split="eval")
        assert row.prompt == "b"


class TestMistakes:
    def mistake(self, tokenizer, dataset: str, **changes) -> str:
        with pytest.raises(UsageError) as caught:
            load_prompt_rows(config(dataset, **changes), tokenizer)
        return str(caught.value)

    def test_a_missing_column_names_the_nearest(self, tmp_path, tokenizer):
        dataset = write(tmp_path / "rows.jsonl", {"numbers": [1], "target": 1})
        message = self.mistake(tokenizer, dataset, recipe="countdown")
        assert "no column nums, which recipe countdown needs; the nearest: numbers" in message
        assert "its columns are numbers, target" in message
        message = self.mistake(tokenizer, dataset, prompt_template="{nubmers}")
        assert "no column nubmers, which data.prompt_template needs; the nearest: numbers" in message
        assert "no column prompt, which data.prompt_column needs" in self.mistake(tokenizer, dataset)
        nested = write(tmp_path / "nested.jsonl", {"extra": {"q": "2+2?"}})
        message = self.mistake(tokenizer, nested, prompt_column="extra.q")
        assert "no column extra.q, which data.prompt_column needs; the nearest: extra (its columns are e" in message

    def test_a_row_without_a_value(self, tmp_path, tokenizer):
        dataset = write(tmp_path / "rows.jsonl", COUNTDOWN, {"nums": [1], "target": None})
        assert "row 2 has no value in column target" in self.mistake(tokenizer, dataset, recipe="countdown")

    def test_a_prompt_that_is_too_long(self, tmp_path, tokenizer):
        dataset = write(tmp_path / "rows.jsonl", {"prompt": "abc"}, {"prompt": "x" * 70}, {"prompt": "x" * 90})
        message = self.mistake(tokenizer, dataset, max_prompt_length=64)
        assert "row 2: the prompt has 70 tokens and is longer than data.max_prompt_length 64" in message
        assert "so are 1 more, the longest with 90" in message
        assert "raise data.max_prompt_length to 90" in message

    def test_an_empty_prompt(self, tmp_path, tokenizer):
        assert "row 1: the prompt is empty" in self.mistake(tokenizer, write(tmp_path / "a.jsonl", {"prompt": ""}))

    def test_prompts_that_are_no_prompts(self, tmp_path, tokenizer):
        assert "neither text nor a list of messages" in self.mistake(
            tokenizer, write(tmp_path / "a.jsonl", {"prompt": 7})
        )
        assert "without a text `role`" in self.mistake(
            tokenizer, write(tmp_path / "b.jsonl", {"prompt": [{"from": "human", "value": "x"}]})
        )
        answer = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
        assert "the answer would be part of the prompt" in self.mistake(
            tokenizer, write(tmp_path / "c.jsonl", {"prompt": answer})
        )

    def test_a_chat_template_that_refuses(self, tmp_path, tokenizer):
        tokenizer.chat_template = "{{ raise_exception('system role not supported') }}"
        dataset = write(tmp_path / "a.jsonl", {"prompt": [{"role": "user", "content": "x"}]})
        assert "row 1: the tokenizer's chat template refuses the messages: system role" in self.mistake(
            tokenizer, dataset
        )

    def test_a_system_file_that_is_not_there(self, tmp_path, tokenizer):
        dataset = write(tmp_path / "a.jsonl", {"prompt": "x"})
        assert "there is no file sytem.txt" in self.mistake(tokenizer, dataset, system="sytem.txt")

    def test_a_text_of_one_line_may_be_longer_than_a_name_of_a_file(self, tmp_path, tokenizer):
        system = "Think first. " * 30
        [row] = load_prompt_rows(config(write(tmp_path / "a.jsonl", {"prompt": "x"}), system=system), tokenizer)
        assert row.prompt[0] == {"role": "system", "content": system}


class TestOrder:
    def test_an_epoch_has_every_row_once(self):
        assert sorted(epoch_order(100, 0, 42, True)) == list(range(100))
        assert list(epoch_order(5, 3, 42, False)) == [0, 1, 2, 3, 4]

    def test_the_order_is_a_function_of_seed_and_epoch(self):
        assert epoch_order(100, 1, 42, True) == epoch_order(100, 1, 42, True)
        orders = {tuple(epoch_order(100, epoch, seed, True)) for epoch in range(3) for seed in range(3)}
        assert len(orders) == 9
        # Fixed for good: another order would continue an older run at the wrong prompts.
        assert list(epoch_order(8, 0, 42, True)) == [1, 7, 2, 3, 5, 6, 4, 0]

    @pytest.mark.parametrize("num_rows", [1, 2, 3, 7, 100, 4097, 70_000])
    def test_the_order_is_the_one_that_a_list_of_numbers_gets(self, num_rows):
        # What the first releases computed: a checkpoint of theirs goes on at the same prompts.
        for seed, epoch in ((42, 0), (42, 1), (7, 300)):
            expected = list(range(num_rows))
            random.Random(f"order {seed} {epoch}").shuffle(expected)
            assert list(epoch_order(num_rows, epoch, seed, True)) == expected

    def test_no_number_of_an_order_is_an_object(self):
        assert epoch_order(1000, 0, 42, True).itemsize == 8
        assert epoch_order(10**12, 0, 42, False)[-1] == 10**12 - 1

    def test_sampling_seeds(self):
        seeds = [sampling_seed(42, position) for position in range(10_000)]
        assert all(0 <= seed < 2**31 for seed in seeds)
        assert len(set(seeds)) > 9_990
        assert sampling_seed(42, 0) != sampling_seed(43, 0)
        assert sampling_seed(42, 7) == 82954048

    def test_positions_go_through_the_epochs(self, tmp_path, tokenizer):
        dataset = write(tmp_path / "rows.jsonl", *({"prompt": str(number)} for number in range(5)))
        stage = PromptOrder(load_prompt_rows(config(dataset), tokenizer), seed=1, shuffle=True)
        epochs = [[stage.row_at(position).index for position in range(start, start + 5)] for start in (0, 5, 10)]
        assert all(sorted(epoch) == [0, 1, 2, 3, 4] for epoch in epochs)
        assert len({tuple(epoch) for epoch in epochs}) > 1
        assert stage.seed_at(7) == sampling_seed(1, 7)
