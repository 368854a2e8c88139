"""QLoRA without an engine: the values of NF4, the model below an adapter, and what is refused."""

import json
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from tests.tiny_model import make_model, save_half_billion_shape, save_tiny_model
from tests.trainer.made_run_file import write_run_file
from tests.trainer.test_lora import small_moe
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from grpo_trainer.__main__ import main
from grpo_trainer.config.lora import LoraConfig
from grpo_trainer.config.model import ModelConfig
from grpo_trainer.config.run_config import RunConfig
from grpo_trainer.config.settings import read_config
from grpo_trainer.dry_run import ModelWithoutWeights, _memory
from grpo_trainer.errors import UsageError
from grpo_trainer.lora.adapter import Adapter
from grpo_trainer.lora.nf4 import BLOCK, VALUES, NF4Linear, keep_in_nf4, round_to_nf4
from grpo_trainer.quantize_base import quantize_base

DTYPES = [torch.float32, torch.bfloat16]


def layer_of(weight: torch.Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    layer.weight.data = weight
    return layer


def kept(weight: torch.Tensor) -> NF4Linear:
    return NF4Linear(layer_of(weight), "cpu")


class TestValues:
    def test_each_weight_becomes_the_nearest_entry_times_the_greatest_of_its_block(self):
        torch.manual_seed(0)
        weight = torch.randn(16, 96)  # blocks reach from row to row
        blocks = weight.view(-1, BLOCK)
        scales = blocks.abs().amax(dim=1, keepdim=True)
        entries = torch.tensor(VALUES)
        nearest = (blocks[..., None] / scales[..., None] - entries).abs().argmin(dim=-1)
        assert torch.equal(kept(weight).weight, (entries[nearest] * scales).view_as(weight))

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", [(64, 128), (7, 30), (1, 1)])
    def test_quantizing_the_values_again_changes_no_bit(self, dtype: torch.dtype, shape: tuple[int, int]):
        torch.manual_seed(1)
        for spread in (1e-3, 1.0, 300.0):
            weight = (torch.randn(shape) * spread * torch.rand(shape[0], 1).exp()).to(dtype)
            once = kept(weight)
            twice = kept(once.weight)
            assert once.weight.dtype == dtype
            assert torch.equal(once.packed, twice.packed)
            assert torch.equal(once.scales, twice.scales)
            assert torch.equal(once.weight, twice.weight)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_every_value_of_every_scale_is_kept(self, dtype: torch.dtype):
        """All entries under all significands of bfloat16, from tiny to huge; and a block of zeros."""
        exponents = torch.tensor([-120.0, -20.0, 0.0, 100.0])
        scales = ((1 + torch.arange(128) / 128)[:, None] * 2.0**exponents).flatten()
        values = torch.tensor(VALUES).repeat(BLOCK // len(VALUES)) * torch.cat([scales, torch.zeros(1)])[:, None]
        weight = values.to(dtype)
        assert torch.equal(kept(weight).weight, weight)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_a_kept_layer_computes_what_the_layer_with_its_values_does(self, dtype: torch.dtype):
        torch.manual_seed(2)
        layer = nn.Linear(96, 64, dtype=dtype).requires_grad_(False)
        frozen = NF4Linear(layer, "cpu")
        layer.weight.copy_(frozen.weight)
        outcomes = []
        for either in (layer, frozen):
            inputs = torch.linspace(-1, 1, 2 * 3 * 96).view(2, 3, 96).to(dtype).requires_grad_()
            outputs = either(inputs)
            outputs.square().sum().backward()
            outcomes.append((outputs, inputs.grad))
        assert torch.equal(outcomes[0][0], outcomes[1][0])
        assert torch.equal(outcomes[0][1], outcomes[1][1])


class TestModel:
    ids = torch.arange(5, 45).reshape(2, 20)

    def test_the_linear_layers_of_the_decoder_are_kept_and_the_adapter_finds_them(self):
        model = make_model(tied=False, hidden_size=64)
        assert len(round_to_nf4(model)) == 14
        before = model(self.ids).logits
        found = keep_in_nf4(model, ModelConfig(name_or_path="base"), device="cpu")
        assert torch.equal(model(self.ids).logits, before)
        assert {type(module) for module in (model.lm_head, *model.model.layers[0].mlp.children())} >= {nn.Linear}
        adapter = Adapter(model, LoraConfig(r=4), base_name="base", seed=3)
        assert adapter.layers.keys() == found.keys()
        assert not adapter.base_tensors().keys() & found.keys(), "no parameter holds them"
        assert torch.equal(model(self.ids).logits, before)

    def test_other_weights_are_refused_by_name(self):
        model = make_model(tied=True, hidden_size=64)
        round_to_nf4(model)
        model.model.layers[1].mlp.up_proj.weight.data[3, 4] *= 1.01
        with pytest.raises(UsageError, match=r"layers.1.mlp.up_proj.weight has values .*quantize-base base FOLDER"):
            keep_in_nf4(model, ModelConfig(name_or_path="base"), device="cpu")

    def test_fused_experts_stay_as_they_are(self):
        model = small_moe()
        experts = model.model.layers[0].mlp.experts.down_proj.clone()
        names = round_to_nf4(model)
        assert names
        assert all("self_attn" in name for name in names)
        assert torch.equal(model.model.layers[0].mlp.experts.down_proj, experts)

    @pytest.mark.parametrize(("dtype", "share"), [("bfloat16", 0.5), ("float32", 0.42)])
    def test_a_half_billion_model_takes_less_than_half(self, tmp_path: Path, dtype: str, share: float):
        """Qwen2.5-0.5B's shape; its embedding, a quarter of the model, stays as it is."""
        file = str(write_run_file(tmp_path, rollout={}))
        save_half_billion_shape(tmp_path / "model")

        def gib(*flags: str) -> float:
            flags = (*flags, "--model.dtype", dtype, "--model.lora.r", "32")
            config = read_config(RunConfig, [file, *flags], program="test", env_prefix="NONE__")
            lines = dict(_memory(ModelWithoutWeights.of(config)))
            assert ("357,826,560 of them kept in NF4" in lines["parameters"]) == ("--model.load_in_4bit" in flags)
            return float(lines["memory of a rank"].partition("weights ")[2].partition(",")[0])

        assert gib("--model.load_in_4bit", "true") / gib() < share


class TestRunFile:
    def test_all_weights_are_not_trained_in_four_bits(self):
        with pytest.raises(ValidationError, match=r"load_in_4bit trains an adapter only; add model\.lora"):
            ModelConfig(name_or_path="any", load_in_4bit=True)

    def test_zero_3_is_refused(self, tmp_path: Path):
        file = str(write_run_file(tmp_path, rollout={}, deepspeed={"zero_stage": 3}))
        flags = ["--model.load_in_4bit", "true", "--model.lora.r", "8"]
        with pytest.raises(UsageError, match=r"zero_stage 3 would shard them; set deepspeed\.zero_stage to 0, 1 or 2"):
            read_config(RunConfig, [file, *flags], program="test", env_prefix="NONE__")


class TestCommand:
    @pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
    def test_it_writes_an_ordinary_model_of_values_that_four_bits_keep(
        self, tmp_path: Path, dtype: str, capsys: pytest.CaptureFixture[str]
    ):
        source, folder = save_tiny_model(tmp_path / "model", tied=True), tmp_path / "quantized"
        assert main(["quantize-base", str(source), str(folder), "--dtype", dtype]) == 0
        assert "14 linear layers" in capsys.readouterr().out
        before, after = (load_file(place / "model.safetensors") for place in (source, folder))
        assert before.keys() == after.keys()
        mark = json.loads((folder / "nf4.json").read_text())
        assert (mark["quant_type"], mark["block_size"], mark["dtype"]) == ("nf4", 64, dtype)
        cast = getattr(torch, dtype)
        changed = {name for name in before if not torch.equal(before[name].to(cast), after[name])}
        assert changed == set(mark["weights"])
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert model.dtype == cast
        keep_in_nf4(model, ModelConfig(name_or_path=str(folder)), device="cpu")
        assert AutoTokenizer.from_pretrained(folder).eos_token == "<eos>"
        assert f"converted back to {dtype}" in (folder / "README.md").read_text()
        twice = tmp_path / "twice"
        quantize_base(ModelConfig(name_or_path=str(folder), dtype=dtype), twice)
        assert all(torch.equal(tensor, after[name]) for name, tensor in load_file(twice / "model.safetensors").items())

    @pytest.mark.parametrize(
        ("words", "named"),
        [
            (["./nowhere", "out"], "./nowhere"),
            (["gpt2", "out"], "no linear layers below its output head"),
            (["gpt2", "gpt2"], "FOLDER gpt2 already exists"),
        ],
    )
    def test_what_cannot_be_quantized_is_named_and_nothing_is_written(
        self,
        words: list[str],
        named: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ):
        monkeypatch.chdir(tmp_path)
        save_tiny_model(tmp_path / "gpt2")
        config = GPT2Config(vocab_size=101, n_positions=32, n_embd=32, n_layer=1, n_head=2)
        GPT2LMHeadModel(config).save_pretrained("gpt2")
        before = sorted(path.name for path in tmp_path.iterdir())
        assert main(["quantize-base", *words]) == 2
        assert named in capsys.readouterr().err
        assert sorted(path.name for path in tmp_path.iterdir()) == before

    def test_help_and_rubbish_end_with_argparse(self, capsys: pytest.CaptureFixture[str]):
        for words, status in ((["--help"], 0), (["model"], 2), (["model", "out", "--dtype", "int8"], 2)):
            with pytest.raises(SystemExit) as ended:
                main(["quantize-base", *words])
            assert ended.value.code == status
        assert "bfloat16" in capsys.readouterr().err
