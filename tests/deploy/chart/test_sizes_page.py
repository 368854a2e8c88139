"""docs/from-a-laptop-to-64-gpus.md: every run file in it passes a dry run."""

import json
import re
from pathlib import Path

import pytest
import yaml
from tests.processes import free_port
from tests.tiny_model import save_tiny_model

from grpo_trainer.config.run_config import RunConfig
from grpo_trainer.config.settings import read_config
from grpo_trainer.dry_run import dry_run

from .rendering import ROOT, values_of

DOCS = ROOT / "docs"
PAGE = (DOCS / "from-a-laptop-to-64-gpus.md").read_text()
BLOCKS = dict(re.findall(r"```yaml\n# (\S+\.yaml)\n(.*?)```", PAGE, re.DOTALL))
SIZES = [name for name in BLOCKS if name != "base.yaml"]


def _config(size: str, folder: Path, *flags: str) -> RunConfig:
    files = [folder / "base.yaml", folder / size]
    for file in files:
        file.write_text(BLOCKS[file.name])
    arguments = [*map(str, files), *flags]
    return read_config(RunConfig, arguments, program="grpo-train RUN.yaml", env_prefix="GRPO_TRAIN__")


@pytest.mark.parametrize("size", SIZES)
def test_a_dry_run_of_each_size(size: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a tiny model and rows in place of those of the hub, and no server anywhere."""
    save_tiny_model(tmp_path / "model", tied=True)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"nums": [1, 2, 3], "target": 6}) + "\n")
    urls = [f"http://127.0.0.1:{free_port()}" for _ in _config(size, tmp_path).rollout.urls]
    config = _config(
        size,
        tmp_path,
        f"--model.name_or_path={tmp_path / 'model'}",
        f"--data.dataset={tmp_path / 'rows.jsonl'}",
        f"--rollout.urls={json.dumps(urls)}",
        f"--reward.url=http://127.0.0.1:{free_port()}",
    )
    assert dry_run(config) == 0
    plan = capsys.readouterr().out
    assert f"ZeRO stage {config.deepspeed.zero_stage}" in plan
    assert f"max_staleness {config.algorithm.max_staleness}" in plan


def test_the_page_has_all_sizes() -> None:
    assert SIZES == ["cpu.yaml", "one-gpu.yaml", "eight-gpus.yaml", "two-boxes.yaml", "sixty-four-gpus.yaml"]


@pytest.mark.parametrize(
    ("block", "example"), [("eight-gpus.yaml", "one-gpu-node"), ("sixty-four-gpus.yaml", "sixty-four-gpus")]
)
def test_the_page_and_the_examples_say_the_same(block: str, example: str) -> None:
    run, values = yaml.safe_load(BLOCKS[block]), values_of(example)
    ours = values["trainer"]["run"]
    assert run["algorithm"]["max_staleness"] == ours["algorithm"]["max_staleness"]
    assert run["deepspeed"]["zero_stage"] == ours["deepspeed"]["zero_stage"]
    assert run["deepspeed"]["nproc_per_node"] == values["trainer"]["gpus"]
    assert run["rollout"]["generation_batch_size"] == ours["rollout"]["generation_batch_size"]
    if "urls" in run["rollout"]:
        assert len(run["rollout"]["urls"]) == values["rollout"]["replicas"]
