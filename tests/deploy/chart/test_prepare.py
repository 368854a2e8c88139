"""The job that makes models and data, and the pods that wait for it."""

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
