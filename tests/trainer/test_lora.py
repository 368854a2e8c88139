"""LoRA without an engine: what a run file may say, what the servers must take, and what an adapter adds to a model."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from tests.tiny_model import make_model, save_half_billion_shape, save_tiny_model
from tests.trainer.made_run_file import write_run_file
from tests.trainer.test_fleet import info
from transformers import GPT2Config, GPT2LMHeadModel, Qwen3MoeConfig, Qwen3MoeForCausalLM

from grpo_proto.checkpoint_files import checkpoint_digest
from grpo_proto.messages.rollout import AdapterLimits
from grpo_trainer.config.doubts import doubts
from grpo_trainer.config.lora import SERVED_RANKS, LoraConfig, served_rank
from grpo_trainer.config.run_config import RunConfig
from grpo_trainer.config.settings import read_config
from grpo_trainer.dry_run import ModelWithoutWeights, _memory
from grpo_trainer.engine.policy import Policy
from grpo_trainer.errors import UsageError
from grpo_trainer.fleet.adapters import AdapterNeeds, choose_push_kind
from grpo_trainer.lora import files
from grpo_trainer.lora.adapter import Adapter
from grpo_trainer.lora.files import base_digest_of, read_adapter, write_adapter

BASE = "b" * 64


def adapter_on(model: torch.nn.Module, **lora: Any) -> Adapter:
    """An adapter that is not zero."""
    adapter = Adapter(model, LoraConfig(**{"r": 4, "alpha": 8} | lora), base_name="base", seed=3)
    torch.manual_seed(4)
    with torch.no_grad():
        for tensor in adapter.tensors().values():
            tensor.normal_(std=0.05)
    return adapter


class TestRunFile:
    @pytest.mark.parametrize(
        ("setting", "named"),
        [
            ({"use_dora": True}, "use_dora: vLLM serves no DoRA"),
            ({"bias": "all"}, "bias: vLLM serves no adapters with biases"),
            ({"lora_bias": True}, "lora_bias: vLLM serves no adapters with biases"),
            ({"modules_to_save": ["lm_head"]}, "modules_to_save: vLLM serves no adapters with whole modules"),
            ({"r": 513}, "less than or equal to 512"),
            ({"target_modules": []}, "nothing would be trained"),
        ],
    )
    def test_what_no_server_could_serve_is_refused_by_name(self, setting: dict[str, Any], named: str):
        with pytest.raises(ValidationError, match=named):
            LoraConfig.model_validate(setting)

    def test_what_is_switched_off_is_no_mistake(self):
        LoraConfig.model_validate({"use_dora": False, "bias": "none", "modules_to_save": None})

    def test_flags_reach_into_the_section_and_name_the_nearest_key(self, tmp_path: Path):
        file = str(write_run_file(tmp_path, rollout={}))

        def read(*flags: str) -> RunConfig:
            return read_config(RunConfig, [file, *flags], program="test", env_prefix="NONE__")

        assert read().model.lora is None
        lora = read("--model.lora.r", "8", "--model.lora.target_modules", "all-linear").model.lora
        assert lora is not None
        assert (lora.r, lora.target_modules) == (8, "all-linear")
        pattern = r".*layers\.0\..*q_proj"
        for given, expected in (("q_proj", ["q_proj"]), (pattern, pattern)):
            lora = read("--model.lora.target_modules", given).model.lora
            assert lora is not None
            assert lora.target_modules == expected
        with pytest.raises(UsageError, match=r"unknown flag --model.lora.use_dora.*vLLM serves no DoRA adapters"):
            read("--model.lora.use_dora", "true")
        with pytest.raises(UsageError, match=r"target_modules.* is no regular expression: missing \)"):
            read("--model.lora.target_modules", ".*(nothere")
        with pytest.raises(UsageError, match=r"--model.lora.lora_alpha .*did you mean --model.lora.alpha"):
            read("--model.lora.lora_alpha", "8")

    def test_a_learning_rate_of_full_fine_tuning_is_a_doubt(self, tmp_path: Path):
        file = str(write_run_file(tmp_path, rollout={}, optimizer={"learning_rate": 1e-6}))

        def doubts_of(*flags: str) -> str:
            return " ".join(doubts(read_config(RunConfig, [file, *flags], program="test", env_prefix="NONE__")))

        assert "learning_rate" not in doubts_of()
        assert "learning_rate 1e-06 is one of full fine-tuning" in doubts_of("--model.lora.r", "8")
        assert "learning_rate" not in doubts_of("--model.lora.r", "8", "--optimizer.learning_rate", "1e-5")
        sgd = "--optimizer.name", "sgd"
        assert doubts_of(*sgd).endswith("by at most 1e-06, learning_rate x max_grad_norm")
        decays = doubts_of(*sgd, "--optimizer.weight_decay", "10")
        assert decays.endswith("learning_rate x max_grad_norm, and what weight_decay takes")

    def test_a_server_is_started_with_a_rank_that_vllm_has(self):
        assert [served_rank(rank) for rank in (1, 4, 32, 33, 512)] == [1, 8, 32, 64, 512]
        assert max(SERVED_RANKS) == 512
        assert served_rank(LoraConfig(r=12).r) == 16

    @pytest.mark.parametrize(("dtype", "share"), [("bfloat16", 0.16), ("float32", 0.30)])
    def test_the_state_of_a_half_billion_model_is_a_third_of_full_training(
        self, tmp_path: Path, dtype: str, share: float
    ):
        """Qwen2.5-0.5B's shape at rank 32."""
        file = str(write_run_file(tmp_path, rollout={}))
        save_half_billion_shape(tmp_path / "model")

        def gib(*flags: str) -> float:
            flags = (*flags, "--model.dtype", dtype, "--deepspeed.zero_stage", "0")
            config = read_config(RunConfig, [file, *flags], program="test", env_prefix="NONE__")
            lines = dict(_memory(ModelWithoutWeights.of(config)))
            assert ("adapter" in lines) == ("--model.lora.r" in flags)
            return float(lines["memory of a rank"].split()[1])

        adapter = ["--model.lora.r", "32"]
        assert gib(*adapter) / gib() < share
        assert gib(*adapter, "--algorithm.beta", "0.1") == gib(*adapter), "the reference takes no memory"


class TestServers:
    needs = AdapterNeeds(rank=32, num_versions=3, base_digest=BASE)

    @staticmethod
    def server(**limits: int) -> Any:
        return info(adapters=AdapterLimits(**{"max_loras": 3, "max_lora_rank": 32, "max_cpu_loras": 3} | limits))

    def test_the_adapter_is_pushed_where_all_take_it_and_the_whole_model_where_none_does(self):
        assert choose_push_kind({"a": self.server(), "b": self.server()}, self.needs) == "lora"
        assert choose_push_kind({"a": info(), "b": info()}, self.needs) == "full"
        assert choose_push_kind({"a": self.server()}, None) == "full"

    def test_an_adapter_on_fused_experts_needs_servers_that_take_the_sum(self):
        needs = replace(self.needs, target_parameters=("mlp.experts.down_proj",))
        assert choose_push_kind({"a": info()}, needs) == "full"
        assert choose_push_kind({}, needs) == "lora", "a dry run before the servers are up"
        for infos in ({"a": self.server()}, {"a": self.server(), "b": info()}):
            with pytest.raises(UsageError, match=r"\(a\).*names mlp.experts.down_proj.*without --enable-lora.*or drop"):
                choose_push_kind(infos, needs)

    def test_any_rank_up_to_the_servers_is_taken(self):
        assert choose_push_kind({"a": self.server()}, replace(self.needs, rank=12)) == "lora"

    def test_servers_that_disagree_are_named(self):
        with pytest.raises(UsageError, match=r"take adapters \(a\) and some do not \(b\).*--enable-lora, or none"):
            choose_push_kind({"a": self.server(), "b": info()}, self.needs)

    @pytest.mark.parametrize(
        ("server", "named"),
        [
            ({"max_lora_rank": 16}, r"a takes adapters up to rank 16; model.lora.r is 32 .*--max-lora-rank 32"),
            ({"max_loras": 2}, r"a holds 2 adapters at a time; this run needs 3.*--max-loras 3"),
        ],
    )
    def test_a_server_with_too_little_room_is_named_with_its_flag(self, server: dict[str, int], named: str):
        with pytest.raises(UsageError, match=named):
            choose_push_kind({"a": self.server(**server)}, self.needs)

    def test_a_server_of_another_model_is_refused_once_it_knows_its_digest(self):
        with pytest.raises(UsageError, match=f"digest {'c' * 64}, the model of this run {BASE}"):
            choose_push_kind({"a": self.server().model_copy(update={"base_digest": "c" * 64})}, self.needs)

    def test_slots_grow_with_staleness(self, tmp_path: Path):
        file = write_run_file(tmp_path, rollout={}, algorithm={"max_staleness": 2})
        flags = ["--model.lora.r", "8"]
        config = read_config(RunConfig, [str(file), *flags], program="test", env_prefix="NONE__")
        assert AdapterNeeds.of(config, BASE) == AdapterNeeds(rank=8, num_versions=4, base_digest=BASE)
        flags += ["--model.lora.target_parameters", "down_proj"]
        needs = AdapterNeeds.of(read_config(RunConfig, [str(file), *flags], program="test", env_prefix="NONE__"), BASE)
        assert needs is not None
        assert needs.target_parameters == ("down_proj",)


class TestAdapter:
    ids = torch.arange(5, 45).reshape(2, 20)

    def merged_difference(self, model: Any, **lora: Any) -> float:
        """The largest logit difference of the merged to the unmerged model; the adapter is not zero."""
        fresh, at_start = type(model)(model.config).eval(), model(self.ids).logits
        adapter = adapter_on(model, **lora)
        logits = model(self.ids).logits
        assert (logits - at_start).abs().max() > 0.05
        fresh.load_state_dict(adapter.merged_state(torch.float32), strict=False)
        fresh.tie_weights()
        assert {layer.r["default"] for layer in adapter.layers.values()} == {4}
        return float((fresh(self.ids).logits - logits).abs().max())

    @torch.no_grad()
    def test_merged_it_computes_what_it_computes_beside_the_model(self):
        targets: list[Any] = [["q_proj", "down_proj"], r".*\.1\..*_proj"]
        for lora in ({}, {"use_rslora": True}, *({"target_modules": target} for target in targets)):
            assert self.merged_difference(make_model(tied=True, hidden_size=64), **lora) < 1e-5, lora

    @torch.no_grad()
    def test_a_transposed_weight_is_merged_transposed(self):
        model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=1, n_head=2)).eval()
        assert self.merged_difference(model, target_modules=["c_attn", "c_fc"]) < 1e-5

    @torch.no_grad()
    def test_fused_experts_are_reached_by_target_parameters(self, caplog: pytest.LogCaptureFixture):
        experts = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
        assert self.merged_difference(small_moe(), target_parameters=experts) < 1e-5
        assert not caplog.records
        with caplog.at_level(logging.WARNING):
            adapter_on(small_moe())
        assert "all-linear leaves out 2 fused parameters, such as model.layers.0.mlp.experts.down_proj" in caplog.text
        assert "start the rollout servers without --enable-lora" in caplog.text

    def test_buffers_of_the_checkpoint_are_merged_along(self):
        model = make_model(tied=True, hidden_size=64)
        layer = model.model.layers[0].self_attn.q_proj
        layer.register_buffer("scale", torch.tensor([1.5]))
        model.register_buffer("count", torch.tensor([7]))
        model.register_buffer("scratch", torch.tensor([0.0]), persistent=False)
        merged = adapter_on(model).merged_state(torch.bfloat16)
        assert merged["model.layers.0.self_attn.q_proj.scale"].dtype == torch.bfloat16
        assert merged["count"].dtype == torch.int64
        assert not [name for name in merged if "lora_" in name or "base_layer" in name or name == "scratch"]

    def test_names_that_peft_takes_for_fused_experts_are_refused(self):
        with pytest.raises(UsageError, match=r"takes some of model.lora.target_modules for .*gate_up_proj"):
            adapter_on(small_moe(), target_modules=["q_proj", "gate_proj", "up_proj", "down_proj"])

    def test_a_new_adapter_is_zero_and_the_same_on_every_rank(self):
        outputs, tensors = [], []
        for draws in (0, 7):
            model = make_model(tied=True, hidden_size=64)
            before = model(self.ids).logits
            torch.rand(draws)  # a rank may have drawn while it loaded
            adapter = Adapter(model, LoraConfig(r=4), base_name="base", seed=3)
            tensors.append(adapter.tensors())
            outputs.append(bool(torch.equal(model(self.ids).logits, before)))
        assert outputs == [True, True]
        assert all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[0])

    @pytest.mark.parametrize(
        ("lora", "named"),
        [
            ({"target_modules": ["no_proj"]}, "no_proj"),
            ({"target_modules": ["q_proj", "no_proj"]}, "targets no_proj, which matches nothing"),
            ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "gate_up_proj, which matches nothing"),
            ({"target_modules": ["lm_head"]}, "targets the output head"),
            ({"target_modules": ["embed_tokens"]}, "of type Embedding, which is no linear layer"),
        ],
    )
    def test_a_target_that_cannot_be_trained_is_named(self, lora: dict[str, Any], named: str):
        with pytest.raises(UsageError, match=named):
            adapter_on(make_model(tied=False, hidden_size=64), **lora)

    def test_the_head_computes_no_gradient_of_a_frozen_weight(self):
        model = make_model(tied=False, hidden_size=64)
        adapter = adapter_on(model)
        policy = Policy(model, temperature=1.0, chunk_tokens=8)
        logprobs_N, _ = policy(self.ids, torch.arange(19), self.ids[0, 1:20])
        chunked = logprobs_N.grad_fn
        assert chunked.needs_input_grad[:2] == (True, False)
        logprobs_N.sum().backward()
        assert all(tensor.grad is not None for tensor in adapter.tensors().values())
        assert all(tensor.grad is None for tensor in adapter.base_tensors().values())


def small_moe() -> Qwen3MoeForCausalLM:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, moe_intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, num_experts=4, num_experts_per_tok=2, initializer_range=0.2,
    )  # fmt: skip
    return Qwen3MoeForCausalLM(config).eval()


class TestFiles:
    @pytest.mark.parametrize(
        ("setting", "named"),
        [
            ({"use_dora": True}, "has DoRA"),
            ({"bias": "lora_only"}, "has a bias"),
            ({"rank_pattern": {"q_proj": 8}}, "has several ranks"),
            ({"peft_type": "IA3"}, "of type IA3"),
            ({"init_lora_weights": "pissa_niter_4"}, "has init_lora_weights pissa_niter_4"),
            ({"init_lora_weights": "olora"}, "has init_lora_weights olora"),
            ({"alora_invocation_tokens": [5]}, "has activation by tokens"),
            ({"layer_replication": [[0, 1]]}, "has repeated layers"),
            ({"use_qalora": True}, "has QALoRA"),
        ],
    )
    def test_an_adapter_of_another_kind_is_no_start(self, tmp_path: Path, setting: dict[str, Any], named: str):
        adapter = adapter_on(make_model(tied=True, hidden_size=64))
        write_adapter(tmp_path, adapter.saved_config() | setting, adapter.tensors(), trained_by="GRPO")
        with pytest.raises(UsageError, match=named):
            read_adapter(tmp_path)

    @pytest.mark.parametrize("init", [True, False, "gaussian", "eva"])
    def test_how_plain_matrices_began_does_not_matter(self, tmp_path: Path, init: bool | str):
        adapter = adapter_on(make_model(tied=True, hidden_size=64))
        config = adapter.saved_config() | {"init_lora_weights": init}
        write_adapter(tmp_path, config, adapter.tensors(), trained_by="GRPO")
        assert read_adapter(tmp_path)[0]["init_lora_weights"] == init

    def test_a_folder_without_an_adapter_is_named(self, tmp_path: Path):
        with pytest.raises(UsageError, match=r"the adapter .* cannot be read"):
            read_adapter(tmp_path)
        (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
        (tmp_path / "adapter_model.safetensors").write_text("not this")
        with pytest.raises(UsageError, match="is no adapter"):
            read_adapter(tmp_path)

    def test_the_digest_is_of_the_tensors(self, tmp_path: Path):
        first, second = (save_tiny_model(tmp_path / str(seed), seed=seed) for seed in (1, 2))
        assert base_digest_of(str(first)) != base_digest_of(str(second))
        tensors = load_file(second / "model.safetensors")
        save_file(tensors, first / "model.safetensors")
        assert base_digest_of(str(first)) == base_digest_of(str(second))
        (tmp_path / "empty").mkdir()
        with pytest.raises(UsageError, match=r"no checkpoint whose digest.*no model.safetensors"):
            base_digest_of(str(tmp_path / "empty"))

    def test_a_download_that_broke_off_is_completed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        """As where a tokenizer was loaded: the configuration is here, the weights are not."""
        whole, part = save_tiny_model(tmp_path / "whole"), tmp_path / "part"
        part.mkdir()
        asked: list[list[str]] = []

        def snapshot_download(name: str, *, allow_patterns: list[str]) -> str:
            asked.append(allow_patterns)
            return str(whole)

        monkeypatch.setattr(files, "checkpoint_folder", lambda _: part)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        assert base_digest_of("someone/model") == checkpoint_digest(whole)
        assert asked == [["*.safetensors", "*.safetensors.index.json", "config.json"]]
