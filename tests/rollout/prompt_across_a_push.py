"""A program: a push with `kv_cache` keep while a prompt is half computed. Prints the logprobs of what follows it.

An engine in this process, because a server without a GPU computes every prompt in one step.
"""

import json
import os
import sys
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_PLUGINS": "grpo_rollout"}

from vllm import LLM, SamplingParams

from grpo_rollout.kept_sequences import KEEP_CALL

CHUNK = 32


def main(old: str, new: str) -> None:
    """`old`, `new`: folders of a model and of its weights after the push."""
    llm = LLM(
        old,
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        block_size=CHUNK,
        max_num_seqs=2,
        max_num_batched_tokens=CHUNK,
        enable_chunked_prefill=True,
    )
    engine: Any = llm.llm_engine
    core = engine.engine_core.engine_core
    prompt = {"prompt_token_ids": [5 + 7 * number % 90 for number in range(3 * CHUNK + 1)]}
    params = SamplingParams(temperature=0.0, max_tokens=8, logprobs=0)
    engine.add_request("half", prompt, params)
    engine.step()
    engine.step()
    core.pause_scheduler(mode="keep", clear_cache=False)
    getattr(core, KEEP_CALL)()
    core.collective_rpc("reload_weights", kwargs={"weights_path": new})
    core.resume_scheduler()
    outputs = []
    while not outputs:
        outputs = [output for output in engine.step() if output.finished]
    outputs += llm.generate([prompt], params, use_tqdm=False)
    samples = [output.outputs[0] for output in outputs]
    logprobs = [
        [of_token[token].logprob for token, of_token in zip(one.token_ids, one.logprobs, strict=True)]
        for one in samples
    ]
    token_ids = [list(one.token_ids) for one in samples]
    print(json.dumps({"prompt": prompt["prompt_token_ids"], "token_ids": token_ids, "logprobs": logprobs}))


if __name__ == "__main__":
    main(*sys.argv[1:])
