"""`grpo-train merge-adapter`: the sum of a saved adapter and its model, without servers."""

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from tests.tiny_model import make_model, make_tokenizer, save_tiny_model
from tests.trainer.test_lora import small_moe
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_trainer.__main__ import main


def save_adapter_of_peft(base: Path, folder: Path, **lora: object) -> None:
    """An adapter that is not zero, trained and saved by PEFT alone, in float32."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    adapted = get_peft_model(model, LoraConfig(**{"r": 4, "lora_alpha": 6, "task_type": "CAUSAL_LM"} | lora))  # type: ignore[arg-type]
    torch.manual_seed(5)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if ".lora_" in name:
                parameter.normal_(std=0.05)
    adapted.save_pretrained(folder)


def merged_by_peft(base: Path, adapter: Path) -> dict[str, torch.Tensor]:
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter)
    state: dict[str, torch.Tensor] = model.merge_and_unload().state_dict()
    return state


def merge(*words: Path | str) -> int:
    return main(["merge-adapter", *map(str, words)])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("targets", [["q_proj", "down_proj"], r".*\.1\..*_proj"])
def test_the_sum_is_that_of_peft_rounded_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], dtype: str, targets: list[str] | str
):
    base, adapter = save_tiny_model(tmp_path / "base", dtype=getattr(torch, dtype)), tmp_path / "adapter"
    save_adapter_of_peft(base, adapter, target_modules=targets, use_rslora=True)
    assert merge(adapter, tmp_path / "merged", "--dtype", dtype) == 0
    assert "an adapter was added to" in capsys.readouterr().out
    written, expected = load_file(tmp_path / "merged" / "model.safetensors"), merged_by_peft(base, adapter)
    assert written.keys() <= expected.keys()
    changed = [
        name for name, tensor in load_file(base / "model.safetensors").items() if not tensor.equal(written[name])
    ]
    assert len(changed) == (4 if isinstance(targets, list) else 7)
    for name, tensor in written.items():
        assert tensor.dtype == getattr(torch, dtype)
        # A sum in another order may round to the neighbour.
        torch.testing.assert_close(
            tensor.float(), expected[name], rtol=1e-6 if dtype == "float32" else 2**-8, atol=1e-6
        )
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").get_vocab() == make_tokenizer().get_vocab()


def test_fused_experts_are_merged_too(tmp_path: Path):
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    small_moe().save_pretrained(base)
    make_tokenizer().save_pretrained(base)
    save_adapter_of_peft(base, adapter, target_modules=["q_proj"], target_parameters=["mlp.experts.down_proj"])
    assert merge(adapter, tmp_path / "merged", "--dtype", "float32") == 0
    merged, expected = AutoModelForCausalLM.from_pretrained(tmp_path / "merged"), merged_by_peft(base, adapter)
    for name, tensor in merged.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-6, atol=1e-6)


def test_the_tokenizer_of_the_adapter_goes_with_it_and_another_model_may_be_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    base, adapter = save_tiny_model(tmp_path / "base"), tmp_path / "adapter"
    save_adapter_of_peft(base, adapter, target_modules=["q_proj"])
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    tokenizer.save_pretrained(adapter)
    moved = base.rename(tmp_path / "moved")
    assert merge(adapter, tmp_path / "none") == 2
    assert "there is no folder" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    assert merge(adapter, tmp_path / "merged", "--model", moved) == 0
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").chat_template == tokenizer.chat_template


def test_what_cannot_be_merged_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    base, adapter = save_tiny_model(tmp_path / "base"), tmp_path / "adapter"

    def refused(*words: Path | str) -> str:
        assert merge(*words) == 2
        return capsys.readouterr().err

    assert "config.json" in refused(base, tmp_path / "merged")
    save_adapter_of_peft(base, adapter, target_modules=["q_proj"])
    assert "already exists" in refused(adapter, base)
    other = tmp_path / "other"
    make_model(tied=False, hidden_size=64).save_pretrained(other)
    make_tokenizer().save_pretrained(other)
    assert "differs from" in refused(adapter, tmp_path / "merged", "--model", other)
    settings = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(settings | {"base_model_name_or_path": None}))
    assert "names no model" in refused(adapter, tmp_path / "merged")
    (adapter / "adapter_config.json").write_text(json.dumps(settings | {"use_dora": True}))
    assert "has DoRA" in refused(adapter, tmp_path / "merged")
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    factors = load_file(adapter / "adapter_model.safetensors")
    save_file(dict(list(factors.items())[1:]), adapter / "adapter_model.safetensors")
    assert "absent" in refused(adapter, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
