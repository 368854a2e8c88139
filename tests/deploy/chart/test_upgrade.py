"""An upgrade is accepted by the API server, and restarts only what it changes."""

import copy
import re
import shutil
from pathlib import Path

import pytest
import yaml
from helm_python.chart import Chart

from .immutable import CASES, fixed_parts_of
from .rendering import (
    BASE,
    CHART,
    SMALL,
    Object,
    find,
    merged,
    objects_of,
    pod_templates,
    render,
    render_texts,
    values_of,
)
from .test_run_file import run_file

RELEASED = yaml.safe_load((Path(__file__).parent / "released.yaml").read_text())


@pytest.mark.parametrize("case", CASES)
def test_nothing_immutable_differs_from_the_last_release(case: str) -> None:
    now = fixed_parts_of(case)
    for name, part in RELEASED[case].items():
        assert name in now, f"{name} was renamed: an upgrade would make a second one"
        assert now[name] == part, name


def _job(values: Object) -> Object:
    return find(render(values), "Job", "")


TRAINER_CHANGES: dict[str, Object] = {
    "learning rate": {"trainer": {"run": {"optimizer": {"learning_rate": 2e-6}}}},
    "image": {"trainer": {"image": {"tag": "0.2.0-gpu"}}},
    "another server": {"rollout": {"replicas": 2}},
    "nodes": {"trainer": {"nodes": 2}},
    "secret": {"auth": {"existingSecret": "another"}},
    "ports": {"networkPolicy": {"rendezvousPort": 29401}},
    "labels": {"commonLabels": {"team": "rl"}},
    "restarts": {"trainer": {"maxRestarts": 3}},
}


@pytest.mark.parametrize("kind", ["Job", "JobSet"])
@pytest.mark.parametrize("change", TRAINER_CHANGES)
def test_another_trainer_is_another_job(change: str, kind: str) -> None:
    """Nearly all of a Job is immutable, and of a JobSet its failurePolicy, too."""
    base = merged(BASE, SMALL, {"trainer": {"controller": kind}})
    before, after = (find(render(merged(base, values)), kind) for values in ({}, TRAINER_CHANGES[change]))
    assert before["metadata"]["name"] != after["metadata"]["name"]
    assert before["spec"] != after["spec"]


OTHER_CHANGES: dict[str, Object] = {
    "reward replicas": {"reward": {"replicas": 5}},
    "reward plug-in": {"reward": {"plugins": {"mine.py": "x = 1\n"}}},
    "flags of the servers": {"rollout": {"args": ["--max-model-len=1024"]}},
    "monitoring": {"metrics": {"serviceMonitor": {"enabled": True}}},
    "policies": {"networkPolicy": {"enabled": False}},
    "time to live": {"trainer": {"ttlSecondsAfterFinished": 60}},
    "annotations": {"trainer": {"jobAnnotations": {"argocd.argoproj.io/sync-options": "Replace=true"}}},
}


@pytest.mark.parametrize("change", OTHER_CHANGES)
def test_what_is_not_the_trainers_leaves_it_running(change: str) -> None:
    before, after = _job(merged(BASE, SMALL)), _job(merged(BASE, SMALL, OTHER_CHANGES[change]))
    assert before["metadata"]["name"] == after["metadata"]["name"]
    assert before["spec"]["template"] == after["spec"]["template"]


@pytest.mark.parametrize("case", ["small", "everything", "engine-over-nodes", "ray-rewards", "jobset"])
def test_a_new_version_of_the_chart_alone_restarts_nothing(case: str, tmp_path: Path) -> None:
    shutil.copytree(CHART, tmp_path / "chart")
    metadata = tmp_path / "chart" / "Chart.yaml"
    metadata.write_text(metadata.read_text().replace("\nversion: 0.1.0\n", "\nversion: 0.1.1\n"))
    newer = Chart.load(tmp_path / "chart").render(values_of(case), name="trial", namespace="team-a")
    older = Chart.load(CHART).render(values_of(case), name="trial", namespace="team-a")
    changed = {name: text.replace("grpo-services-0.1.1", "grpo-services-0.1.0") for name, text in newer.items()}
    assert changed == older
    for text in newer.values():
        for item in yaml.safe_load_all(text) if "kind:" in text else []:
            template = (item or {}).get("spec", {}).get("template", {})
            assert "0.1.1" not in yaml.safe_dump(template)


@pytest.mark.parametrize("case", ["small", "jobset"])
def test_annotations_of_the_training(case: str) -> None:
    """For those who look after Jobs. A pod of it has its own, podAnnotations."""
    kind, given = ("JobSet" if case == "jobset" else "Job"), {"alpha.jobset.sigs.k8s.io/exclusive-topology": "rack"}
    job = find(render(merged(values_of(case), {"trainer": {"jobAnnotations": given}})), kind)
    assert job["metadata"]["annotations"] == given
    assert not given.items() & pod_templates(job)[0]["metadata"]["annotations"].items()
    assert "annotations" not in find(objects_of(case), kind)["metadata"]


def test_rollout_servers_are_replaced_as_the_user_says() -> None:
    on_delete = {"type": "OnDelete"}
    servers = find(render(merged(values_of("small"), {"rollout": {"updateStrategy": on_delete}})), "StatefulSet")
    usual = find(objects_of("small"), "StatefulSet")
    assert servers["spec"] == usual["spec"] | {"updateStrategy": on_delete}


@pytest.mark.parametrize(
    ("reward", "unavailable"),
    [({}, 0), ({"gpus": 1}, 1), ({"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]}, 1)],
)
def test_a_reward_server_with_a_gpu_is_not_replaced_before_it_is_gone(reward: Object, unavailable: int) -> None:
    """Where all GPUs are taken its successor would stay Pending, and the upgrade with it."""
    strategy = find(render(merged(values_of("small"), {"reward": reward})), "Deployment")["spec"]["strategy"]
    assert strategy == {"rollingUpdate": {"maxUnavailable": unavailable, "maxSurge": 1 - unavailable}}


def test_a_changed_plugin_restarts_the_reward_servers() -> None:
    checksums = {
        find(render(merged(BASE, SMALL, {"reward": {"plugins": {"mine.py": source}}})), "Deployment")["spec"][
            "template"
        ]["metadata"]["annotations"]["checksum/plugins"]
        for source in ("x = 1\n", "x = 2\n")
    }
    assert len(checksums) == 2


def _ray(change: Object) -> tuple[str, str]:
    """The name of the RayCluster, and the address by which the reward servers join it."""
    objects = render(merged(values_of("ray-rewards"), change))
    container = find(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    address = next(variable["value"] for variable in container["env"] if variable["name"] == "RAY_ADDRESS")
    return find(objects, "RayCluster")["metadata"]["name"], address


@pytest.mark.parametrize(
    "change",
    [
        {"reward": {"image": {"tag": "0.2.0"}}},
        {"reward": {"ray": {"workerResources": {"limits": {"cpu": "8", "memory": "8Gi"}}}}},
        {"fullnameOverride": "a" * 34, "reward": {"image": {"tag": "0.2.0"}}},
    ],
)
def test_other_ray_pods_are_another_cluster(change: Object) -> None:
    """KubeRay does not replace the pods of a changed RayCluster: the servers would find rewards of another version."""
    (before, _), (after, address) = _ray({}), _ray(change)
    assert before != after
    assert len(after) <= 53
    assert address == f"{after}-head-svc.team-a.svc:6379"


@pytest.mark.parametrize(
    "change", [{"reward": {"ray": {"workers": 5}}}, {"reward": {"plugins": {"mine.py": "x = 2\n"}}}]
)
def test_the_same_ray_pods_are_the_same_cluster(change: Object) -> None:
    assert _ray(change) == _ray({})


@pytest.mark.parametrize("case", ["small", "everything", "ray-rewards", "jobset"])
def test_the_same_values_are_rendered_the_same(case: str) -> None:
    """What differed would be out of sync for a GitOps tool, for ever."""
    assert render_texts(values_of(case)) == render_texts(values_of(case))


def test_claims_are_kept() -> None:
    claims = [item for item in render(values_of("small")) if item["kind"] == "PersistentVolumeClaim"]
    assert len(claims) == 2
    assert all(claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"} for claim in claims)


def test_a_run_that_is_stopped_keeps_its_volumes() -> None:
    """With `keep: false` Helm would delete the checkpoints."""
    not_kept: Object = {"storage": {"runs": {"keep": False}}}
    before = [item for item in render(merged(values_of("small"), not_kept)) if item["kind"] == "PersistentVolumeClaim"]
    for stopped in ({"trainer": {"enabled": False}}, {"trainer": {"enabled": False}, "rollout": {"enabled": False}}):
        after = render(merged(values_of("small"), not_kept, stopped))
        assert [item for item in after if item["kind"] == "PersistentVolumeClaim"] == before


def test_servers_without_a_run_have_no_volume_for_runs() -> None:
    servers = merged(BASE, SMALL, {"trainer": {"enabled": False}})
    del servers["trainer"]["run"]
    claims = [item["metadata"]["name"] for item in render(servers) if item["kind"] == "PersistentVolumeClaim"]
    assert claims == ["trial-grpo-services-models"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("one", "two"),
        ("team-a-countdown-with-a-small-model-1", "team-a-countdown-with-a-small-model-2"),
        ("x" * 52 + "1", "x" * 53),
    ],
)
def test_two_releases_in_one_namespace_share_nothing(first: str, second: str) -> None:
    one, two = (render(values_of("small"), release=name) for name in (first, second))
    names = [{(item["kind"], item["metadata"]["name"]) for item in objects} for objects in (one, two)]
    assert not names[0] & names[1]
    for item in one:
        for selector in _selectors(item):
            assert selector["app.kubernetes.io/instance"] == first, item["metadata"]["name"]
    folders = [run_file(objects)["run_dir"] for objects in (one, two)]
    assert folders[0] != folders[1]


@pytest.mark.parametrize(
    ("release", "name"),
    [
        ("trial", "trial-grpo-services"),
        ("exactly-twenty-chars", "exactly-twenty-chars-grpo-services"),
        ("my-grpo-services", "my-grpo-services"),
    ],
)
def test_a_name_that_is_short_enough_is_not_changed(release: str, name: str) -> None:
    """Another name would be other claims: the run would begin anew."""
    assert run_file(render(values_of("small"), release=release))["run_dir"] == f"/runs/{name}"


def _selectors(node: object) -> list[Object]:
    """Everything that selects pods, wherever it stands."""
    if isinstance(node, list):
        return [found for item in node for found in _selectors(item)]
    if not isinstance(node, dict):
        return []
    found = []
    for key, value in node.items():
        if key in ("selector", "podSelector") and isinstance(value, dict):
            found.append(value.get("matchLabels", value))
        found += _selectors(value)
    return found


@pytest.mark.parametrize("kind", ["Job", "JobSet"])
def test_another_queue_is_another_job(kind: str) -> None:
    """Kueue refuses to change the queue of a Job that runs, or to give it one: the whole upgrade would fail."""
    base = merged(BASE, SMALL, {"trainer": {"controller": kind}, "prepare": {"enabled": True, "script": "true"}})
    queues: list[Object] = [
        {},
        {"queueName": "one"},
        {"queueName": "two"},
        {"queueName": "two", "priorityClass": "high"},
    ]
    trainings, prepares = set(), set()
    for queue in queues:
        jobs = [item for item in render(merged(base, {"kueue": queue})) if item["kind"] in ("Job", "JobSet")]
        for job in jobs:
            asked = {key: value for key, value in job["metadata"]["labels"].items() if key.startswith("kueue")}
            assert list(asked.values()) == list(queue.values())
        (training,) = (job["metadata"]["name"] for job in jobs if "-t-" in job["metadata"]["name"])
        (prepare,) = (job["metadata"]["name"] for job in jobs if "-p-" in job["metadata"]["name"])
        trainings.add(training)
        prepares.add(prepare)
    assert len(trainings) == len(prepares) == len(queues)


@pytest.mark.parametrize("case", ["job-over-nodes", "jobset"])
def test_the_pods_of_a_job_know_it_from_the_one_before(case: str) -> None:
    """What they tell each other lies beside the run folder, which the next Job uses, too."""
    kind = "JobSet" if case == "jobset" else "Job"
    container = pod_templates(find(objects_of(case), kind))[0]["spec"]["containers"][0]
    (uid,) = [variable["valueFrom"] for variable in container["env"] if variable["name"] == "JOB_UID"]
    # Kubernetes labels all pods of a Job with it; a JobSet that starts again makes another Job of the same name.
    assert uid == {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/controller-uid']"}}


@pytest.mark.parametrize(("case", "kind"), [("job-over-nodes", "Job"), ("jobset", "JobSet")])
def test_kueue_alone_suspends_and_starts(case: str, kind: str) -> None:
    """A rollback applies what was rendered once: `suspend: true` would stop a training that runs."""
    queued = find(objects_of(case), kind)
    assert queued["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == values_of(case)["kueue"]["queueName"]
    assert "suspend" not in queued["spec"]


def _with_live(live: Object, values: Object, path: Path) -> Object:
    """`live` as an upgrade renders it in a cluster that has it: rendering here sees no cluster."""
    shutil.copytree(CHART, path)
    (path / "files" / "live.yaml").write_text(yaml.safe_dump(live))
    name = live["metadata"]["name"]
    template = path / "templates" / "_trainer.tpl"
    text, count = re.subn(r"lookup .* \.name", 'fromYaml (.root.Files.Get "files/live.yaml")', template.read_text())
    assert count == 1
    template.write_text(text)
    rendered = Chart.load(path).render(values, name="trial", namespace="team-a")
    jobs = [item for text in rendered.values() if "kind: Job" in text for item in yaml.safe_load_all(text) if item]
    return find(jobs, live["kind"], name)


@pytest.mark.parametrize(("kind", "what"), [("Job", "-t-"), ("JobSet", "-t-"), ("Job", "-p-")])
def test_an_upgrade_sends_back_what_kueue_gave_to_a_job_that_runs(kind: str, what: str, tmp_path: Path) -> None:
    """Kueue adds a flavor's node labels and tolerations; both go as a whole, and a Job that runs takes no others."""
    own = {"nodeSelector": {"part": "trainer"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}
    values = merged(
        values_of("small"),
        {"kueue": {"queueName": "training"}, "prepare": {"enabled": True, "script": "true"}},
        {"trainer": {**own, "controller": kind}},
    )
    (asked,) = (item for item in render(values) if item["kind"] == kind and what in item["metadata"]["name"])

    live, expected = copy.deepcopy(asked), copy.deepcopy(asked)
    # Kueue's label is in all that it starts, with and without a flavor; an upgrade leaves alone what it does not send.
    podset = {"kueue.x-k8s.io/podset": "main"}
    pod_templates(live)[0]["metadata"]["labels"].update(podset)
    live["spec"]["suspend"] = False
    assert _with_live(live, values, tmp_path / "no-flavor") == asked
    given = {
        "nodeSelector": {"part": "trainer", "flavor": "h100"},
        "tolerations": [*own["tolerations"], {"key": "spot", "operator": "Exists"}],
    }
    for training in (live, expected):
        pod_templates(training)[0]["spec"].update(given)
    # Helm 3 sends a changed list of a custom resource as a whole, and JobSet takes no other while it runs.
    if kind == "JobSet":
        pod_templates(expected)[0]["metadata"]["labels"].update(podset)
    assert _with_live(live, values, tmp_path / "runs") == expected
    # As long as it waits, what it has is of the values alone.
    live["spec"]["suspend"] = True
    assert _with_live(live, values, tmp_path / "waits") == asked


def test_a_jobset_has_a_service_of_its_own() -> None:
    """JobSet makes it, and it goes with the JobSet: neither the next one nor a Job may lean on it."""
    names = set()
    for rate in (1e-6, 2e-6):
        objects = render(merged(values_of("jobset"), {"trainer": {"run": {"optimizer": {"learning_rate": rate}}}}))
        jobset = find(objects, "JobSet")
        subdomain = jobset["spec"]["network"]["subdomain"]
        container = pod_templates(jobset)[0]["spec"]["containers"][0]
        master = next(variable["value"] for variable in container["env"] if variable["name"] == "MASTER_ADDR")
        assert master == f"{jobset['metadata']['name']}-trainer-0-0.{subdomain}"
        names.add(subdomain)
    services = {item["metadata"]["name"] for item in render(values_of("job-over-nodes")) if item["kind"] == "Service"}
    assert len(names) == 2
    assert not names & services
