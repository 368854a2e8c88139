"""What the templates refuse, with a message one can act on, and what lies next to it and is taken."""

from typing import Any

import pytest
from helm_python.errors import HelmError

from .rendering import ALL_APIS, BASE, SMALL, VARIANTS, merged, render

MISSING: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no registry": ({"image": {"registry": ""}}, ["image.registry", "ghcr.io/OWNER"]),
    "no secret": ({"auth": {"existingSecret": ""}}, ["auth.existingSecret", "kubectl create secret"]),
    "nothing": ({part: {"enabled": False} for part in ("rollout", "reward", "trainer")}, ["nothing to install"]),
    "no model": ({"rollout": {"model": ""}}, ["rollout.model"]),
    "no data": ({"trainer": {"run": {"data": {"dataset": ""}}}}, ["/trainer/run/data/dataset"]),
    "no run": ({"trainer": {"run": None}}, ["trainer.run.data.dataset"]),
    "no rewards": ({"trainer": {"run": {"reward": {"reward_funcs": []}}}}, ["reward_funcs"]),
    "all runs as one run's folder": ({"trainer": {"run": {"run_dir": "/runs/"}}}, ["run_dir", "itself", "below"]),
    "run folder elsewhere": ({"trainer": {"run": {"run_dir": "/tmp/x"}}}, ["run_dir", "/runs"]),  # noqa: S108
    "no server to train with": ({"rollout": {"enabled": False}}, ["trainer.run.rollout.urls"]),
    "one-node volume": (
        {"trainer": {"nodes": 2}, "storage": {"runs": {"accessModes": ["ReadWriteOnce"]}}},
        ["ReadWriteMany"],
    ),
    "other ranks than GPUs": (
        {"trainer": {"nodes": 2, "gpus": 8, "run": {"deepspeed": {"nproc_per_node": 4}}}},
        ["nproc_per_node 4", "trainer.gpus 8"],
    ),
    "few ports": ({"networkPolicy": {"dataPorts": {"first": 40000, "last": 40100}}}, ["500"]),
    "a lock given up too soon": (
        {"trainer": {"terminationGracePeriodSeconds": 1800}},
        ["trainer.lockTimeoutSeconds 900", "terminationGracePeriodSeconds 1800"],
    ),
    "a lock given up as the other ends": (
        {"trainer": {"lockTimeoutSeconds": 600}},
        ["trainer.lockTimeoutSeconds 600", "terminationGracePeriodSeconds 600", "longer"],
    ),
    "a lock that outlasts the probe": (
        {"trainer": {"lockTimeoutSeconds": 8000}},
        ["trainer.lockTimeoutSeconds is 8000 s", "trainer.probes.startup", "7200 s", "failureThreshold"],
    ),
    "pods waited for longer than the probe": (
        {"trainer": {"nodes": 2, "startTimeoutSeconds": 7000}},
        ["trainer.startTimeoutSeconds is 7900 s", "trainer.probes.startup", "7200 s"],
    ),
    "no time for a checkpoint": (
        {"trainer": {"terminationGracePeriodSeconds": 20}},
        ["trainer.terminationGracePeriodSeconds 20", "30"],
    ),
    "a rollout server without time to end": (
        {"rollout": {"preStopSeconds": 60}},
        ["rollout.terminationGracePeriodSeconds 60", "rollout.preStopSeconds 60"],
    ),
    "a reward server without time to end": (
        {"reward": {"terminationGracePeriodSeconds": 4}},
        ["reward.terminationGracePeriodSeconds 4", "reward.preStopSeconds 5"],
    ),
    "another port": ({"rollout": {"args": ["--port=9000"]}}, ["rollout.args", "--port=9000"]),
    "another host": ({"rollout": {"args": ["--host", "::"]}}, ["rollout.args", "--host"]),
    "a bound that JobSet has not": (
        {"trainer": {"controller": "JobSet", "activeDeadlineSeconds": 3600}},
        ["trainer.activeDeadlineSeconds", "JobSet"],
    ),
    "more servers wanted than there are": (
        {"rollout": {"replicas": 4}, "trainer": {"run": {"rollout": {"min_replicas": 5}}}},
        ["trainer.run.rollout.min_replicas 5", "4 servers of rollout.replicas"],
    ),
    "more servers wanted than are named": (
        {"rollout": {"replicas": 4}, "trainer": {"run": {"rollout": {"min_replicas": 2, "urls": ["http://one:8000"]}}}},
        ["trainer.run.rollout.min_replicas 2", "1 servers of trainer.run.rollout.urls"],
    ),
    "data ports over those of the servers": (
        {"networkPolicy": {"dataPorts": {"first": 7600, "last": 8100}}},
        ["networkPolicy.dataPorts", "7600 to 8100", "8001"],
    ),
    "data ports over the rendezvous": (
        {"networkPolicy": {"dataPorts": {"first": 30000, "last": 31000}, "rendezvousPort": 30500}},
        ["networkPolicy.dataPorts", "30500", "networkPolicy.rendezvousPort"],
    ),
    "data ports over the ranks' meeting place": (
        {"networkPolicy": {"dataPorts": {"first": 29401, "last": 30000}}, "trainer": {"nodes": 2}},
        ["networkPolicy.dataPorts", "29500", "trainer.masterPort"],
    ),
    "a variable that rollout servers have": (
        {"rollout": {"extraEnv": [{"name": "HF_HOME", "value": "/x"}]}},
        ["rollout.extraEnv", "HF_HOME"],
    ),
    "a variable that reward servers have by a setting": (
        {"reward": {"settings": {"workers": 2}, "extraEnv": [{"name": "GRPO_REWARD_WORKERS", "value": "3"}]}},
        ["reward.extraEnv", "GRPO_REWARD_WORKERS"],
    ),
    "a variable that the trainer has": (
        {"trainer": {"extraEnv": [{"name": "A", "value": "1"}, {"name": "GRPO_API_TOKEN", "value": "x"}]}},
        ["trainer.extraEnv", "GRPO_API_TOKEN"],
    ),
    "a variable that what prepares has": (
        {"prepare": {"enabled": True, "script": "true", "extraEnv": [{"name": "MARKER", "value": "x"}]}},
        ["prepare.extraEnv", "MARKER"],
    ),
    "a variable twice": (
        {"trainer": {"extraEnv": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}},
        ["trainer.extraEnv has A,"],
    ),
    "a label of the chart for all": (
        {"commonLabels": {"app.kubernetes.io/part-of": "platform"}},
        ["commonLabels", "app.kubernetes.io/part-of"],
    ),
    "a label that selects": (
        {"rollout": {"podLabels": {"app.kubernetes.io/component": "inference"}}},
        ["rollout.podLabels", "app.kubernetes.io/component"],
    ),
    "a queue of pods": (
        {"rollout": {"podLabels": {"kueue.x-k8s.io/queue-name": "training"}}},
        ["rollout.podLabels has kueue.x-k8s.io/queue-name", "kueue.queueName", "rollout.workloadLabels"],
    ),
    "a queue of all": (
        {"commonLabels": {"kueue.x-k8s.io/priority-class": "high"}},
        ["commonLabels has kueue.x-k8s.io/priority-class", "kueue.priorityClass", "reward.workloadLabels"],
    ),
    "a label of the chart for a set": (
        {"reward": {"workloadLabels": {"helm.sh/chart": "mine"}}},
        ["reward.workloadLabels has helm.sh/chart, which the chart sets already"],
    ),
    "a label twice": (
        {"commonLabels": {"team": "rl"}, "metrics": {"prometheusRule": {"labels": {"team": "platform"}}}},
        ["metrics.prometheusRule.labels has team, which commonLabels has already"],
    ),
    "the token of the API for Ray": (
        {"reward": {"executor": "ray"}, "auth": {"rayKey": "token"}},
        ["auth.rayKey is token, as auth.key", "a key of its own"],
    ),
    "a strategy for no StatefulSet": (
        {"rollout": {"engine": {"nodes": 2}, "updateStrategy": {"type": "OnDelete"}}},
        ["rollout.updateStrategy", "rollout.engine.nodes"],
    ),
    "a reward server killed in its grace period": (
        {"reward": {"settings": {"grace_s": 24.5}}},
        ["reward.settings.grace_s are 30 s in all", "reward.terminationGracePeriodSeconds 30"],
    ),
    "models of one node for several": (
        {"trainer": {"nodes": 2}, "storage": {"models": {"accessModes": ["ReadWriteOnce"]}}},
        ["storage.models.accessModes [ReadWriteMany]"],
    ),
    "no name server": ({"dnsPolicy": "None"}, ["dnsConfig.nameservers", "dnsConfig.searches"]),
    "short names that lead nowhere": (
        {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.0.0.10"]}},
        ["dnsConfig.searches", "short names"],
    ),
    "a volume twice": (
        {"trainer": {"extraVolumes": [{"name": "tmp", "emptyDir": {}}]}},
        ["trainer.extraVolumes has tmp"],
    ),
    "a name that no Service can have": ({"fullnameOverride": "1st"}, ["called 1st", "fullnameOverride"]),
    "models for one pod and several that read them": (
        {"storage": {"models": {"accessModes": ["ReadWriteOncePod"]}}},
        ["storage.models.accessModes ReadWriteOncePod", "2 have to", "ReadWriteMany"],
    ),
    "the name server of the node": ({"dnsPolicy": "Default"}, ["dnsPolicy Default", "dnsConfig.nameservers"]),
    "runs and models at one path": (
        {"storage": {"runs": {"mountPath": "/models"}}},
        ["the trainer", "mounted at /models:", "storage.runs.mountPath"],
    ),
    "models at a path of the pod": (
        {"storage": {"models": {"mountPath": "/tmp/"}}},  # noqa: S108
        ["the rollout", "mounted at /tmp:", "storage.models.mountPath"],
    ),
    "runs at the path of the run file": (
        {"storage": {"runs": {"mountPath": "/etc/grpo/run"}}},
        ["the trainer", "mounted at /etc/grpo/run:"],
    ),
    "a volume of yours at a path of the pod": (
        {
            "reward": {
                "extraVolumes": [{"name": "more", "emptyDir": {}}],
                "extraVolumeMounts": [{"name": "more", "mountPath": "/cache"}],
            }
        },
        ["the reward", "mounted at /cache:", "reward.extraVolumeMounts"],
    ),
    "a volume called as that of the plug-ins": (
        {"reward": {"plugins": {"mine.py": "x = 1\n"}, "extraVolumes": [{"name": "plugins", "emptyDir": {}}]}},
        ["reward.extraVolumes has plugins"],
    ),
    "a volume called as that of the run file": (
        {"trainer": {"extraVolumes": [{"name": "run-file", "emptyDir": {}}]}},
        ["trainer.extraVolumes has run-file"],
    ),
    "an engine over more GPUs than it has": (
        {"rollout": {"gpus": 2, "args": ["--tensor-parallel-size=4"]}},
        ["rollout.args", "over 4 GPUs", "are 2", "--tensor-parallel-size"],
    ),
    "an engine over more GPUs than its nodes have": (
        {
            "rollout": {
                "gpus": 8,
                "engine": {"nodes": 2},
                "args": ["--tensor-parallel-size", "8", "--pipeline-parallel-size", "4"],
            }
        },
        ["rollout.args", "over 32 GPUs", "are 16"],
    ),
    "other ranks than GPUs of one pod": (
        {"trainer": {"gpus": 1, "run": {"deepspeed": {"nproc_per_node": 4}}}},
        ["nproc_per_node 4", "trainer.gpus 1"],
    ),
    "a port for two": (
        {"trainer": {"masterPort": 29400, "nodes": 2}},
        ["networkPolicy.rendezvousPort 29400", "trainer.masterPort 29400", "different"],
    ),
    "the port of the live page for two": ({"networkPolicy": {"rendezvousPort": 8002}}, ["8002", "different"]),
    "names too long for the pods of a JobSet": (
        {"fullnameOverride": "a" * 34, "trainer": {"controller": "JobSet", "nodes": 11}},
        ["of 64 characters", "JobSet allows 63", "fullnameOverride to at most 33"],
    ),
    "workers for every core of the node": (
        {"reward": {"resources": {"requests": {"cpu": None}}}},
        ["reward.resources.requests.cpu", "reward.settings.workers"],
    ),
    "an autoscaler with nothing to compare with": (
        {
            "reward": {
                "resources": {"requests": {"cpu": None}},
                "settings": {"workers": 2},
                "autoscaling": {"enabled": True},
            }
        },
        ["reward.autoscaling", "reward.resources.requests.cpu"],
    ),
    "TLS without a certificate": ({"tls": {"serveRollout": True}}, ["tls.existingSecret"]),
}


@pytest.mark.parametrize("case", MISSING)
def test_the_templates_refuse(case: str) -> None:
    values, said = MISSING[case]
    with pytest.raises(HelmError) as refused:
        render(merged(BASE, SMALL, values))
    for part in said:
        assert part in str(refused.value)


# Next to what is refused.
TAKEN: dict[str, dict[str, Any]] = {
    "models for one pod": {
        "reward": {"enabled": False},
        "trainer": {"enabled": False},
        "storage": {"models": {"accessModes": ["ReadWriteOncePod"]}},
    },
    "a budget of all": {"rollout": {"replicas": 2, "podDisruptionBudget": {"maxUnavailable": "100%"}}},
    "an engine over all its GPUs": {
        "rollout": {
            "gpus": 8,
            "engine": {"nodes": 2},
            "args": ["--tensor-parallel-size=8", "--pipeline-parallel-size", "2"],
        }
    },
    "an engine without GPUs": {"rollout": {"gpus": 0, "args": ["--tensor-parallel-size=2"]}},
    "ranks without GPUs": {"trainer": {"gpus": 0, "run": {"deepspeed": {"nproc_per_node": 4}}}},
    "the longest name": {"fullnameOverride": "a" * 34, "trainer": {"controller": "JobSet", "nodes": 10}},
    "the longest name for many pods": {"fullnameOverride": "a" * 33, "trainer": {"controller": "JobSet", "nodes": 11}},
    "ports that nobody listens on": {
        "networkPolicy": {"dataPorts": {"first": 29401, "last": 32000}},
        "trainer": {"masterPort": 29400},
    },
    "a version of your own": {"trainer": {"podLabels": {"app.kubernetes.io/version": "7"}}},
    "huge pages": {"rollout": {"extraResources": {"vpc.amazonaws.com/efa": 4, "hugepages-2Mi": "5120Mi"}}},
    "a mount path with a slash": {
        "storage": {"runs": {"mountPath": "/runs/"}},
        "trainer": {"run": {"run_dir": "/runs/x"}},
    },
    "a teacher in place of rewards": {
        "trainer": {
            "run": {
                "data": {
                    "dataset": None,
                    "datasets": {"math": {"dataset": "m", "ratio": 1, "teacher": {"url": "http://teacher:8010"}}},
                },
                "reward": {"reward_funcs": []},
            }
        },
    },
    "as many workers as said": {
        "reward": {"resources": {"requests": {"cpu": None}}, "settings": {"workers": 2}},
    },
    "as many workers as the limit": {
        "reward": {"resources": {"requests": {"cpu": None}, "limits": {"cpu": "2"}}, "autoscaling": {"enabled": True}},
    },
}


@pytest.mark.parametrize("case", TAKEN)
def test_the_templates_take(case: str) -> None:
    assert render(merged(BASE, SMALL, TAKEN[case]))


@pytest.mark.parametrize("release", ["1st", "grpo.v1"])
def test_a_release_that_helm_takes_and_services_do_not(release: str) -> None:
    with pytest.raises(HelmError, match=f"called {release}-grpo-services, and a Service's name begins with a letter"):
        render(merged(BASE, SMALL), release=release)
    assert render(merged(BASE, SMALL, {"fullnameOverride": "grpo"}), release=release)


NEEDS = {
    "leaderworkerset.x-k8s.io/v1": VARIANTS["engine-over-nodes"],
    "ray.io/v1": VARIANTS["ray-rewards"],
    "jobset.x-k8s.io/v1alpha2": {"trainer": {"controller": "JobSet"}},
    "kueue.x-k8s.io/v1beta2": {"kueue": {"queueName": "training"}},
    "monitoring.coreos.com/v1": {"metrics": {"serviceMonitor": {"enabled": True}}},
}


@pytest.mark.parametrize("api", NEEDS)
def test_a_missing_custom_resource_is_named(api: str) -> None:
    values = merged(BASE, SMALL, NEEDS[api])
    values["assumeApiVersions"] = [other for other in ALL_APIS if other != api]
    with pytest.raises(HelmError, match=r"which this cluster does not have") as refused:
        render(values)
    assert api.rpartition("/")[0] in str(refused.value)
    values["assumeApiVersions"] = [api]
    assert render(values)
