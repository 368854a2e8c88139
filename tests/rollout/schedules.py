"""A program: random traffic with pushes of both kinds through vLLM's real scheduler, and what is wrong with any token.

`python -m tests.rollout.schedules NUM_SEEDS`: every seed under the synchronous and the asynchronous scheduler, with a
worker that keeps its state as either of vLLM's runners; then without each part of `kept_sequences.py` that matters.
Prints one JSON object.
"""

import json
import os
import queue
import random
import sys
import tempfile
from collections import defaultdict
from typing import Any
from unittest.mock import patch

os.environ |= {"VLLM_PLUGINS": "", "VLLM_LOGGING_LEVEL": "ERROR"}

from transformers import Qwen2Config
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.engine.core import EngineCore, EngineCoreProc, EngineShutdownState
from vllm.v1.request import Request

from grpo_rollout import kept_sequences
from tests.rollout.ledger_worker import BLOCK_SIZE, VOCABULARY, LedgerExecutor, sampled_token

LENGTH, NUM_TURNS, MAX_REQUESTS, TOKENS_PER_STEP = 256, 300, 40, 40
NEVER_ENDS = 20_000
LEFT_OUT = {
    "restart_prompts": (kept_sequences, "_restart_prompts"),
    "separate": (kept_sequences, "_separate"),
    "evict_blocks": (KVCacheManager, "evict_blocks"),
}


class Core(EngineCoreProc):
    """vLLM's engine core, stepped by hand: without the sockets and threads of its process."""

    def __init__(self, config: VllmConfig):
        EngineCore.__init__(self, config, LedgerExecutor, log_stats=False)
        self.engines_running, self.shutdown_state = False, EngineShutdownState.RUNNING
        self.publish_dp_lb_stats, self.process_input_queue_block, self.client_count = False, True, 1
        self.output_queue, self.input_queue = queue.Queue(), queue.Queue()

    def turn(self) -> None:
        if self.has_work():
            self._process_engine_step()
        else:
            self._notify_idle_state_callbacks()


class Traffic:
    """Requests, aborts and pushes at random moments, all from one seed; the answers as a client would have them."""

    def __init__(self, core: Core, seed: int):
        self.core, self.worker, self.chance = core, core.model_executor, random.Random(seed)
        self.wanted: dict[str, list[int]] = {}
        self.starts: dict[str, int] = {}
        self.answers: dict[str, list[int]] = defaultdict(list)
        self.labels: dict[str, list[int]] = defaultdict(list)
        self.ended: set[str] = set()
        self.aborted: set[str] = set()
        self.num_pushes = self.version = 0
        self._prompts: list[list[int]] = []
        core.set_weight_version("0")

    def run(self) -> None:
        for _ in range(NUM_TURNS):
            if self._happens(0.12) and len(self.wanted) < MAX_REQUESTS:
                self._add_group()
            if self._happens(0.02):
                self._abort_one()
            if self._happens(0.08):
                self._push()
            self._turn()
        for _ in range(NEVER_ENDS):
            if not self.core.has_work():
                return
            self._turn()
        raise RuntimeError("the engine does not come to an end")

    def _happens(self, probability: float) -> bool:
        return self.chance.random() < probability

    def _turn(self) -> None:
        self.core.turn()
        while not self.core.output_queue.empty():
            _, outputs = self.core.output_queue.get()
            for output in outputs.outputs:
                self.answers[output.request_id] += output.new_token_ids
                self.labels[output.request_id] += [int(outputs.weight_version)] * len(output.new_token_ids)
                if output.finish_reason is not None:
                    self.ended.add(output.request_id)

    def _add_group(self) -> None:
        prompt = [self.chance.randrange(100, VOCABULARY) for _ in range(self.chance.choice([3, 20, 50, 90]))]
        if self._prompts and self._happens(0.5):  # a shared beginning, for the prefix cache
            prompt = self._prompts[-1] + prompt[:3]
        self._prompts.append(prompt)
        for _ in range(self.chance.choice([1, 2, 4])):
            name, seed = f"r{len(self.wanted)}", self.chance.randrange(10**6)
            params = SamplingParams(max_tokens=self.chance.choice([1, 5, 30, 60]), seed=seed, ignore_eos=True)
            params.update_from_generation_config({}, None)
            count = min(params.max_tokens or 0, LENGTH - len(prompt))
            self.wanted[name] = [sampled_token(seed, len(prompt) + number) for number in range(count)]
            self.starts[name] = len(prompt)
            hasher = self.core.request_block_hasher
            self.core.add_request(Request(name, list(prompt), params, None, block_hasher=hasher))

    def _abort_one(self) -> None:
        if alive := [name for name in self.wanted if name not in self.ended | self.aborted]:
            name = self.chance.choice(alive)
            self.aborted.add(name)
            self.core.abort_requests([name])

    def _push(self) -> None:
        """In the order of `engine.py`: pause, keep or recompute, new weights, the new version, resume."""
        keeps = self._happens(0.5)
        paused = self.core.pause_scheduler("keep", clear_cache=not keeps)
        for _ in range(50):
            if paused is None or paused.done():
                break
            self._turn()
            if self._happens(0.3):
                self._add_group()
        assert paused is None or paused.done(), "the pause does not come to an end"
        self._turn()  # hand over the outputs of before
        if keeps:
            kept_sequences.keep_running_sequences(self.core)
        if self._happens(0.4):
            self._add_group()
        if self._happens(0.3):
            self._abort_one()
        self.version += 1
        self.num_pushes += 1
        self.worker.version = self.version
        if not keeps:
            self.worker.floor = self.version
        self.core.set_weight_version(str(self.version))
        self.core.resume_scheduler()

    # --- what is wrong -----------------------------------------------------------------------------------------

    def problems(self) -> list[str]:
        found = list(self.worker.errors)
        for name, wanted in self.wanted.items():
            answer = self.answers[name]
            if answer != (wanted[: len(answer)] if name in self.aborted else wanted):
                found.append(f"{name}: {len(answer)} tokens of {len(wanted)}, or others")
            found += self._of_versions(name)
        return found

    def _of_versions(self, name: str) -> list[str]:
        found = []
        labels = self.labels[name]
        for number, label in enumerate(labels):
            ways = self.worker.samples[name, self.starts[name] + number]
            here = f"{name}, token {number} labelled {label}"
            # A token that was dropped and sampled again counts as the one that was handed out.
            if not (labelled := [way for way in ways if way.version == label]):
                found.append(f"{here}: sampled by {[way.version for way in ways]}")
                continue
            context, floor = labelled[-1].context, labelled[-1].floor
            if min(context) < floor:
                found.append(f"{here}: computed on {sorted(context)}, and {floor} recomputes")
            if set(labels[: number + 1]) == {label} and context != {label}:
                found.append(f"{here}, as all before it: computed on {sorted(context)}")
        return found


def configuration(folder: str) -> VllmConfig:
    Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=2 * LENGTH, architectures=["Qwen2ForCausalLM"],
    ).save_pretrained(folder)  # fmt: skip
    config = EngineArgs(
        model=folder,
        dtype="float32",
        max_model_len=LENGTH,
        max_num_seqs=6,
        max_num_batched_tokens=LENGTH,
        skip_tokenizer_init=True,
        load_format="dummy",
        enable_prefix_caching=True,
        block_size=BLOCK_SIZE,
        enforce_eager=True,
        enable_chunked_prefill=True,
    ).create_engine_config()
    config.scheduler_config.max_num_batched_tokens = TOKENS_PER_STEP  # so that prompts come in parts
    config.scheduler_config.long_prefill_token_threshold = 0
    return config


def try_seed(config: VllmConfig, seed: int, *, is_async: bool) -> dict[str, Any]:
    """One schedule. Even seeds keep state as Model Runner V2, odd ones as the older runner."""
    LedgerExecutor.forgets_preempted = seed % 2 == 0
    config.scheduler_config.async_scheduling = is_async
    config.scheduler_config.scheduler_cls = None
    config.cache_config.num_gpu_blocks_override = random.Random(seed).choice([30, 60, 400])  # few preempt
    core = Core(config)
    assert type(core.scheduler).__name__ == ("AsyncScheduler" if is_async else "Scheduler")
    assert core.scheduler.use_v2_model_runner == LedgerExecutor.forgets_preempted
    traffic = Traffic(core, seed)
    traffic.run()
    again = sum(len(ways) > 1 for ways in traffic.worker.samples.values())
    return {
        "problems": traffic.problems()[:5],
        "tokens": sum(map(len, traffic.answers.values())),
        "pushes": traffic.num_pushes,
        "sampled_again": again,
    }


def main(num_seeds: int) -> None:
    VllmConfig.use_v2_model_runner = property(lambda self: LedgerExecutor.forgets_preempted)  # type: ignore[assignment]
    LedgerExecutor.forgets_preempted = False  # or vLLM asks for a GPU's kernels here
    config = configuration(tempfile.mkdtemp())
    found = {
        kind: [try_seed(config, seed, is_async=kind == "AsyncScheduler") for seed in range(num_seeds)]
        for kind in ("Scheduler", "AsyncScheduler")
    }
    print(json.dumps(found | {"without": {part: without(part, config, num_seeds) for part in LEFT_OUT}}))


def without(part: str, config: VllmConfig, num_seeds: int) -> list[str]:
    """The problems of the first seed that has some when this part of `kept_sequences.py` does nothing."""
    with patch.object(*LEFT_OUT[part], lambda *_: None):
        tried = (try_seed(config, seed, is_async=True)["problems"] for seed in range(num_seeds))
        return next(filter(None, tried), [])


if __name__ == "__main__":
    main(int(sys.argv[1]))
