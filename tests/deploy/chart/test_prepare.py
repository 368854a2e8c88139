"""The job that makes models and data, and the pods that wait for it."""

import os
import subprocess
from pathlib import Path

import pytest

from .rendering import Object, containers, find, merged, pods, render, values_of

PREPARED: Object = {"prepare": {"enabled": True, "script": "make-the-model"}}


def _objects(*changes: Object) -> list[Object]:
    return render(merged(values_of("small"), PREPARED, *changes))


TRAINER_ALONE: dict[str, Object] = {
    "nodes": {"trainer": {"nodeSelector": {"pool": "training"}}},
    "tmp": {"trainer": {"tmpSize": "20Gi"}},
    "image": {"trainer": {"image": {"tag": "0.2.0-gpu"}}},
}


@pytest.mark.parametrize("change", TRAINER_ALONE)
def test_a_change_of_the_trainer_alone_restarts_no_rollout_server(change: str) -> None:
    before, after = _objects(), _objects(TRAINER_ALONE[change])
    jobs = [{item["metadata"]["name"] for item in objects if item["kind"] == "Job"} for objects in (before, after)]
    assert not jobs[0] & jobs[1]
    servers = [find(objects, "StatefulSet")["spec"]["template"] for objects in (before, after)]
    assert servers[0] == servers[1]


def test_another_script_is_waited_for_anew() -> None:
    servers = [find(_objects(change), "StatefulSet") for change in ({}, {"prepare": {"script": "make-another"}})]
    assert servers[0]["spec"]["template"] != servers[1]["spec"]["template"]


def test_who_has_waited_too_long_is_told_where_to_look() -> None:
    objects = _objects()
    labels = next(pod["metadata"]["labels"] for name, pod in pods(objects) if "-p-" in name)
    waiting = [one for _, pod in pods(objects) for one in containers(pod) if one["name"] == "wait-for-prepare"]
    assert len(waiting) == 2
    for container in waiting:
        (script,) = container["args"]
        selected = script.partition("kubectl logs -n team-a -l ")[2].partition('"')[0]
        assert dict(label.split("=") for label in selected.split(",")) == labels


def test_an_eviction_is_no_failure_of_the_script() -> None:
    job = next(item for item in _objects() if item["kind"] == "Job" and "-p-" in item["metadata"]["name"])
    (rule,) = job["spec"]["podFailurePolicy"]["rules"]
    assert rule == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize(
    ("script", "status", "done"),
    [
        ("[ -z anything ] || exit 0\necho not reached\nexit 1\n", 0, True),
        ("echo made # the model", 0, True),
        ("cat <<EOF\nmade\nEOF\n", 0, True),
        ("false\necho not reached\n", 1, False),
        ("exit 3", 3, False),
    ],
)
def test_a_script_that_ends_well_is_done_however_it_ends(script: str, status: int, done: bool, tmp_path: Path) -> None:
    """Without its marker all pods would wait for it, and none would say why."""
    (container,) = next(
        pod["spec"]["containers"] for name, pod in pods(_objects({"prepare": {"script": script}})) if "-p-" in name
    )
    marker = tmp_path / "marker"
    command = [*container["command"], *container["args"]]
    for _ in range(2):
        ended = subprocess.run(command, env=os.environ | {"MARKER": str(marker)}, timeout=30, check=False)
        assert (ended.returncode, marker.exists()) == (status, done)


def test_what_prepares_is_no_member_of_the_trainings_gang() -> None:
    """A gang scheduler counts pods by their labels and annotations: one pod too many, and the training never begins."""
    gang = {"scheduling.example/group": "training"}
    objects = _objects({"trainer": {"podLabels": gang, "podAnnotations": gang}, "commonLabels": {"team": "rl"}})
    found = {pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod["metadata"] for _, pod in pods(objects)}
    assert gang.items() <= found["trainer"]["labels"].items() & found["trainer"]["annotations"].items()
    assert not gang.items() & found["prepare"]["labels"].items()
    assert "annotations" not in found["prepare"]
    assert found["prepare"]["labels"]["team"] == "rl"
