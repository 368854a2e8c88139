"""Who the pods run as: user 10001, or whom the cluster or the owner of a volume wants. The rest stays as it is."""

import pytest

from .rendering import CASES, Object, containers, find, merged, objects_of, pods, render, values_of

FIXED = {"runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001}
LEFT_OUT: Object = {"podSecurityContext": dict.fromkeys(FIXED)}


def _of_pods(objects: list[Object]) -> list[tuple[str, Object]]:
    return [(name, pod["spec"]["securityContext"]) for name, pod in pods(objects)]


@pytest.mark.parametrize("case", CASES)
def test_what_the_cluster_assigns_is_left_out(case: str) -> None:
    """OpenShift's restricted-v2 refuses every user and group that is not of its namespace's range."""
    before, after = _of_pods(objects_of(case)), _of_pods(render(merged(values_of(case), LEFT_OUT)))
    assert len(before) == len(after)
    for (name, fixed), (_, open_) in zip(before, after, strict=True):
        assert not FIXED.keys() & open_.keys(), name
        assert fixed == open_ | FIXED, name
        assert (open_["runAsNonRoot"], open_["seccompProfile"]) == (True, {"type": "RuntimeDefault"}), name


def test_a_share_of_another_owner() -> None:
    """An NFS server knows numbers only."""
    owner: Object = {"runAsUser": 1000650000, "runAsGroup": 0, "fsGroup": None, "supplementalGroups": [5555]}
    for name, security in _of_pods(render(merged(values_of("cpu-cluster"), {"podSecurityContext": owner}))):
        assert "fsGroup" not in security, name
        assert {key: security[key] for key in owner if owner[key] is not None} == {
            "runAsUser": 1000650000,
            "runAsGroup": 0,
            "supplementalGroups": [5555],
        }, name


@pytest.mark.parametrize(("change", "mode"), [({}, 0o440), ({"podSecurityContext": {"fsGroup": None}}, 0o444)])
def test_certificates_can_be_read_without_an_fs_group(change: Object, mode: int) -> None:
    """Kubernetes gives the files of a secret to root and to fsGroup, and to the group of root when there is none."""
    objects = render(merged(values_of("everything"), change))
    found = [v for _, pod in pods(objects) for v in pod["spec"]["volumes"] if v["name"] == "tls"]
    assert len(found) == 3
    assert {volume["secret"]["defaultMode"] for volume in found} == {mode}


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_written_to_a_folder_of_user_10001(case: str) -> None:
    """An assigned user owns no folder of the image, and has no home: what is written to goes to a mount."""
    homes = {"HOME", "XDG_CACHE_HOME", "HF_HOME"}
    caches = {"VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"}
    for name, pod in pods(render(merged(values_of(case), LEFT_OUT))):
        for container in containers(pod):
            if container["name"] in ("wait-for-prepare", "test"):  # they write nothing
                continue
            variables = {one["name"]: one.get("value", "") for one in container["env"]}
            mounts = {one["mountPath"] for one in container["volumeMounts"] if not one.get("readOnly")}
            assert homes <= variables.keys(), name
            for variable in (homes | caches) & variables.keys():
                folder = variables[variable]
                assert any(f"{folder}/".startswith(f"{mount}/") for mount in mounts), (name, variable, folder)
            if container["name"] == "rollout":
                assert caches <= variables.keys(), name


def test_the_trainer_is_another_job() -> None:
    """A pod's user cannot change."""
    before, after = (find(render(merged(values_of("small"), change)), "Job", "") for change in ({}, LEFT_OUT))
    assert before["metadata"]["name"] != after["metadata"]["name"]
