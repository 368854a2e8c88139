"""Who gets which key: the token of the API, and that of Ray."""

import subprocess
from pathlib import Path

import pytest

from .rendering import CASES, containers, find, merged, objects_of, pod_templates, pods, render, values_of

KEYS = {
    "GRPO_API_TOKEN": {"key": "token"},
    "GRPO_API_TOKEN_ALSO": {"key": "token-also", "optional": True},  # there while one token takes the other's place
    "RAY_AUTH_TOKEN": {"key": "ray-token"},
}


@pytest.mark.parametrize("case", CASES)
def test_the_token_comes_from_the_secret_alone(case: str) -> None:
    for item in objects_of(case):
        assert item["kind"] != "Secret"
    for name, pod in pods(objects_of(case)):
        for container in containers(pod):
            for variable in container.get("env", []):
                if "TOKEN" in variable["name"]:
                    reference = variable["valueFrom"]["secretKeyRef"]
                    assert reference == {"name": "grpo-token"} | KEYS[variable["name"]], name


def test_what_ray_asks_for_is_not_the_token_of_the_api() -> None:
    """The pods of Ray run the rewards, which can read all that is in them."""
    objects = render(merged(values_of("ray-rewards"), {"auth": {"key": "api", "alsoKey": "next", "rayKey": "of-ray"}}))
    for template in pod_templates(find(objects, "RayCluster")):
        (container,) = template["spec"]["containers"]
        keys = [v["valueFrom"]["secretKeyRef"]["key"] for v in container["env"] if "valueFrom" in v]
        assert keys == ["of-ray"], container["name"]
    server = find(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    keys = {v["name"]: v["valueFrom"]["secretKeyRef"]["key"] for v in server["env"] if "TOKEN" in v["name"]}
    assert keys == {"GRPO_API_TOKEN": "api", "GRPO_API_TOKEN_ALSO": "next", "RAY_AUTH_TOKEN": "of-ray"}


def test_ray_processes_beside_the_reward_server_do_not_have_its_token(tmp_path: Path) -> None:
    """Who has Ray's key can send work to that node as well."""
    server = find(objects_of("ray-rewards"), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    for name in ("ray", "grpo-reward"):
        (tmp_path / name).write_text(
            f'#!/bin/sh\necho "{name} $1 ${{GRPO_API_TOKEN-none}} ${{GRPO_API_TOKEN_ALSO-none}} $RAY_AUTH_TOKEN"\n'
        )
        (tmp_path / name).chmod(0o755)
    tokens = {"GRPO_API_TOKEN": "api", "GRPO_API_TOKEN_ALSO": "next", "RAY_AUTH_TOKEN": "of-ray"}
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin"} | tokens
    done = subprocess.run(server["command"], env=variables, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.splitlines() == ["ray start none none of-ray", "grpo-reward serve api next of-ray"]


def test_what_prepares_does_not_get_the_token() -> None:
    """The script is the user's, and has nobody to call with it."""
    (prepare,) = [pod["spec"] for name, pod in pods(objects_of("cpu-cluster")) if "-p-" in name]
    (container,) = prepare["containers"]
    assert [variable["name"] for variable in container["env"] if "TOKEN" in variable["name"]] == []
    assert "grpo-token" not in str(prepare)
