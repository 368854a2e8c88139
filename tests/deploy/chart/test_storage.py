"""The volumes of storage: a folder of one, who writes to them, and the claims that the chart makes."""

from .rendering import Object, containers, find, merged, objects_of, pods, render, values_of

MODELS, RUNS = "/models", "/runs"


def _mounts(objects: list[Object], volume: str) -> dict[str, Object]:
    """Container, with that of its component → its mount of `volume`."""
    return {
        f"{pod['metadata']['labels']['app.kubernetes.io/component']}/{container['name']}": mount
        for _, pod in pods(objects)
        for container in containers(pod)
        for mount in container.get("volumeMounts", [])
        if mount["name"] == volume
    }


def _cluster(**storage: Object) -> list[Object]:
    """All who mount something, those that wait for the prepare job, too."""
    return render(merged(values_of("cpu-cluster"), {"storage": storage}))


def test_a_folder_of_a_claim_of_yours() -> None:
    objects = _cluster(
        models={"existingClaim": "shared", "subPath": "teams/rl/models"},
        runs={"existingClaim": "shared", "subPath": "teams/rl/runs"},
    )
    models, runs = _mounts(objects, "models"), _mounts(objects, "runs")
    waiting = {"rollout/wait-for-prepare", "trainer/wait-for-prepare"}
    assert models.keys() == {"rollout/rollout", "trainer/trainer", "prepare/prepare"} | waiting
    assert {(mount["mountPath"], mount["subPath"]) for mount in models.values()} == {(MODELS, "teams/rl/models")}
    assert runs == {"trainer/trainer": {"name": "runs", "mountPath": RUNS, "subPath": "teams/rl/runs"}}
    claims = {
        volume["persistentVolumeClaim"]["claimName"]
        for _, pod in pods(objects)
        for volume in pod["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert claims == {"shared"}
    assert not [item for item in objects if item["kind"] == "PersistentVolumeClaim"]


def test_all_of_a_volume_is_mounted_otherwise() -> None:
    objects = objects_of("cpu-cluster")
    mounts = [*_mounts(objects, "models").values(), *_mounts(objects, "runs").values()]
    assert mounts
    assert not any("subPath" in mount for mount in mounts)


def test_models_that_are_only_read() -> None:
    """A claim for reading alone cannot be attached for writing, and the Hugging Face cache is written to."""
    objects = _cluster(models={"readOnly": True})
    writers = {name for name, mount in _mounts(objects, "models").items() if not mount.get("readOnly")}
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
        assert not _mounts(objects, "models")[f"{component}/{component}"].get("readOnly")
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
