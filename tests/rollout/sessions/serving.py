"""vLLM's own renderer, parsers and serving object over an engine client that plays a script, with our parts in them."""

import asyncio
from argparse import Namespace
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from grpo_proto.messages.rollout import Sampling
from tests.rollout.sessions.families import FAMILIES, tokenizer_of

MAX_MODEL_LEN = 4096


@dataclass
class Script:
    """Stands in for vLLM's engine client: returns the answers in `answers`, as (ids, finish_reason, stop_reason).

    `holds`: a request returns half of its answer, once it has been aborted. `errored`: the engine has ended.
    """

    model_config: Any
    vllm_config: Any
    renderer: Any
    answers: deque[tuple[list[int], str, Any]] = field(default_factory=deque)
    prompts: list[list[int]] = field(default_factory=list)
    input_processor: Any = None
    errored: bool = False
    logprob: float = -0.5
    """Of every token; NaN with weights that hold one."""
    holds: bool = False
    holding: asyncio.Event = field(default_factory=asyncio.Event)
    held: dict[str, asyncio.Event] = field(default_factory=dict)

    @property
    def dead_error(self) -> BaseException:
        from vllm.v1.engine.exceptions import EngineDeadError

        return EngineDeadError()

    def check_admission(self, n: int) -> None:
        pass

    def shutdown(self, *_: Any, **__: Any) -> None:
        pass

    async def is_tracing_enabled(self) -> bool:
        return False

    async def abort(self, request_id: str) -> None:
        if request_id in self.held:
            self.held[request_id].set()

    async def generate(self, prompt: Any, params: Any, request_id: str, **_: Any) -> AsyncGenerator[Any, None]:
        from vllm.outputs import CompletionOutput, WeightVersionSpan

        if self.errored:
            raise self.dead_error
        self.prompts.append(list(prompt["prompt_token_ids"]))
        token_ids, finish_reason, stop_reason = self.answers.popleft()
        if self.holds:
            self.holding.set()
            await self.held.setdefault(request_id, asyncio.Event()).wait()
            token_ids, finish_reason = token_ids[: len(token_ids) // 2], "abort"
        completion = CompletionOutput(
            index=0, text="", token_ids=token_ids, cumulative_logprob=None,
            logprobs=SimpleNamespace(logprobs=[self.logprob] * len(token_ids)),
            finish_reason=finish_reason, stop_reason=stop_reason,
            weight_versions=[WeightVersionSpan(version="3", start=0, end=len(token_ids))],
        )  # fmt: skip
        yield SimpleNamespace(outputs=[completion])


@dataclass
class Served:
    """One family, served by a script."""

    script: Script
    parts: Any
    renderer: Any
    tokenizer: Any

    def open(self, **body: Any) -> Any:
        from grpo_proto.messages.sessions import OpenSession

        body = {"sampling": {"max_tokens": 1000}, "limits": {"max_turns": 10_000, "max_segments": 10_000}} | body
        opened = self.parts.sessions.open(OpenSession(**body), base_url="http://localhost/")
        return self.parts.sessions.find(opened.session_id)

    def next(self, token_ids: Sequence[int], finish_reason: str = "stop", stop_reason: Any = None) -> None:
        self.script.answers.append((list(token_ids), finish_reason, stop_reason))

    async def chat(self, session: Any, *, retry: bool = False, **body: Any) -> Any:
        """The answer as a JSON object, or the chunks of a stream."""
        import json

        answer = await self.parts.chat.answer(session, {"model": "m", **body}, retry=retry)
        if answer.events is None:
            answer.asked.delivered()
            return answer.body
        lines = [line.removeprefix("data: ").strip() async for line in answer.events]
        answer.asked.delivered()
        assert lines.pop() == "[DONE]"
        return [json.loads(line) for line in lines]

    async def rendered_by_vllm(self, **body: Any) -> list[int]:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        _, (prompt,) = await self.renderer.render_chat(ChatCompletionRequest(model="m", **body))
        ids: list[int] = prompt["prompt_token_ids"]
        return ids


def serve(name: str, folder: Path) -> Served:
    """Call inside an event loop."""
    from transformers import LlamaConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
    from vllm.entrypoints.openai.models.protocol import BaseModelPath
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels
    from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses
    from vllm.renderers import renderer_from_config
    from vllm.renderers.online_renderer import OnlineRenderer

    from grpo_rollout.completion_text import CompletionText
    from grpo_rollout.engine import Engine
    from grpo_rollout.images import Images
    from grpo_rollout.sessions.build import VllmServing, build_sessions
    from grpo_rollout.weight_state import Weights

    family, tokenizer = FAMILIES[name], tokenizer_of(name)
    if not (folder / "config.json").exists():
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=MAX_MODEL_LEN, architectures=["LlamaForCausalLM"],
        ).save_pretrained(folder)  # fmt: skip
        tokenizer.save_pretrained(folder)
    config = AsyncEngineArgs(
        model=str(folder), dtype="float32", max_model_len=MAX_MODEL_LEN, enforce_eager=True
    ).create_engine_config()
    script = Script(config.model_config, config, renderer_from_config(config))
    models = OpenAIServingModels(script, [BaseModelPath(name="served", model_path=str(folder))])  # type: ignore[arg-type]
    options: dict[str, Any] = {
        "request_logger": None, "chat_template": None, "chat_template_content_format": "auto",
        "enable_auto_tools": True, "tool_parser": family.tool_parser, "reasoning_parser": family.reasoning_parser or "",
    }  # fmt: skip
    renderer = OnlineRenderer(config.model_config, script.renderer, **options)
    chat = OpenAIServingChat(script, models, "assistant", online_renderer=renderer, **options)  # type: ignore[arg-type]
    served = script.renderer.tokenizer

    async def take_any(sampling: Sampling) -> None: ...

    engine = Engine(script)  # type: ignore[arg-type]
    rollouts = SimpleNamespace(
        images=Images(engine), tokenizer=served, chat_template=None, text=CompletionText(served), text_thread=None,
        max_model_len=MAX_MODEL_LEN, vocab_size=len(tokenizer), check_sampling=take_any,
    )  # fmt: skip
    args = Namespace(
        advertise_url=None, tool_call_parser=family.tool_parser,
        structured_outputs_config=Namespace(reasoning_parser=family.reasoning_parser),
    )  # fmt: skip
    pushes = SimpleNamespace(weights=Weights())
    messages = AnthropicServingMessages(script, models, "assistant", online_renderer=renderer, **options)  # type: ignore[arg-type]
    responses = OpenAIServingResponses(script, models, renderer, **options)  # type: ignore[arg-type]
    serving = VllmServing(chat=chat, messages=messages, responses=responses)
    parts = build_sessions(engine, pushes, rollouts, serving, args)  # type: ignore[arg-type]
    return Served(script, parts, renderer, tokenizer)
