"""Every example lints, renders, and is what the Kubernetes API and the custom resources take."""

from functools import cache
from pathlib import Path

import jsonschema
import kubernetes_validate.utils
import pytest
import yaml
from helm_python.chart import lint

from .rendering import (
    CASES,
    CHART,
    Object,
    find,
    merged,
    objects_of,
    pod_templates,
    pods,
    render,
    render_texts,
    values_of,
)

# It reads a megabyte of definitions for every object anew.
kubernetes_validate.utils.schema_contents = cache(kubernetes_validate.utils.schema_contents)

OLDEST, NEWEST = "1.29", "1.37"
CRDS = {path.stem: yaml.safe_load(path.read_text()) for path in (Path(__file__).parent / "crds").glob("*.yaml")}


@pytest.mark.parametrize("case", CASES)
def test_lint_strict(case: str) -> None:
    report = lint(CHART, values_of(case), strict=True, namespace="team-a", kube_version=f"v{OLDEST}.0")
    assert not report["errors"], report["errors"]
    assert [message["error"] for message in report["messages"] if message["severity"] > 1] == []


def test_the_claimed_versions_are_those_tested() -> None:
    metadata = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert metadata["kubeVersion"] == f">={OLDEST}.0-0"
    assert kubernetes_validate.latest_version().startswith(NEWEST)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("case", CASES)
def test_api_schemas(case: str, version: str) -> None:
    for item in objects_of(case):
        _fits_the_api(item, version)


OTHER_CLUSTER: Object = {
    "podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None, "supplementalGroups": [5555]},
    "dnsPolicy": "None",
    "dnsConfig": {"nameservers": ["fd00::a"], "searches": ["svc.cluster.local"]},
    "listenAddress": "::",
    "rollout": {
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}},
        "workloadLabels": {"kueue.x-k8s.io/queue-name": "serving"},
        "workloadAnnotations": {"a": "b"},
    },
    "reward": {"workloadLabels": {"kueue.x-k8s.io/queue-name": "serving"}, "resourceClaims": [{"name": "gpu"}]},
    "trainer": {"jobAnnotations": {"a": "b"}},
    "storage": {
        "models": {"existingClaim": "shared", "subPath": "models", "readOnly": True},
        "runs": {"subPath": "runs", "annotations": {"a": "b"}},
    },
}


@pytest.mark.parametrize("case", ["everything", "jobset", "ray-rewards"])
def test_api_schemas_of_what_other_clusters_want(case: str) -> None:
    values = merged(values_of(case), OTHER_CLUSTER)
    report = lint(CHART, values, strict=True, namespace="team-a", kube_version=f"v{OLDEST}.0")
    assert [message["error"] for message in report["messages"] if message["severity"] > 1] == []
    for item in render(values):
        _fits_the_api(item, OLDEST)


def _fits_the_api(item: Object, version: str) -> None:
    """An object, or the custom resource and the pods and jobs in it."""
    if item["kind"] not in CRDS:
        _validate(item, version)
        return
    jsonschema.validate(item, CRDS[item["kind"]])
    for template in pod_templates(item):
        _validate({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {}, "template": template}, version)
    for job in item["spec"].get("replicatedJobs", []):
        _validate({"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, **job["template"]}, version)


def _validate(item: Object, version: str) -> None:
    kubernetes_validate.validate(item, version, strict=True)


@pytest.mark.parametrize("case", CASES)
def test_no_object_twice_and_all_in_the_namespace(case: str) -> None:
    objects = objects_of(case)
    names = [(item["kind"], item["metadata"]["name"]) for item in objects]
    assert len(set(names)) == len(names)
    assert {item["metadata"].get("namespace") for item in objects} == {"team-a"}


@pytest.mark.parametrize(("release", "namespace"), [("on", "4711"), ("null", "1e3"), ("2024", "true")])
def test_names_that_yaml_takes_for_something_else(release: str, namespace: str) -> None:
    name = release if release.isalpha() else "grpo"
    values = merged(values_of("everything"), {"fullnameOverride": name, "auth": {"existingSecret": "123", "key": "1"}})
    claims = [{"name": "1"}]
    values = merged(values, {"rollout": {"gpus": 0, "resourceClaims": claims}})
    words = {"priorityClassName": "100", "schedulerName": "2", "runtimeClassName": "1"}
    values = merged(values, {"rollout": words, "reward": words, "trainer": words})
    values = merged(values, {"kueue": {"queueName": "2024", "priorityClass": "1"}, "serviceAccount": {"name": "12"}})
    values = merged(values, {"reward": {"ingress": {"tlsSecret": "3", "className": "4"}}})
    values = merged(values, {"tls": {"existingSecret": "456"}, "image": {"pullSecrets": ["789"]}})
    values = merged(values, {"storage": {"runs": {"existingClaim": "12"}, "models": {"existingClaim": "34"}}})
    for item in render(values, release=release, namespace=namespace):
        assert item["metadata"]["namespace"] == namespace
        if not item["metadata"]["name"].endswith("-more"):
            assert item["metadata"]["labels"]["app.kubernetes.io/instance"] == release
            _fits_the_api(item, OLDEST)


def test_long_names_stay_valid() -> None:
    for item in render(values_of("sixty-four-gpus"), release="a-release-with-the-longest-name-helm-permits-x53"):
        limit = 63 - len("-trainer-0-0-abcde") if item["kind"] in ("Job", "JobSet") else 63
        assert len(item["metadata"]["name"]) <= limit, item["metadata"]["name"]


def test_notes_say_how_to_ask_each_service() -> None:
    notes = next(text for name, text in render_texts(values_of("one-gpu-node")).items() if name.endswith("NOTES.txt"))
    for part in (
        "svc/trial-grpo-services-reward",
        "/v1/score",
        "/v1/weights",
        "svc/trial-grpo-services-trainer",
        "helm test",
    ):
        assert part in notes


def _notes(values: Object) -> str:
    return next(text for name, text in render_texts(values).items() if name.endswith("NOTES.txt"))


def test_notes_say_who_is_locked_out() -> None:
    """A NetworkPolicy in the way looks like a server that is down."""
    controller = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}}
    ingress = merged(values_of("small"), {"reward": {"ingress": {"enabled": True, "host": "rewards.example"}}})
    assert "reward.allowFrom" in _notes(ingress)
    assert "reward.allowFrom" not in _notes(merged(ingress, {"reward": {"allowFrom": [controller]}}))
    assert "reward.allowFrom" not in _notes(merged(ingress, {"networkPolicy": {"enabled": False}}))
    scraped = merged(values_of("small"), {"metrics": {"serviceMonitor": {"enabled": True}}})
    assert "metrics.serviceMonitor.allowFrom" in _notes(scraped)
    assert "metrics.serviceMonitor.allowFrom" not in _notes(values_of("small"))


def test_notes_say_that_the_live_page_asks_for_the_token() -> None:
    assert "http://127.0.0.1:8002/ (any name, the token as password)" in _notes(values_of("small"))


def _component(pod: Object) -> str:
    return str(pod["metadata"]["labels"]["app.kubernetes.io/component"])


@pytest.mark.parametrize("case", ["small", "jobset"])
def test_notes_can_be_pasted_as_they_are(case: str) -> None:
    """A forwarded port takes a moment; of several pods the first one logs; kubectl follows five at most."""
    notes = _notes(values_of(case))
    after = [line for line, before in zip(notes.splitlines()[1:], notes.splitlines(), strict=False) if "&" in before]
    assert [line.split()[:5] for line in after] == [["curl", "-sS", "--retry", "10", "--retry-connrefused"]] * 3
    [log] = [line for line in notes.splitlines() if "kubectl logs" in line]
    wanted = dict(pair.split("=") for pair in log.split()[-1].split(","))
    assert wanted.pop("batch.kubernetes.io/job-completion-index") == "0"  # Kubernetes' own
    [trainer] = [pod for name, pod in pods(objects_of(case)) if name.startswith("Job") and _component(pod) == "trainer"]
    assert wanted.items() <= trainer["metadata"]["labels"].items()


@pytest.mark.parametrize(("case", "kind"), [("small", "Job"), ("jobset", "JobSet")])
def test_notes_say_how_a_failed_training_goes_on(case: str, kind: str) -> None:
    """Its name is that of the same values, so an upgrade alone would leave it as it is."""
    name = find(objects_of(case), kind)["metadata"]["name"]
    assert f"kubectl delete -n team-a {kind.lower()}/{name}\n" in _notes(values_of(case))


@pytest.mark.parametrize(
    ("case", "kept"),
    [
        ("small", ["trial-grpo-services-runs", "trial-grpo-services-models"]),
        ("reward-only", []),
    ],
)
def test_notes_name_what_uninstalling_leaves(case: str, kept: list[str]) -> None:
    notes = next(text for name, text in render_texts(values_of(case)).items() if name.endswith("NOTES.txt"))
    claims = [item["metadata"]["name"] for item in objects_of(case) if item["kind"] == "PersistentVolumeClaim"]
    assert sorted(claims) == sorted(kept)
    line = next((line.split() for line in notes.splitlines() if "delete pvc" in line), [])
    assert line[5:] == kept
