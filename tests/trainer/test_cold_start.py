"""The cold start: what it learns from, what it saves, what it says about mistakes."""

import errno
import json
from pathlib import Path

import peft
import pytest
import torch
import yaml
from safetensors.torch import load_file
from tests.tiny_model import CHAT_TEMPLATE, make_tokenizer, save_tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_trainer.cold_start.command import main, run_cold_start
from grpo_trainer.config.cold_start import ColdStartConfig
from grpo_trainer.config.lora import LoraConfig
from grpo_trainer.config.run_config import DataConfig
from grpo_trainer.data.demonstrations import load_examples
from grpo_trainer.data.rows import load_prompt_rows
from grpo_trainer.errors import UnavailableError, UsageError
from grpo_trainer.lora.adapter import Adapter

COMPLETION = "<think>1+2=3</think><answer>1+2</answer>"
ROW = {"nums": [1, 2], "target": 3, "completion": COMPLETION}
QUESTION = {"role": "user", "content": "2+2?"}
ANSWER = {"role": "assistant", "content": "4"}

# What TRL, transformers and torch warn of while they train; none of it is about this project's use of them.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), num_layers=1)


def write(path: Path, *rows: dict) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def config(tmp_path: Path, model: Path, dataset: str, *, data: dict | None = None, **changes) -> ColdStartConfig:
    content = {
        "output_dir": tmp_path / "cold-start",
        "model": {"name_or_path": str(model)},
        "data": {"dataset": dataset, **(data or {})},
        **changes,
    }
    return ColdStartConfig.model_validate(content)


@pytest.mark.deepspeed
class TestTraining:
    def test_it_learns_and_saves_a_model_that_loads(self, tmp_path, model_folder, capsys):
        dataset = write(tmp_path / "rows.jsonl", *[ROW] * 8)
        template = CHAT_TEMPLATE.replace("assistant\n", "writer\n")
        file = tmp_path / "cold_start.yaml"
        file.write_text(
            yaml.safe_dump(
                {
                    "output_dir": str(tmp_path / "cold-start"),
                    "model": {"name_or_path": str(model_folder), "chat_template": template},
                    "data": {"dataset": dataset, "recipe": "countdown"},
                    "device": "cpu",
                    "max_steps": 30,
                    "learning_rate": 0.01,
                    "logging_steps": 15,
                }
            )
        )
        assert main([str(file), "--num_train_epochs", "2"]) == 0
        output = capsys.readouterr().out
        assert "completions end with <|im_end|>\n" in output
        assert "step 15/30  loss" in output
        assert "s left" in output

        folder = tmp_path / "cold-start"
        assert (folder / "model.safetensors").is_file()
        assert not list(tmp_path.glob("*.partial"))
        model = AutoModelForCausalLM.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert tokenizer.chat_template == template
        assert model.dtype == torch.bfloat16
        assert model.config.use_cache
        [row] = load_prompt_rows(DataConfig(dataset=f"{dataset}#1", recipe="countdown"), tokenizer)
        ids = model.generate(torch.tensor([row.token_ids]), max_new_tokens=60, do_sample=False)[0]
        assert tokenizer.decode(ids[len(row.token_ids) :]) == COMPLETION + "<|im_end|>"
        assert model.generation_config.eos_token_id == [tokenizer.eos_token_id, int(ids[-1])]

    def test_with_lora_a_run_begins_from_the_adapter_or_from_the_merged_model(self, tmp_path, model_folder):
        dataset = write(tmp_path / "rows.jsonl", *[ROW] * 8)
        content = {
            "output_dir": tmp_path / "cold-start",
            "model": {
                "name_or_path": str(model_folder),
                "dtype": "float32",
                "lora": {"r": 8},
                "gradient_checkpointing": True,
            },
            "data": {"dataset": dataset, "recipe": "countdown"},
            "device": "cpu",
            "max_steps": 10,
            "learning_rate": 0.02,
        }
        (model_folder / "preprocessor_config.json").write_text("{}")
        folder = run_cold_start(ColdStartConfig.model_validate(content))
        assert (folder / "preprocessor_config.json").exists()
        assert not (folder / "adapter" / "preprocessor_config.json").exists()
        ids = torch.arange(5, 30)[None]
        base, merged = (AutoModelForCausalLM.from_pretrained(place) for place in (model_folder, folder))
        before = base(ids).logits
        adapted = peft.PeftModel.from_pretrained(base, folder / "adapter")
        assert (merged(ids).logits - adapted.eval()(ids).logits).abs().max() < 1e-4
        assert (merged(ids).logits - before).abs().max() > 0.1
        lora = LoraConfig(r=8, adapter=folder / "adapter")
        continued = Adapter(AutoModelForCausalLM.from_pretrained(model_folder), lora, base_name="base", seed=0)
        assert torch.equal(continued.model(ids).logits, adapted(ids).logits)

    def test_in_bfloat16_the_merged_model_is_the_sum_of_what_is_saved(self, tmp_path, model_folder):
        content = {
            "output_dir": tmp_path / "cold-start",
            "model": {"name_or_path": str(model_folder), "dtype": "bfloat16", "lora": {"r": 4, "alpha": 32}},
            "data": {"dataset": write(tmp_path / "rows.jsonl", *[ROW] * 8), "recipe": "countdown"},
            "device": "cpu",
            "max_steps": 3,
            "learning_rate": 0.02,
        }
        folder = run_cold_start(ColdStartConfig.model_validate(content))
        adapter = load_file(folder / "adapter" / "adapter_model.safetensors")
        name = "model.layers.0.self_attn.q_proj"
        left, right = (adapter[f"base_model.model.{name}.lora_{part}.weight"].float() for part in "BA")
        weights = [
            AutoModelForCausalLM.from_pretrained(place, dtype=torch.bfloat16).get_submodule(name).weight
            for place in (model_folder, folder)
        ]
        assert torch.equal(torch.add(weights[0].float(), left @ right, alpha=8.0).bfloat16(), weights[1])
        assert not torch.equal(*weights)


class TestExamples:
    def examples(self, dataset: str, **data) -> list:
        return load_examples(ColdStartConfig.model_validate(self.content(dataset, data)).data, make_tokenizer())

    def content(self, dataset: str, data: dict) -> dict:
        return {"output_dir": "x", "model": {"name_or_path": "m"}, "data": {"dataset": dataset, **data}}

    def test_the_prompt_has_the_tokens_that_a_run_samples_from(self, tmp_path):
        dataset = write(tmp_path / "rows.jsonl", ROW)
        tokenizer = make_tokenizer()
        [example] = self.examples(dataset, recipe="countdown")
        [row] = load_prompt_rows(DataConfig(dataset=dataset, recipe="countdown"), tokenizer)
        length = len(row.token_ids)
        assert example["input_ids"][:length] == row.token_ids
        assert tokenizer.decode(example["input_ids"][length:]) == COMPLETION + "<|im_end|>"
        assert example["completion_mask"] == [0] * length + [1] * (len(COMPLETION) + 1)

    @pytest.mark.parametrize(
        "row",
        [
            {"prompt": [QUESTION], "completion": "4"},
            {"prompt": [QUESTION], "completion": [ANSWER]},
            {"messages": [QUESTION, ANSWER]},
        ],
        ids=["text", "message", "conversation"],
    )
    def test_kinds_of_rows(self, tmp_path, row):
        [example] = self.examples(write(tmp_path / "rows.jsonl", row))
        text = make_tokenizer().decode(example["input_ids"])
        assert text == "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>"
        assert sum(example["completion_mask"]) == 2

    def test_each_answer_of_a_conversation_is_learned_behind_what_came_before_it(self, tmp_path):
        again, other = {"role": "user", "content": "3+3?"}, {"role": "assistant", "content": "6"}
        talk = [QUESTION, ANSWER, again, other, QUESTION]
        dataset = write(tmp_path / "rows.jsonl", {"messages": talk[:4]}, {"messages": talk})
        found = self.examples(dataset, learned_messages="all")
        alone = [{"prompt": talk[:place], "completion": talk[place]["content"]} for place in (1, 3)]
        assert found == self.examples(write(tmp_path / "alone.jsonl", *alone, *alone))
        long = [QUESTION, ANSWER, {"role": "user", "content": "3" * 99}, other]
        dataset = write(tmp_path / "long.jsonl", {"messages": talk}, {"messages": long})
        assert "row 2: prompt and completion have" in self.mistake(dataset, learned_messages="all", max_length=99)
        dataset = write(tmp_path / "asked.jsonl", {"messages": [QUESTION, again]})
        assert "row 1: no message of messages is an answer" in self.mistake(dataset, learned_messages="all")
        dataset = write(tmp_path / "single.jsonl", {"prompt": "2+2", "completion": "4"})
        assert "learned_messages all is for whole conversations" in self.mistake(dataset, learned_messages="all")

    def test_plain_text(self, tmp_path):
        [example] = self.examples(write(tmp_path / "rows.jsonl", {"prompt": "2+2=", "completion": "4"}))
        assert make_tokenizer().decode(example["input_ids"]) == "2+2=4<eos>"

    @pytest.mark.parametrize(
        ("template", "end"),
        [
            ("{% for m in messages %}{{ m.content | trim }}<|im_start|>\n{% endfor %}", "<|im_start|>"),
            ("{% for m in messages %}{{ m.content.split('</think>')[-1] }}<unk>\n<eos>{% endfor %}", "<unk>"),
            ("{% for m in messages %}{{ m.content }} {{ eos_token }}{% endfor %}", " <eos>"),
            ("{% for m in messages %}{{ m.content }}\n{% endfor %}", "<eos>"),
            ("{% if messages | length > 1 %}{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}", "<eos>"),
            (None, "<eos>"),
        ],
        ids=["trimmed", "without thoughts", "after a space", "no special token", "only users", "no template"],
    )
    def test_an_answer_ends_as_the_chat_template_ends_it(self, tmp_path, template, end):
        tokenizer = make_tokenizer()
        tokenizer.chat_template = template
        dataset = write(tmp_path / "rows.jsonl", {"prompt": [QUESTION], "completion": COMPLETION + " "})
        [example] = load_examples(ColdStartConfig.model_validate(self.content(dataset, {})).data, tokenizer)
        [row] = load_prompt_rows(DataConfig(dataset=dataset), tokenizer)
        length = len(row.token_ids)
        assert example["input_ids"][:length] == row.token_ids
        assert tokenizer.decode(example["input_ids"][length:]) == COMPLETION + " " + end

    def test_what_an_answer_has_beside_its_text_is_written_by_the_chat_template(self, tmp_path):
        answer = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add"}}]}
        dataset = write(tmp_path / "rows.jsonl", {"messages": [QUESTION, answer]})
        tokenizer = make_tokenizer()
        content = ColdStartConfig.model_validate(self.content(dataset, {})).data
        with pytest.raises(UsageError, match=r"row 1: .*does not write the tool_calls of the answer"):
            load_examples(content, tokenizer)
        tokenizer.chat_template = CHAT_TEMPLATE.replace(
            "{{ message['content'] }}",
            "{{ message.content or '' }}{% for call in message.tool_calls or [] %}[{{ call.function.name }}]"
            "{% endfor %}",
        )
        [example] = load_examples(content, tokenizer)
        assert tokenizer.decode(example["input_ids"]).endswith("<|im_start|>assistant\n[add]<|im_end|>")

    def mistake(self, dataset: str, **data) -> str:
        with pytest.raises(UsageError) as caught:
            self.examples(dataset, **data)
        return str(caught.value)

    def test_mistakes(self, tmp_path):
        dataset = write(tmp_path / "a.jsonl", {"prompt": "x", "completions": "y"})
        message = self.mistake(dataset)
        assert "no column completion, which data.completion_column needs; the nearest: completions" in message
        dataset = write(tmp_path / "b.jsonl", {"prompt": "x" * 30, "completion": "y" * 10})
        assert "row 1: prompt and completion have 41 tokens, more than data.max_length 32" in self.mistake(
            dataset, max_length=32
        )
        dataset = write(tmp_path / "c.jsonl", {"prompt": "x", "completion": 7})
        assert "row 1: the completion is neither text" in self.mistake(dataset)
        dataset = write(tmp_path / "d.jsonl", {"messages": [ANSWER, QUESTION]})
        assert "row 1: the completion is a message of `user`" in self.mistake(dataset)
        dataset = write(tmp_path / "e.jsonl", {"messages": [QUESTION]})
        assert "row 1: messages is not a conversation" in self.mistake(dataset)

    def test_a_tokenizer_without_an_end(self, tmp_path):
        tokenizer = make_tokenizer()
        tokenizer.eos_token = tokenizer.chat_template = None
        content = self.content(write(tmp_path / "rows.jsonl", ROW), {"recipe": "countdown"})
        with pytest.raises(UsageError, match="no end-of-sequence token"):
            load_examples(ColdStartConfig.model_validate(content).data, tokenizer)


class TestMistakes:
    def test_an_unknown_key_names_the_nearest(self, tmp_path, model_folder):
        file = tmp_path / "cold_start.yaml"
        file.write_text("output_dir: x\nlearning_rat: 1.0\nmodel: {name_or_path: m}\ndata: {dataset: d}\n")
        with pytest.raises(UsageError, match=r"learning_rat: unknown key; did you mean learning_rate\?"):
            main([str(file)])
        with pytest.raises(UsageError, match=r"unknown flag --data.recip.*did you mean --data.recipe\?"):
            main([str(file), "--data.recip", "countdown"])

    def test_an_older_model_is_not_overwritten(self, tmp_path, model_folder):
        (tmp_path / "cold-start").mkdir()
        (tmp_path / "cold-start" / "config.json").write_text("{}")
        with pytest.raises(UsageError, match="already exists"):
            run_cold_start(config(tmp_path, model_folder, "rows.jsonl"))

    def test_a_folder_that_could_not_be_replaced_is_found_before_training(self, tmp_path, model_folder):
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "cold-start").symlink_to(tmp_path / "elsewhere")
        dataset = write(tmp_path / "rows.jsonl", {"prompt": "2+2=", "completion": "4"})
        with pytest.raises(UsageError, match=r"cold-start is no folder, and one has to be written there at the end"):
            run_cold_start(config(tmp_path, model_folder, dataset, max_steps=10**9))

    def test_a_disk_that_is_away_may_be_there_at_the_next_try(self, tmp_path, model_folder, monkeypatch):
        away = OSError(errno.ESTALE, "Stale file handle")
        monkeypatch.setattr(Path, "mkdir", lambda *_, **__: (_ for _ in ()).throw(away))
        with pytest.raises(UnavailableError, match=r"output_dir .* cannot be made: Stale file handle"):
            run_cold_start(config(tmp_path, model_folder, "rows.jsonl"))

    def test_so_may_a_model_on_one(self, tmp_path, model_folder, monkeypatch):
        away = OSError(errno.ESTALE, "Stale file handle")
        monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *_, **__: (_ for _ in ()).throw(away))
        with pytest.raises(UnavailableError, match=r"cannot be loaded: .*Stale file handle"):
            run_cold_start(config(tmp_path, model_folder, "rows.jsonl"))

    def test_a_model_that_is_not_there(self, tmp_path):
        (tmp_path / "empty").mkdir()
        with pytest.raises(UsageError, match=r"model.name_or_path .*empty cannot be loaded"):
            run_cold_start(config(tmp_path, tmp_path / "empty", "rows.jsonl"))

    @pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
    def test_a_gpu_that_is_not_there(self, tmp_path, model_folder):
        with pytest.raises(UsageError, match="torch finds no GPU here"):
            run_cold_start(config(tmp_path, model_folder, "rows.jsonl", device="cuda"))

    def test_nothing_is_left_behind_by_bad_data(self, tmp_path, model_folder):
        dataset = write(tmp_path / "rows.jsonl", {"prompt": "x"})
        with pytest.raises(UsageError, match="no column completion"):
            run_cold_start(config(tmp_path, model_folder, dataset))
        assert not (tmp_path / "cold-start").exists()
