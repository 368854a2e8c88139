"""An engine of vLLM in this process, and a push to it through the real receiver and the trainer's real export."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from grpo_proto.lifeline import Host
from grpo_proto.messages.weights import BeginRequest, Rendezvous, SessionRequest
from grpo_proto.server.listening import listening_socket
from grpo_proto.transport import Digest, WeightGroup, plan_manifest
from grpo_trainer.config.run_config import ModelConfig
from grpo_trainer.engine.export import Export
from grpo_trainer.engine.model import load_policy, pieces_to_push
from grpo_trainer.engine.policy import Policy

from .models import VOCABULARY, Family

BUCKET_BYTES = 40_000
"""Small enough to cut every layer, and the experts of one layer, over several buckets."""
NUM_PROMPTS, PROMPT_LENGTH, NUM_TOKENS = 4, 9, 12


@contextmanager
def engine(folder: Path, family: Family, *, eager: bool = True) -> Iterator[Any]:
    """Without `eager` as a server has it: compiled, and in CUDA graphs on a GPU."""
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    llm = LLM(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype=str(family.dtype).removeprefix("torch."),
        enforce_eager=eager,
        max_model_len=128,
        max_num_seqs=8,
        enable_chunked_prefill=False,
        logprobs_mode="processed_logprobs",
        worker_extension_cls="grpo_rollout.receiver.ReceiverExtension",
        **family.flags,
    )
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()


def policy_of(folder: Path, family: Family, device: torch.device | str) -> Policy:
    """The model as the trainer has it."""
    config = ModelConfig(name_or_path=str(folder), dtype=str(family.dtype).removeprefix("torch."))
    policy = load_policy(config, temperature=1.0, zero3=None)
    # vLLM serves some families by transformers' own class, which it then wraps for everybody in the process.
    policy.model.get_decoder().do_not_compile = True
    return policy.to(device)


def call(llm: Any, name: str, *args: Any) -> Any:
    (answer,) = llm.collective_rpc("grpo_weights", args=(name, *args))
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer["ok"]


def push(llm: Any, policy: Policy, folder: Path, *, session: int) -> bool:
    """Returns whether every layer was probed. Raises RuntimeError with the worker's error."""
    pieces, absent = pieces_to_push(policy.model, str(folder))
    export = Export(
        "full",
        pieces,
        policy.model.state_dict(keep_vars=True),
        absent=absent,
        device=policy.model.device,
        gather=lambda _: nullcontext(),
        sharded=False,
        fills=True,
    )
    manifest = plan_manifest(export.listed(), BUCKET_BYTES)
    host = Host(listening_socket("127.0.0.1", 0), silence_s=0.0)
    crew = host.crew(session, 2)
    meet = Rendezvous(host="127.0.0.1", port=host.port)
    request = SessionRequest(
        session=session, trainer_id="families", rendezvous=meet, secret=crew.secret, rank_offset=1, world_size=2,
        backend="gloo", silence_s=0.0,
    )  # fmt: skip
    call(llm, "join", request.model_dump_json(), 30.0)
    group = WeightGroup(crew, rank=0, world_size=2, backend="gloo", timeout_s=30.0)
    while not call(llm, "joined", session):
        time.sleep(0.01)
    beginning = BeginRequest(session=session, version=1, manifest=manifest, absent=absent)
    call(llm, "begin", session, beginning.model_dump_json(), {"unknown": []})
    digest = Digest(max(manifest.bucket_bytes), "cpu")
    # All are on their way before the first is received: both sides are this thread.
    buckets = [bucket.clone() for bucket in export.buckets(manifest, "cpu")]
    transfers = [group.start_broadcast(bucket, timeout_s=30.0) for bucket in buckets]
    for bucket in buckets:
        digest.add(bucket)
    while call(llm, "receive", session) < len(buckets):
        pass
    for transfer in transfers:
        transfer.wait()
    received, probed = call(llm, "finish", session)
    assert received == digest.hexdigest()
    group.close()
    host.close()
    return bool(probed)


def sampled_logprobs(llm: Any) -> list[tuple[list[int], int, list[float]]]:
    """Sample: for each sequence its tokens, the length of the prompt, and the logprobs that the server reports."""
    from vllm import SamplingParams

    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(3, VOCABULARY, (NUM_PROMPTS, PROMPT_LENGTH), generator=generator).tolist()
    params = [
        SamplingParams(max_tokens=NUM_TOKENS, seed=number, logprobs=0, ignore_eos=True, detokenize=False)
        for number in range(NUM_PROMPTS)
    ]
    answers = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    found = []
    for prompt, answer in zip(prompts, answers, strict=True):
        completion = answer.outputs[0]
        logprobs = [step[token].logprob for step, token in zip(completion.logprobs, completion.token_ids, strict=True)]
        found.append((prompt + list(completion.token_ids), len(prompt), logprobs))
    return found


@torch.no_grad()
def differences(llm: Any, policy: Policy) -> torch.Tensor:
    """Of each sampled token, between the logprob that the server reports and the trainer's own."""
    parts = []
    for tokens, start, served in sampled_logprobs(llm):
        ids_L = torch.tensor(tokens, device=policy.model.device)
        own, _ = policy(ids_L[None], torch.arange(start - 1, len(tokens) - 1, device=ids_L.device), ids_L[start:])
        parts.append((own.cpu() - torch.tensor(served)).abs())
    return torch.cat(parts)
