"""The schema is current, knows every value, and refuses mistakes with messages one can act on; null leaves out."""

import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python.chart import Chart
from helm_python.errors import HelmError

from .rendering import BASE, CHART, EXAMPLES, ROOT, SMALL, find, merged, render

GENERATOR = runpy.run_path(str(ROOT / "k8s" / "make_values_schema.py"))


def test_the_committed_schema_is_current() -> None:
    current = GENERATOR["as_text"](GENERATOR["values_schema"]())
    assert (CHART / "values.schema.json").read_text() == current, "run: python k8s/make_values_schema.py"


def test_values_yaml_has_every_key_of_the_model() -> None:
    model = GENERATOR["_values_model"]()
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert _keys(values, model) == []


def _keys(values: dict[str, Any], model: Any, where: str = "") -> list[str]:
    """Keys that only the model, or only values.yaml has."""
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    wrong = [where + key for key in fields.keys() ^ values.keys()]
    for key, field in fields.items():
        if hasattr(field.annotation, "model_fields") and isinstance(values.get(key), dict):
            wrong += _keys(values[key], field.annotation, f"{where}{key}.")
    return wrong


# Values, and what the message has to say.
WRONG: dict[str, tuple[dict[str, Any], list[str]]] = {
    "misspelt key": ({"rollout": {"replica": 2}}, ["/rollout", "replica"]),
    "text for a number": ({"rollout": {"replicas": "two"}}, ["/rollout/replicas", "integer"]),
    "no replicas": ({"rollout": {"replicas": 0}}, ["/rollout/replicas", "minimum"]),
    "unknown loss": ({"trainer": {"run": {"algorithm": {"loss_type": "ppo"}}}}, ["loss_type", "dapo"]),
    "unknown key in the run file": ({"trainer": {"run": {"optimizer": {"lr": 1}}}}, ["/trainer/run/optimizer", "lr"]),
    "the chart's own business": (
        {"trainer": {"run": {"weights": {"host": "10.0.0.1"}}}},
        ["/trainer/run/weights", "host"],
    ),
    "unknown reward setting": ({"reward": {"settings": {"worker": 4}}}, ["/reward/settings", "worker"]),
    "a token in the values": ({"auth": {"token": "s3cret"}}, ["/auth", "token"]),
    "no digest": ({"trainer": {"image": {"digest": "latest"}}}, ["/trainer/image/digest", "pattern"]),
    "unknown executor": ({"reward": {"executor": "dask"}}, ["/reward/executor", "process"]),
    "unknown controller": ({"trainer": {"controller": "MPIJob"}}, ["/trainer/controller", "JobSet"]),
    "no quantity": ({"storage": {"runs": {"size": "50 gigabytes"}}}, ["/storage/runs/size", "pattern"]),
    "more than the restricted profile allows": (
        {"podSecurityContext": {"runAsNonRoot": False}},
        ["/podSecurityContext", "runAsNonRoot"],
    ),
    "root": ({"podSecurityContext": {"runAsUser": 0}}, ["/podSecurityContext/runAsUser", "minimum"]),
    "a folder outside of the volume": (
        {"storage": {"runs": {"subPath": "/runs"}}},
        ["/storage/runs/subPath", "pattern"],
    ),
    "a listen address of one interface": ({"listenAddress": "10.0.0.1"}, ["/listenAddress", "::"]),
    "a budget that lets nothing go": (
        {"rollout": {"podDisruptionBudget": {"maxUnavailable": "0%"}}},
        ["/rollout/podDisruptionBudget/maxUnavailable", "pattern"],
    ),
    "a pull secret without a name": ({"global": {"imagePullSecrets": [{}]}}, ["/global/imagePullSecrets/0"]),
    "a port too high": ({"networkPolicy": {"rendezvousPort": 70000}}, ["/networkPolicy/rendezvousPort", "65,535"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_schema_refuses(case: str) -> None:
    wrong, said = WRONG[case]
    with pytest.raises(HelmError) as refused:
        render(merged(BASE, SMALL, wrong))
    for part in said:
        assert part in str(refused.value)


def _empties(values: dict[str, Any], empty: Any) -> dict[str, Any]:
    """Every list of `values`, and every mapping without a key, as `empty(it)`."""
    found = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            found[key] = _empties(value, empty)
        elif isinstance(value, (list, dict)):
            found[key] = empty(value)
    return found


def test_null_takes_a_list_or_a_mapping_away() -> None:
    """Helm's way to be rid of a default: the key is gone then."""
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    for part, key in (("networkPolicy", "dnsPorts"), ("storage", "runs"), ("storage", "models"), ("tests", "score")):
        del defaults[part][key]  # these have to have something in them
    del defaults["assumeApiVersions"]
    annotations = {"storage": {"runs": {"annotations": {}}, "models": {"annotations": {}}}}
    cases = [
        merged(
            BASE,
            {"reward": {"executor": "ray"}, "prepare": {"enabled": True, "script": "true"}},
            {"metrics": {name: {"enabled": True} for name in ("serviceMonitor", "prometheusRule", "dashboards")}},
            _empties(merged(defaults, annotations), empty),
            SMALL,
        )
        for empty in (lambda _: None, lambda value: type(value)())
    ]
    nulls, empties = (render(values) for values in cases)
    assert nulls == empties


def test_null_takes_a_section_away() -> None:
    nulls: dict[str, Any] = {"global": None, "tests": None, "kueue": None}
    assert render(merged(BASE, SMALL, nulls)) == render(merged(BASE, SMALL, {"tests": {"enabled": False}}))


@pytest.mark.parametrize(
    "source", ["  # indented\nx = 1\n", "\tx\n", 'page = "\x0c"\r\n', "", "x = 1", "# ä 😀 <&>\n---\n"]
)
def test_a_plugin_reaches_the_server_as_it_is(source: str) -> None:
    objects = render(merged(BASE, SMALL, {"reward": {"plugins": {"mine.py": source}}}))
    assert find(objects, "ConfigMap", "-plugins")["data"] == {"mine.py": source}


def test_null_for_all_of_what_pods_ask_for_and_run_as() -> None:
    nulls: dict[str, Any] = {"podSecurityContext": None, "rollout": {"resources": None}, "trainer": {"resources": None}}
    objects = render(merged(BASE, SMALL, {"tls": {"existingSecret": "certificates"}}, nulls))
    (container,) = find(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {name: {"nvidia.com/gpu": 1} for name in ("requests", "limits")}


@pytest.mark.parametrize(
    "section", ["tls", "prepare", "metrics", "storage.runs", "rollout.probes", "trainer.probes.liveness"]
)
def test_a_section_that_has_to_be_there_is_named(section: str) -> None:
    """Where null means nothing: enabled: false is what was meant."""
    nulls: Any = None
    for key in reversed(section.split(".")):
        nulls = {key: nulls}
    with pytest.raises(HelmError, match=f"missing property '{section.rpartition('.')[2]}'"):
        render(merged(BASE, SMALL, nulls))


def _filled(values: dict[str, Any], *, where: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Where a number, a switch or a word is, less what goes into Kubernetes' and the services' own objects."""
    found: list[tuple[str, ...]] = []
    for key, value in values.items():
        if isinstance(value, dict) and key not in ("run", "settings", "podSecurityContext", "labels", "score"):
            found += [] if "esources" in key else _filled(value, where=(*where, key))
        elif isinstance(value, int | float) or (value and isinstance(value, str)):
            found.append((*where, key))
    return found


@pytest.mark.processes
def test_null_is_no_number_no_switch_and_no_word() -> None:
    """It would be 0, false or nothing in a template; to be without a limit is possible."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    filled = [path for path in _filled(values) if path[-1] not in ("shmSize", "cacheSize", "tmpSize")]
    assert len(filled) > 80
    for path in filled:
        nulls: Any = None
        for key in reversed(path):
            nulls = {key: nulls}
        with pytest.raises(HelmError, match=f"missing property '{path[-1]}'"):
            render(merged(BASE, SMALL, nulls))
    with pytest.raises(HelmError, match="registry is not set"):
        render(merged(BASE, SMALL, {"image": {"registry": None}}))


def test_a_chart_above_this_one(tmp_path: Path) -> None:
    """Its `condition` puts `enabled` among our values, and `global` holds what other charts read."""
    shutil.copytree(CHART, tmp_path / "charts" / "grpo-services")
    (tmp_path / "Chart.yaml").write_text(
        "apiVersion: v2\nname: platform\nversion: 1.0.0\ndependencies:\n"
        "  - {name: grpo-services, version: 0.1.0, condition: grpo-services.enabled}\n"
    )
    above = Chart.load(tmp_path)
    for enabled in (True, False):
        values = {
            "global": {"storageClass": "fast", "imageRegistry": "mirror.example"},
            "grpo-services": merged(BASE, SMALL, {"enabled": enabled}),
        }
        above.validate_schema(values)
        texts = above.render(values, name="trial", namespace="team-a")
        assert ("image: mirror.example/grpo-services/rollout:" in "".join(texts.values())) is enabled


def test_every_example_is_tested() -> None:
    names = {path.stem for path in EXAMPLES}
    assert {"one-gpu-node", "one-plus-three-nodes", "reward-only", "cpu-cluster"} <= names
