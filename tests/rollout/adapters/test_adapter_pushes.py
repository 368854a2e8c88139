"""Adapters into a real engine: what each request samples from, what a push disturbs, what a failed push leaves."""

import asyncio
from typing import Any

import httpx
import pytest

from grpo_proto.checkpoint_files import checkpoint_digest, checkpoint_folder
from grpo_proto.messages.rollout import RolloutResponse
from grpo_proto.messages.weights import AbortRequest, CloseRequest, WeightState
from tests.rollout.adapters.adapter import Adapter, AdapterTrainer, make_base
from tests.rollout.adapters.asking import (
    complete,
    finish_reasons,
    models,
    num_adapters,
    refused,
    token_versions,
    versions_in,
)
from tests.rollout.conftest import Server, in_flight, logprob_error, long_request, until_running
from tests.rollout.pushing import manifest_of, new_session
from tests.tiny_model import make_model
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.xdist_group("stack")]
FP32_BOUND = 1e-5


def every_second(answer: RolloutResponse) -> RolloutResponse:
    """Completions of a long request, few enough to compute them here."""
    groups = [group.model_copy(update={"completions": group.completions[::2]}) for group in answer.groups]
    return answer.model_copy(update={"groups": groups})


async def assert_served(server: Server, adapter: Adapter) -> None:
    """A request of nobody's session gets this adapter."""
    assert logprob_error(adapter.model, await server.sample(prompts=4, n=4, max_tokens=24)) <= FP32_BOUND


class TestFirst:
    """On a base that no other test of this file has served adapters on; it stands first for that."""

    async def test_the_base_and_two_versions_in_one_batch(self, server: Server, trainer: AdapterTrainer):
        """All slots are in use: vLLM's kernels would sample the base's sequences from the last slot."""
        first, second = Adapter(1), Adapter(2)
        async with server.client() as client:
            with server.slow():
                answers = [asyncio.create_task(client.rollouts(long_request("base", prompts=1)))]
                await until_running(server)
                for version, adapter in ((1, first), (2, second)):
                    state = await trainer.push_adapter(adapter, version)
                    assert (state.state, state.version) == ("current", version)
                    request = long_request(f"v{version}", prompts=1, session=trainer.session, min_version=version)
                    answers.append(asyncio.create_task(client.rollouts(request)))
                    await asyncio.sleep(0.3)
                assert not any(answer.done() for answer in answers)
            base, of_first, of_second = await asyncio.gather(*answers)
        for version, model, answer in ((0, make_base(), base), (1, first.model, of_first),
                                       (2, second.model, of_second)):  # fmt: skip
            assert versions_in(answer) == {version}
            assert finish_reasons(answer) <= {"stop", "length"}
            assert logprob_error(model, every_second(answer)) <= FP32_BOUND
        assert logprob_error(second.model, every_second(of_first)) > 0.1


class TestRequests:
    async def test_each_version_serves_new_requests(self, server: Server, trainer: AdapterTrainer):
        for version, adapter in ((1, Adapter(3)), (2, Adapter(4, rank=64)), (3, Adapter(5, use_rslora=True))):
            await trainer.push_adapter(adapter, version)
            answer = await server.sample(prompts=3, n=2, session=trainer.session, min_version=version)
            assert versions_in(answer) == {version}
            assert logprob_error(adapter.model, answer) <= FP32_BOUND
            await assert_served(server, adapter)

    async def test_a_version_to_come_is_refused(self, server: Server, trainer: AdapterTrainer):
        with refused(409, "no_weights_yet"):
            await server.sample(session=trainer.session)
        await trainer.push_adapter(Adapter(3), 1)
        with refused(409, "version_behind"):
            await server.sample(session=trainer.session, min_version=2)

    async def test_vllms_routes_get_the_newest_version_by_every_name(self, server: Server, trainer: AdapterTrainer):
        await trainer.push_adapter(Adapter(6), 1)
        await trainer.push_adapter(Adapter(7), 2)
        async with server.client() as client:
            served_name = (await client.info()).model
        answers = [await complete(server, name) for name in
                   (None, served_name, "policy", f"policy@{trainer.session}.2")]  # fmt: skip
        logprobs = [answer.json()["choices"][0]["logprobs"]["token_logprobs"] for answer in answers]
        assert all(other == logprobs[0] for other in logprobs[1:])
        assert (await complete(server, f"policy@{trainer.session}.9")).status_code == 404
        assert (await complete(server, "policy")).json()["model"] == "policy"

    async def test_the_token_route_names_the_adapters_version(self, server: Server, trainer: AdapterTrainer):
        await trainer.push_adapter(Adapter(6), 1)
        await trainer.push_adapter(Adapter(7), 2)
        assert await token_versions(server) == [[("2", 8)]] * 2

    async def test_a_version_in_use_may_be_named_and_is_unloaded_after(self, server: Server, trainer: AdapterTrainer):
        await trainer.push_adapter(Adapter(8), 1)
        old = f"policy@{trainer.session}.1"
        with server.slow():
            async with in_flight(server, long_request("old", prompts=1, session=trainer.session)):
                await trainer.push_adapter(Adapter(9), 2)
                assert old in await models(server)
                assert (await complete(server, old)).status_code == 200
        for _ in range(100):
            if old not in await models(server):
                break
            await asyncio.sleep(0.05)
        assert (await complete(server, old)).status_code == 404

    async def test_many_pushes_leave_one_version(self, server: Server, trainer: AdapterTrainer):
        adapters = [Adapter(10), Adapter(11)]
        for version in range(1, 7):
            await trainer.push_adapter(adapters[version % 2], version)
            answer = await server.sample(prompts=1, n=2, session=trainer.session)
            assert versions_in(answer) == {version}
            assert logprob_error(adapters[version % 2].model, answer) <= FP32_BOUND
        assert await num_adapters(server) == 1
        assert {name for name in await models(server) if "@" in name} == {f"policy@{trainer.session}.6"}


class TestWhilePushing:
    async def test_sampling_goes_on_and_nothing_ends(self, server: Server, trainer: AdapterTrainer):
        await trainer.push_adapter(Adapter(12), 1)
        adapter = Adapter(13)
        async with server.client() as client:
            with server.slow():
                running = asyncio.create_task(client.rollouts(long_request("on", prompts=1, session=trainer.session)))
                await until_running(server)
                state = await trainer.begin_adapter(adapter, 2, bucket_timeout_s=300.0, deadline_s=300.0)
                assert (state.state, state.version) == ("current", 1)
                async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=PATIENCE_S) as http:
                    assert (await http.get("/readyz")).status_code == 200
                # No bucket has come yet: the workers look for it and sample meanwhile.
                answer = await server.sample(request_id="during", session=trainer.session)
                assert versions_in(answer) == {1}
                await trainer.commit(2, await trainer.send(adapter, adapter.manifest()))  # type: ignore[arg-type]
                assert not running.done()
            assert versions_in(await server.sample(request_id="after", session=trainer.session)) == {2}
            answer = await running
        assert finish_reasons(answer) <= {"stop", "length"}
        assert versions_in(answer) == {1}

    async def test_versions_beyond_memory_are_refused_until_sequences_end(
        self, server: Server, trainer: AdapterTrainer
    ):
        adapters = [Adapter(20 + number) for number in range(3)]
        async with server.client() as client:
            running = []
            with server.slow():
                for version in (1, 2):
                    await trainer.push_adapter(adapters[version - 1], version)
                    request = long_request(f"held{version}", prompts=1, session=trainer.session)
                    running.append(asyncio.create_task(client.rollouts(request)))
                    await until_running(server, request.n * (version - 1) + 1)  # of this version, too
                with refused(429, "versions_in_use"):
                    await trainer.begin_adapter(adapters[2], 3)
                waiting = asyncio.create_task(complete(server, "foreign-0"))
                await asyncio.sleep(0.3)
                assert not waiting.done()  # no slot is free
            answers = [await task for task in running]
            assert (await waiting).status_code == 200
        for version, answer in enumerate(answers, 1):
            assert versions_in(answer) == {version}
            assert logprob_error(adapters[version - 1].model, every_second(answer)) <= FP32_BOUND
        await trainer.push_adapter(adapters[2], 3)
        await assert_served(server, adapters[2])

    async def test_a_version_that_vllm_has_evicted_comes_back(self, server: Server, trainer: AdapterTrainer):
        """vLLM then loads it inside a step, where a failure would end the engine, or scale it twice."""
        adapter = Adapter(26, lora_alpha=24)
        await trainer.push_adapter(adapter, 1)
        for _ in range(2):
            for name in ("foreign-0", "foreign-1"):
                assert (await complete(server, name)).status_code == 200
            await assert_served(server, adapter)


class TestRefusedBeforeAnyByte:
    async def test_it_changes_nothing(self, server: Server, trainer: AdapterTrainer):
        refusals: list[tuple[int, str, dict[str, Any], dict[str, Any]]] = [
            (422, "adapter_config", {}, {"peft_config": None}),
            (422, "adapter_config", {"use_dora": True}, {}),
            (422, "adapter_config", {"modules_to_save": ["lm_head"]}, {}),
            (422, "adapter_config", {"bias": "all"}, {}),
            (422, "adapter_config", {"r": 128}, {}),
            (422, "adapter_mismatch", {"r": 16}, {}),
            (422, "adapter_mismatch", {}, {"manifest": manifest_of(make_model(tied=False))}),
            (409, "other_base", {}, {"base_digest": "0" * 64}),
            (409, "other_base", {}, {"base_digest": None}),
        ]
        adapter = Adapter(14)
        await trainer.push_adapter(adapter, 1)
        for status, type, config, fields in refusals:
            with refused(status, type):
                await trainer.begin_adapter(adapter, 2, **({"peft_config": adapter.config | config} | fields))
            state = await trainer.state()
            assert (state.state, state.version, state.reason) == ("current", 1, None), (type, config, fields)
        await assert_served(server, adapter)

    async def test_info_shows_what_a_trainer_compares(self, server: Server):
        async with server.client() as client:
            info = await client.info()
        assert info.adapters is not None
        assert (info.adapters.max_loras, info.adapters.max_lora_rank, info.adapters.max_cpu_loras) == (2, 64, 2)
        assert info.base_digest == checkpoint_digest(checkpoint_folder(info.model))

    async def test_older_versions_and_a_push_of_all_weights(self, server: Server, trainer: AdapterTrainer):
        adapter = Adapter(16)
        await trainer.push_adapter(adapter, 2)
        with refused(409, "old_version"):
            await trainer.begin_adapter(adapter, 2)
        with refused(409, "other_kind"):
            await trainer.begin(3, manifest_of(make_model(tied=False)))
        await assert_served(server, adapter)


async def until_failed(trainer: AdapterTrainer, timeout_s: float = 20.0) -> WeightState:
    async with asyncio.timeout(timeout_s):
        while True:
            state = await trainer.state()
            if state.reason is not None:
                return state
            await asyncio.sleep(0.05)


class TestFailedPushes:
    async def test_a_wrong_digest(self, server: Server, trainer: AdapterTrainer):
        before, after = Adapter(30), Adapter(31)
        await trainer.push_adapter(before, 1)
        await trainer.begin_adapter(after, 2)
        await trainer.send(after, after.manifest())  # type: ignore[arg-type]
        with refused(422, "digest_mismatch"):
            await trainer.commit(2, "0" * 64)
        state = await trainer.state()
        assert (state.state, state.version) == ("current", 1)
        await assert_served(server, before)
        await trainer.push_adapter(after, 2)
        await assert_served(server, after)
        assert await num_adapters(server) == 1

    async def test_an_abort_before_any_byte(self, server: Server, trainer: AdapterTrainer):
        before, after = Adapter(32), Adapter(33)
        await trainer.push_adapter(before, 1)
        await trainer.begin_adapter(after, 2)
        state = await trainer.clients[0].abort(AbortRequest(session=trainer.session, reason="on purpose"))
        assert (state.state, state.version, state.reason) == ("current", 1, "on purpose")
        await assert_served(server, before)

    @pytest.mark.faults
    async def test_a_trainer_that_stops_sending(self, server: Server, trainer: AdapterTrainer):
        before, after = Adapter(34), Adapter(35)
        await trainer.push_adapter(before, 1)
        async with server.client() as client:
            running = asyncio.create_task(client.rollouts(long_request("on", prompts=8, session=trainer.session)))
            await until_running(server)
            # More than passes between this and the first bucket while other tests have the cores.
            await trainer.begin_adapter(after, 2, bucket_timeout_s=4.0)
            await trainer.send(after, after.manifest(), buckets=range(1))  # type: ignore[arg-type]
            state = await until_failed(trainer)
            assert (state.state, state.version) == ("current", 1)
            assert "bucket 1" in state.reason
            answer = await running
        assert finish_reasons(answer) <= {"stop", "length"}
        with refused(409, "no_group"):
            await trainer.begin_adapter(after, 2)
        await assert_served(server, before)

    @pytest.mark.faults
    async def test_a_trainer_that_never_commits(self, server: Server, trainer: AdapterTrainer):
        before, after = Adapter(36), Adapter(37)
        await trainer.push_adapter(before, 1)
        await trainer.begin_adapter(after, 2, deadline_s=1.0)
        await trainer.send(after, after.manifest())  # type: ignore[arg-type]
        state = await until_failed(trainer)
        assert (state.state, state.version) == ("current", 1)
        assert "did not commit within 1 s" in state.reason
        await trainer.push_adapter(after, 2)
        await assert_served(server, after)

    @pytest.mark.faults
    async def test_a_trainer_that_dies_and_one_that_takes_over(self, server: Server):
        before, after = Adapter(38), Adapter(39)
        async with AdapterTrainer(server.url, trainer_id="a") as dead:
            await dead.join(take_over=True)
            await dead.push_adapter(before, 1)
            await dead.begin_adapter(after, 2, bucket_timeout_s=4.0)
            await dead.send(after, after.manifest(), buckets=range(1))  # type: ignore[arg-type]
        async with AdapterTrainer(server.url, trainer_id="b", session=new_session()) as trainer:
            state = await trainer.join(take_over=True)
            assert (state.state, state.version) == ("current", 1)
            await assert_served(server, before)
            with refused(409, "no_weights_yet"):
                await server.sample(session=trainer.session)
            await trainer.push_adapter(after, 1)
            await assert_served(server, after)

    async def test_closing_leaves_the_newest_version(self, server: Server, trainer: AdapterTrainer):
        adapter = Adapter(40)
        await trainer.push_adapter(adapter, 1)
        await trainer.begin_adapter(Adapter(41), 2)
        state = await trainer.clients[0].close_session(CloseRequest(session=trainer.session))
        assert (state.state, state.session) == ("current", None)
        await assert_served(server, adapter)
