"""The Countdown demo: its data, its model and tokenizer, its files."""

import importlib.util
import itertools
import json
import random
from pathlib import Path
from types import ModuleType

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_reward.rewards.countdown import countdown
from grpo_reward.rewards.format import format_reward
from grpo_trainer.config.cold_start import ColdStartConfig
from grpo_trainer.config.run_config import RunConfig
from grpo_trainer.config.settings import read_config
from grpo_trainer.data.demonstrations import load_examples
from grpo_trainer.data.recipes.countdown import QUESTION
from grpo_trainer.data.rows import load_prompt_rows

DEMO = Path(__file__).parents[2] / "examples/countdown"
MAX_PROMPT_TOKENS = 40


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"countdown_{name}", DEMO / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_data, make_model = script("make_data"), script("make_model")


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def problems(rows: list[dict]) -> set[tuple]:
    return {(tuple(sorted(row["nums"])), row["target"]) for row in rows}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    make_data.main([str(folder)])
    return folder


@pytest.fixture(scope="module")
def base_model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("base-model")
    make_model.main([str(folder)])
    return folder


class TestData:
    @pytest.mark.processes
    def test_files_and_columns(self, data):
        assert all(row.keys() == {"nums", "target"} for row in read(data / "train.jsonl"))
        assert all(row.keys() == {"nums", "target"} for row in read(data / "held_out.jsonl"))
        assert all(row.keys() == {"nums", "target", "completion"} for row in read(data / "cold_start.jsonl"))

    def test_held_out_problems_are_nowhere_else(self, data):
        held_out = problems(read(data / "held_out.jsonl"))
        assert len(held_out) == len(read(data / "held_out.jsonl")) >= 1000
        assert not held_out & problems(read(data / "train.jsonl"))
        assert not held_out & problems(read(data / "cold_start.jsonl"))

    def test_the_seed_decides(self, data, tmp_path):
        sizes = ["--train-rows", "50", "--cold-start-rows", "50"]
        for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
            make_data.main([str(tmp_path / name), "--seed", seed, *sizes])
        contents = [
            [(tmp_path / name / file).read_text() for file in ("train.jsonl", "held_out.jsonl", "cold_start.jsonl")]
            for name in "abc"
        ]
        assert contents[0] == contents[1]
        assert all(ours != theirs for ours, theirs in zip(contents[0], contents[2], strict=True))

    def test_more_held_out_rows_than_problems(self, tmp_path, capsys):
        with pytest.raises(SystemExit):
            make_data.main([str(tmp_path), "--largest", "3"])
        assert "--held-out-rows takes 1,000" in capsys.readouterr().err

    def test_every_target_can_be_reached(self, data):
        for row in read(data / "held_out.jsonl"):
            answer = make_data.completion(row["nums"], make_data.solution(row["nums"], row["target"]))
            assert countdown(answer, nums=row["nums"], target=row["target"]).score == 1
            assert format_reward(answer) == 1

    def test_guesses_have_the_format_and_are_sometimes_right(self, data):
        rng = random.Random(0)
        rows = read(data / "held_out.jsonl")
        guesses = [make_data.completion(row["nums"], make_data.guess(row["nums"], rng)) for row in rows]
        assert all(format_reward(guess) == 1 for guess in guesses)
        scores = [
            countdown(guess, nums=row["nums"], target=row["target"]).score
            for guess, row in zip(guesses, rows, strict=True)
        ]
        assert 0.15 < sum(scores) / len(scores) < 0.45


class TestModel:
    def test_a_question_costs_few_tokens(self):
        tokenizer = make_model.make_tokenizer()
        longest = max(
            len(tokenizer.encode(QUESTION.format(nums=list(nums), target=target) + "\n"))
            for nums, target in itertools.product([(99, 99, 99, 99), (1, 2, 3)], (1, 9999))
        )
        assert longest <= MAX_PROMPT_TOKENS

    def test_text_survives_the_way_to_ids_and_back(self, base_model):
        tokenizer = AutoTokenizer.from_pretrained(base_model)
        texts = [
            QUESTION.format(nums=[44, 19, 35], target=98) + "\n",
            "<think>44+19+35=98\n98-98=0\n0/2=0</think><answer>44+19+35</answer>",
            "don't , tidy  up . \n\n\t ünïcode 日本 {}",
            "Using the numbers [1, create an equation <think",
        ]
        for text in texts:
            assert tokenizer.decode(tokenizer.encode(text)) == text
        assert len(tokenizer.encode(texts[1])) == 37

    def test_the_tokenizer_loads_as_what_it_was(self, base_model):
        made, loaded = make_model.make_tokenizer(), AutoTokenizer.from_pretrained(base_model)
        assert type(loaded) is type(made)
        assert loaded.get_vocab() == made.get_vocab()
        assert (loaded.eos_token_id, loaded.pad_token_id) == (made.eos_token_id, made.pad_token_id)
        assert loaded.chat_template == made.chat_template

    def test_the_model_is_small_and_fits_its_tokenizer(self, base_model):
        model = AutoModelForCausalLM.from_pretrained(base_model)
        assert model.num_parameters() < 1_000_000
        assert model.config.vocab_size == len(AutoTokenizer.from_pretrained(base_model))


class TestFiles:
    def cold_start(self, data: Path, base_model: Path) -> ColdStartConfig:
        flags = ["--data.dataset", str(data / "cold_start.jsonl"), "--model.name_or_path", str(base_model)]
        return read_config(
            ColdStartConfig, [str(DEMO / "cold_start.yaml"), *flags], program="test", env_prefix="TEST_COLD_START__"
        )

    def run(self, data: Path, base_model: Path) -> RunConfig:
        flags = ["--data.dataset", str(data / "train.jsonl"), "--data.eval_dataset", str(data / "held_out.jsonl")]
        return read_config(
            RunConfig,
            [str(DEMO / "run.yaml"), *flags, "--model.name_or_path", str(base_model)],
            program="test",
            env_prefix="TEST_RUN__",
        )

    @pytest.mark.processes
    def test_what_the_cold_start_learns_is_what_the_run_samples(self, data, base_model):
        """It begins from the same prompts, and its completions fit."""
        tokenizer = AutoTokenizer.from_pretrained(base_model)
        run = self.run(data, base_model)
        examples = load_examples(self.cold_start(data, base_model).data, tokenizer)
        assert max(sum(example["completion_mask"]) for example in examples) <= run.rollout.max_completion_length
        example = examples[0]
        rows = load_prompt_rows(run.data, tokenizer)
        assert all(len(row.token_ids) <= MAX_PROMPT_TOKENS for row in rows)
        learned = example["input_ids"][: example["completion_mask"].index(1)]
        assert learned[0] == rows[0].token_ids[0]
        assert learned[-1] == rows[0].token_ids[-1]

    def test_the_run_starts_where_the_cold_start_ends(self):
        cold_start = read_config(
            ColdStartConfig, [str(DEMO / "cold_start.yaml")], program="test", env_prefix="TEST_COLD_START__"
        )
        run = read_config(RunConfig, [str(DEMO / "run.yaml")], program="test", env_prefix="TEST_RUN__")
        assert run.model.name_or_path == str(cold_start.output_dir)
        assert run.model.dtype == cold_start.model.dtype
        assert run.data.recipe == cold_start.data.recipe == "countdown"
        assert run.eval.max_rows is None
