"""Two processes in a Gloo group that run one program."""

import os
import subprocess
import sys
from pathlib import Path

MEET = """
import os
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://{meeting}", rank=int(os.environ["RANK"]), world_size=2)
"""

END = """
from grpo_trainer.ending import end_process
end_process(0)
"""


def outputs_of_two_ranks(program: str, tmp_path: Path) -> list[str]:
    """What each rank of `program` prints, which finds the group initialised. Both have to end with status 0."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_ADDR2LINE": "1"}
    command = [sys.executable, "-c", MEET.format(meeting=tmp_path / "meeting") + program + END]
    ranks = [
        subprocess.Popen(command, env=environment | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0]
    return outputs
