"""The run file and the environment the chart writes are what the services read."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_proto.api_token import server_tokens
from grpo_reward.config import read_settings
from grpo_trainer.config.run_config import RunConfig
from grpo_trainer.config.settings import read_config

from .rendering import CASES, ROOT, Object, find, merged, objects_of, render, values_of

WITH_TRAINER = [case for case in CASES if case != "reward-only"]


def run_file(objects: list[Object]) -> dict[str, Any]:
    text = next(item["data"]["run.yaml"] for item in objects if "run.yaml" in item.get("data", {}))
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def _read(objects: list[Object], tmp_path: Path) -> RunConfig:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(run_file(objects)))
    return read_config(RunConfig, [str(file)], program="grpo-train RUN.yaml", env_prefix="GRPO_TRAIN__")


@pytest.mark.parametrize("case", WITH_TRAINER)
def test_the_trainer_reads_it(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_TRAIN__WEIGHTS__HOST", "10.1.2.3")
    objects = objects_of(case)
    config = _read(objects, tmp_path)
    assert config.weights.host == "10.1.2.3"
    assert config.weights.port == 29400
    assert (config.server.host, config.server.port) == ("0.0.0.0", 8002)  # noqa: S104
    assert config.run_dir == Path("/runs/trial-grpo-services")
    job = next(item for item in objects if item["kind"] in ("Job", "JobSet") and "-t-" in item["metadata"]["name"])
    assert config.deepspeed.nproc_per_node == max(1, values_of(case)["trainer"].get("gpus", 1))
    mounted = next(item["metadata"]["name"] for item in objects if "run.yaml" in item.get("data", {}))
    assert mounted == job["metadata"]["name"]


def test_the_user_wins() -> None:
    run = {"run_dir": "/runs/mine/seven", "rollout": {"startup_timeout_s": 60, "urls": ["http://other:8000"]}}
    objects = render(merged(values_of("small"), {"trainer": {"run": run}}))
    written = run_file(objects)
    assert written["run_dir"] == "/runs/mine/seven"
    assert written["rollout"] == {"startup_timeout_s": 60, "urls": ["http://other:8000"]}
    container = find(objects, "Job", "")["spec"]["template"]["spec"]["containers"][0]
    assert next(v["value"] for v in container["env"] if v["name"] == "LOCK_FILE") == "/runs/.mine-seven.lock"


@pytest.mark.parametrize(
    ("mount_path", "run_dir"), [("/runs/", "/runs/mine/seven"), ("/runs", "/runs//mine/./seven/"), ("/runs/", None)]
)
def test_one_run_folder_has_one_lock_however_it_is_written(mount_path: str, run_dir: str | None) -> None:
    run = {"run_dir": run_dir} if run_dir else {}
    values = {"trainer": {"run": run}, "storage": {"runs": {"mountPath": mount_path}}}
    container = find(render(merged(values_of("small"), values)), "Job", "")["spec"]["template"]["spec"]["containers"][0]
    lock = next(v["value"] for v in container["env"] if v["name"] == "LOCK_FILE")
    assert lock == ("/runs/.mine-seven.lock" if run_dir else "/runs/.trial-grpo-services.lock")


def test_the_cpu_example_is_the_main_job(tmp_path: Path) -> None:
    """What `make demo` trains, but for paths, addresses, and checkpoints on the way."""
    demo = RunConfig.model_validate(yaml.safe_load((ROOT / "examples/countdown/run.yaml").read_text())).model_dump()
    ours = _read(objects_of("cpu-cluster"), tmp_path).model_dump()
    for config in (demo, ours):
        for section, keys in {
            "model": ["name_or_path"],
            "data": ["dataset", "eval_dataset"],
            "rollout": ["urls", "startup_timeout_s"],
            "reward": ["url", "startup_timeout_s"],
            "checkpoint": ["save_steps"],
            "server": ["host"],
            "weights": ["port"],
        }.items():
            for key in keys:
                del config[section][key]
        del config["run_dir"]
    assert ours == demo
    script = values_of("cpu-cluster")["prepare"]["script"]
    assert Path(script.split("/")[-1]) == Path("prepare_demo.sh")


@pytest.mark.parametrize("case", CASES)
def test_the_reward_server_reads_its_environment(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    container = find(objects_of(case), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    for variable in container["env"]:
        from_secret = "secretKeyRef" in variable.get("valueFrom", {})
        value = variable["valueFrom"]["secretKeyRef"]["key"] if from_secret else variable.get("value", "2")
        if variable["name"].startswith("GRPO_"):
            monkeypatch.setenv(variable["name"], value)
    settings = read_settings([])
    assert (settings.host, settings.port, server_tokens()) == ("0.0.0.0", 8001, ("token", "token-also"))  # noqa: S104
    assert settings.executor == ("ray" if case == "ray-rewards" else "process")
    assert settings.plugin == ([Path("/etc/grpo/plugins/mine.py")] if case == "ray-rewards" else [])
    if case == "reward-only":
        assert settings.memo == 100000
        assert settings.adapter_rewards == "accuracy,format:0.1"
