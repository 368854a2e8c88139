"""Checkpoints and the final model are whole or not there, and every rank ends alike when one cannot be written."""

import errno
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors import SafetensorError
from tests.trainer.gloo_ranks import outputs_of_two_ranks

from grpo_trainer.checkpoint.files import find_latest
from grpo_trainer.checkpoint.saving import save_adapter, save_checkpoint, save_model
from grpo_trainer.errors import RunError
from grpo_trainer.rank_work import COMMANDS, RankWork
from grpo_trainer.ranks.crew import Crew
from grpo_trainer.ranks.ranks import Ranks


def alone(engine: Any) -> Crew:
    ranks = Ranks(rank=0, world_size=1)
    return Crew(ranks, RankWork(engine, ranks, pad_token_id=0, tokens_per_micro_batch=64), COMMANDS)


class Engine:
    """Writes one file; `error` comes when half of it is there."""

    def __init__(self, content: str, error: Exception | None = None):
        self.content, self.error = content, error

    def whole_state(self) -> dict[str, Any]:
        return {"content": self.content}

    def adapter_state(self) -> dict[str, Any]:
        return {"content": f"adapter of {self.content}"}

    def write_hf(self, folder: Path, state: dict[str, Any]) -> None:
        folder.mkdir()
        (folder / "model.safetensors").write_text(state["content"])
        if self.error:
            raise self.error


def save(run_dir: Path, engine: Any) -> None:
    save_model(SimpleNamespace(run_dir=run_dir), alone(engine), engine.write_hf)  # type: ignore[arg-type]


def test_the_model_takes_the_place_of_an_older_one(tmp_path: Path):
    for content in ("old", "new"):
        save(tmp_path, Engine(content))
    assert (tmp_path / "model/model.safetensors").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_adapter_is_the_model_and_the_merged_model_lies_beside_it(tmp_path: Path):
    config: Any = SimpleNamespace(run_dir=tmp_path)
    engine = Engine("both")
    save_adapter(config, alone(engine), engine.write_hf)
    save_model(config, alone(engine), engine.write_hf, folder="model-merged")
    assert (tmp_path / "model/model.safetensors").read_text() == "adapter of both"
    assert (tmp_path / "model-merged/model.safetensors").read_text() == "both"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SafetensorError("Error while serializing")])
def test_one_that_could_not_be_written_leaves_nothing_of_itself(tmp_path: Path, error: Exception):
    save(tmp_path, Engine("old"))
    with pytest.raises(RunError, match=r"the final model could not be written: rank 0: .*--resume"):
        save(tmp_path, Engine("half", error))
    assert (tmp_path / "model/model.safetensors").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


# Rank 0 saves, the other ranks follow; each prints what it ended with.
CREW = """
from grpo_trainer.rank_work import COMMANDS, RankWork
from grpo_trainer.ranks.crew import Crew, follow

def by_all(engine, save):
    work = RankWork(engine, ranks, pad_token_id=0, tokens_per_micro_batch=64)
    if ranks.rank:
        return print(json.dumps(follow(ranks, work, COMMANDS)))
    said = ""
    try:
        with Crew(ranks, work, COMMANDS) as crew:
            save(crew)
    except RunError as error:
        said = error.message
    print(json.dumps(said))
"""


CHECKPOINT_PROGRAM = """
{crew}
import json, time
from pathlib import Path
from types import SimpleNamespace
from grpo_trainer.checkpoint import saving
from grpo_trainer.errors import RunError
from grpo_trainer.ranks.ranks import join_ranks
ranks = join_ranks(silence_s=60)
full = OSError(28, "No space left on device")

def fail(*_, **__):
    raise full

class Engine:
    beat = staticmethod(lambda: None)

    def save(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"rank-{{ranks.rank}}").write_text("state")
        if "{where}" == "engine" and ranks.rank == 1:
            raise full

if "{where}" != "engine":
    setattr(saving, "{where}", fail)
config = SimpleNamespace(run_dir=Path("{run_dir}"), checkpoint=SimpleNamespace(save_total_limit=2))
by_all(Engine(), lambda crew: saving.save_checkpoint(3, config, crew, {{"step": 3}}))
"""


@pytest.mark.deepspeed
@pytest.mark.parametrize(
    ("where", "rank"), [("begin_checkpoint", 0), ("engine", 1), ("finish_checkpoint", 0), ("nowhere", None)]
)
def test_every_rank_learns_at_once_that_a_checkpoint_could_not_be_written(where: str, rank: int | None, tmp_path: Path):
    outputs = outputs_of_two_ranks(
        CHECKPOINT_PROGRAM.format(crew=CREW, run_dir=tmp_path / "run", where=where), tmp_path
    )
    expected = f"the checkpoint of step 3 could not be written: rank {rank}: [Errno 28] No space left on device"
    assert [json.loads(output.splitlines()[-1]) for output in outputs] == (["", 0] if rank is None else [expected, 1])
    assert (find_latest(tmp_path / "run") is not None) == (rank is None)


DEEPSPEED_PROGRAM = """
{crew}
import json, os
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
import deepspeed, torch
from torch.distributed.distributed_c10d import _set_pg_timeout
from grpo_trainer.checkpoint import saving
from grpo_trainer.engine.write_errors import save_deepspeed_state
from grpo_trainer.errors import RunError
from grpo_trainer.ranks.ranks import join_ranks
_set_pg_timeout(timedelta(seconds=20), dist.group.WORLD)
os.environ |= {{"WORLD_SIZE": "2", "LOCAL_RANK": os.environ["RANK"], "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}}
model = torch.nn.Linear(8, 8)
settings = {{
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {{"stage": {stage}}},
    "zero_allow_untested_optimizer": True,
}}
engine = deepspeed.initialize(model=model, config=settings, optimizer=torch.optim.AdamW(model.parameters()))[0]
ranks = join_ranks(silence_s=60)
beat = lambda: None
write = torch.save

def full(what, file, **options):
    if ranks.rank == 1 and "optim_states" in str(file):
        raise OSError(28, "No space left on device")
    write(what, file, **options)

torch.save = full
config = SimpleNamespace(run_dir=Path("{run_dir}"), checkpoint=SimpleNamespace(save_total_limit=2))
save = SimpleNamespace(beat=beat, save=lambda folder: save_deepspeed_state(engine, folder, frozen=True, beat=beat))
by_all(save, lambda crew: saving.save_checkpoint(3, config, crew, {{"step": 3}}))
"""


@pytest.mark.deepspeed
@pytest.mark.parametrize("stage", [2, 3])
def test_a_rank_with_a_full_disk_keeps_nobody_waiting_inside_deepspeed(stage: int, tmp_path: Path):
    """DeepSpeed's ranks meet after they have written: one that failed before would be waited for until its limit."""
    outputs = outputs_of_two_ranks(DEEPSPEED_PROGRAM.format(crew=CREW, run_dir=tmp_path / "run", stage=stage), tmp_path)
    expected = "the checkpoint of step 3 could not be written: rank 1: [Errno 28] No space left on device"
    assert [json.loads(output.splitlines()[-1]) for output in outputs] == [expected, 1]


def test_a_full_disk_leaves_nothing_of_the_checkpoint(tmp_path: Path):
    class Full:
        def save(self, folder: Path) -> None:
            folder.mkdir()
            (folder / "half").write_bytes(b"x")
            raise OSError(errno.ENOSPC, "No space left on device")

    config: Any = SimpleNamespace(run_dir=tmp_path, checkpoint=SimpleNamespace(save_total_limit=2))
    with pytest.raises(RunError, match="No space left"):
        save_checkpoint(3, config, alone(Full()), {})
    assert list((tmp_path / "checkpoints").iterdir()) == []
