"""On which nodes pods run, with which devices, and how they leave."""

import pytest

from .rendering import (
    BASE,
    CASES,
    ROOT,
    SMALL,
    Object,
    find,
    merged,
    objects_of,
    pod_templates,
    pods,
    render,
    values_of,
)


@pytest.mark.parametrize("case", CASES)
def test_a_server_that_is_not_ready_keeps_no_node_from_being_drained(case: str) -> None:
    for item in objects_of(case):
        if item["kind"] == "PodDisruptionBudget":
            assert item["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow", item["metadata"]["name"]


def test_a_claimed_device_is_taken_by_a_container_of_the_pod_and_by_no_idle_one() -> None:
    """Claims are of the pod; a container has the device only when it names the claim, too."""
    claims = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    parts: Object = {name: {"gpus": 0, "resourceClaims": claims} for name in ("rollout", "reward", "trainer")}
    prepared: Object = {"prepare": {"enabled": True, "script": "true"}}
    with_device = set()
    for _, pod in pods(render(merged(values_of("ray-rewards"), parts, prepared))):
        (container,) = pod["spec"]["containers"]
        taken = container["resources"].get("claims", [])
        assert pod["spec"].get("resourceClaims", []) == (claims if taken else []), container["name"]
        assert taken in ([], [{"name": "gpu"}]), container["name"]
        with_device |= {container["name"]} if taken else set()
    assert with_device == {"rollout", "reward", "ray-worker", "trainer"}


@pytest.mark.parametrize("without", [None, {"requests": None, "limits": None}])
def test_ray_workers_may_have_claims_and_ask_for_nothing_else(without: Object | None) -> None:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    reward = {"gpus": 0, "resourceClaims": claims, "ray": {"workerResources": without}}
    (group,) = find(render(merged(values_of("ray-rewards"), {"reward": reward})), "RayCluster")["spec"][
        "workerGroupSpecs"
    ]
    assert group["template"]["spec"]["containers"][0]["resources"] == {"claims": [{"name": "gpu"}]}


def test_scheduling_is_passed_through() -> None:
    spec = find(objects_of("everything"), "StatefulSet")["spec"]["template"]["spec"]
    assert (spec["runtimeClassName"], spec["schedulerName"], spec["priorityClassName"]) == ("nvidia", "kai", "high")
    assert spec["nodeSelector"] == {"gpu": "h100"}
    assert spec["tolerations"][0]["key"] == "gpu"
    assert spec["topologySpreadConstraints"][0]["topologyKey"] == "kubernetes.io/hostname"
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/mig-3g.40gb"] == 1
    assert [secret["name"] for secret in spec["imagePullSecrets"]] == ["one", "two"]
    assert {"name": "more", "mountPath": "/more"} in spec["containers"][0]["volumeMounts"]


def test_pods_that_are_spread_are_counted() -> None:
    """The API server warns of a constraint without a selector: it matches no pod, so it spreads nothing."""
    bare = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    own = {**bare, "labelSelector": {"matchLabels": {"team": "rl"}}}
    parts: Object = {name: {"topologySpreadConstraints": [bare, own]} for name in ("rollout", "reward", "trainer")}
    for name, pod in pods(render(merged(BASE, SMALL, parts))):
        first, second = pod["spec"]["topologySpreadConstraints"]
        selected = first["labelSelector"]["matchLabels"]
        assert selected, name
        assert selected.items() <= pod["metadata"]["labels"].items(), name
        assert second == own, name


def test_pods_with_volumes_of_one_node_stay_on_one_node() -> None:
    objects = objects_of("one-gpu-node")
    modes = [item["spec"]["accessModes"] for item in objects if item["kind"] == "PersistentVolumeClaim"]
    assert modes == [["ReadWriteOnce"]] * 2
    with_claims = [
        pod["spec"] for _, pod in pods(objects) if any("persistentVolumeClaim" in v for v in pod["spec"]["volumes"])
    ]
    assert len(with_claims) == 2
    nodes = {spec.get("nodeSelector", {}).get("kubernetes.io/hostname") for spec in with_claims}
    assert len(nodes) == 1
    assert None not in nodes


@pytest.mark.parametrize("case", ["one-plus-three-nodes", "sixty-four-gpus"])
def test_engines_take_no_node_that_the_training_needs_as_a_whole(case: str) -> None:
    """Nothing else keeps them away: the scheduler spreads them, by processors and memory."""
    nodes = {
        component: pod["spec"].get("nodeSelector")
        for _, pod in pods(objects_of(case))
        if (component := pod["metadata"]["labels"]["app.kubernetes.io/component"]) in ("rollout", "trainer")
    }
    assert nodes == {part: {"grpo-services/part": part} for part in ("rollout", "trainer")}


def test_both_ends_of_a_push_have_the_rdma_device() -> None:
    objects = objects_of("sixty-four-gpus")
    for kind in ("StatefulSet", "JobSet"):
        container = pod_templates(find(objects, kind))[0]["spec"]["containers"][0]
        assert container["resources"]["limits"]["rdma/hca_shared_devices_a"] == 1
        # For user 10001 no capability takes effect: allowPrivilegeEscalation is false.
        assert "add" not in container["securityContext"]["capabilities"]


def test_the_test_and_the_prepare_job_run_beside_pods_that_keep_apart() -> None:
    apart = {"labelSelector": {}, "topologyKey": "kubernetes.io/hostname"}
    architecture = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "kubernetes.io/arch", "operator": "Exists"}]}]}
    affinity = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": architecture},
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]},
    }
    part = {"affinity": affinity, "nodeSelector": {"pool": "cpu"}}
    prepare = {"enabled": True, "script": "true"}
    objects = render(merged(values_of("small"), {"reward": part, "trainer": part, "prepare": prepare}))
    prepare_job = next(item for item in objects if item["kind"] == "Job" and "-p-" in item["metadata"]["name"])
    for spec in (find(objects, "Pod")["spec"], prepare_job["spec"]["template"]["spec"]):
        assert spec["affinity"] == {"nodeAffinity": affinity["nodeAffinity"]}
        assert spec["nodeSelector"] == {"pool": "cpu"}


def test_the_cpu_cluster_is_as_big_as_the_page_says() -> None:
    """All pods at once: those that wait for the prepare job hold what they request, and it has to fit beside them."""
    milli = {"": 1000, "m": 1}
    requests = [pod["spec"]["containers"][0]["resources"]["requests"] for _, pod in pods(objects_of("cpu-cluster"))]
    cpus = [request["cpu"] for request in requests]
    cores = sum(int(cpu.rstrip("m")) * milli["m" if cpu.endswith("m") else ""] for cpu in cpus) / 1000
    unit = {"Gi": 1.0, "Mi": 1 / 1024}
    memory_gib = sum(int(request["memory"][:-2]) * unit[request["memory"][-2:]] for request in requests)
    assert "| seven cores, 12 GiB, no GPU |" in (ROOT / "docs" / "kubernetes.md").read_text()
    assert cores < 7 - 1, "a cluster's own pods ask for about one"
    assert memory_gib < 12 - 2, "a node offers less than it has, and a cluster's own pods ask for some"
