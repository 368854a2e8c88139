"""What the probes ask, and what waits for whom."""

from typing import Any

import pytest

from .rendering import BASE, CASES, SMALL, find, merged, objects_of, pods, render

HTTP_PORTS = {"rollout": 8000, "reward": 8001, "trainer": 8002}


@pytest.mark.parametrize("case", CASES)
def test_servers_have_all_three_probes(case: str) -> None:
    for name, pod in pods(objects_of(case)):
        component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        if component not in HTTP_PORTS:
            continue
        server = pod["spec"]["containers"][0]
        ports = {port["name"]: port["containerPort"] for port in server["ports"]}
        assert ports["http"] == HTTP_PORTS[component], name
        for probe, route in (("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
            asked = server[probe]
            if component == "trainer":
                assert asked["exec"]["command"][-2:] == ["/etc/grpo/run/trainer_probe.py", route], name
            else:
                assert asked["httpGet"]["path"].partition("?")[0] == route, name
                assert asked["httpGet"]["port"] == "http", name
        startup = server["startupProbe"]
        bound_s = startup["periodSeconds"] * startup["failureThreshold"]
        assert bound_s >= (300 if component == "reward" else 2700), name


@pytest.mark.parametrize(
    ("values", "wait_s"),
    [
        ({}, 600),
        ({"trainer": {"enabled": False}}, 0),
        ({"rollout": {"weightsWaitSeconds": 3600, "engine": {"nodes": 2}}}, 3600),
        ({"trainer": {"enabled": False}, "rollout": {"weightsWaitSeconds": 60}}, 60),
    ],
)
def test_a_rollout_server_is_ready_with_a_trainers_weights(values: dict[str, Any], wait_s: int) -> None:
    """Or when none comes in time; in a release without a trainer nobody waits for one."""
    found = [pod for name, pod in pods(render(merged(BASE, SMALL, values))) if is_rollout(pod)]
    probes = [pod["spec"]["containers"][0].get("readinessProbe") for pod in found]
    asked = [probe["httpGet"]["path"] for probe in probes if probe is not None]
    assert asked == [f"/readyz?weights=required&wait_s={wait_s}"]


def is_rollout(pod: dict[str, Any]) -> bool:
    return pod["metadata"]["labels"]["app.kubernetes.io/component"] == "rollout"


def test_ray_pods_bring_probes_of_their_own() -> None:
    """KubeRay's ask Ray's dashboard agent, which a Ray without extras, as the reward server has it, does not start."""
    spec = find(objects_of("ray-rewards"), "RayCluster")["spec"]
    for group, flag in ((spec["headGroupSpec"], "port"), (spec["workerGroupSpecs"][0], "node-manager-port")):
        container = group["template"]["spec"]["containers"][0]
        for probe in ("livenessProbe", "readinessProbe"):
            assert str(container[probe]["tcpSocket"]["port"]) == group["rayStartParams"][flag], container["name"]


@pytest.mark.parametrize("case", CASES)
def test_nothing_waits_for_readiness_to_start(case: str) -> None:
    """A rollout server becomes ready by the trainer: who waited for it would wait for ever."""
    for name, pod in pods(objects_of(case)):
        assert {container["name"] for container in pod["spec"].get("initContainers", [])} <= {"wait-for-prepare"}, name
    for item in objects_of(case):
        if item["kind"] == "StatefulSet":
            assert item["spec"]["podManagementPolicy"] == "Parallel"
        if item["kind"] == "LeaderWorkerSet":
            assert item["spec"]["startupPolicy"] == "LeaderCreated"
        if item["kind"] == "Service" and item["spec"].get("clusterIP") == "None":
            assert item["spec"]["publishNotReadyAddresses"] is True


def test_a_checkpoint_has_time_and_a_hang_has_none() -> None:
    trainer = find(objects_of("one-gpu-node"), "Job", "")["spec"]["template"]["spec"]
    assert trainer["terminationGracePeriodSeconds"] == 600
    assert trainer["containers"][0]["livenessProbe"]["terminationGracePeriodSeconds"] == 30
