"""The volumes of storage: a folder of one, who writes to them, and the claims that the chart makes."""

import pytest

from .rendering import Object, containers, find, merged, objects_of, pods, render, values_of

MODELS, RUNS = "/models", "/runs"


def _mounts(objects: list[Object], path: str) -> dict[str, Object]:
    """Container, with that of its component → what it has mounted at `path`."""
    return {
        f"{pod['metadata']['labels']['app.kubernetes.io/component']}/{container['name']}": mount
        for _, pod in pods(objects)
        for container in containers(pod)
        for mount in container.get("volumeMounts", [])
        if mount["mountPath"] == path
    }


def _cluster(**storage: Object) -> list[Object]:
    """All who mount something, those that wait for the prepare job, too."""
    return render(merged(values_of("cpu-cluster"), {"storage": storage}))


def test_a_folder_of_a_claim_of_yours() -> None:
    objects = _cluster(
        models={"existingClaim": "shared", "subPath": "teams/rl/models"},
        runs={"existingClaim": "shared", "subPath": "teams/rl/runs"},
    )
    models, runs = _mounts(objects, MODELS), _mounts(objects, RUNS)
    waiting = {"rollout/wait-for-prepare", "trainer/wait-for-prepare"}
    assert models.keys() == {"rollout/rollout", "trainer/trainer", "prepare/prepare"} | waiting
    assert {mount["subPath"] for mount in models.values()} == {"teams/rl/models"}
    assert [(name, mount["subPath"]) for name, mount in runs.items()] == [("trainer/trainer", "teams/rl/runs")]
    assert _claims(objects) == [["shared"]] * 3
    assert not [item for item in objects if item["kind"] == "PersistentVolumeClaim"]


@pytest.mark.parametrize("read_only", [False, True])
def test_one_claim_is_one_volume_of_a_pod(read_only: bool) -> None:
    """With two volumes of one claim a pod stays ContainerCreating for ever, on nodes before Kubernetes 1.35."""
    objects = _cluster(
        models={"existingClaim": "shared", "subPath": "models", "readOnly": read_only},
        runs={"existingClaim": "shared", "subPath": "runs"},
    )
    assert all(len(claims) <= 1 for claims in _claims(objects))
    (trainer,) = [pod for name, pod in pods(objects) if "-t-" in name]
    (volume,) = [volume for volume in trainer["spec"]["volumes"] if "persistentVolumeClaim" in volume]
    assert "readOnly" not in volume["persistentVolumeClaim"], "the trainer writes its runs there"
    runs, models = (_mounts(objects, path)["trainer/trainer"] for path in (RUNS, MODELS))
    assert runs["name"] == models["name"] == volume["name"]
    assert (runs.get("readOnly", False), models.get("readOnly", False)) == (False, read_only)


def _claims(objects: list[Object]) -> list[list[str]]:
    """Of every pod that has any."""
    claims = [
        [
            volume["persistentVolumeClaim"]["claimName"]
            for volume in pod["spec"]["volumes"]
            if "persistentVolumeClaim" in volume
        ]
        for _, pod in pods(objects)
    ]
    return [names for names in claims if names]


def test_all_of_a_volume_is_mounted_otherwise() -> None:
    objects = objects_of("cpu-cluster")
    mounts = [*_mounts(objects, MODELS).values(), *_mounts(objects, RUNS).values()]
    assert mounts
    assert not any("subPath" in mount for mount in mounts)


def test_models_that_are_only_read() -> None:
    """A claim for reading alone cannot be attached for writing, and the Hugging Face cache is written to."""
    objects = _cluster(models={"readOnly": True})
    writers = {name for name, mount in _mounts(objects, MODELS).items() if not mount.get("readOnly")}
    assert writers == {"prepare/prepare"}
    for _, pod in pods(objects):
        component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        for volume in pod["spec"]["volumes"]:
            if volume["name"] == "models":
                read_only = volume["persistentVolumeClaim"].get("readOnly", False)
                assert read_only is (component != "prepare"), component
            elif volume["name"] == "runs":
                assert "readOnly" not in volume["persistentVolumeClaim"]
    for component, home in (("rollout", "/cache"), ("trainer", "/cache"), ("prepare", MODELS)):
        assert _hf_home(objects, component) == f"{home}/huggingface"


def test_models_are_written_to_unless_told_otherwise() -> None:
    """By the Hugging Face cache."""
    objects = objects_of("cpu-cluster")
    for component in ("rollout", "trainer", "prepare"):
        assert not _mounts(objects, MODELS)[f"{component}/{component}"].get("readOnly")
        assert _hf_home(objects, component) == f"{MODELS}/huggingface"


def _hf_home(objects: list[Object], component: str) -> str:
    (container,) = [one for _, pod in pods(objects) for one in containers(pod) if one["name"] == component]
    (home,) = [variable["value"] for variable in container["env"] if variable["name"] == "HF_HOME"]
    return str(home)


def test_annotations_of_the_claims() -> None:
    given = {"backup.example/exclude": "true"}
    objects = _cluster(runs={"annotations": given}, models={"annotations": given, "keep": False})
    kept = {"helm.sh/resource-policy": "keep"}
    assert find(objects, "PersistentVolumeClaim", "-runs")["metadata"]["annotations"] == given | kept
    assert find(objects, "PersistentVolumeClaim", "-models")["metadata"]["annotations"] == given
    bare = _cluster(models={"keep": False})
    assert "annotations" not in find(bare, "PersistentVolumeClaim", "-models")["metadata"]
