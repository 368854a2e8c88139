"""Renders the chart with Helm's own SDK; the examples with it, as `helm install` would."""

import copy
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from helm_python.chart import Chart

# Reading YAML is most of the time of these tests, and libyaml reads it ten times as fast.
try:
    from yaml import CSafeLoader as Loader
except ImportError:
    from yaml import SafeLoader as Loader  # type: ignore[assignment]

ROOT = Path(__file__).parents[3]
CHART = ROOT / "k8s" / "chart"
EXAMPLES = sorted((ROOT / "k8s" / "examples").glob("*.yaml"))
ALL_APIS = [
    "leaderworkerset.x-k8s.io/v1",
    "jobset.x-k8s.io/v1alpha2",
    "kueue.x-k8s.io/v1beta2",
    "ray.io/v1",
    "monitoring.coreos.com/v1",
]
BASE: dict[str, Any] = {"image": {"registry": "registry.example/grpo"}, "assumeApiVersions": ALL_APIS}
SMALL: dict[str, Any] = {
    "auth": {"existingSecret": "grpo-token"},
    "rollout": {"model": "Qwen/Qwen2.5-0.5B-Instruct"},
    "trainer": {"run": {"data": {"dataset": "rows.jsonl"}, "reward": {"reward_funcs": ["countdown"]}}},
}
"""The least that installs all three services."""

# What the examples alone do not reach.
VARIANTS: dict[str, dict[str, Any]] = {
    "small": {},
    "engine-over-nodes": {"rollout": {"engine": {"nodes": 2}, "gpus": 8}},
    "ray-rewards": {"reward": {"executor": "ray", "plugins": {"mine.py": "x = 1\n"}}},
    "job-over-nodes": {"trainer": {"nodes": 3, "gpus": 8}, "kueue": {"queueName": "training"}},
    "jobset": {"trainer": {"nodes": 2, "controller": "JobSet"}, "kueue": {"queueName": "q", "priorityClass": "high"}},
    "everything": {
        "tls": {"existingSecret": "certificates", "serveRollout": True},
        "global": {"imageRegistry": "mirror.example", "imagePullSecrets": ["one"]},
        "image": {"pullSecrets": ["two"]},
        "commonLabels": {"team": "rl"},
        "rollout": {
            "replicas": 3,
            "runtimeClassName": "nvidia",
            "schedulerName": "kai",
            "priorityClassName": "high",
            "gpuResource": "nvidia.com/mig-3g.40gb",
            "nodeSelector": {"gpu": "h100"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
            ],
            "podAnnotations": {"a": "b"},
            "extraEnv": [{"name": "A", "value": "b"}],
            "extraVolumes": [{"name": "more", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
        },
        "reward": {
            "autoscaling": {"enabled": True},
            "ingress": {"enabled": True, "host": "rewards.example", "tlsSecret": "rewards-tls", "className": "nginx"},
            "settings": {
                "workers": 4,
                "memo": 1000,
                "allowed_url": ["https://a/", "https://b/"],
                "body_timeout_s": 2.5,
            },
            "egress": [{"ports": [{"port": 443, "protocol": "TCP"}]}],
        },
        "prepare": {"enabled": True, "script": "echo prepared"},
        "metrics": {
            "serviceMonitor": {"enabled": True},
            "prometheusRule": {"enabled": True},
            "dashboards": {"enabled": True},
        },
        "extraObjects": [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "{{ .Release.Name }}-more", "namespace": "{{ .Release.Namespace }}"},
            }
        ],
    },
}

Object = dict[str, Any]


def merged(*parts: Object) -> Object:
    """Later values over earlier ones, mapping by mapping, as Helm does with several values files."""
    result: Object = {}
    for part in parts:
        for key, value in part.items():
            both = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merged(result[key], value) if both else copy.deepcopy(value)
    return result


@cache
def chart() -> Chart:
    return Chart.load(CHART)


_texts: dict[tuple[str, str, str], dict[str, str]] = {}
"""By values, release and namespace: what a change is compared with is the same for all changes."""


def render_texts(values: Object, *, release: str = "trial", namespace: str = "team-a") -> dict[str, str]:
    """Template → text. The values are checked against the schema, as every Helm command does."""
    key = (repr(values), release, namespace)
    if key not in _texts:
        chart().validate_schema(values)
        _texts[key] = chart().render(values, name=release, namespace=namespace)
    return dict(_texts[key])


def render(values: Object, **where: str) -> list[Object]:
    """All objects, hooks too."""
    texts = render_texts(values, **where)
    return [
        manifest
        for name, text in sorted(texts.items())
        if not name.endswith("NOTES.txt")
        for manifest in yaml.load_all(text, Loader)
        if manifest
    ]


def values_of(case: str) -> Object:
    """Of an example's file name without suffix, or of one of VARIANTS."""
    if case in VARIANTS:
        return merged(BASE, SMALL, VARIANTS[case])
    return merged(BASE, yaml.safe_load((ROOT / "k8s" / "examples" / f"{case}.yaml").read_text()))


CASES = [path.stem for path in EXAMPLES] + list(VARIANTS)


@cache
def _rendered(case: str) -> list[Object]:
    return render(values_of(case))


def objects_of(case: str) -> list[Object]:
    return copy.deepcopy(_rendered(case))


def find(objects: list[Object], kind: str, name_ends: str = "") -> Object:
    """The one object of that kind whose name ends so."""
    found = [item for item in objects if item["kind"] == kind and item["metadata"]["name"].endswith(name_ends)]
    assert len(found) == 1, f"{len(found)} objects {kind} …{name_ends}"
    return found[0]


def pod_templates(item: Object) -> list[Object]:
    """Every pod that `item` stands for."""
    spec = item.get("spec", {})
    match item["kind"]:
        case "Pod":
            return [{"metadata": item["metadata"], "spec": spec}]
        case "Deployment" | "StatefulSet" | "Job":
            return [spec["template"]]
        case "JobSet":
            return [job["template"]["spec"]["template"] for job in spec["replicatedJobs"]]
        case "LeaderWorkerSet":
            return [spec["leaderWorkerTemplate"][name] for name in ("leaderTemplate", "workerTemplate")]
        case "RayCluster":
            return [group["template"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]
    return []


def pods(objects: list[Object]) -> list[tuple[str, Object]]:
    return [
        (f"{item['kind']}/{item['metadata']['name']}", template) for item in objects for template in pod_templates(item)
    ]


def containers(pod: Object) -> list[Object]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
