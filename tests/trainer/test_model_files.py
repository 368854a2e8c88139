"""A saved model has all the small files that it began with, and what cannot be saved is found without any weights."""

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rollout.families.models import FAMILIES, save_model
from tests.tiny_model import make_tokenizer, save_tiny_model
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from grpo_trainer.config.model import ModelConfig
from grpo_trainer.data.tokenizer import load_tokenizer
from grpo_trainer.errors import UsageError
from grpo_trainer.model_files import LARGEST_KEPT, ModelFiles, what_it_is

WARNED_OF = b'{"temperature": 0.9, "top_p": 0.6, "eos_token_id": 1}'
"""generation_config.json without do_sample, as vicuna's: transformers reads it with a warning and does not write it."""
KEPT = {
    "generation_config.json": WARNED_OF,
    "preprocessor_config.json": b'{"image_processor_type": "Gemma3ImageProcessor"}',
    "video_preprocessor_config.json": b"{}",
    "processor_config.json": b'{"processor_class": "Gemma3Processor"}',
    "chat_template.json": b'{"chat_template": "{{ messages }}"}',
    "image_processing.py": b"SIZE = 3\n",
    "tekken.json": b"{}",
    "LICENSE": b"as it was\n",
}
LEFT_OUT = [
    "pytorch_model.bin", "consolidated.safetensors", "model.safetensors.index.json", "adapter_config.json",
    "trainer_state.json", "nf4.json", "README.md", ".gitattributes", ".git/HEAD.json", "original/params.json",
    "huge.json",
]  # fmt: skip
WRITTEN = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_tiny_model(tmp_path_factory.mktemp("models") / "first", num_layers=1)
    for name, content in KEPT.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def files(first: Path) -> ModelFiles:
    return ModelFiles.of(str(first), AutoTokenizer.from_pretrained(first))


@pytest.fixture
def model(first: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(first)


def test_the_small_files_of_the_first_model_are_kept_as_they_are(files: ModelFiles, model: Any, tmp_path: Path):
    files.write(tmp_path, model, model.state_dict())
    saved = contents(tmp_path)
    assert saved.keys() == WRITTEN | KEPT.keys()
    assert {name: saved[name] for name in KEPT} == KEPT
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))
    assert again.generation_config.temperature == model.generation_config.temperature == 0.9


def test_weights_their_traces_and_large_files_are_left_out(tmp_path: Path):
    for name in [*KEPT, *LEFT_OUT]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"{}")
    with (tmp_path / "huge.json").open("ab") as file:
        file.truncate(LARGEST_KEPT + 1)
    assert ModelFiles.of(str(tmp_path), make_tokenizer()).kept.keys() == KEPT.keys()


def test_without_tensors_all_but_the_weights_is_written_as_with_them(files: ModelFiles, model: Any, tmp_path: Path):
    files.write(tmp_path / "rehearsal", model, {})
    files.write(tmp_path / "end", model, None)
    end = contents(tmp_path / "end")
    assert end.pop("model.safetensors")
    assert contents(tmp_path / "rehearsal") == end


def test_they_are_there_though_the_first_model_is_gone(tmp_path: Path):
    first = save_tiny_model(tmp_path / "first", num_layers=1)
    files, model = ModelFiles.of(str(first), make_tokenizer()), AutoModelForCausalLM.from_pretrained(first)
    generation = (first / "generation_config.json").read_bytes()
    first.rename(tmp_path / "away")
    files.write(tmp_path / "saved", model, {})
    assert (tmp_path / "saved" / "generation_config.json").read_bytes() == generation


def test_folders_that_look_like_models_are_named_for_what_they_are(tmp_path: Path):
    assert "has no config.json, so it holds no model" in str(what_it_is(str(tmp_path)))
    assert f"there is no folder org/name in {Path.cwd()}" in str(what_it_is("org/name"))
    for missing in ("../away", "/no/such", "~/model", "models/", "a/b/c"):
        with pytest.raises(UsageError, match=f"there is no folder .*, seen from {Path.cwd()}"):
            load_tokenizer(ModelConfig(name_or_path=missing))
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    assert f"set model.name_or_path to org/base and model.lora.adapter to {tmp_path}" in str(what_it_is(str(tmp_path)))
    for name in ("state.json", "manifest.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(UsageError, match=r"no tokenizer in .*it is a checkpoint of a run, and no model yet"):
        load_tokenizer(ModelConfig(name_or_path=str(tmp_path)))


@pytest.mark.parametrize("has_file", [True, False])
def test_a_token_that_ends_a_turn_is_one_that_servers_stop_at(
    has_file: bool, files: ModelFiles, model: Any, tmp_path: Path
):
    kept = (
        files.kept
        if has_file
        else {name: content for name, content in KEPT.items() if name != "generation_config.json"}
    )
    ModelFiles(files.source, files.tokenizer, kept, ends=[4, 1]).write(tmp_path, model, {})
    saved = json.loads((tmp_path / "generation_config.json").read_bytes())
    assert saved.items() >= {"temperature": 0.9, "top_p": 0.6, "eos_token_id": [1, 4]}.items()


def test_a_configuration_that_cannot_be_written_is_named(files: ModelFiles, model: Any, tmp_path: Path):
    model.config.made_by = object()
    with pytest.raises(UsageError, match=r"the model of .*/first cannot be saved: TypeError: .*not JSON serializable"):
        files.write(tmp_path, model, {})


def test_a_full_disk_is_none_of_the_tokenizer_s_faults(files: ModelFiles, tmp_path: Path):
    """Its library in Rust raises an Exception of no class."""

    class Full:
        def save_pretrained(self, folder: Path) -> None:
            raise Exception("No space left on device (os error 28)")

    with pytest.raises(OSError, match="No space left") as full:
        replace(files, tokenizer=Full()).write_tokenizer(tmp_path)  # type: ignore[arg-type]
    assert full.value.errno == errno.ENOSPC


def test_a_tokenizer_that_cannot_be_written_is_named(files: ModelFiles, tmp_path: Path):
    tokenizer = make_tokenizer()
    tokenizer.init_kwargs["made_by"] = object()
    with pytest.raises(
        UsageError, match=r"the tokenizer of .*/first cannot be saved: TypeError: .*not JSON serializable"
    ):
        ModelFiles(files.source, tokenizer, {}).write_tokenizer(tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_saved_without_its_weights(family: str, tmp_path: Path):
    """What a run tries before its first step."""
    FAMILIES[family].config().save_pretrained(tmp_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    ModelFiles(family, make_tokenizer(), {"preprocessor_config.json": b"{}"}).write(tmp_path / "saved", model, {})
    names = {path.name for path in (tmp_path / "saved").iterdir()}
    assert names == WRITTEN - {"model.safetensors"} | {"generation_config.json", "preprocessor_config.json"}


def test_the_text_of_a_vision_language_checkpoint_is_saved_beside_the_files_of_its_processor(tmp_path: Path):
    first = save_model(FAMILIES["gemma3"], tmp_path / "first", seed=0)
    make_tokenizer().save_pretrained(first)
    (first / "preprocessor_config.json").write_bytes(KEPT["preprocessor_config.json"])
    model = AutoModelForCausalLM.from_pretrained(first)
    ModelFiles.of(str(first), AutoTokenizer.from_pretrained(first)).write(tmp_path / "saved", model, model.state_dict())
    saved = contents(tmp_path / "saved")
    assert saved.keys() == contents(first).keys()
    assert saved["preprocessor_config.json"] == KEPT["preprocessor_config.json"]
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert again.state_dict().keys() == model.state_dict().keys()
