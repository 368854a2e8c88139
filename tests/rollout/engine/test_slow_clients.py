"""Clients that send a byte at a time, many at once: others are served meanwhile, and the slow ones are cut off."""

import asyncio
import time

import pytest

from grpo_proto import ErrorBody
from grpo_rollout.options import DEFAULT_BODY_TIMEOUT_S
from tests.rollout.conftest import Server, logprob_error

pytestmark = [pytest.mark.vllm, pytest.mark.faults, pytest.mark.timeout(300), pytest.mark.xdist_group("engine")]

HEADERS, BODIES = 200, 60
DRIP_S = 0.5
PATIENCE_S = DEFAULT_BODY_TIMEOUT_S + 60.0

HEAD = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
UNFINISHED_HEAD = b"POST /v1/rollouts HTTP/1.1\r\nHost: localhost\r\nX-a: "
ROUTES = (b"/v1/rollouts", b"/v1/weights/begin", b"/v1/completions", b"/livez")
"""Ours, with and without effects, one of vLLM's, and one that answers before the body is there."""


class Loris:
    """One connection. `said` is what the server told it, `closed_after_s` when it was closed."""

    def __init__(self, url: str, begin: bytes, drip: bytes):
        self.host, _, port = url.removeprefix("http://").partition(":")
        self.port, self.begin, self.drip = int(port), begin, drip
        self.said = b""
        self.closed_after_s: float | None = None

    async def run(self) -> None:
        started_s = time.monotonic()
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            writer.write(self.begin)
            while True:
                try:
                    part = await asyncio.wait_for(reader.read(1 << 16), DRIP_S)
                except TimeoutError:
                    writer.write(self.drip)
                    await writer.drain()
                    continue
                if not part:
                    break
                self.said += part
        except (ConnectionResetError, BrokenPipeError):
            pass
        finally:
            writer.close()
        self.closed_after_s = time.monotonic() - started_s


async def test_sampling_and_pushes_go_on_while_others_drip(fresh: Server):
    headers = [Loris(fresh.url, UNFINISHED_HEAD, b"a") for _ in range(HEADERS)]
    bodies = [Loris(fresh.url, HEAD % ROUTES[number % len(ROUTES)], b" ") for number in range(BODIES)]
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        tasks = [group.create_task(loris.run()) for loris in (*headers, *bodies)]
        await asyncio.sleep(2.0)
        assert not any(task.done() for task in tasks), "they are all connected"
        async with fresh.trainer() as trainer:
            await trainer.join(take_over=True)
            for version in (1, 2):
                await trainer.push(fresh.model(seed=10 + version), version)
                response = await fresh.sample(request_id=f"beside-{version}")
                assert logprob_error(fresh.model(seed=10 + version), response) < 0.05
        async with fresh.client() as client:
            assert (await client.livez()).ok
        assert not all(task.done() for task in tasks[HEADERS:]), "bodies drip still"
    assert all(loris.said == b"" for loris in headers)
    early = [loris for loris, route in zip(bodies, ROUTES * BODIES, strict=False) if route == b"/livez"]
    assert all(loris.said.startswith(b"HTTP/1.1 ") for loris in early)
    for loris in bodies:
        if loris in early:
            continue
        head, _, body = loris.said.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 "), loris.said
        assert ErrorBody.model_validate_json(body).error.type == "slow_body"
