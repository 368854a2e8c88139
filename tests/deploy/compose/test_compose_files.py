"""What has to be true of the compose files and what they mount, read as YAML: no Docker is needed."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
FILES = ("compose.yaml", "compose.two-boxes.yaml")
ONE_SHOT = ("prepare", "prepare-cpu")
OURS = ("grpo-services",)
HOST_NETWORK = "compose.two-boxes.yaml"
VARIABLE = re.compile(r"\$\{(\w+)(?::[-?]((?:[^{}])*))?\}")

Service = dict[str, Any]


def document(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / name).read_text()))


SERVICES = [
    pytest.param(file, name, service, id=f"{file}:{name}")
    for file in FILES
    for name, service in document(file)["services"].items()
]
every_service = pytest.mark.parametrize(("file", "name", "service"), SERVICES)


def defaults(text: str) -> str:
    """`text` as compose reads it with nothing in the environment."""
    return VARIABLE.sub(lambda found: found[2] or "", text)


@every_service
def test_a_plain_up_starts_only_what_was_asked_for(file: str, name: str, service: Service) -> None:
    assert service["profiles"], "a service without a profile always starts"


@every_service
def test_nothing_runs_as_root_or_can_become_root(file: str, name: str, service: Service) -> None:
    user = service["user"].partition(":")[0]
    assert user.isdigit()
    assert int(user) > 0
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert "privileged" not in service
    assert "cap_add" not in service


@every_service
def test_the_root_is_read_only_and_tmp_is_not(file: str, name: str, service: Service) -> None:
    assert service["read_only"] is True
    mount = service["tmpfs"][0]
    assert mount.startswith("/tmp:")  # noqa: S108 - a mount, not a file of ours
    # What torch and vLLM compile is loaded from there; tmpfs is noexec unless told otherwise.
    assert ("exec" in mount) == ("grpo-services" in service["image"])


@every_service
def test_limits_and_signals(file: str, name: str, service: Service) -> None:
    assert service["init"] is True
    assert service["mem_limit"]
    assert service["pids_limit"] > 0
    assert service["logging"]["options"]["max-size"]
    if name not in ONE_SHOT:
        assert service["stop_grace_period"]


@every_service
def test_health_and_restarts(file: str, name: str, service: Service) -> None:
    if name in ONE_SHOT:
        assert service["restart"] == "no"
        return
    assert service["healthcheck"]["test"][0] == "CMD"
    if name.startswith("trainer"):
        # A finished trainer stays finished, and a checkpoint of a large model can be written.
        assert service["restart"].startswith("on-failure")
        assert service["stop_grace_period"] == "10m"
        assert "--resume" in service["command"]
    else:
        assert service["restart"] == "unless-stopped"
    if name.startswith(("trainer", "rollout", "reward")):
        assert service["healthcheck"]["test"][-1] == "--end-when-stuck"  # what hangs does not end by itself


@every_service
def test_images_are_pinned(file: str, name: str, service: Service) -> None:
    image = defaults(service["image"])
    assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+(-cpu|-gpu)?", image), image


@every_service
def test_our_images_are_asked_of_no_registry(file: str, name: str, service: Service) -> None:
    """`up` asks the registry first: a name without a host is anybody's on Docker Hub."""
    if "grpo-services" in service["image"]:
        assert defaults(service["image"]).startswith("localhost/grpo-services/")


@every_service
def test_ports_are_for_this_machine_only(file: str, name: str, service: Service) -> None:
    if file == HOST_NETWORK:
        assert service["network_mode"] == "host"
        assert "--host 0.0.0.0" not in service.get("command", "")
    for port in service.get("ports", []):
        assert port.startswith("127.0.0.1:")


@every_service
def test_no_secret_is_a_variable(file: str, name: str, service: Service) -> None:
    for key in service.get("environment", {}):
        assert not re.search(r"TOKEN|PASSWORD$|SECRET|API_KEY", key), key
    for secret in service.get("secrets", []):
        assert "file" in document(file)["secrets"][secret]


@every_service
def test_model_data_and_runs_outlive_a_container(file: str, name: str, service: Service) -> None:
    named = set(document(file)["volumes"])
    targets = {mount.removesuffix(":ro") for mount in service.get("volumes", [])}
    for mount in targets:
        source = defaults(mount).split(":")[0]
        assert source in named or source.startswith("./"), mount
    if name.startswith("trainer"):
        assert {"models:/models", "runs:/runs"} <= set(map(defaults, targets))


@every_service
def test_a_service_waits_only_for_what_its_profile_starts(file: str, name: str, service: Service) -> None:
    for other in service.get("depends_on", {}):
        missing = set(service["profiles"]) - set(document(file)["services"][other]["profiles"])
        assert not missing, f"{name} waits for {other}, which the profiles {missing} do not start"


def test_prepare_ends_before_anything_reads_model_or_data() -> None:
    for file in FILES:
        for name, service in document(file)["services"].items():
            if name.startswith(("rollout", "trainer")):
                first = next(other for other in service["depends_on"] if other.startswith("prepare"))
                assert service["depends_on"][first] == {"condition": "service_completed_successfully"}


def test_gpus_are_chosen_by_number_for_each_service() -> None:
    services = document("compose.yaml")["services"]
    chosen = {}
    for name in ("rollout", "trainer"):
        (device,) = services[name]["deploy"]["resources"]["reservations"]["devices"]
        assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
        chosen[name] = [defaults(number) for number in device["device_ids"]]
        assert services[name]["ulimits"]["memlock"] == -1
        assert services[name]["shm_size"]
    assert chosen == {"rollout": ["0"], "trainer": ["1"]}
    assert "deploy" not in services["rollout-cpu"]
    assert "deploy" not in services["trainer-cpu"]


def test_the_example_environment_is_what_compose_would_do_without_it() -> None:
    text = (ROOT / ".env.example").read_text()
    found = VARIABLE.findall((ROOT / "compose.yaml").read_text())
    used = {name: default for name, default in found if default}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        name, _, value = line.partition("=")
        if name == "COMPOSE_PROFILES":
            assert value == "gpu"
        elif name != "GRPO_TRAIN_ARGS":
            assert used[name] == value, f"{name}: {value} in .env.example, {used.get(name)} in compose.yaml"


def test_every_variable_is_explained() -> None:
    page = (ROOT / "docs/compose.md").read_text()
    names = {name for file in FILES for name, _ in VARIABLE.findall((ROOT / file).read_text())}
    assert sorted(name for name in names if f"`{name}`" not in page) == []


def test_two_boxes_heed_the_same_environment() -> None:
    """The `.env` of one box is copied to the other: a setting that is silently left out is looked for long."""
    one, two = ({name for name, _ in VARIABLE.findall((ROOT / file).read_text())} for file in FILES)
    # The address of the rollout server is ROLLOUT_HOST there.
    without = (
        r"GRPO_ROLLOUT_URLS|PROMETHEUS_|GRAFANA_|BASE_IMAGE|VLLM_IMAGE|"
        r"GRPO_(\w+_CPU_|COLD_START|SEED|REVISION|\w+_PORT)"
    )
    assert sorted(name for name in one - two if not re.match(without, name)) == []


def test_prometheus_asks_the_ports_that_the_services_listen_on() -> None:
    config = yaml.safe_load((ROOT / "docker/monitoring/prometheus.yml").read_text())
    asked = {}
    for job in config["scrape_configs"]:
        (target,) = job["static_configs"][0]["targets"]
        host, _, port = target.partition(":")
        asked[job["job_name"]] = (host, int(port))
    assert asked == {"reward": ("reward", 8001), "rollout": ("rollout", 8000), "trainer": ("trainer", 8002)}
    for name, (host, port) in asked.items():
        assert f"EXPOSE {port}" in (ROOT / f"docker/{name}.Dockerfile").read_text()
        for service_name, service in document("compose.yaml")["services"].items():
            if service_name in (name, f"{name}-cpu"):
                aliases = service.get("networks", {}).get("default", {}).get("aliases", [service_name])
                assert host in aliases


def test_on_the_network_of_the_host_another_port_is_one_for_server_probe_and_client() -> None:
    text = (ROOT / HOST_NETWORK).read_text()
    for variable, port in {"ROLLOUT": "8000", "REWARD": "8001", "TRAINER": "8002"}.items():
        text = text.replace(f"${{GRPO_{variable}_PORT:-{port}}}", f"1{port}")
        assert port not in text.replace(f"1{port}", "")
    services = yaml.safe_load(text)["services"]
    for name, port in {"rollout": "18000", "reward": "18001", "trainer": "18002"}.items():
        assert port in services[name]["healthcheck"]["test"]
    assert "--port 18000" in services["rollout"]["command"]
    assert "--port 18001" in services["reward"]["command"]
    settings = services["trainer"]["environment"]
    assert settings["GRPO_TRAIN__ROLLOUT__URLS"].endswith(':18000"]')
    assert settings["GRPO_TRAIN__REWARD__URL"].endswith(":18001")
    assert settings["GRPO_TRAIN__SERVER__PORT"] == 18002


def test_the_run_file_keys_in_the_environment_exist() -> None:
    from grpo_trainer.config.run_config import RunConfig

    for file in FILES:
        for service in document(file)["services"].values():
            for key in service.get("environment", {}):
                if not key.startswith("GRPO_TRAIN__"):
                    continue
                fields: Any = RunConfig.model_fields
                for part in key.removeprefix("GRPO_TRAIN__").lower().split("__"):
                    assert part in fields, key
                    fields = getattr(fields[part].annotation, "model_fields", {})
