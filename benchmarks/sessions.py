"""Measure recorded episodes on a rollout server: beside the engine, in memory, and against stock chat completions.

    python benchmarks/sessions.py [--turns 5] [--episodes 64] [--max-tokens 64] [--open 10000]

- Processor time of a turn beside the engine: `generate` and the three APIs through vLLM's serving objects, over an
  engine client that returns a script; medians, for 16 new tokens and for each more, in an early and in a late turn.
- Memory of open sessions of one turn each, their tokens left out.
- tokens/s of concurrent episodes of five turns on a real server, in turn: `generate` and chat completions of a session,
  and the same turns as the server's own chat completions, each with its whole history. `with ids`: these asked for
  token ids and logprobs, without which nothing can be trained.

Run it while nothing else does: about five minutes.
"""

import argparse
import asyncio
import gc
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import httpx
import psutil
import torch
from tests.processes import ROLLOUT_ENVIRONMENT, free_port, rollout_command, service
from tests.rollout.conftest import Server
from tests.rollout.sessions.opened import Opened, opened
from tests.rollout.sessions.serving import Served, serve
from tests.tiny_model import save_tiny_model

FEW, MANY = 16, 216
"""New tokens of a turn."""
SESSIONS = 15
"""Of each API; medians are over the turns of all."""
EARLY, LATE = slice(5, 15), slice(40, 50)
BOUND_MS = {"generate": 1.0, "chat": 2.0, "chat, it thinks": 2.0, "messages": 2.0, "responses": 2.0}
TURNS_OF_AN_EPISODE = 5
SYSTEM = {"role": "system", "content": "Count letters."}

THINKS = ", it thinks"
"""What vLLM counts the tokens of, for the usage of an answer."""

Turns = Callable[[Any, list[dict[str, Any]]], Awaitable[tuple[str, int]]]
"""One turn behind these messages: its text and how many tokens were sampled."""


def question(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"w{number}"}


async def turn_of(served: Served, session: Any, api: str, history: list[Any], turns: list[int], tokens: int) -> float:
    """Processor seconds of one turn; the answer and the next question come behind `history`."""
    from grpo_proto.messages.sessions import GenerateTurn
    from grpo_rollout.sessions.routes import _generate, generated

    api, thinks = api.removesuffix(THINKS), api.endswith(THINKS)
    thought = "a a a" if thinks else ""
    words = served.tokenizer.encode(f"<think>\n{thought}\n</think>\n\n", add_special_tokens=False)
    (word,) = served.tokenizer.encode("a", add_special_tokens=False)
    (end,) = served.tokenizer.encode("<|im_end|>", add_special_tokens=False)
    served.next([*words, *[word] * (tokens - len(words) - 1), end])
    served.script.prompts.clear()
    before_s = time.process_time()
    if api == "generate":
        body = GenerateTurn(messages=history[-1:], parent=turns[-1] if turns else None)
        turns.append(generated(await _generate(served.parts, session, body, retry=False)).turn)
        text = ""
    else:
        named = {"input": history} if api == "responses" else {"messages": history}
        limit = {"messages": {"max_tokens": 500}}.get(api, {})
        answer = await getattr(served.parts, api).answer(session, {"model": "m", **named, **limit}, retry=False)
        answer.asked.delivered()
        body = answer.body if isinstance(answer.body, dict) else json.loads(answer.body)
        text = text_of(api, body)
    seconds = time.process_time() - before_s
    if api != "generate":
        history.append({"role": "assistant", "content": text})
    history.append(question(len(history)))
    return seconds


def text_of(api: str, body: dict[str, Any]) -> str:
    if api == "chat":
        return str(body["choices"][0]["message"]["content"])
    parts = body["content"] if api == "messages" else body["output"][-1]["content"]
    return "".join(part.get("text", "") for part in parts)


async def report_turns(folder: Path) -> None:
    served = serve("chatml", folder)
    for api in BOUND_MS:  # what is made at the first call
        await turn_of(served, served.open(), api, [question(0)], [], FEW)
    found: dict[tuple[str, int], list[list[float]]] = defaultdict(list)
    for _ in range(SESSIONS):  # in turn, so that what else the machine does meets all alike
        for api in BOUND_MS:
            for tokens in (FEW, MANY):
                session, turns, history = served.open(), list[int](), [question(0)]
                count = (LATE if tokens == FEW else EARLY).stop
                played = [await turn_of(served, session, api, history, turns, tokens) for _ in range(count)]
                found[api, tokens].append(played)
                assert len(session.forest.segments) == 1, f"{api}: {len(session.forest.segments)} segments"
                served.parts.sessions.delete(session)

    def median_ms(api: str, tokens: int, part: slice) -> float:
        return 1000 * statistics.median(seconds for played in found[api, tokens] for seconds in played[part])

    print(f"{'ms of CPU a turn':<24}{'early':>8}{'late':>8}{'bound':>8}{'µs a further token':>22}  (2)")
    for api, bound in BOUND_MS.items():
        early, late = (median_ms(api, FEW, part) for part in (EARLY, LATE))
        each = 1000 * (median_ms(api, MANY, EARLY) - early) / (MANY - FEW)
        print(f"{api:<24}{early:>8.2f}{late:>8.2f}{bound:>8.1f}{each:>22.2f}", flush=True)


async def report_memory(folder: Path, count: int) -> None:
    served = serve("chatml", folder)
    kept: list[Any] = []

    async def open_sessions(number: int) -> None:
        for _ in range(number):
            kept.append(served.open())
            await turn_of(served, kept[-1], "generate", [question(0)], [], FEW)

    await open_sessions(200)
    gc.collect()
    before = psutil.Process().memory_info().rss
    await open_sessions(count)
    gc.collect()
    tokens = 4 * sum(
        len(segment.token_ids) + len(segment.logprobs) for one in kept[200:] for segment in one.forest.segments
    )
    mb = (psutil.Process().memory_info().rss - before - tokens) / 1e6
    print(f"{count} open sessions of a turn: {mb:.0f} MB beside their tokens (bound 100 for 10,000)", flush=True)


async def play(episode: Any, turn: Turns) -> int:
    messages, sampled = [SYSTEM, question(0)], 0
    for number in range(TURNS_OF_AN_EPISODE):
        text, count = await turn(episode, messages)
        sampled += count
        messages += [{"role": "assistant", "content": text}, question(number + 1)]
    return sampled


async def tokens_per_s(server: Server, kind: str, episodes: int, max_tokens: int) -> float:
    async with AsyncExitStack() as stack:
        limits = httpx.Limits(max_connections=None)
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=300.0, limits=limits)
        )
        if kind in ("generate", "session chat"):
            body = {"sampling": {"max_tokens": max_tokens}}
            entered = [stack.enter_async_context(opened(server, **body)) for _ in range(episodes)]
            playing: list[Any] = list(await asyncio.gather(*entered))
        else:
            playing = [[] for _ in range(episodes)]
        turn = {"generate": by_generate, "session chat": by_session_chat}.get(kind) or stock(http, kind, max_tokens)
        started_s = time.perf_counter()
        sampled = await asyncio.gather(*(play(one, turn) for one in playing))
        return sum(sampled) / (time.perf_counter() - started_s)


async def by_generate(session: Opened, messages: list[dict[str, Any]]) -> tuple[str, int]:
    behind = session.answer.get("turn")
    new = {"messages": messages} if behind is None else {"messages": messages[-1:], "parent": behind}
    answer = await session.generate(**new)
    session.answer["turn"] = answer["turn"]
    return answer["message"].get("content") or "", len(answer["token_ids"])


async def by_session_chat(session: Opened, messages: list[dict[str, Any]]) -> tuple[str, int]:
    return read(await session.chat(*messages))


def stock(http: httpx.AsyncClient, kind: str, max_tokens: int) -> Turns:
    ids = {"return_token_ids": True, "logprobs": True, "top_logprobs": 0} if kind == "stock, with ids" else {}

    async def turn(_: Any, messages: list[dict[str, Any]]) -> tuple[str, int]:
        body = {"messages": messages, "max_tokens": max_tokens, **ids}
        return read(await http.post("/v1/chat/completions", json=body))

    return turn


def read(answer: httpx.Response) -> tuple[str, int]:
    assert answer.status_code == 200, answer.text
    body = answer.json()
    return body["choices"][0]["message"]["content"] or "", body["usage"]["completion_tokens"]


async def report_rates(server: Server, arguments: argparse.Namespace) -> None:
    kinds = ("generate", "session chat", "stock", "stock, with ids")
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(arguments.turns + 1):
        for kind in kinds:
            rate = await tokens_per_s(server, kind, arguments.episodes, arguments.max_tokens)
            if turn:
                found[kind].append(rate)
    rates = {kind: statistics.median(values) for kind, values in found.items()}
    print(f"tokens/s of {arguments.episodes} episodes of five turns", flush=True)
    for kind, rate in rates.items():
        print(f"{kind:<24}{rate:>8.0f}{rate / rates['stock']:>8.2f}{rate / rates['stock, with ids']:>8.2f}")
    print(f"{'':<24}{'':>8}{'of stock':>8}{'of those with ids':>20}; bound 1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5, help="measurements of each rate")
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=24, help="of a turn; the model's context is 256")
    parser.add_argument("--open", type=int, default=10_000, help="sessions that are open at once")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asyncio.run(report_turns(folder / "chatml"))
        asyncio.run(report_memory(folder / "chatml", arguments.open))
        model, port = save_tiny_model(folder / "model", tied=True), free_port()
        flags = ("--enforce-eager", "--max-num-seqs", "128", "--dtype", "float32")
        with service(
            rollout_command(model, port, *flags), folder / "log", port=port, environment=ROLLOUT_ENVIRONMENT
        ) as running:
            running.wait_until_live()
            server = Server(running, tied=True, dtype=torch.float32)
            asyncio.run(report_rates(server, arguments))


if __name__ == "__main__":
    main()
