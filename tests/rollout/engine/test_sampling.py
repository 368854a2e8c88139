"""`POST /v1/rollouts` against a real engine."""

import asyncio
import re

import httpx
import pytest

from grpo_proto.fingerprint import chat_template_fingerprint, tokenizer_fingerprint, vocabulary_fingerprint
from grpo_proto.messages.base import Message
from grpo_proto.messages.errors import ConflictError, DataError, ErrorBody, InfrastructureError
from grpo_proto.messages.rollout import Prompt, RolloutRequest, Sampling
from tests.rollout.conftest import Server, in_flight, logprob_error, long_request, tokens_sampled, until_running
from tests.tiny_model import CHAT_TEMPLATE, IM_END, IM_START, PAD, make_tokenizer
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.xdist_group("engine")]


def text_of(token_ids: list[int], *, ended: bool) -> str:
    """The text of a completion; `ended`: by its last token."""
    text = make_tokenizer().decode(token_ids[:-1] if ended else token_ids)
    while text.endswith(PAD):
        text = text.removesuffix(PAD)
    return text


class TestAnswer:
    async def test_shapes_versions_and_logprobs(self, fresh: Server):
        answer = await fresh.sample(prompts=3, n=4)
        assert [len(group.completions) for group in answer.groups] == [4, 4, 4]
        assert [group.prompt_token_ids for group in answer.groups] == [[5], [6], [7]]
        for group in answer.groups:
            for completion in group.completions:
                assert 0 < len(completion.token_ids) == len(completion.logprobs) <= 16
                assert completion.versions == [(1, len(completion.token_ids))]
                assert completion.finish_reason in ("stop", "length")
        assert logprob_error(fresh.model(1), answer) <= 0.02

    async def test_the_logprobs_are_of_the_distribution_sampled_from(self, fresh: Server):
        answer = await fresh.sample(sampling={"temperature": 0.5, "top_k": 1})
        assert all(lp == 0.0 for g in answer.groups for c in g.completions for lp in c.logprobs)

    async def test_logprobs_can_be_left_out(self, fresh: Server):
        answer = await fresh.sample(sampling={"logprobs": False})
        assert all(completion.logprobs is None for group in answer.groups for completion in group.completions)

    async def test_text_is_that_of_the_tokens_with_special_ones_but_without_the_end(self, fresh: Server):
        answer = await fresh.sample(prompts=4, n=8, max_tokens=60)
        completions = [completion for group in answer.groups for completion in group.completions]
        assert any(completion.finish_reason == "stop" for completion in completions)
        assert any(IM_START in completion.text for completion in completions)
        for completion in completions:
            assert completion.text == text_of(completion.token_ids, ended=completion.finish_reason == "stop")

    async def test_messages_go_through_the_chat_template(self, fresh: Server):
        messages = [Message(role="user", content="hi you")]
        request = RolloutRequest(
            request_id="chat",
            prompts=[Prompt(messages=messages), Prompt(token_ids=[7])],
            sampling=Sampling(max_tokens=2),
        )
        async with fresh.client() as client:
            answer = await client.rollouts(request)
        expected = make_tokenizer().apply_chat_template(
            [message.model_dump() for message in messages], add_generation_prompt=True, return_dict=False
        )
        assert [group.prompt_token_ids for group in answer.groups] == [expected, [7]]

    async def test_the_text_holds_the_stop_string_as_the_tokens_do(self, fresh: Server):
        answer = await fresh.sample(n=8, max_tokens=200, sampling={"stop": ["a", "e"]})
        stopped = [c for g in answer.groups for c in g.completions if c.finish_reason == "stop"]
        assert any(completion.text.endswith(("a", "e")) for completion in stopped)
        for completion in stopped:
            ended_by_eos = completion.token_ids[-1] == make_tokenizer().eos_token_id
            assert completion.text == text_of(completion.token_ids, ended=ended_by_eos)
            ordinary = make_tokenizer().decode(completion.token_ids[:-1], skip_special_tokens=True)
            assert not set("ae") & set(ordinary)

    @pytest.mark.parametrize(
        "sampling",
        [
            {"stop_token_ids": [make_tokenizer().convert_tokens_to_ids(IM_END)]},
            {"stop": [IM_END]},
            {"stop": [IM_END, "</answer>"]},
        ],
        ids=["its id", "its text", "its text beside another"],
    )
    async def test_a_special_token_stops_and_is_no_part_of_the_text(self, fresh: Server, sampling: dict):
        end = make_tokenizer().convert_tokens_to_ids(IM_END)
        answer = await fresh.sample(prompts=4, n=8, max_tokens=200, sampling=sampling)
        completions = [completion for group in answer.groups for completion in group.completions]
        assert any(completion.token_ids[-1] == end for completion in completions)
        for completion in completions:
            assert end not in completion.token_ids[:-1]
            assert completion.text == text_of(completion.token_ids, ended=completion.finish_reason == "stop")

    async def test_a_stop_string_may_hold_a_special_token(self, fresh: Server):
        answer = await fresh.sample(
            prompts=8, n=32, max_tokens=250, sampling={"stop": [f"{IM_START}{letter}" for letter in "abcdefghijkl"]}
        )
        texts = [completion.text for group in answer.groups for completion in group.completions]
        assert any(re.search(rf"{re.escape(IM_START)}[a-l]$", text) for text in texts)
        assert not any(re.search(rf"{re.escape(IM_START)}[a-l].", text) for text in texts)

    async def test_an_image_is_refused_by_a_model_without_vision(self, fresh: Server):
        async with fresh.client() as client:
            assert (await client.info()).max_images == 0
            prompt = Prompt(token_ids=[5], images=["AA=="])
            with pytest.raises(DataError, match="prompt 0 has 1 images; this server takes 0 a prompt"):
                await client.rollouts(RolloutRequest(request_id="image", prompts=[prompt]))

    async def test_a_stop_token_that_the_model_does_not_have_is_refused(self, fresh: Server):
        with pytest.raises(DataError, match="stop_token_ids holds token 5000; the vocabulary ends at 100"):
            await fresh.sample(sampling={"stop_token_ids": [5000]})

    async def test_a_logprob_that_is_nan_is_named(self, fresh: Server):
        broken = fresh.model(1)
        broken.model.norm.weight.data[0] = float("nan")
        async with fresh.trainer(trainer_id="breaker") as trainer:
            await trainer.join(take_over=True)
            await trainer.push(broken, 1)
        try:
            with pytest.raises(InfrastructureError, match="logprob 0 of completion 0 of prompt 0 is nan: the served"):
                await fresh.sample(prompts=1, n=1)
        finally:
            await fresh.heal()

    async def test_greedy_completions_are_all_the_same(self, fresh: Server):
        answer = await fresh.sample(prompts=1, n=4, sampling={"temperature": 0.0})
        assert len({tuple(completion.token_ids) for completion in answer.groups[0].completions}) == 1

    async def test_max_tokens_is_capped_to_what_the_context_leaves(self, fresh: Server):
        answer = await fresh.sample(prompts=[[5] * 250], n=1, max_tokens=1000, sampling={"temperature": 0.0})
        completion = answer.groups[0].completions[0]
        assert len(completion.token_ids) == 6
        assert completion.finish_reason == "length"


class TestSeeds:
    async def test_the_same_at_any_load(self, fresh: Server):
        alone = await fresh.sample(prompts=2, n=4, request_id="alone")
        crowd = [fresh.sample(prompts=6, n=8, request_id=f"c{number}", seeds=False) for number in range(3)]
        amid, *_ = await asyncio.gather(fresh.sample(prompts=2, n=4, request_id="amid"), *crowd)
        for one, other in zip(alone.groups, amid.groups, strict=True):
            assert [c.token_ids for c in one.completions] == [c.token_ids for c in other.completions]
            assert [c.logprobs for c in one.completions] == [
                pytest.approx(c.logprobs, abs=2e-2) for c in other.completions
            ]

    async def test_more_prompt_tokens_than_one_step_takes(self, fresh: Server):
        """vLLM would cut a prompt, and the engine would die of rewinding the CPU's generator of its seeds."""
        prompts = [[5 + number] * 200 for number in range(40)]
        answer = await fresh.sample(prompts=prompts, n=2, max_tokens=2)
        again = await fresh.sample(prompts=prompts[30:31], n=2, max_tokens=2)
        assert len(answer.groups) == 40
        assert len(again.groups) == 1

    async def test_completions_of_a_prompt_differ_and_so_do_neighbouring_seeds(self, fresh: Server):
        prompts = [Prompt(token_ids=[5], seed=seed) for seed in (7, 8)]
        request = RolloutRequest(request_id="s", n=4, prompts=prompts, sampling=Sampling(max_tokens=20))
        async with fresh.client() as client:
            answer = await client.rollouts(request)
        assert len({tuple(c.token_ids) for group in answer.groups for c in group.completions}) == 8

    async def test_without_a_seed_nothing_repeats(self, fresh: Server):
        first, second = [await fresh.sample(prompts=1, n=1, max_tokens=40, seeds=False) for _ in range(2)]
        assert first.groups[0].completions[0].token_ids != second.groups[0].completions[0].token_ids


class TestEnds:
    async def test_a_client_that_goes_away_aborts_its_sequences(self, fresh: Server):
        async with in_flight(fresh, long_request("gone")) as task:
            task.cancel()
            await until_running(fresh, 0)

    async def test_the_newest_of_two_requests_with_one_id_wins(self, fresh: Server):
        async with in_flight(fresh, long_request("twice")) as older:
            newer = await fresh.sample(request_id="twice")
            assert len(newer.groups) == 2
            with pytest.raises(ConflictError) as refused:
                await older
            assert refused.value.detail.type == "superseded"

    async def test_the_deadline_cuts(self, fresh: Server):
        sampled_before = await tokens_sampled(fresh)
        request = long_request("late", deadline_s=0.3)
        with fresh.slow():
            async with fresh.client() as client:
                with pytest.raises(InfrastructureError) as late:
                    await client.rollouts(request)
            await until_running(fresh, 0)
        assert (late.value.status, late.value.detail.type) == (504, "deadline")
        # A hundredth, where the machine does not stand still, or none; all of it would be a minute of work.
        most = len(request.prompts) * request.n * request.sampling.max_tokens
        sampled = await tokens_sampled(fresh)
        assert sampled - sampled_before < most / 10
        await fresh.sample()
        assert await tokens_sampled(fresh) > sampled, "what is sampled is counted"


class TestBadInput:
    @pytest.mark.parametrize(
        ("prompts", "type", "named"),
        [
            ([[5], [5] * 256], "prompt_too_long", "prompt 1 has 256 tokens"),
            ([[5, 4711]], "unknown_token", "4711"),
        ],
    )
    async def test_a_prompt_that_cannot_be_sampled(
        self, fresh: Server, prompts: list[list[int]], type: str, named: str
    ):
        with pytest.raises(DataError, match=named) as refused:
            await fresh.sample(prompts=prompts)
        assert (refused.value.status, refused.value.detail.type) == (422, type)

    @pytest.mark.parametrize(
        ("body", "content_type", "status", "type"),
        [
            (b"{", "application/json", 400, "malformed_json"),
            pytest.param(b"[" * 3000 + b"]" * 3000, "application/json", 400, "malformed_json", id="nested too deeply"),
            (b'{"request_id":"\xff"}', "application/json", 400, "malformed_json"),
            pytest.param(b'{"request_id":' + b"9" * 5000 + b"}", "application/json", 400, "malformed_json",
                         id="a number of 5,000 digits"),
            (b'{"request_id":"a","prompts":[{"token_ids":[5]}],"sampling":{"temperature":2.5}}', "application/json",
             422, "invalid_value"),
            (b'{"request_id":"a","prompts":[{"token_ids":[5]}],"sampling":{"temperature":0.001}}', "application/json",
             422, "invalid_value"),
            (b"{}", "text/plain", 415, "wrong_content_type"),
            (b"\x80\x04K\x01.", "application/octet-stream", 415, "wrong_content_type"),
            (b"{}", "application/json", 422, "invalid_value"),
            (b'{"request_id": "a", "prompts": [], "x": 1}', "application/json", 422, "unknown_field"),
            (b'{"request_id": "a", "prompts": [{"token_ids": []}]}', "application/json", 422, "invalid_value"),
            (b'{"request_id": "a", "prompts": [{"token_ids": [-1]}]}', "application/json", 422, "invalid_value"),
            (b'{"request_id": "a", "prompts": [{"token_ids": [5]}], "n": 1000000000}', "application/json", 422,
             "invalid_value"),
            (b'{"request_id":"a","prompts":[{"messages":[{"role":"user","content":"x"}],"token_ids":[5]}]}',
             "application/json", 422, "invalid_value"),
        ],
    )  # fmt: skip
    async def test_every_error_has_the_body_of_the_wire(
        self, server: Server, body: bytes, content_type: str, status: int, type: str
    ):
        async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http:
            response = await http.post(
                f"{server.url}/v1/rollouts", content=body, headers={"Content-Type": content_type}
            )
        assert response.status_code == status
        assert ErrorBody.model_validate_json(response.content).error.type == type

    async def test_a_session_that_is_not_the_servers(self, fresh: Server):
        with pytest.raises(ConflictError) as refused:
            await fresh.sample(session=1)
        assert refused.value.detail.type == "fenced"


class TestOtherRoutes:
    async def test_info_names_what_a_trainer_compares(self, fresh: Server):
        tokenizer = make_tokenizer()
        async with fresh.client() as client:
            info = await client.info()
        assert info.tokenizer_fingerprint == tokenizer_fingerprint(
            tokenizer.get_vocab(), eos_token_id=tokenizer.eos_token_id
        )
        assert info.vocabulary_fingerprint == vocabulary_fingerprint(tokenizer.get_vocab())
        assert info.chat_template_fingerprint == chat_template_fingerprint(CHAT_TEMPLATE)
        assert (info.dtype, info.max_model_len, info.world_size, info.device) == ("bfloat16", 256, 1, "cpu")

    async def test_vllms_own_routes_are_there_and_its_developer_routes_are_not(self, fresh: Server):
        async with httpx.AsyncClient(base_url=fresh.url, trust_env=False, timeout=PATIENCE_S) as http:
            models = (await http.get("/v1/models")).json()
            body = {"model": models["data"][0]["id"], "prompt": "ab", "max_tokens": 3}
            completion = (await http.post("/v1/completions", json=body)).json()
            assert completion["choices"][0]["finish_reason"] in ("length", "stop")
            for path in (
                "/collective_rpc",
                "/update_weights",
                "/pause",
                "/sleep",
                "/init_weight_transfer_engine",
                "/scale_elastic_ep",
            ):
                assert (await http.post(path, json={})).status_code == 404, path

    async def test_metrics_count(self, fresh: Server):
        await fresh.sample()
        async with httpx.AsyncClient(base_url=fresh.url, trust_env=False, timeout=PATIENCE_S) as http:
            text = (await http.get("/metrics")).text
        for name in ("grpo_rollout_tokens_total", "grpo_rollout_pushes_total", 'weight_state{state="current"} 1.0'):
            assert name in text
        assert "vllm:generation_tokens_total" in text
