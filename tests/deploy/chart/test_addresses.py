"""What the servers listen on, and how pods find names: of all pods alike."""

import http.server
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from grpo_proto.server.listening import listening_socket
from grpo_reward.config import read_settings
from grpo_trainer.config.run_config import RunConfig

from .rendering import CASES, CHART, Object, containers, find, merged, objects_of, pods, render, values_of
from .test_run_file import run_file

EVERYWHERE_6: Object = {"listenAddress": "::"}


@pytest.mark.parametrize(("change", "address"), [({}, "0.0.0.0"), (EVERYWHERE_6, "::")])  # noqa: S104
def test_all_three_servers_listen_there(change: Object, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = render(merged(values_of("small"), change))
    (rollout,) = find(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    # A bare --host=:: would be a mapping.
    assert f"--host={address}" in rollout["args"]
    assert RunConfig.model_validate(run_file(objects)).server.host == address
    (reward,) = find(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    for variable in reward["env"]:
        if variable["name"] in ("GRPO_REWARD_HOST", "GRPO_REWARD_PORT"):
            monkeypatch.setenv(variable["name"], variable["value"])
    monkeypatch.setenv("GRPO_API_TOKEN", "for-the-test")
    assert read_settings([]).host == address


@pytest.mark.parametrize("case", CASES)
def test_nothing_else_is_of_one_version_of_ip(case: str) -> None:
    """Probes of kubelet go to the pod's address; names are for all others, but for loopback inside of a pod."""
    for item in render(merged(values_of(case), EVERYWHERE_6)):
        assert "0.0.0.0" not in str(item), item["metadata"]["name"]  # noqa: S104
        assert item["kind"] != "Service" or not {"ipFamilies", "ipFamilyPolicy"} & item["spec"].keys()
        assert item["kind"] != "NetworkPolicy" or "ipBlock" not in str(item["spec"])


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])  # noqa: S104
def test_the_trainers_probe_reaches_it(address: str) -> None:
    """By the loopback of IPv4, which every pod has."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("", 0), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listening_socket(address, 0)
    port = server.socket.getsockname()[1]
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    source = Path(CHART / "files" / "trainer_probe.py").read_text()
    command = [sys.executable, "-I", "-c", source.replace(":8002", f":{port}"), "/livez"]
    try:
        done = subprocess.run(command, env={"NODE_RANK": "0"}, capture_output=True, text=True, timeout=30, check=False)
    finally:
        server.shutdown()
        server.server_close()
    assert (done.returncode, done.stdout) == (0, "200\n"), done.stderr


@pytest.mark.parametrize("case", CASES)
def test_dns_of_all_pods(case: str) -> None:
    config = {
        "nameservers": ["fd00::a"],
        "searches": ["team-a.svc.cluster.local"],
        "options": [{"name": "ndots", "value": "2"}],
    }
    given: Object = {"dnsPolicy": "None", "dnsConfig": config}
    for name, pod in pods(render(merged(values_of(case), given))):
        assert (pod["spec"]["dnsPolicy"], pod["spec"]["dnsConfig"]) == ("None", config), name
    for name, pod in pods(objects_of(case)):
        assert not {"dnsPolicy", "dnsConfig"} & pod["spec"].keys(), name
        assert containers(pod), name
