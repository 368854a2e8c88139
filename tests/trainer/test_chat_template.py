"""The chat template of a run in place of the tokenizer's own: for prompts, and in what is saved."""

import re
from pathlib import Path

import pytest
from tests.tiny_model import make_tokenizer
from transformers import AutoTokenizer

from grpo_proto.fingerprint import chat_template_fingerprint
from grpo_trainer.config.model import ModelConfig
from grpo_trainer.data.rendering import Renderer
from grpo_trainer.data.tokenizer import load_tokenizer
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
