"""A run goes on only as it was laid out; whoever asks for another is told before anything is written or waited for."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.made_run_file import write_run_file

from grpo_trainer.checkpoint.continuity import kept_of
from grpo_trainer.checkpoint.files import begin_checkpoint, describe_files, finish_checkpoint, list_files
from grpo_trainer.config.run_config import RunConfig
from grpo_trainer.config.settings import read_config
from grpo_trainer.engine.state import STATE_TAG, layout, read_engine_state, write_engine_state
from grpo_trainer.engine.write_errors import deferring_write_errors
from grpo_trainer.errors import UsageError
from grpo_trainer.observe.run_status import RunStatus
from grpo_trainer.ranks.stop_signal import StopSignal

COUNTS = {"updates_done": 3, "skipped_updates": 0}


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """Of a run whose checkpoint one process has written, with ZeRO 2 in float32."""
    file = write_run_file(tmp_path, rollout={"urls": ["http://127.0.0.1:9"]}, max_steps=5, deepspeed={"zero_stage": 2})
    folder = begin_checkpoint(tmp_path / "run", 3)
    (folder / "engine" / STATE_TAG).mkdir(parents=True)
    write_engine_state(folder / "engine", layout(zero_stage=2, world_size=1, dtype="float32"), COUNTS)
    finish_checkpoint(tmp_path / "run", 3, {"step": 3}, describe_files(folder, list_files(folder)), keep=2)
    return file


def config_of(file: Path, *flags: str) -> RunConfig:
    return read_config(RunConfig, [str(file), "--model.dtype", "float32", *flags], program="test", env_prefix="NONE__")


def opened(config: RunConfig, **options: Any) -> tuple[Path, dict[str, Any]] | tuple[None, None]:
    from grpo_trainer.run import open_checkpoint  # which imports DeepSpeed

    return open_checkpoint(config, kept_of(config), resume=True, stop=StopSignal(), **options)


def test_the_same_layout_goes_on(run_file: Path):
    folder, state = opened(config_of(run_file))
    assert state == {"step": 3}
    assert folder is not None
    saved = read_engine_state(folder / "engine", layout(zero_stage=2, world_size=1, dtype="float32"))
    assert COUNTS.items() <= saved.items()


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--deepspeed.zero_stage", "3"], "zero_stage 2, and this run has 3"),
        (["--model.dtype", "bfloat16"], "dtype float32, and this run has bfloat16"),
        (
            ["--model.freeze_parameters_regex", "norm"],
            r"model\.train_vision_tower, model\.freeze_parameters_regex and model\.trainable_parameters_regex None",
        ),
        (["--model.lora.r", "8"], "lora None, and this run has {'r': 8"),
    ],
)
def test_another_one_is_refused(flags: list[str], told: str, run_file: Path):
    with pytest.raises(UsageError, match=rf"/engine was written with {told}") as refused:
        opened(config_of(run_file, *flags))
    assert refused.value.hint is not None
    assert "another run_dir" in refused.value.hint


def test_another_number_of_ranks_goes_on(run_file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert opened(config_of(run_file))[1] == {"step": 3}


def test_a_reference_may_begin_to_move_and_not_go_back_to_the_first_model(run_file: Path, tmp_path: Path):
    moving = config_of(run_file, "--algorithm.sync_ref_model", "true")
    assert opened(moving)[1] == {"step": 3}
    folder = tmp_path / "run" / "checkpoints" / "checkpoint-3" / "engine"
    own = layout(zero_stage=2, world_size=1, dtype="float32", sync_ref_model=True)
    assert own.keys() - layout(zero_stage=2, world_size=1, dtype="float32") == {"sync_ref_model"}
    write_engine_state(folder, own, COUNTS)
    described = describe_files(folder.parent, list_files(folder.parent))
    (folder.parent / "manifest.json").write_text(json.dumps({"files": described}))
    assert opened(moving)[1] == {"step": 3}
    with pytest.raises(UsageError, match="written with sync_ref_model True, and this run has None"):
        opened(config_of(run_file))


def test_an_adapter_goes_on_upon_the_same_model_alone(run_file: Path, tmp_path: Path):
    config = config_of(run_file, "--model.lora.r", "8")
    folder = tmp_path / "run" / "checkpoints" / "checkpoint-3" / "engine"
    own = layout(zero_stage=2, world_size=1, dtype="float32", lora=config.model.lora, base_digest="a" * 64)
    write_engine_state(folder, own, COUNTS)
    described = describe_files(folder.parent, list_files(folder.parent))
    (folder.parent / "manifest.json").write_text(json.dumps({"files": described}))
    assert opened(config, base_digest="a" * 64)[1] == {"step": 3}
    with pytest.raises(UsageError, match=f"base_digest {'a' * 64}, and this run has {'b' * 64}"):
        opened(config, base_digest="b" * 64)


def mixture(tmp_path: Path, **ratios: float) -> list[str]:
    sets = {name: {"dataset": str(tmp_path / f"{name}.jsonl"), "ratio": ratio} for name, ratio in ratios.items()}
    return ["--data.dataset", "null", "--data.datasets", json.dumps(sets)]


def save_state(run_dir: Path, state: dict[str, object]) -> None:
    folder = run_dir / "checkpoints" / "checkpoint-3"
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "manifest.json").write_text(json.dumps({"files": describe_files(folder, list_files(folder))}))


def test_positions_in_the_prompts_go_on_in_the_same_mixture_alone(run_file: Path, tmp_path: Path):
    config = config_of(run_file, *mixture(tmp_path, a=0.75, b=0.25))
    assert opened(config)[1] == {"step": 3}, "it knows of none"
    saved = {"step": 3, **kept_of(config)}
    save_state(tmp_path / "run", saved)
    assert opened(config)[1] == saved
    for flags, told in (
        (mixture(tmp_path, a=0.5, b=0.5), "a 0.5, b 0.5"),
        (mixture(tmp_path, b=0.25, a=0.75), "b 0.25, a 0.75"),
        ([], "of data.dataset alone"),
    ):
        with pytest.raises(UsageError, match=f"with the datasets a 0.75, b 0.25, and this run has {told}: "):
            opened(config_of(run_file, *flags))


def test_a_single_dataset_does_not_go_on_as_a_mixture(run_file: Path, tmp_path: Path):
    save_state(tmp_path / "run", {"step": 3, **kept_of(config_of(run_file))})
    opened(config_of(run_file))
    with pytest.raises(UsageError, match=r"with the datasets of data\.dataset alone, and this run has a 1: "):
        opened(config_of(run_file, *mixture(tmp_path, a=1.0)))


def test_a_file_that_has_changed_since_the_checkpoint_is_warned_of(
    run_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    loss, recipe = tmp_path / "loss.py", tmp_path / "recipe.py"
    for file in (loss, recipe):
        file.write_text("def own(): ...")
    sets = json.dumps({"a": {"dataset": "a", "ratio": 1, "recipe": f"{recipe}:own"}})
    flags = ("--algorithm.loss", f"{loss}:own", "--data.dataset", "null", "--data.datasets", sets)
    config = config_of(run_file, *flags)
    save_state(tmp_path / "run", {"step": 3, **kept_of(config)})
    opened(config)
    assert caplog.text == ""
    recipe.write_text("def own(): return 7")
    opened(config)
    assert f"{recipe}:own has changed since the checkpoint of step 3" in caplog.text
    assert "loss.py" not in caplog.text
    assert "files" not in kept_of(config_of(run_file))


def test_its_configuration_stays_what_it_was(run_file: Path, tmp_path: Path):
    """No server runs at the address: a run that waited for it would not end here."""
    from grpo_trainer.run import run

    kept = tmp_path / "run" / "run.yaml"
    kept.write_text("as it was\n")
    config = config_of(run_file, "--deepspeed.zero_stage", "0")
    with pytest.raises(UsageError, match="zero_stage 2, and this run has 0"):
        run(config, resume=True, status=RunStatus("test", heartbeat_bound_s=600), stop=StopSignal())
    assert kept.read_text() == "as it was\n"


def test_a_rank_whose_disk_is_full_meets_the_others_before_it_fails():
    met: list[str] = []

    class Files:
        def save(self, path: str) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    files = Files()

    def save() -> None:
        with deferring_write_errors((files, "save")):
            files.save("weights")
            met.append("the barrier")

    with pytest.raises(OSError, match="No space left"):
        save()
    assert met == ["the barrier"]
    assert "save" not in vars(files)
