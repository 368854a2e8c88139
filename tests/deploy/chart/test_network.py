"""Who may talk to whom, by the NetworkPolicies as a cluster would read them; and that names lead where they should."""

from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from .rendering import CASES, Object, find, merged, objects_of, pods, render, values_of

RENDEZVOUS, DATA = 29400, 40123


def _matches(selector: Object, labels: dict[str, str]) -> bool:
    fixed = selector.get("matchLabels", {}).items() <= labels.items()
    return fixed and all(
        labels.get(expression["key"]) in expression["values"] for expression in selector.get("matchExpressions", [])
    )


def _peer_matches(peer: Object, other: Object) -> bool:
    if "namespaceSelector" in peer and not _matches(peer["namespaceSelector"], other["namespace"]):
        return False
    if "namespaceSelector" not in peer and other["namespace"] != TEAM_A:
        return False
    return _matches(peer.get("podSelector", {}), other["labels"])


def _permits(rules: list[Object], side: str, other: Object, port: int) -> bool:
    def port_fits(rule: Object) -> bool:
        ports = rule.get("ports")
        return not ports or any(p["port"] <= port <= p.get("endPort", p["port"]) for p in ports)

    return any(
        port_fits(rule) and (side not in rule or any(_peer_matches(peer, other) for peer in rule[side]))
        for rule in rules
    )


TEAM_A = {"kubernetes.io/metadata.name": "team-a"}
STRANGER: Object = {"labels": {"app": "stranger"}, "namespace": TEAM_A}
OUTSIDE: Object = {"labels": {"app": "stranger"}, "namespace": {"kubernetes.io/metadata.name": "other"}}
DNS: Object = {"labels": {"k8s-app": "kube-dns"}, "namespace": {"kubernetes.io/metadata.name": "kube-system"}}
OTHER_RELEASE_TRAINER: Object = {
    "labels": {
        "app.kubernetes.io/name": "grpo-services",
        "app.kubernetes.io/instance": "second",
        "app.kubernetes.io/component": "trainer",
    },
    "namespace": TEAM_A,
}


class Network:
    """The pods of a case and its policies."""

    def __init__(self, case: str, values: Object | None = None):
        objects = render(merged(values_of(case), values)) if values else objects_of(case)
        self.policies = [item["spec"] for item in objects if item["kind"] == "NetworkPolicy"]
        self.pods = {
            pod["metadata"]["labels"]["app.kubernetes.io/component"]: {
                "labels": pod["metadata"]["labels"],
                "namespace": TEAM_A,
            }
            for _, pod in pods(objects)
        }

    def may(self, source: str | Object, target: str | Object, port: int) -> bool:
        """Both the policies of the source and those of the target must allow it."""
        one = self.pods[source] if isinstance(source, str) else source
        other = self.pods[target] if isinstance(target, str) else target
        return self._side(one, other, "egress", "to", port) and self._side(other, one, "ingress", "from", port)

    def _side(self, pod: Object, other: Object, direction: str, side: str, port: int) -> bool:
        mine = [policy for policy in self.policies if _matches(policy["podSelector"], pod["labels"])]
        mine = [policy for policy in mine if pod["namespace"] == TEAM_A and direction.title() in policy["policyTypes"]]
        return not mine or any(_permits(policy.get(direction, []), side, other, port) for policy in mine)


@pytest.mark.parametrize("case", ["one-gpu-node", "cpu-cluster", "small", "job-over-nodes", "sixty-four-gpus"])
def test_what_training_needs_is_open(case: str) -> None:
    network = Network(case)
    assert network.may("trainer", "rollout", 8000)
    assert network.may("trainer", "reward", 8001)
    assert network.may("rollout", "trainer", RENDEZVOUS)
    for one, other in (("rollout", "trainer"), ("trainer", "rollout"), ("rollout", "rollout")):
        assert network.may(one, other, DATA), (one, other)
    for component in ("trainer", "rollout", "test"):
        assert network.may(component, DNS, 53)
    for component, port in (("rollout", 8000), ("reward", 8001), ("trainer", 8002)):
        assert network.may("test", component, port)


@pytest.mark.parametrize("case", ["one-gpu-node", "cpu-cluster", "small", "job-over-nodes", "sixty-four-gpus"])
def test_nobody_else_reaches_the_weight_routes(case: str) -> None:
    network = Network(case)
    for other in (STRANGER, OUTSIDE, OTHER_RELEASE_TRAINER, "reward"):
        assert not network.may(other, "rollout", 8000)
        for port in (RENDEZVOUS, DATA, 29500):
            assert not network.may(other, "trainer", port)
            assert not network.may(other, "rollout", port)
    assert not network.may("test", "trainer", RENDEZVOUS)
    assert not network.may("rollout", "trainer", 8002)


@pytest.mark.parametrize("case", ["one-gpu-node", "cpu-cluster", "reward-only", "small"])
def test_reward_workers_reach_nobody(case: str) -> None:
    network = Network(case)
    anywhere: Object = {"labels": {}, "namespace": {"kubernetes.io/metadata.name": "elsewhere"}}
    for other in (*network.pods.values(), DNS, STRANGER, OUTSIDE, anywhere):
        for port in (53, 80, 443, 8000, 8001, 8002, DATA):
            assert not network.may("reward", other, port)


@pytest.mark.parametrize(
    "values",
    [
        {"reward": {"egress": [{"ports": [{"port": 443}]}]}},
        {"networkPolicy": {"extraEgress": [{"ports": [{"port": 443}]}]}},
    ],
)
def test_rewards_that_may_call_somebody_can_find_them(values: Object) -> None:
    network = Network("small", values)
    assert network.may("reward", OUTSIDE, 443)
    assert network.may("reward", DNS, 53)
    assert not network.may("reward", DNS, 8001)
    assert not network.may("reward", OUTSIDE, 53)


def test_collectives_between_the_nodes_of_the_trainer_only() -> None:
    assert Network("job-over-nodes").may("trainer", "trainer", 29500)
    assert not Network("one-gpu-node").may("trainer", "trainer", 29500)


def test_an_engine_over_nodes_talks_within_itself() -> None:
    network = Network("engine-over-nodes")
    assert network.may("rollout-worker", "rollout", 29501)
    assert network.may("rollout", "rollout-worker", 12345)
    assert network.may("rollout-worker", "trainer", DATA)
    assert not network.may("trainer", "rollout-worker", 29501)


def test_ray_stays_among_itself() -> None:
    network = Network("ray-rewards")
    assert network.may("reward", "reward-ray", 6379)
    assert network.may("reward-ray", "reward", 23456)
    assert not network.may(STRANGER, "reward-ray", 6379)
    assert not network.may("trainer", "reward-ray", 6379)
    assert not network.may("reward-ray", OUTSIDE, 443)


def test_who_may_call_the_rewards_can_be_said() -> None:
    network = Network("reward-only")
    client = {**OUTSIDE, "labels": {"grpo-services/reward-client": "true"}}
    assert network.may(client, "reward", 8001)
    assert not network.may(OUTSIDE, "reward", 8001)


def test_a_cluster_with_dns_elsewhere_can_be_told() -> None:
    """OpenShift's DNS pods listen on 5353 in a namespace of their own; a policy sees the pods, not their Service."""
    dns: Object = {"labels": {}, "namespace": {"kubernetes.io/metadata.name": "openshift-dns"}}
    there: Object = {"namespaceSelector": {"matchLabels": dns["namespace"]}}
    network = Network("cpu-cluster", {"networkPolicy": {"dns": [there], "dnsPorts": [53, 5353]}})
    for component in ("trainer", "rollout", "test", "prepare"):
        assert network.may(component, dns, 5353)
        assert not network.may(component, DNS, 53)
    assert not network.may("reward", dns, 5353)
    assert not Network("cpu-cluster").may("trainer", dns, 5353)


def test_weights_can_be_pushed_to_another_release() -> None:
    """Trainer here, rollout servers there: the port of the routes is not enough for a push."""
    other_release: Object = {"app.kubernetes.io/instance": "second"}
    peers: Object = {"networkPolicy": {"weightPeers": [{"podSelector": {"matchLabels": other_release}}]}}
    servers: Object = {"labels": other_release, "namespace": TEAM_A}
    network = Network("small", peers)
    # As the trainer, with servers there
    assert network.may("trainer", servers, 8000)
    assert network.may("trainer", servers, DATA)
    assert network.may(servers, "trainer", RENDEZVOUS)
    assert network.may(servers, "trainer", DATA)
    # As the servers, with a trainer there
    assert network.may(OTHER_RELEASE_TRAINER, "rollout", 8000)
    assert network.may(OTHER_RELEASE_TRAINER, "rollout", DATA)
    assert network.may("rollout", OTHER_RELEASE_TRAINER, RENDEZVOUS)
    assert network.may("rollout", OTHER_RELEASE_TRAINER, DATA)
    for port in (8000, DATA, RENDEZVOUS, 29500):
        assert not network.may(STRANGER, "rollout", port)
        assert not network.may(STRANGER, "trainer", port)
    assert not network.may(servers, "trainer", 8002)
    assert not network.may(servers, "trainer", 29500)
    assert not network.may(OTHER_RELEASE_TRAINER, "reward", 8001)


def test_what_prepares_has_egress_of_its_own() -> None:
    """A trainer whose data is on a volume needs no network; the script that fetched it did."""
    prepared: Object = {"prepare": {"enabled": True, "script": "true"}, "trainer": {"egress": []}}
    network = Network("small", prepared)
    assert network.may("prepare", OUTSIDE, 443)
    assert not network.may("trainer", OUTSIDE, 443)
    closed = Network("small", merged(prepared, {"prepare": {"egress": []}, "trainer": {"egress": [{}]}}))
    assert not closed.may("prepare", OUTSIDE, 443)
    assert closed.may("trainer", OUTSIDE, 443)


@pytest.mark.parametrize("case", ["cpu-cluster", "ray-rewards", "engine-over-nodes"])
def test_all_pods_reach_what_extra_egress_names(case: str) -> None:
    """The control plane of a mesh: without it the proxy in the pod gets neither certificate nor routes."""
    mesh = {"kubernetes.io/metadata.name": "mesh-system"}
    rule: Object = {
        "to": [{"namespaceSelector": {"matchLabels": mesh}}],
        "ports": [{"port": 15012, "protocol": "TCP"}],
    }
    control_plane: Object = {"labels": {}, "namespace": mesh}
    network, without = Network(case, {"networkPolicy": {"extraEgress": [rule]}}), Network(case)
    assert {"rollout", "reward", "trainer", "test"} <= network.pods.keys()
    for component in network.pods:
        assert network.may(component, control_plane, 15012), component
        assert not network.may(component, control_plane, 15013), component
        assert not without.may(component, control_plane, 15012), component


@pytest.mark.parametrize("case", ["sixty-four-gpus"])
def test_prometheus_reaches_the_metrics(case: str) -> None:
    network = Network(case)
    prometheus: Object = {"labels": {}, "namespace": {"kubernetes.io/metadata.name": "monitoring"}}
    for component, port in (("rollout", 8000), ("reward", 8001), ("trainer", 8002)):
        assert network.may(prometheus, component, port)
    assert not network.may(prometheus, "trainer", DATA)


@pytest.mark.parametrize("case", CASES)
def test_the_policy_opens_the_range_that_the_pods_use(case: str) -> None:
    for name, pod in pods(objects_of(case)):
        sysctls = pod["spec"]["securityContext"].get("sysctls", [])
        component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        assert bool(sysctls) == (component in ("rollout", "rollout-worker", "trainer")), name
        assert all(sysctl["value"] == "40000 41999" for sysctl in sysctls), name


@pytest.mark.parametrize("case", CASES)
def test_services_select_the_pods_they_are_for(case: str) -> None:
    objects = objects_of(case)
    for item in objects:
        if item["kind"] != "Service":
            continue
        selector, component = item["spec"]["selector"], item["metadata"]["labels"]["app.kubernetes.io/component"]
        assert selector["app.kubernetes.io/instance"] == "trial"
        chosen = [
            pod
            for _, pod in pods(objects)
            if _matches(
                {"matchLabels": selector},
                {**pod["metadata"]["labels"], "batch.kubernetes.io/job-completion-index": "0"},
            )
        ]
        assert len(chosen) == 1, item["metadata"]["name"]
        assert chosen[0]["metadata"]["labels"]["app.kubernetes.io/component"] == component
        names = {port["name"] for container in chosen[0]["spec"]["containers"] for port in container["ports"]}
        assert {port["targetPort"] for port in item["spec"]["ports"] if "targetPort" in port} <= names


@pytest.mark.parametrize("case", [case for case in CASES if case != "reward-only"])
def test_the_urls_of_the_run_file_name_pods_and_services(case: str) -> None:
    objects = objects_of(case)
    run: dict[str, Any] = yaml.safe_load(
        next(item["data"]["run.yaml"] for item in objects if "run.yaml" in item.get("data", {}))
    )
    sets = [item for item in objects if item["kind"] in ("StatefulSet", "LeaderWorkerSet")]
    assert len(sets) == 1
    name, replicas = sets[0]["metadata"]["name"], sets[0]["spec"]["replicas"]
    # LeaderWorkerSet makes a headless service of its own name.
    service = sets[0]["spec"].get("serviceName", name)
    if sets[0]["kind"] == "StatefulSet":
        assert find(objects, "Service", service)["spec"]["clusterIP"] == "None"
    else:
        assert service not in {item["metadata"]["name"] for item in objects if item["kind"] == "Service"}
    hosts = [urlsplit(url) for url in run["rollout"]["urls"]]
    assert [(url.hostname, url.port) for url in hosts] == [
        (f"{name}-{index}.{service}.team-a.svc", 8000) for index in range(replicas)
    ]
    reward = urlsplit(run["reward"]["url"])
    assert reward.hostname == f"{find(objects, 'Deployment')['metadata']['name']}.team-a.svc"
    assert reward.port == find(objects, "Service", "-reward")["spec"]["ports"][0]["port"]
