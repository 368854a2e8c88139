"""What rank 0 says reaches the others, whatever its length."""

import json
from pathlib import Path

import pytest
from tests.trainer.gloo_ranks import outputs_of_two_ranks

PROGRAM = """
import json
from grpo_trainer.ranks.ranks import join_ranks
ranks = join_ranks(silence_s=60)
heard = [ranks.broadcast_json(message if ranks.is_first else None)
         for message in (None, [], {"text": "ä" * 100_000}, [1.5, 2])]
said = ranks.gather_json(None if ranks.is_first else ["rank 1 speaks, ünïcode" * 1000])
print(json.dumps([ranks.rank, heard, said]))
"""


@pytest.mark.deepspeed
def test_every_rank_hears_rank_0_and_all_hear_each(tmp_path: Path):
    messages = [None, [], {"text": "ä" * 100_000}, [1.5, 2]]
    for rank, output in enumerate(outputs_of_two_ranks(PROGRAM, tmp_path)):
        assert json.loads(output.splitlines()[-1]) == [rank, messages, [None, ["rank 1 speaks, ünïcode" * 1000]]]
