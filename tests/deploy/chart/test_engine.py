"""An engine over several pods: its parts find each other, and are told the same."""

import subprocess
import sys
from pathlib import Path

from .rendering import Object, find, merged, pod_templates, pods, render, values_of

CASE = "engine-over-nodes"


def _engine(change: Object | None = None) -> tuple[Object, Object]:
    """The first pod's container, and that of the others."""
    engine = find(render(merged(values_of(CASE), change or {})), "LeaderWorkerSet")
    leader, worker = (template["spec"]["containers"][0] for template in pod_templates(engine))
    return leader, worker


def test_all_pods_of_an_engine_are_told_the_same() -> None:
    """Each pod builds vLLM's configuration by itself, so a flag of the first must be one of all."""
    leader, worker = _engine({"rollout": {"args": ["--tensor-parallel-size=16", "--dtype=bfloat16"]}})
    assert leader["command"] == ["grpo-rollout"]
    assert leader["args"][0] == "serve"
    ranks = [[flag for flag in container["args"] if "--node-rank=" in flag] for container in (leader, worker)]
    assert ranks == [["--node-rank=0"], ["--node-rank=$(LWS_WORKER_INDEX)"]]
    same = [
        [flag for flag in container["args"] if flag != "--headless" and "--node-rank" not in flag]
        for container in (leader, worker)
    ]
    assert same[0] == same[1]
    for flag in ("--nnodes=2", "--master-addr=$(LWS_LEADER_ADDRESS)", "--master-port=29501", "--dtype=bfloat16"):
        assert flag in same[0]


def test_the_first_pod_alone_has_a_server() -> None:
    leader, worker = _engine()
    assert "--headless" in worker["args"]
    assert "--headless" not in leader["args"]
    assert "ports" in leader
    assert not {"ports", "livenessProbe", "readinessProbe"} & worker.keys()


def test_the_startup_probe_waits_for_the_others_and_then_for_the_model() -> None:
    for joining, probes in ((1800, {}), (7195, {"startup": {"periodSeconds": 20}})):
        change: Object = {"rollout": {"engine": {"joinTimeoutSeconds": joining}, "probes": probes}}
        leader, _ = _engine(change)
        [alone] = [
            pod["spec"]["containers"][0]
            for name, pod in pods(render(merged(values_of("small"), change)))
            if name.startswith("StatefulSet/")
        ]
        period = alone["startupProbe"]["periodSeconds"]
        more = leader["startupProbe"]["failureThreshold"] - alone["startupProbe"]["failureThreshold"]
        assert joining <= more * period < joining + period
        assert leader["livenessProbe"] == alone["livenessProbe"]


def test_no_ray_is_needed() -> None:
    """It is in none of our rollout images."""
    for container in _engine():
        assert not [variable["name"] for variable in container["env"] if variable["name"].startswith("RAY")]
        assert "ray" not in " ".join([*container["command"], *container["args"]])


def test_a_worker_takes_its_flags_and_says_what_is_wrong() -> None:
    _, worker = _engine({"rollout": {"model": "/nowhere/model"}})
    flags = [flag.replace("$(LWS_WORKER_INDEX)", "1") for flag in worker["args"]]
    command = [Path(sys.executable).with_name(worker["command"][0]), *flags]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2
    assert "error: /nowhere/model is no model" in ended.stderr
