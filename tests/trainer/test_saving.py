"""Checkpoints and the final model are whole or not there, and every rank ends alike when one cannot be written."""

import errno
import json
import threading
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from tests.trainer.gloo_ranks import outputs_of_two_ranks
from torch import nn

from grpo_trainer.checkpoint.file_writer import copied_to_host
from grpo_trainer.checkpoint.files import find_latest, list_steps
from grpo_trainer.checkpoint.saving import CheckpointSaver, FinalFolder, final_folders
from grpo_trainer.errors import RunError, UnavailableError, UsageError
from grpo_trainer.observe.run_status import RunStatus
from grpo_trainer.rank_work import COMMANDS, RankWork
from grpo_trainer.ranks.crew import Crew
from grpo_trainer.ranks.ranks import Ranks


def alone(engine: Any) -> Crew:
    ranks = Ranks(rank=0, world_size=1)
    work = RankWork(engine, ranks, pad_token_id=0, tokens_per_micro_batch=64)
    return Crew(ranks, work, COMMANDS, RunStatus("run", heartbeat_bound_s=60.0))


class Engine:
    """Writes one small file and one large one; `error` comes when half of it is there."""

    def __init__(self, content: str, error: Exception | None = None):
        self.content, self.error = content, error
        self.num_bytes = self.num_adapter_bytes = len(content)

    def whole_state(self) -> dict[str, Any]:
        return {"content": self.content}

    def adapter_state(self) -> dict[str, Any]:
        return {"content": f"adapter of {self.content}"}

    def write_hf(self, folder: Path, state: dict[str, Any]) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        if state:
            (folder / "model.safetensors").write_text(state["content"])
        if self.error:
            raise self.error

    write_adapter = write_hf


def folders(run_dir: Path, engine: Any, *, lora: Any = None, save_merged: bool = False) -> list[FinalFolder]:
    checkpoint = SimpleNamespace(save_merged=save_merged)
    config: Any = SimpleNamespace(run_dir=run_dir, model=SimpleNamespace(lora=lora), checkpoint=checkpoint)
    return final_folders(config, engine)


def save(run_dir: Path, engine: Any, **settings: Any) -> None:
    for folder in folders(run_dir, engine, **settings):
        folder.save(alone(engine))


def test_the_model_takes_the_place_of_an_older_one(tmp_path: Path):
    for content in ("old", "new"):
        save(tmp_path, Engine(content))
    assert (tmp_path / "model/model.safetensors").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_adapter_is_the_model_and_the_merged_model_lies_beside_it(tmp_path: Path):
    save(tmp_path, Engine("both"), lora={"r": 8}, save_merged=True)
    assert (tmp_path / "model/model.safetensors").read_text() == "adapter of both"
    assert (tmp_path / "model-merged/model.safetensors").read_text() == "both"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SafetensorError("Error while serializing")])
def test_one_that_could_not_be_written_leaves_nothing_of_itself(tmp_path: Path, error: Exception):
    save(tmp_path, Engine("old"))
    with pytest.raises(RunError, match=r"the final model could not be written: rank 0: .*--resume"):
        save(tmp_path, Engine("half", error))
    assert (tmp_path / "model/model.safetensors").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_rehearsal_changes_nothing(tmp_path: Path):
    save(tmp_path, Engine("old"))
    for folder in folders(tmp_path, Engine("new"), lora={"r": 8}, save_merged=True):
        folder.rehearse()
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == [
        "model", "model/config.json", "model/model.safetensors",
    ]  # fmt: skip


@pytest.mark.parametrize("place", ["a file", "a link", "a full disk", "no folder", "a failing write"])
def test_what_would_fail_at_the_end_fails_in_the_rehearsal(place: str, tmp_path: Path):
    run_dir, engine = tmp_path / "run", Engine("new")
    run_dir.mkdir()
    kind, told = UsageError, f"{run_dir}/model could not be written at the end: "
    match place:
        case "a file":
            (run_dir / "model").write_text("mine")
            told = f"{run_dir}/model is no folder"
        case "a link":
            (run_dir / "model").symlink_to(tmp_path)
            told = f"{run_dir}/model is no folder"
        case "a full disk":
            engine.num_bytes = 2**80
            kind, told = (
                UnavailableError,
                told + r"\[Errno 28\] 1,125,899,906,842,624.00 GiB are needed, and [0-9.,]* [GM]iB are free",
            )
        case "no folder":
            run_dir.rmdir()
            told += r"\[Errno 2\] No such file or directory"
        case "a failing write":
            engine.error = SafetensorError("Error while serializing")
            told += "Error while serializing"
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(kind, match=told):
        folders(run_dir, engine)[0].rehearse()
    assert sorted(tmp_path.rglob("*")) == before


# Rank 0 saves, the other ranks follow; each prints what it ended with.
CREW = """
from grpo_trainer.observe.run_status import RunStatus
from grpo_trainer.rank_work import COMMANDS, RankWork
from grpo_trainer.ranks.crew import Crew, follow

def by_all(engine, save):
    work = RankWork(engine, ranks, pad_token_id=0, tokens_per_micro_batch=64)
    status = RunStatus("run", heartbeat_bound_s=60.0)
    if ranks.rank:
        return print(json.dumps(follow(ranks, work, COMMANDS, status)))
    said = ""
    try:
        with Crew(ranks, work, COMMANDS, status) as crew:
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
import torch
from grpo_trainer.checkpoint import saving
from grpo_trainer.errors import RunError
from grpo_trainer.ranks.ranks import join_ranks
ranks = join_ranks(silence_s=60)
full = OSError(28, "No space left on device")

def fail(*_, **__):
    raise full

class Engine:
    beat = staticmethod(lambda: None)

    def save(self, folder, write):
        folder.mkdir(parents=True, exist_ok=True)
        write("state", folder / f"rank-{{ranks.rank}}")
        if "{where}" == "engine" and ranks.rank == 1:
            raise full

if "{where}" in ("begin_checkpoint", "finish_checkpoint"):
    setattr(saving, "{where}", fail)
if "{where}" == "background" and ranks.rank == 1:
    torch.save = fail
settings = SimpleNamespace(save_total_limit=2, async_save="{where}" == "background")
config = SimpleNamespace(run_dir=Path("{run_dir}"), checkpoint=settings)

def save(crew):
    saver = saving.CheckpointSaver(config, crew, num_bytes=0)
    saver.save(3, {{"step": 3}})
    saver.complete()

by_all(Engine(), save)
"""


@pytest.mark.deepspeed
@pytest.mark.parametrize(
    ("where", "rank"),
    [("begin_checkpoint", 0), ("engine", 1), ("background", 1), ("finish_checkpoint", 0), ("nowhere", None)],
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
settings = SimpleNamespace(save_total_limit=2, async_save=False)
config = SimpleNamespace(run_dir=Path("{run_dir}"), checkpoint=settings)
save = lambda folder, write: save_deepspeed_state(engine, folder, write, frozen=True, beat=beat)
work = SimpleNamespace(beat=beat, save=save)
by_all(work, lambda crew: saving.CheckpointSaver(config, crew, num_bytes=0).save(3, {{"step": 3}}))
"""


@pytest.mark.deepspeed
@pytest.mark.parametrize("stage", [2, 3])
def test_a_rank_with_a_full_disk_keeps_nobody_waiting_inside_deepspeed(stage: int, tmp_path: Path):
    """DeepSpeed's ranks meet after they have written: one that failed before would be waited for until its limit."""
    outputs = outputs_of_two_ranks(DEEPSPEED_PROGRAM.format(crew=CREW, run_dir=tmp_path / "run", stage=stage), tmp_path)
    expected = "the checkpoint of step 3 could not be written: rank 1: [Errno 28] No space left on device"
    assert [json.loads(output.splitlines()[-1]) for output in outputs] == [expected, 1]


def saver_of(run_dir: Path, engine: Any, *, async_save: bool) -> CheckpointSaver:
    settings = SimpleNamespace(save_total_limit=2, async_save=async_save)
    config: Any = SimpleNamespace(run_dir=run_dir, checkpoint=settings)
    return CheckpointSaver(config, alone(engine), num_bytes=0)


def test_a_full_disk_leaves_nothing_of_the_checkpoint(tmp_path: Path):
    class Full:
        def save(self, folder: Path, write: Any) -> None:
            folder.mkdir()
            (folder / "half").write_bytes(b"x")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(RunError, match="No space left"):
        saver_of(tmp_path, Full(), async_save=False).save(3, {})
    assert list((tmp_path / "checkpoints").iterdir()) == []


class Slow:
    """Is written once `released` is set; raises `error` then."""

    def __init__(self) -> None:
        self.released, self.error = threading.Event(), None

    def __reduce__(self) -> Any:
        assert self.released.wait(30)
        if self.error:
            raise self.error
        return str, ("written",)


class Training:
    """One tensor, which goes on changing, and what takes long to write."""

    beat = staticmethod(lambda: None)

    def __init__(self) -> None:
        self.weights, self.slow = torch.zeros(3), Slow()

    def save(self, folder: Path, write: Any) -> None:
        folder.mkdir()
        write({"weights": self.weights}, folder / "weights.pt")
        write([self.slow], folder / "slow.pt")


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path):
    engine = Training()
    saver = saver_of(tmp_path, engine, async_save=True)
    saver.save(3, {"step": 3})
    engine.weights += 1
    saver.complete(wait=False)
    assert saver.is_writing
    assert find_latest(tmp_path) is None, "a killed run would find a checkpoint that is not whole"
    engine.slow.released.set()
    saver.complete()
    assert not saver.is_writing
    found = find_latest(tmp_path)
    assert found is not None
    folder, state = found
    assert state == {"step": 3}
    assert torch.load(folder / "engine" / "weights.pt")["weights"].tolist() == [0, 0, 0]


def test_a_second_checkpoint_waits_for_the_first(tmp_path: Path):
    engine = Training()
    saver = saver_of(tmp_path, engine, async_save=True)
    saver.save(3, {"step": 3})
    threading.Timer(0.2, engine.slow.released.set).start()
    saver.save(4, {"step": 4}, spared=[3])
    assert list_steps(tmp_path) == [3]
    saver.complete()
    assert list_steps(tmp_path) == [3, 4]


def test_a_disk_that_is_full_in_the_background_is_named_at_the_next_step(tmp_path: Path):
    engine = Training()
    saver = saver_of(tmp_path, engine, async_save=True)
    saver.save(3, {})
    engine.slow.error = OSError(errno.ENOSPC, "No space left on device")
    engine.slow.released.set()
    with pytest.raises(RunError, match=r"the checkpoint of step 3 could not be written: .*No space left.*free some"):
        saver.complete()
    assert list((tmp_path / "checkpoints").iterdir()) == []
    saver.complete()  # what the end of the run does


def test_a_rank_that_is_gone_while_a_checkpoint_is_written_is_no_full_disk(tmp_path: Path):
    engine = Training()
    saver = saver_of(tmp_path, engine, async_save=True)
    saver.save(3, {})
    engine.slow.error = RunError("another rank is gone", hint="its log says why")
    engine.slow.released.set()
    with pytest.raises(
        RunError, match=r"the checkpoint of step 3 could not be written: .*another rank is gone"
    ) as told:
        saver.complete()
    assert told.value.hint == "its log says why"


def test_a_copy_keeps_what_tensors_share_and_what_they_are():
    flat = torch.arange(6.0)
    module = OrderedDict(tied=flat[2:4], head=flat[2:4], matrix=flat.view(2, 3).T, nothing=torch.empty(0))
    module._metadata = {"version": 1}  # type: ignore[attr-defined]
    copied = copied_to_host({"module": module, "groups": [nn.Parameter(flat.bfloat16())], "step": 3})
    expected = [tensor.clone() for tensor in (flat[2:4], flat.view(2, 3).T)]
    flat.zero_()
    assert torch.equal(copied["module"]["tied"], expected[0])
    assert torch.equal(copied["module"]["matrix"], expected[1])
    assert copied["module"]["tied"].data_ptr() == copied["module"]["head"].data_ptr()
    assert copied["module"]._metadata == {"version": 1}
    assert copied["groups"][0].dtype == torch.bfloat16
    assert copied["step"] == 3
