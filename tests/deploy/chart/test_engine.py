"""An engine over several pods: its parts find each other, and are told the same."""

import subprocess
import sys

from .rendering import CHART, Object, find, merged, pod_templates, render, values_of

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
        [flag for flag in container["args"] if flag != "serve" and "--node-rank" not in flag]
        for container in (leader, worker)
    ]
    assert same[0] == same[1]
    for flag in ("--nnodes=2", "--master-addr=$(LWS_LEADER_ADDRESS)", "--master-port=29501", "--dtype=bfloat16"):
        assert flag in same[0]


def test_the_workers_run_a_script_that_is_there() -> None:
    objects = render(values_of(CASE))
    _, worker = _engine()
    script = worker["command"][-1]
    mount = next(mount for mount in worker["volumeMounts"] if script.startswith(mount["mountPath"]))
    volumes = pod_templates(find(objects, "LeaderWorkerSet"))[1]["spec"]["volumes"]
    name = next(volume for volume in volumes if volume["name"] == mount["name"])["configMap"]["name"]
    content = find(objects, "ConfigMap", name)["data"][script.rsplit("/", 1)[1]]
    assert content.strip() == (CHART / "files" / "engine_worker.py").read_text().strip()


def test_no_ray_is_needed() -> None:
    """It is in none of our rollout images."""
    for container in _engine():
        assert not [variable["name"] for variable in container["env"] if variable["name"].startswith("RAY")]
        assert "ray" not in " ".join([*container["command"], *container["args"]])


def test_a_worker_with_a_wrong_model_says_so_and_fails() -> None:
    script = CHART / "files" / "engine_worker.py"
    ended = subprocess.run(
        [
            sys.executable,
            "-P",
            str(script),
            "/nowhere/model",
            "--nnodes=2",
            "--node-rank=1",
            "--tensor-parallel-size=2",
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 1
    assert "error: /nowhere/model is no model" in ended.stderr
