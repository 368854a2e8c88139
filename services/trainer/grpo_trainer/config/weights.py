"""The sections `weights` and `canary`: the push of new weights, and whether what is served is the policy."""

from typing import Literal

from pydantic import Field

from grpo_proto.messages.weights import KvCache

from .section import Seconds, Section


class WeightsConfig(Section):
    """The push of new weights to the rollout servers."""

    backend: Literal["auto", "gloo", "nccl"] = Field(
        "auto",
        description="auto: nccl between GPUs; gloo without a GPU, on a shared GPU, or when NCCL's versions differ.",
    )
    host: str = Field(
        "127.0.0.1",
        description="Address of the trainer as the rollout servers see it; with gloo, its interface carries the data.",
    )
    port: int = Field(
        0,
        ge=0,
        le=65535,
        description="Port of the rendezvous; 0: any free port. Data connections take ports of the system's range "
        "(net.ipv4.ip_local_port_range).",
    )
    bucket_mib: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="Size of a broadcast, which a larger tensor exceeds; absent: a sixteenth of the weights, from 24 "
        "MiB to 64 (gloo) or 256 (nccl).",
    )
    in_flight: Literal["keep", "wait"] = Field(
        "keep",
        description="Sequences in flight at a push: the new weights go on with them (keep), or the push waits.",
    )
    kv_cache: KvCache = Field(
        "recompute",
        description="At a push, recompute the KV cache of running sequences under the new weights (exact), or keep it.",
    )
    bucket_timeout_s: Seconds = Field(
        30.0,
        description="Limit for forming the group, and for a broadcast; over gloo in proportion for more than 64 MiB.",
    )
    silence_s: float = Field(
        5.0,
        ge=0.0,
        le=3600.0,
        description="A member that is silent for so long in a push is dead; 0: none is, as for a debugger.",
    )
    commit_timeout_s: Seconds = Field(120.0, description="Limit for verifying a push and putting it in place.")
    push_deadline_s: Seconds = Field(300.0, description="Limit of one push, repetitions included.")
    lease_s: Seconds = Field(600.0, description="Time after our last call in which the servers refuse other trainers.")
    take_over: bool = Field(False, description="Fence off another trainer whose lease still runs.")


class CanaryConfig(Section):
    """Compare the logprobs of the served policy with the trainer's own."""

    steps: int = Field(10, ge=0, description="Check every so many steps and after the first push; 0: only after it.")
    num_prompts: int = Field(4, ge=1, description="Prompts that span the lengths of the run's sequences.")
    max_tokens: int = Field(32, ge=1, description="Sampled and compared tokens of each prompt.")
    max_logprob_difference: float | None = Field(
        None,
        gt=0.0,
        description="Stop beyond this mean difference; absent: 0.1 bf16, 0.01 fp32 on a GPU, 0.02 and 1e-4 on a CPU.",
    )
