"""Which way weights travel: over NCCL where it can work, over Gloo elsewhere, and who is told why."""

import ctypes
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from tests.trainer.made_run_file import write_run_file
from transformers import Qwen2Config, Qwen3MoeConfig, Qwen3MoeForCausalLM

from grpo_proto import BeginRequest
from grpo_proto.messages.weights import Backend, Kind, KvCache
from grpo_proto.transport import gpu_uuid, nccl_version, plan_manifest
from grpo_trainer import dry_run
from grpo_trainer.config.run_config import RunConfig
from grpo_trainer.config.weights import WeightsConfig
from grpo_trainer.errors import UsageError
from grpo_trainer.fleet import push as stage
from grpo_trainer.fleet.event_loop import EventLoopThread
from grpo_trainer.fleet.fleet import Fleet, Replica
from grpo_trainer.fleet.push import WeightPusher, _send
from grpo_trainer.fleet.push_backend import choose_backend
from grpo_trainer.fleet.push_plan import LARGEST_MIB, MIB
from grpo_trainer.ranks.stop_signal import StopSignal

from .test_fleet import info

OURS = {"gpu": "GPU-ours", "nccl": "2.30.7"}
ON_GPU = {"device": "cuda", "gpus": ["GPU-theirs"], "nccl_version": "2.30.7"}


def member(**changes: object) -> Replica:
    (replica,) = Fleet(["http://rollout:8000"], min_replicas=1).replicas
    replica.info = info(**(ON_GPU | changes))
    return replica


def test_between_gpus_over_nccl():
    assert choose_backend(WeightsConfig(), [member(), member(gpus=["GPU-a", "GPU-b"])], **OURS) == "nccl"


def test_a_server_that_does_not_say_is_trusted():
    """One of an earlier release: the same protocol, and nothing about its GPUs."""
    assert choose_backend(WeightsConfig(), [member(gpus=[], nccl_version=None)], **OURS) == "nccl"


@pytest.mark.parametrize(
    ("ours", "changes", "reason"),
    [
        (OURS, {"gpus": ["GPU-other", "GPU-ours"]}, "uses the same GPU"),
        (OURS, {"nccl_version": "2.29.7"}, "has NCCL 2.29.7, this trainer 2.30.7"),
        (OURS, {"device": "cpu", "gpus": [], "nccl_version": None}, "has no GPU"),
        ({"gpu": None, "nccl": None}, {}, "this trainer has no GPU"),
    ],
)
def test_where_nccl_cannot_work_gloo_does(
    ours: dict[str, str | None], changes: dict[str, object], reason: str, caplog: pytest.LogCaptureFixture
):
    members = [member(), member(**changes)]
    with caplog.at_level(logging.WARNING):
        assert choose_backend(WeightsConfig(), members, **ours) == "gloo"
    assert (reason in caplog.text) == (ours["gpu"] is not None), "no warning where nobody expects a GPU"
    with pytest.raises(UsageError, match=reason):
        choose_backend(WeightsConfig(backend="nccl"), members, **ours)


def test_gloo_is_taken_when_asked_for():
    assert choose_backend(WeightsConfig(backend="gloo"), [member()], **OURS) == "gloo"


def test_a_dry_run_without_servers_chooses_by_this_machine_alone():
    assert choose_backend(WeightsConfig(), [], **OURS) == "nccl"
    assert choose_backend(WeightsConfig(), [], gpu=None, nccl=None) == "gloo"


LARGE = [(f"w{number}", "uint8", [MIB]) for number in range(8000)]


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_the_buckets_are_laid_out_for_the_backend_that_the_session_has(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
):
    """A trainer on a GPU pushes over Gloo, too: to servers that share its GPU, for instance."""

    request = begun(LARGE, backend, WeightsConfig(), monkeypatch)
    assert max(request.manifest.bucket_bytes) == LARGEST_MIB[backend] * MIB


@pytest.mark.parametrize(
    ("kv_cache", "kind", "sent"), [("recompute", "full", False), ("keep", "full", True), ("keep", "lora", False)]
)
def test_what_becomes_of_the_kv_cache_is_sent_only_where_it_is_kept(
    kv_cache: KvCache, kind: Kind, sent: bool, monkeypatch: pytest.MonkeyPatch
):
    """A server from before the setting refuses a field that it does not have, and every version of an adapter has keys
    of its own."""
    request = begun(LARGE[:2], "gloo", WeightsConfig(kv_cache=kv_cache), monkeypatch, kind=kind)
    assert (request.kind, request.kv_cache == "keep") == (kind, sent)
    assert ("kv_cache" in request.model_dump_json()) == sent
    assert BeginRequest.model_validate_json(request.model_dump_json()) == request


def test_an_adapter_is_announced_with_its_configuration_and_its_model(monkeypatch: pytest.MonkeyPatch):
    request = begun(LARGE[:2], "gloo", WeightsConfig(), monkeypatch, kind="lora")
    assert (request.kind, request.peft_config, request.base_digest) == ("lora", {"r": 4}, "ab" * 32)


def begun(
    tensors: list[tuple[str, str, list[int]]],
    backend: Backend,
    config: WeightsConfig,
    monkeypatch: pytest.MonkeyPatch,
    *,
    kind: Kind = "full",
) -> BeginRequest:
    """What a pusher says at the begin of a push."""
    requests: list[BeginRequest] = []

    async def begin(request: BeginRequest) -> None:
        requests.append(request)

    class Pusher(WeightPusher):
        def _session_with(self, *_: object) -> Any:
            return SimpleNamespace(number=7, group=SimpleNamespace(backend=backend), begin=begin)

    monkeypatch.setattr(stage, "choose_backend", lambda *_, **__: backend)
    of_kind: dict[str, Any] = {"peft_config": None, "base_digest": None}
    if kind == "lora":
        of_kind = {"peft_config": {"r": 4}, "base_digest": "ab" * 32}
    export: Any = SimpleNamespace(kind=kind, listed=lambda: tensors, absent=[], device=torch.device("cuda"), **of_kind)
    with EventLoopThread() as loop:
        fleet = Fleet([], min_replicas=0)
        pusher = Pusher(fleet, loop, config, trainer_id="t", stop=StopSignal(), has_heartbeat=lambda: True)
        manifest = pusher.open(1, export, 60.0)
    [request] = requests
    assert request.manifest == manifest
    return request


@pytest.mark.parametrize(("members", "backend"), [([{}], "nccl"), ([{}, {"gpus": ["GPU-ours"]}], "gloo"), ([], "nccl")])
def test_a_dry_run_lays_out_the_buckets_that_a_push_to_its_servers_would_have(
    members: list[dict[str, object]], backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dry_run, "gpu_uuid", lambda: OURS["gpu"])
    monkeypatch.setattr(dry_run, "nccl_version", lambda: OURS["nccl"])
    shape = {"vocab_size": 100, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 48}
    Qwen2Config(**shape, num_attention_heads=16, num_key_value_heads=16).save_pretrained(tmp_path / "large")
    run = yaml.safe_load(write_run_file(tmp_path, rollout={}).read_text()) | {
        "model": {"name_or_path": str(tmp_path / "large")}
    }
    planned = dry_run.ModelWithoutWeights.of(RunConfig.model_validate(run))
    fleet: Any = SimpleNamespace(answered=[member(**changes) for changes in members])
    line, memory = dry_run._push(planned, fleet, "full")
    assert f"over {backend} in" in line[1]
    largest_mib = float(line[1].split()[-2])
    assert LARGEST_MIB[backend] - 32 < largest_mib <= LARGEST_MIB[backend], "a layer has weights of up to 32 MiB"
    place = "on the GPU of rank 0 and of each worker" if backend == "nccl" else "of CPU memory"
    assert memory[1].startswith(f"{2 * largest_mib / 1024:.2f} GiB {place}")


def test_a_dry_run_counts_experts_one_by_one_and_what_zero3_gathers(tmp_path: Path):
    """They are one parameter in transformers, which ZeRO-3 gathers as a whole, and many tensors in the checkpoint."""
    config = Qwen3MoeConfig(
        vocab_size=100, hidden_size=256, moe_intermediate_size=1024, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, num_experts=64, num_experts_per_tok=2,
    )  # fmt: skip
    Qwen3MoeForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path / "experts")
    run = yaml.safe_load(write_run_file(tmp_path, rollout={}).read_text()) | {
        "model": {"name_or_path": str(tmp_path / "experts")},
        "weights": {"backend": "gloo"},
        "deepspeed": {"zero_stage": 3},
    }
    planned = dry_run.ModelWithoutWeights.of(RunConfig.model_validate(run))
    line, memory = dry_run._push(planned, SimpleNamespace(answered=[]), "full")  # type: ignore[arg-type]
    assert line[1].endswith("the largest of 24.0 MiB")
    assert memory[1] == "0.05 GiB of CPU memory in rank 0 and each worker for buffers, 0.06 on every rank to gather"


def test_the_setting_names_the_largest_buckets():
    told = WeightsConfig.model_fields["bucket_mib"].description
    assert all(f"{mib} ({backend})" in str(told) for backend, mib in LARGEST_MIB.items())


def test_what_this_process_says_of_itself():
    assert (gpu_uuid() is None) == (not torch.cuda.is_available())
    assert (nccl_version() is None) == (torch.version.cuda is None)


@pytest.mark.parametrize(("in_a_file", "said"), [(True, "2.30.7"), (False, "2.29.7")])
def test_the_version_of_nccl_is_that_of_the_library_and_not_of_torch_s_header(
    in_a_file: bool, said: str, monkeypatch: pytest.MonkeyPatch
):
    class Library:
        def __init__(self, name: str, *, mode: int):
            assert mode & os.RTLD_NOLOAD, "another library than torch's would be loaded"
            if not in_a_file:
                raise OSError(f"{name}: cannot open shared object file")

        def ncclGetVersion(self, code: object) -> int:
            ctypes.cast(code, ctypes.POINTER(ctypes.c_int))[0] = 23007
            return 0

    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 29, 7))
    monkeypatch.setattr(ctypes, "CDLL", Library)
    assert nccl_version() == said


@pytest.mark.parametrize(
    ("backend", "zero_stage", "in_turns"), [("nccl", 3, True), ("nccl", 2, False), ("gloo", 3, False)]
)
def test_under_zero3_a_broadcast_over_nccl_ends_before_the_next_gather(backend: str, zero_stage: int, in_turns: bool):
    """That gather waits for all that the GPU does, without end for a broadcast to a server that is gone."""
    happened: list[str] = []

    def buckets(manifest: object, device: object) -> Iterator[torch.Tensor]:
        for number in (1, 2):
            happened.append(f"gather {number}")
            yield torch.zeros(8, dtype=torch.uint8)

    export = SimpleNamespace(sharded=zero_stage == 3, device="cpu", buckets=buckets)
    pusher = SimpleNamespace(
        session=SimpleNamespace(group=SimpleNamespace(backend=backend)),
        send=lambda bucket: happened.append("send"),
        arrived=lambda: happened.append("arrived"),
    )
    manifest = plan_manifest([("a", "uint8", [8]), ("b", "uint8", [8])], 8)
    assert _send(export, manifest, pusher)  # type: ignore[arg-type]
    between = ["arrived"] if in_turns else []
    assert happened == ["gather 1", "send", *between, "gather 2", "send", *between, "arrived"]
