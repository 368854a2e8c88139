"""Which version a request gets, and when a version is unloaded, with an engine client that only records."""

from types import SimpleNamespace
from typing import Any

import pytest

from grpo_rollout.weight_state import Push

# vLLM takes seconds to import, and its dependencies warn about each other.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


class Client:
    """Records the adapter of each request; a request ends when its generator is closed."""

    def __init__(self) -> None:
        self.adapters: list[str | None] = []

    async def generate(self, prompt: Any, params: Any, request_id: str, *, lora_request: Any = None):
        self.adapters.append(lora_request and lora_request.lora_name)
        while True:
            yield SimpleNamespace(outputs=[])


@pytest.fixture
def adapters():
    from vllm.config.lora import LoRAConfig

    from grpo_rollout.adapters import Adapters

    unloaded: list[list[int]] = []

    async def workers(call: str, ids: list[int]) -> list[int]:
        unloaded.append(ids)
        return [0]

    engine = SimpleNamespace(client=Client(), workers=workers)
    made = Adapters(engine, LoRAConfig(max_loras=2), SimpleNamespace(), SimpleNamespace(lora_requests={}))
    made.unloaded = unloaded
    made.client = engine.client
    return made


def push(adapters, version: int) -> int:
    request = adapters.start(Push(version, 7, version, 0.0, True, kind="lora"))
    adapters.publish()
    return request.lora_int_id


async def begun(adapters, asked: Any = None):
    """A request that has got its first output."""
    running = adapters.client.generate("prompt", None, "r", lora_request=asked)
    await anext(running)
    return running


async def test_requests_get_the_base_until_there_is_a_version_and_the_newest_from_then_on(adapters):
    await begun(adapters)
    for version in (1, 2):
        push(adapters, version)
        await begun(adapters)
        await begun(adapters, adapters.models.lora_requests["policy"])
    await begun(adapters, adapters.models.lora_requests["policy@7.1"])
    assert adapters.client.adapters == [None, "policy@7.1", "policy@7.1", "policy@7.2", "policy@7.2", "policy@7.1"]


async def test_a_version_is_unloaded_after_its_last_request(adapters):
    first = push(adapters, 1)
    running = [await begun(adapters), await begun(adapters)]
    push(adapters, 2)
    told: list[bool] = []
    adapters.on_unused = lambda: told.append(True)
    await running[0].aclose()
    await adapters.unload_unused()
    assert (told, adapters.unloaded) == ([], [])
    await running[1].aclose()
    await adapters.unload_unused()
    assert (told, adapters.unloaded) == ([True], [[first]])
    assert set(adapters.models.lora_requests) == {"policy", "policy@7.2"}


async def test_a_failed_version_is_unloaded_and_pushed_again_under_its_name_and_another_id(adapters):
    failed = adapters.start(Push(1, 7, 1, 0.0, True, kind="lora"))
    adapters.abandon()
    again = adapters.start(Push(2, 7, 1, 0.0, True, kind="lora"))
    adapters.publish()
    await adapters.unload_unused()
    assert adapters.unloaded == [[failed.lora_int_id]]
    assert failed.lora_name == again.lora_name
    assert adapters.newest is again


async def test_a_name_that_has_gone_since_it_was_looked_up_never_reaches_the_engine(adapters):
    """vLLM would look for its folder inside a step, and the engine would end."""
    from vllm.exceptions import VLLMNotFoundError

    push(adapters, 1)
    asked = dict(adapters.models.lora_requests)
    adapters.withdraw()
    assert adapters.models.lora_requests == {}
    for name in ("policy", "policy@7.1"):
        with pytest.raises(VLLMNotFoundError, match=name):
            await begun(adapters, asked[name])
    await begun(adapters)
    assert adapters.client.adapters == [None]


async def test_adapters_of_the_users_own_pass(adapters):
    from vllm.lora.request import LoRARequest

    push(adapters, 1)
    running = await begun(adapters, LoRARequest("theirs", 1, "/folder"))
    await running.aclose()
    assert adapters.client.adapters == ["theirs"]
