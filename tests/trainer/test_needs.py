"""Requirements of a run on its rollout servers: which server is refused, and what is pushed."""

from dataclasses import replace

import pytest
from tests.trainer.test_fleet import info

from grpo_proto import PROTOCOL_VERSION
from grpo_proto.messages.rollout import AdapterLimits
from grpo_trainer.errors import UnavailableError
from grpo_trainer.fleet.adapters import AdapterNeeds
from grpo_trainer.fleet.needs import Needs, agreed

URL = "http://127.0.0.1:1"
NEEDS = Needs(
    "ours", max_tokens=100, head_dtype="model", dtype="float32", one_rope_context=200, kv_cache="keep", max_images=2
)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"protocol_version": PROTOCOL_VERSION + 1}, "speaks protocol"),
        ({"tokenizer_fingerprint": "another"}, "another tokenizer"),
        ({"max_model_len": 50}, "a context of 50 tokens"),
        ({"max_model_len": 300}, "beyond 200 the rotary embedding of this model depends on the length"),
        ({"head_dtype": "bfloat16"}, "computes logits in bfloat16; model.head_dtype is model"),
        ({"dtype": "bfloat16"}, "serves bfloat16; model.dtype, in which the weights are pushed, is float32"),
        ({"max_images": 1}, "takes 1 images a prompt; the rows have up to 2"),
        ({"max_images": 0}, "takes no images"),
        ({"keeps_kv_cache": False}, "recomputes the KV cache at every push; weights.kv_cache is keep"),
    ],
)
def test_a_server_that_does_not_fit_may_fit_at_the_next_try(changes: dict[str, object], named: str):
    """While servers are being replaced one by one, an old one may answer."""
    fits = {"keeps_kv_cache": True, "max_images": 2}
    assert agreed(NEEDS, {URL: info(**fits)}, None) == (NEEDS, "full")
    with pytest.raises(UnavailableError, match=named):
        agreed(NEEDS, {URL: info(**fits | changes)}, None)


def test_a_server_of_adapters_need_not_know_how_to_keep_a_kv_cache():
    limits = AdapterLimits(max_loras=2, max_lora_rank=8, max_cpu_loras=2)
    takes_adapters = info(adapters=limits, base_digest="d", keeps_kv_cache=False, max_images=2)
    adapter = AdapterNeeds(rank=8, num_versions=2, base_digest="d")
    expected = replace(NEEDS, kv_cache="recompute", dtype=None, adapter=adapter)
    assert agreed(NEEDS, {URL: takes_adapters}, adapter) == (expected, "lora")
