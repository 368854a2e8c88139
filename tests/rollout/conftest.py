"""Real rollout servers, and what tests do with them. Starting one costs half a minute, so tests share them."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import torch
from transformers import Qwen2ForCausalLM

from grpo_proto.client.clients import RolloutClient
from grpo_proto.messages.logprobs import GivenSequence, LogprobsResponse
from grpo_proto.messages.rollout import Prompt, RolloutRequest, RolloutResponse, Sampling
from tests.processes import ROLLOUT_ENVIRONMENT, Service, free_port, rollout_command, service
from tests.rollout import pace
from tests.rollout.pushing import Trainer
from tests.tiny_model import make_model, save_tiny_model
from tests.waiting import PATIENCE_S
from tests.warm_python import warm_vllm

TOKEN = "a-token-for-tests"


class Server:
    """A running server and the kind of model it serves."""

    def __init__(self, running: Service, *, tied: bool, dtype: torch.dtype, token: str | None = None):
        self.running, self.tied, self.dtype, self.token = running, tied, dtype, token
        self.url = running.url

    def model(self, seed: int) -> Qwen2ForCausalLM:
        """A model of the same shape with other weights. Seed 0 is what the server was started with."""
        return make_model(tied=self.tied, dtype=self.dtype, seed=seed)

    def client(self) -> RolloutClient:
        """A client that a server on a busy machine may keep waiting: two cores, shared by a dozen servers."""
        return RolloutClient(self.url, token=self.token, probe_timeout_s=PATIENCE_S)

    def trainer(self, **options: object) -> Trainer:
        return Trainer(self.url, token=self.token, **options)  # type: ignore[arg-type]

    def slow(self) -> AbstractContextManager[None]:
        """Its engine takes `pace.STEP_S` more for each step, from here to the end of the context."""
        return pace.slow(self.running.log.with_name("slow"))

    async def sample(self, **options: object) -> RolloutResponse:
        async with self.client() as client:
            return await client.rollouts(rollout_request(**options))

    async def heal(self, seed: int = 1) -> None:
        """A new session that takes over and commits, whatever the state is."""
        async with self.trainer(trainer_id="healer") as trainer:
            await trainer.join(take_over=True)
            await trainer.push(self.model(seed), 1)


def rollout_request(
    *,
    prompts: int | list[list[int]] = 2,
    n: int = 2,
    max_tokens: int = 16,
    request_id: str = "r",
    seeds: bool = True,
    sampling: dict[str, object] | None = None,
    **options: object,
) -> RolloutRequest:
    """Prompts of one letter each, or these."""
    token_ids = [[5 + number] for number in range(prompts)] if isinstance(prompts, int) else prompts
    return RolloutRequest(
        request_id=request_id,
        n=n,
        prompts=[Prompt(token_ids=ids, seed=number if seeds else None) for number, ids in enumerate(token_ids)],
        sampling=Sampling(max_tokens=max_tokens, **(sampling or {})),
        **options,
    )


def logprob_error(model: Qwen2ForCausalLM, response: RolloutResponse) -> float:
    """The largest difference between the server's logprobs and those of `model` for the same tokens."""
    worst = 0.0
    for group in response.groups:
        for completion in group.completions:
            ids = torch.tensor([group.prompt_token_ids + completion.token_ids])
            with torch.no_grad():
                logprobs = model(ids).logits[0].float().log_softmax(-1)
            sampled = torch.tensor(completion.token_ids)[:, None]
            ours = logprobs[len(group.prompt_token_ids) - 1 : -1].gather(1, sampled)[:, 0]
            worst = max(worst, float((ours - torch.tensor(completion.logprobs)).abs().max()))
    return worst


def given(length: int, num_prompt_tokens: int) -> GivenSequence:
    """A sequence of letters that differ."""
    return GivenSequence(token_ids=[5 + n * n % 20 for n in range(length)], num_prompt_tokens=num_prompt_tokens)


def given_error(model: Qwen2ForCausalLM, sequences: Sequence[GivenSequence], response: LogprobsResponse) -> float:
    """The largest difference between the server's logprobs of given tokens and those of `model`."""
    worst = 0.0
    for sequence, scored in zip(sequences, response.sequences, strict=True):
        with torch.no_grad():
            logprobs = model(torch.tensor([sequence.token_ids])).logits[0, :-1].float().log_softmax(-1)
        ours = logprobs.gather(1, torch.tensor(sequence.token_ids)[1:, None])[sequence.num_prompt_tokens - 1 :, 0]
        worst = max(worst, float((ours - torch.tensor(scored.logprobs)).abs().max()))
    return worst


async def until_running(server: Server, count: int = 1, timeout_s: float = 30.0, *, waiting: bool = True) -> None:
    """Wait until vLLM's scheduler has at least `count` sequences, running or `waiting`, or with 0 until it has none."""
    gauges = ("vllm:num_requests_running", "vllm:num_requests_waiting{")[: 1 + waiting]
    deadline = time.monotonic() + timeout_s
    async with metrics_client(server) as http:
        while time.monotonic() < deadline:
            now = await total_of(http, *gauges)
            if now >= count if count else now == 0:
                return
            await asyncio.sleep(0.02)
    raise AssertionError(f"{now} sequences are running")


async def tokens_sampled(server: Server) -> float:
    """Count the tokens that vLLM has sampled since the start, those of sequences that were aborted later too."""
    async with metrics_client(server) as http:
        return await total_of(http, "vllm:generation_tokens_total")


def metrics_client(server: Server) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=PATIENCE_S, verify=False)  # noqa: S501 (no TLS here)


async def total_of(http: httpx.AsyncClient, *prefixes: str) -> float:
    """The sum of the server's metrics that begin with one of `prefixes`."""
    lines = (await http.get("/metrics")).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(prefixes))


def long_request(request_id: str, *, prompts: int = 32, **options: object) -> RolloutRequest:
    """More long sequences than run at once: with the default, many seconds of work on any machine."""
    return rollout_request(prompts=prompts, n=64, max_tokens=250, request_id=request_id, **options)


@asynccontextmanager
async def in_flight(server: Server, request: RolloutRequest) -> AsyncIterator[asyncio.Task]:
    async with server.client() as client:
        task = asyncio.create_task(client.rollouts(request))
        seen = asyncio.create_task(until_running(server))
        try:
            await asyncio.wait((task, seen), return_when=asyncio.FIRST_COMPLETED)
            if not seen.done():
                raise AssertionError(f"{request.request_id} ended before it was seen to run: {task.result()!r:.200}")
            await seen
            yield task
        finally:
            for one in (seen, task):
                one.cancel()
            await asyncio.wait((seen, task))
    await until_running(server, 0)


@contextmanager
def started(
    folder: Path,
    *flags: str,
    tied: bool,
    dtype: torch.dtype,
    token: str | None = None,
    weights: Qwen2ForCausalLM | None = None,
) -> Iterator[Server]:
    """A server on a model of its own, which may not be live yet. It is stopped at the end. `weights`: its weights."""
    model = save_tiny_model(folder / "model", tied=tied, dtype=dtype)
    if weights is not None:
        weights.save_pretrained(model)
    port = free_port()
    environment = ROLLOUT_ENVIRONMENT | {pace.VARIABLE: str(folder / "slow")}
    environment |= {"GRPO_API_TOKEN": token} if token else {}
    command = rollout_command(model, port, *flags)
    with service(command, folder / "log", port=port, environment=environment, python=warm_vllm) as running:
        yield Server(running, tied=tied, dtype=dtype, token=token)
