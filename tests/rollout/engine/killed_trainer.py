"""A trainer that is killed in the middle of a push: joins the server URL, sends a bucket, says so, and waits."""

import asyncio
import sys

import torch

from tests.rollout.pushing import Trainer, manifest_of
from tests.tiny_model import make_model


async def begin(url: str) -> None:
    trainer = Trainer(url, trainer_id="killed")
    model = make_model(tied=True, dtype=torch.bfloat16, seed=1)
    await trainer.join(take_over=True)
    manifest = manifest_of(model)
    await trainer.begin(1, manifest)
    await trainer.send(model, manifest, buckets=range(1))
    print("a bucket is sent", flush=True)
    await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(begin(sys.argv[1]))
