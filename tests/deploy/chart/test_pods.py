"""What every pod and container must have."""

import re
from typing import Any

import pytest

from grpo_reward.config import Settings

from .rendering import (
    BASE,
    CASES,
    SMALL,
    Object,
    containers,
    find,
    merged,
    objects_of,
    pods,
    render,
    values_of,
)


@pytest.mark.parametrize("case", CASES)
def test_pods_fit_the_restricted_profile(case: str) -> None:
    for name, pod in pods(objects_of(case)):
        spec = pod["spec"]
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True, name
        assert security["runAsUser"] == security["runAsGroup"] == 10001, name
        assert security["fsGroup"] == 10001, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["serviceAccountName"], name
        assert spec["enableServiceLinks"] is False, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys(), name
        assert not any("hostPath" in volume for volume in spec["volumes"]), name
        safe = {"net.ipv4.ip_local_port_range"}
        assert {sysctl["name"] for sysctl in security.get("sysctls", [])} <= safe, name


@pytest.mark.parametrize("case", CASES)
def test_containers_can_do_nothing_they_need_not(case: str) -> None:
    for name, pod in pods(objects_of(case)):
        for container in containers(pod):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False, name
            assert security["readOnlyRootFilesystem"] is True, name
            assert security["capabilities"]["drop"] == ["ALL"], name
            assert set(security["capabilities"].get("add", [])) <= {"IPC_LOCK"}, name
            assert "privileged" not in security, name


@pytest.mark.parametrize("case", CASES)
def test_what_a_read_only_root_needs_is_mounted(case: str) -> None:
    for name, pod in pods(objects_of(case)):
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        assert len(volumes) == len(pod["spec"]["volumes"]), name
        for container in containers(pod):
            mounts = {mount["mountPath"]: mount["name"] for mount in container.get("volumeMounts", [])}
            assert set(mounts.values()) <= volumes.keys(), name
            if container["name"] in ("rollout", "reward", "trainer", "prepare", "ray-head", "ray-worker"):
                assert {"/tmp", "/cache", "/dev/shm"} <= mounts.keys(), name  # noqa: S108
                shm = volumes[mounts["/dev/shm"]]["emptyDir"]  # noqa: S108
                assert shm["medium"] == "Memory", name
                assert _bytes(shm["sizeLimit"]) < _bytes(container["resources"]["limits"]["memory"]), name


@pytest.mark.parametrize("case", CASES)
def test_no_pod_can_fill_the_disk_of_its_node(case: str) -> None:
    for name, pod in pods(objects_of(case)):
        for volume in pod["spec"]["volumes"]:
            if "emptyDir" in volume and volume["name"] != "more":
                assert _bytes(volume["emptyDir"]["sizeLimit"]) > 0, (name, volume["name"])


@pytest.mark.parametrize("case", CASES)
def test_resources_and_images(case: str) -> None:
    for name, pod in pods(objects_of(case)):
        for container in containers(pod):
            resources = container["resources"]
            assert {"cpu", "memory"} <= resources["requests"].keys(), name
            assert "memory" in resources["limits"], name
            if container["name"] in ("wait-for-prepare", "test"):  # no value gives them one, and a quota may ask for it
                assert "cpu" in resources["limits"], name
            devices = {key: value for key, value in resources["requests"].items() if "/" in key}
            assert devices == {key: value for key, value in resources["limits"].items() if "/" in key}, name
            registry = "mirror.example" if case == "everything" else "registry.example/grpo"
            assert container["image"].startswith(f"{registry}/grpo-services/"), name
            assert not container["image"].endswith(":latest"), name


def test_image_variants_and_digests() -> None:
    images = {c["name"]: c["image"] for _, pod in pods(objects_of("cpu-cluster")) for c in containers(pod)}
    assert images["rollout"].endswith("rollout:0.1.0-cpu")
    assert images["trainer"].endswith("trainer:0.1.0-cpu")
    assert images["prepare"] == images["trainer"]
    assert images["reward"].endswith("reward:0.1.0")


@pytest.mark.parametrize("case", CASES)
def test_variables_are_set_once(case: str) -> None:
    for name, pod in pods(objects_of(case)):
        for container in containers(pod):
            names = [variable["name"] for variable in container.get("env", [])]
            assert len(set(names)) == len(names), name


def test_ray_workers_have_what_the_reward_server_was_given() -> None:
    """The rewards run in them: a model on a volume, or the authority of a judge's certificate, is looked for there."""
    given: Object = {
        "reward": {
            "extraEnv": [{"name": "SSL_CERT_FILE", "value": "/judges/ca.crt"}],
            "extraVolumes": [{"name": "judges", "persistentVolumeClaim": {"claimName": "judges"}}],
            "extraVolumeMounts": [{"name": "judges", "mountPath": "/judges", "readOnly": True}],
        },
    }
    objects = render(merged(values_of("ray-rewards"), given))
    worker = find(objects, "RayCluster")["spec"]["workerGroupSpecs"][0]["template"]["spec"]
    server = find(objects, "Deployment")["spec"]["template"]["spec"]
    mounts = [[m for m in pod["containers"][0]["volumeMounts"] if m["name"] != "plugins"] for pod in (server, worker)]
    assert mounts[0] == mounts[1]
    assert "/judges" in {mount["mountPath"] for mount in mounts[1]}
    assert given["reward"]["extraEnv"][0] in worker["containers"][0]["env"]
    assert {"name": "HF_HOME", "value": "/cache/huggingface"} in worker["containers"][0]["env"]


@pytest.mark.parametrize("case", ["small", "engine-over-nodes", "ray-rewards"])
def test_labels_of_the_servers_set_itself(case: str) -> None:
    """Kueue reads its queue there, and LeaderWorkerSet its topology. In the pods it would restart them."""
    given: Object = {
        part: {"workloadLabels": {"kueue.x-k8s.io/queue-name": part}, "workloadAnnotations": {"exclusive": part}}
        for part in ("rollout", "reward")
    }
    kinds = {"StatefulSet": "rollout", "LeaderWorkerSet": "rollout", "Deployment": "reward", "RayCluster": "reward"}
    before, after = objects_of(case), render(merged(values_of(case), given))
    changed = [(one, other) for one, other in zip(before, after, strict=True) if one != other]
    assert {other["kind"] for _, other in changed} == {item["kind"] for item in before} & kinds.keys()
    for one, other in changed:
        part = kinds[other["kind"]]
        assert other["metadata"]["labels"].items() >= given[part]["workloadLabels"].items()
        assert other["metadata"]["annotations"] == given[part]["workloadAnnotations"]
        assert other["spec"] == one["spec"]


def test_pull_secrets_are_named_in_either_way() -> None:
    """`global` is shared with charts that want objects."""
    given: Object = {
        "global": {"imagePullSecrets": [{"name": "one"}, "two"]},
        "image": {"pullSecrets": ["one", {"name": "three"}]},
    }
    for name, pod in pods(render(merged(values_of("small"), given))):
        assert pod["spec"]["imagePullSecrets"] == [{"name": one} for one in ("one", "two", "three")], name


def test_long_times_are_written_as_whole_numbers() -> None:
    """Values are floating-point numbers to a template, and 2592000 would come out as 2.592e+06."""
    long_s = 2_592_000
    startup = {"startup": {"periodSeconds": 100, "failureThreshold": 900_000}}
    values: Object = {
        "rollout": {"engine": {"joinTimeoutSeconds": long_s}},
        "reward": {"preStopSeconds": long_s},
        "trainer": {"lockTimeoutSeconds": long_s + 1, "startTimeoutSeconds": long_s, "probes": startup},
        "prepare": {"enabled": True, "script": "true", "timeoutSeconds": long_s},
        "tests": {"timeoutSeconds": long_s},
    }
    for part in ("rollout", "reward", "trainer"):
        values[part]["terminationGracePeriodSeconds"] = long_s + (100 if part == "reward" else 0)
    for case in ("small", "engine-over-nodes"):
        objects = render(merged(values_of(case), values))
        for name, pod in pods(objects):
            assert isinstance(pod["spec"]["terminationGracePeriodSeconds"], int), name
            assert not re.search(r"\de\+\d", str(containers(pod))), name


def test_reward_settings_are_its_environment() -> None:
    container = find(objects_of("everything"), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    environment = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert environment["GRPO_REWARD_WORKERS"] == "4"
    assert environment["GRPO_REWARD_MEMO"] == "1000"
    assert environment["GRPO_REWARD_ALLOWED_URL"] == "https://a/,https://b/"
    assert environment["GRPO_REWARD_BODY_TIMEOUT_S"] == "2.5"


@pytest.mark.parametrize(
    ("given", "read"), [("./m", ["./m"]), (["A=./a,b", "B=Org/b"], ["A=./a,b", "B=Org/b"]), ([], []), (None, [])]
)
def test_reward_models_are_one_or_a_list_or_null(given: Any, read: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    objects = render(merged(BASE, SMALL, {"reward": {"settings": {"reward_model": given}}}))
    container = find(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    name = "GRPO_REWARD_REWARD_MODEL"
    found = [variable["value"] for variable in container["env"] if variable["name"] == name]
    monkeypatch.setenv(name, *found or [""])
    assert Settings().reward_model == read


def test_a_renewed_certificate_is_served() -> None:
    server = find(objects_of("everything"), "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    assert "--enable-ssl-refresh" in server["args"]
    # Events of the file system end with the first renewal: kubelet puts a new folder in place of the old one.
    assert {"name": "WATCHFILES_FORCE_POLLING", "value": "true"} in server["env"]
    plain = find(objects_of("small"), "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    assert "--enable-ssl-refresh" not in plain["args"]


def _bytes(quantity: str) -> float:
    units = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
    return float(quantity[:-2]) * units[quantity[-2:]]


def _labels(item: Object) -> dict[str, str]:
    labels: dict[str, str] = item["metadata"]["labels"]
    return labels


@pytest.mark.parametrize("case", CASES)
def test_recommended_labels(case: str) -> None:
    for item in objects_of(case):
        if item["metadata"]["name"] == "trial-more":
            continue
        wanted = {
            f"app.kubernetes.io/{key}" for key in ("name", "instance", "component", "version", "managed-by", "part-of")
        }
        assert wanted | {"helm.sh/chart"} <= _labels(item).keys(), item["metadata"]["name"]


@pytest.mark.parametrize("controller", ["Job", "JobSet"])
def test_a_wrong_configuration_is_not_tried_again(controller: str):
    """Exit status 2 of grpo-train; 3 means that something was late, and a pod evicted or told to stop is no failure."""
    objects = render(merged(values_of("sixty-four-gpus"), {"trainer": {"controller": controller}}))
    spec = find(objects, controller)["spec"]
    if controller == "JobSet":
        (rule,) = spec["failurePolicy"]["rules"]
        # JobSet's webhook refuses other names, a hyphen among them; its custom resource does not say so.
        assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", rule["name"])
        assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    disruption, wrong, stopped = spec["podFailurePolicy"]["rules"]
    assert disruption["action"] == stopped["action"] == "Ignore"
    # What start_trainer.sh ends with after SIGTERM.
    assert stopped["onExitCodes"] == {"containerName": "trainer", "operator": "In", "values": [143]}
    assert (wrong["action"], wrong["onExitCodes"]["operator"], wrong["onExitCodes"]["values"]) == ("FailJob", "In", [2])
    names = {container["name"] for container in spec["template"]["spec"]["containers"]}
    assert wrong["onExitCodes"]["containerName"] in names
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
