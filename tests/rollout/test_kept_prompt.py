"""A push with `kv_cache` keep in the middle of a prompt: it starts again, because no token of it would tell."""

import json
from pathlib import Path

import pytest
import torch

from tests.processes import ROLLOUT_ENVIRONMENT
from tests.tiny_model import make_model, save_tiny_model
from tests.warm_python import warm_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300), pytest.mark.xdist_group("engines")]


def test_a_prompt_that_is_half_computed_starts_again(tmp_path: Path):
    old, new = (save_tiny_model(tmp_path / str(seed), seed=seed) for seed in (0, 1))
    program = ("-m", "tests.rollout.prompt_across_a_push", old, new)
    done = warm_vllm.run(*program, folder=tmp_path, timeout_s=240.0, environment=ROLLOUT_ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    model = make_model(tied=False, seed=1)
    for token_ids, logprobs in zip(told["token_ids"], told["logprobs"], strict=True):
        ids = torch.tensor([told["prompt"] + token_ids])
        with torch.no_grad():
            exact = model(ids).logits[0, len(told["prompt"]) - 1 : -1].log_softmax(-1)
        exact = exact.gather(1, torch.tensor(token_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(logprobs), exact, atol=1e-4, rtol=0.0)
