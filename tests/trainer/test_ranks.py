"""What rank 0 says reaches the others, whatever its length."""

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import json, sys
import torch.distributed as dist
from grpo_trainer.ranks import join_ranks
dist.init_process_group("gloo")
ranks = join_ranks(silence_s=60)
heard = [ranks.broadcast_json(message if ranks.is_first else None)
         for message in (None, [], {"text": "ä" * 100_000}, [1.5, 2])]
said = ranks.gather_json(None if ranks.is_first else ["rank 1 speaks, ünïcode" * 1000])
ranks.barrier()
print(json.dumps([ranks.rank, heard, said]))
dist.destroy_process_group()
"""


def test_every_rank_hears_rank_0_and_all_hear_each(tmp_path: Path):
    environment = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        "WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
        "TORCH_DISABLE_ADDR2LINE": "1",
    }
    program = PROGRAM.replace(
        'dist.init_process_group("gloo")',
        f'dist.init_process_group("gloo", init_method="file://{tmp_path / "meet"}", '
        'rank=int(__import__("os").environ["RANK"]), world_size=2)',
    )
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=environment | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0]
    messages = [None, [], {"text": "ä" * 100_000}, [1.5, 2]]
    for rank, output in enumerate(outputs):
        assert json.loads(output.splitlines()[-1]) == [rank, messages, [None, ["rank 1 speaks, ünïcode" * 1000]]]
