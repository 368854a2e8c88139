"""The tables of TRL's and ms-swift's options: whole, with their defaults, and with settings that exist."""

import dataclasses
import json
from importlib.metadata import version
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_trainer.config.keys import Keys
from grpo_trainer.config.open_r1_options import OPEN_R1
from grpo_trainer.config.peer_options import PeerOptions
from grpo_trainer.config.run_config import RunConfig
from grpo_trainer.config.swift_options import MS_SWIFT
from grpo_trainer.config.trl_options import TRL
from grpo_trainer.imports.launcher import CONFIGS_OF_TRL, LAUNCHER

SWIFT_FACTS = json.loads((Path(__file__).parent / "import_data/ms_swift_defaults.json").read_text())
EARLIER = {
    "TRL": {
        "warmup_ratio", "max_prompt_length", "vllm_device", "dataset_num_proc",
        "group_by_length", "overwrite_output_dir", "logging_dir", "use_liger_loss", "vllm_dtype",
        "vllm_enable_prefix_caching",
    },
    "ms-swift": {
        "vllm_device", "overwrite_output_dir", "use_lmdeploy", "lmdeploy_device", "lmdeploy_session_len",
        "lmdeploy_cache_max_entry_count", "gc_collect_after_offload",
    },
}  # fmt: skip
"""Options of earlier versions."""


@pytest.fixture(scope="module")
def facts() -> dict[str, dict[str, Any]]:
    """The peer's name → its options with their defaults."""
    from transformers import Seq2SeqTrainingArguments
    from trl import GRPOConfig, ModelConfig
    from trl.scripts.grpo import GRPOScriptArguments
    from trl.scripts.utils import DatasetMixtureConfig

    classes = (Seq2SeqTrainingArguments, GRPOConfig, ModelConfig, GRPOScriptArguments, DatasetMixtureConfig)
    fields = {field.name: field for one in classes[1:] for field in dataclasses.fields(one)}
    trl = {
        name: None if field.default is dataclasses.MISSING else field.default
        for name, field in fields.items()
    }  # fmt: skip
    return {"TRL": trl, "ms-swift": SWIFT_FACTS["defaults"]}


PEERS = pytest.mark.parametrize("peer", [TRL, MS_SWIFT], ids=lambda peer: peer.name)


@PEERS
def test_every_option_is_in_the_table_once(peer: PeerOptions, facts: dict[str, dict[str, Any]]):
    assert peer.known - set(peer.older) - EARLIER[peer.name] - facts[peer.name].keys() == set()
    assert facts[peer.name].keys() - peer.known == set()
    rows = (peer.settings, peer.computed, peer.server_flags, peer.not_needed, peer.not_here)
    for one, other in combinations(rows, 2):
        assert not one.keys() & other.keys()
    assert all(now in peer.known for now in peer.older.values())


@PEERS
def test_defaults_are_those_of_the_version_that_is_named(peer: PeerOptions, facts: dict[str, dict[str, Any]]):
    for option in {*peer.settings, *peer.computed, *peer.server_flags} - EARLIER[peer.name]:
        assert peer.default(option) == getattr(facts[peer.name][option], "value", facts[peer.name][option]), option
    assert {"TRL": version("trl"), "ms-swift": SWIFT_FACTS["version"]}[peer.name] == peer.version


@pytest.mark.parametrize("peer", [TRL, OPEN_R1, MS_SWIFT])
def test_settings_of_a_table_exist(peer: PeerOptions):
    known = Keys(RunConfig).known
    for option, (setting, _) in {**peer.settings, **peer.computed, **LAUNCHER.computed}.items():
        assert setting in known, option


def test_accelerate_configurations_are_those_that_trl_brings():
    folder = Path(find_spec("trl").origin).parent / "accelerate_configs"
    assert {file.stem for file in folder.glob("*.yaml")} == CONFIGS_OF_TRL.keys()
    for name, (processes, shards) in CONFIGS_OF_TRL.items():
        content = yaml.safe_load((folder / f"{name}.yaml").read_text())
        assert processes == (1 if content["distributed_type"] == "NO" else content["num_processes"])
        stage = (content.get("deepspeed_config") or {}).get("zero_stage")
        assert shards == (f"zero{stage}" if stage is not None else "fsdp" if name.startswith("fsdp") else None)
