"""The chat template of a run in place of the tokenizer's own: for prompts, and in what is saved."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.tiny_model import IM_END, make_tokenizer
from transformers import AutoTokenizer, Qwen2Config

from grpo_proto.fingerprint import chat_template_fingerprint
from grpo_trainer.config.model import ModelConfig
from grpo_trainer.config.run_config import RunConfig
from grpo_trainer.data.prompt_row import PromptRow
from grpo_trainer.data.rendering import Renderer, unread_settings
from grpo_trainer.data.tokenizer import load_tokenizer
from grpo_trainer.data.turn_end import servers_stop_at
from grpo_trainer.errors import UsageError
from grpo_trainer.model_files import ModelFiles

TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{{ '<think>' if add_generation_prompt }}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tokenizer that has a template of its own."""
    folder = tmp_path_factory.mktemp("model")
    make_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("in_a_file", [True, False])
def test_prompts_are_rendered_by_it_and_models_are_saved_with_it(in_a_file: bool, model: str, tmp_path: Path):
    file = tmp_path / "think.jinja"
    file.write_text(TEMPLATE + "\n")
    tokenizer = load_tokenizer(ModelConfig(name_or_path=model, chat_template=str(file) if in_a_file else TEMPLATE))
    prompt = [{"role": "user", "content": "2+2?"}]
    assert Renderer(tokenizer, {}).rendered([prompt], []) == ["[user] 2+2?\n<think>"]
    # Compare with a server that is given the file.
    assert chat_template_fingerprint(tokenizer.chat_template) == chat_template_fingerprint(file.read_text())
    ModelFiles.of(model, tokenizer).write_tokenizer(tmp_path / "saved")
    assert AutoTokenizer.from_pretrained(tmp_path / "saved").chat_template.rstrip("\n") == TEMPLATE


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("no/such/file.jinja", "model.chat_template: there is no file no/such/file.jinja"),
        ("templates/r1", "model.chat_template is no file and no Jinja template, which has {{ … }}: 'templates/r1'"),
    ],
)
def test_what_is_no_template_is_refused(given: str, message: str, model: str):
    with pytest.raises(UsageError, match=re.escape(message)):
        load_tokenizer(ModelConfig(name_or_path=model, chat_template=given))


def test_one_that_jinja_cannot_read_is_named_with_the_setting(model: str):
    tokenizer = load_tokenizer(ModelConfig(name_or_path=model, chat_template="{% for m in messages %}{{ m.content }}"))
    prompt = [{"role": "user", "content": "2+2?"}]
    with pytest.raises(UsageError, match=r"row 1: the tokenizer's chat template refuses .*model\.chat_template"):
        Renderer(tokenizer, {}).token_ids([prompt], [[]], dataset="d", first_row=1)


def test_a_template_whose_end_of_turn_stops_no_server_is_a_doubt(model: str):
    """As that of a base model: its ends are those of texts."""
    tokenizer = load_tokenizer(ModelConfig(name_or_path=model))
    row = PromptRow(0, [1], [{"role": "user", "content": "2+2?"}], {})
    family = Qwen2Config(eos_token_id=tokenizer.eos_token_id)
    end = tokenizer.convert_tokens_to_ids(IM_END)

    def doubts(row: PromptRow = row, **rollout: object) -> list[str]:
        config = {"run_dir": "r", "model": {"name_or_path": model}, "reward": {"reward_funcs": ["format"]}}
        run = RunConfig.model_validate(config | {"data": {"dataset": "d"}, "rollout": rollout})
        return servers_stop_at(run, row, tokenizer, family)

    [doubt] = doubts()
    assert "ends an answer with <|im_end|>, and the servers do not stop there, but at '<eos>'" in doubt
    assert doubt.endswith(f"add {end} to rollout.stop_token_ids")
    assert not doubts(stop_token_ids=[end])
    assert not doubts(stop=["<|im_end|>"])
    assert not doubts(replace(row, prompt="a text, which no template ends"))
    family.eos_token_id = [tokenizer.eos_token_id, end]
    assert not doubts()


def test_a_setting_that_the_template_does_not_read_is_named():
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% if enable_thinking %}<think>{% endif %}{{ messages }}"
    given = {"enable_thinking": True, "enable_thinkin": True, "documents": False}
    assert unread_settings(tokenizer, given) == [
        "data.chat_template_kwargs has enable_thinkin, which the chat template does not read"
    ]
