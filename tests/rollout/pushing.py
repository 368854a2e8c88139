"""A trainer for tests: joins servers with the real client, and broadcasts real tensors to them."""

import asyncio
import time

import torch

from grpo_proto.client.clients import WeightsClient
from grpo_proto.lifeline import Crew, Host
from grpo_proto.messages.weights import (
    BeginRequest,
    CommitRequest,
    Manifest,
    Rendezvous,
    SessionRequest,
    TensorSpec,
    WeightState,
)
from grpo_proto.server.listening import listening_socket
from grpo_proto.transport import Digest, WeightGroup, plan_manifest, view_tensor

SMALL_BUCKET_BYTES = 40_000
"""Small enough to cut the tiny model into many buckets, and its fused layers with them."""


def new_session() -> int:
    return time.time_ns() // 1_000_000


def manifest_of(model: torch.nn.Module, bucket_bytes: int = SMALL_BUCKET_BYTES) -> Manifest:
    return plan_manifest(
        [(name, str(p.dtype).removeprefix("torch."), p.shape) for name, p in model.named_parameters()], bucket_bytes
    )


class Trainer:
    """One session with one or more servers."""

    def __init__(
        self,
        *urls: str,
        trainer_id: str = "tests",
        session: int | None = None,
        token: str | None = None,
        workers_of_each: int = 1,
    ):
        self.workers_of_each = workers_of_each
        self.clients = [WeightsClient(url, token=token) for url in urls]
        self.trainer_id = trainer_id
        self.session = session or new_session()
        self.host = Host(listening_socket("127.0.0.1", 0), silence_s=5.0)
        self.crew: Crew | None = None
        self.group: WeightGroup | None = None
        self.digest: Digest | None = None

    async def join(
        self,
        *,
        take_over: bool = False,
        lease_s: float = 600.0,
        deadline_s: float = 240.0,
        continues: int | None = None,
    ) -> WeightState:
        """Open the session on all servers while this side forms the group."""
        world_size = 1 + len(self.clients) * self.workers_of_each
        self.crew = self.host.crew(self.session, world_size)
        requests = [
            client.session(
                SessionRequest(
                    session=self.session,
                    trainer_id=self.trainer_id,
                    rendezvous=Rendezvous(host="127.0.0.1", port=self.host.port),
                    secret=self.crew.secret,
                    continues=continues,
                    rank_offset=1 + position * self.workers_of_each,
                    world_size=world_size,
                    backend="gloo",
                    take_over=take_over,
                    lease_s=lease_s,
                    deadline_s=deadline_s,
                )
            )
            for position, client in enumerate(self.clients)
        ]
        answers = asyncio.gather(*requests)
        forming = asyncio.create_task(
            asyncio.to_thread(
                WeightGroup,
                self.crew,
                rank=0,
                world_size=world_size,
                backend="gloo",
                timeout_s=deadline_s,
            )
        )
        # A refusal comes at once, and then nobody is left to form a group with.
        await asyncio.wait((answers, forming), return_when=asyncio.FIRST_COMPLETED)
        if answers.done() and answers.exception() is not None:
            forming.add_done_callback(lambda task: task.exception())
            raise answers.exception()  # type: ignore[misc]
        try:
            self.group = await forming
        except RuntimeError:
            # The server that did not come knows why.
            await answers
            raise
        return (await answers)[0]

    async def begin(self, version: int, manifest: Manifest, **options: float) -> None:
        request = BeginRequest(session=self.session, version=version, manifest=manifest, **options)
        await asyncio.gather(*(client.begin(request) for client in self.clients))

    async def send(
        self, model: torch.nn.Module, manifest: Manifest, *, buckets: range | None = None, timeout_s: float = 30.0
    ) -> str:
        """Broadcast these buckets (all of them when None). Returns the digest so far."""
        assert self.group is not None
        parameters = dict(model.named_parameters())
        largest = max(manifest.bucket_bytes)
        staging = torch.zeros(largest, dtype=torch.uint8)
        digest = Digest(largest, "cpu")
        for bucket in buckets if buckets is not None else range(len(manifest.bucket_bytes)):
            buffer = staging[: manifest.bucket_bytes[bucket]]
            for spec in manifest.tensors:
                if spec.bucket == bucket:
                    copy_into(buffer, spec, parameters[spec.name])
            digest.add(buffer)
            await asyncio.to_thread(self.group.broadcast, buffer, timeout_s=timeout_s)
        return digest.hexdigest()

    async def commit(self, version: int, digest: str, *, deadline_s: float = 60.0) -> WeightState:
        request = CommitRequest(session=self.session, version=version, digest=digest, deadline_s=deadline_s)
        return (await asyncio.gather(*(client.commit(request) for client in self.clients)))[0]

    async def push(
        self, model: torch.nn.Module, version: int, *, bucket_bytes: int = SMALL_BUCKET_BYTES, **options: float
    ) -> WeightState:
        """begin → all buckets → commit."""
        manifest = manifest_of(model, bucket_bytes)
        await self.begin(version, manifest, **options)
        return await self.commit(version, await self.send(model, manifest))

    async def state(self) -> WeightState:
        return await self.clients[0].state()

    async def close(self) -> None:
        """Leave like a process that ends: the group is gone, the server is not told."""
        if self.group is not None:
            await asyncio.to_thread(self.group.close)
        self.host.close()
        for client in self.clients:
            await client.close()

    async def __aenter__(self) -> "Trainer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def copy_into(buffer: torch.Tensor, spec: TensorSpec, parameter: torch.Tensor) -> None:
    with torch.no_grad():
        view_tensor(buffer, spec).copy_(parameter)
