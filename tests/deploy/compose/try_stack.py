"""`make test-compose`: the images are built and `docker compose --profile cpu up` runs the main job, shortened.

    .venv/bin/python -m tests.deploy.compose.try_stack

Every service is killed twice: its process (or vLLM's engine) from inside, which the restart policy mends, and by
`docker kill`, which Docker takes for an operator's wish and does not mend: then `up` does. At last the engine hangs,
and the health check has to end the server. The run has to end with status 0 and every step once. Where there is no
Docker it is installed from Debian and started, which needs root.

Exit status 0 done, 1 something is wrong, 3 this machine cannot run it (0 with GRPO_COMPOSE_MAY_SKIP=1).
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from .docker_host import CannotRun, DockerHost, docker_host, run, say
from .images import ROOT, base_image, build_all, check_images, copy_context
from .live_page import find_chromium, photograph
from .stack import Stack, stack

NUM_STEPS = 40
COLD_START_STEPS = 60
STEP_TIMEOUT_S = 600
RECOVERY_TIMEOUT_S = 300
CANNOT_RUN = 3

KILL_MAIN_PROCESS = "kill -9 $(cat /proc/1/task/1/children)"
SIGNAL_ENGINE = (
    "for file in /proc/[0-9]*/comm; do case $(cat $file) in VLLM::EngineCor*)"
    " pid=${file#/proc/}; kill -%s ${pid%%/comm};; esac; done"
)
KILL_ENGINE, STOP_ENGINE = SIGNAL_ENGINE % "KILL", SIGNAL_ENGINE % "STOP"
DEATHS = {"reward": KILL_MAIN_PROCESS, "rollout-cpu": KILL_ENGINE, "trainer-cpu": KILL_MAIN_PROCESS}
"""Service → what is run inside its container to kill what matters most there."""


def main() -> int:
    # A time-out of whoever runs this cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory(prefix="grpo-compose-") as folder, docker_host(Path(folder)) as host:
            context = Path(folder) / "checkout"
            context.mkdir()
            copy_context(context)
            base = base_image(host)
            build_all(host, base, context)
            check_images(host, base)
            with stack(host, context, num_steps=NUM_STEPS, cold_start_steps=COLD_START_STEPS) as running:
                train(host, running)
    except CannotRun as reason:
        print(f"the compose stack was NOT tested: {reason}", file=sys.stderr)
        return 0 if os.environ.get("GRPO_COMPOSE_MAY_SKIP") == "1" else CANNOT_RUN
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except (AssertionError, subprocess.SubprocessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    say("the compose stack works")
    return 0


def train(host: DockerHost, running: Stack) -> None:
    """The main job from `prepare` to its end, with all deaths on the way."""
    began_s = time.monotonic()
    running.compose("up", "-d", "--no-build", "prepare-cpu")
    exited = lambda service: running.inspect(service)["State"]["Status"] == "exited"  # noqa: E731
    running.wait_until("prepare", lambda: exited("prepare-cpu"), timeout_s=STEP_TIMEOUT_S)
    assert running.inspect("prepare-cpu")["State"]["ExitCode"] == 0, running.logs("prepare-cpu")
    say(f"prepared in {time.monotonic() - began_s:.0f} s")

    began_s = time.monotonic()
    running.compose("up", "-d", "--no-build")
    running.wait_until("the first step", lambda: running.step() >= 1, timeout_s=STEP_TIMEOUT_S)
    say(f"up to the first training step: {time.monotonic() - began_s:.0f} s (aim: 180 on two quiet cores)")
    check_hardening(running)
    check_live_page(running)

    for service, death in DEATHS.items():
        survive(running, service, "its process dies", partial(die, running, service, death))
        survive(running, service, "docker kill, then up", partial(kill_by_hand, running, service))
    # Nothing dies: the health check has to.
    survive(running, "rollout-cpu", "its engine hangs", partial(die, running, "rollout-cpu", STOP_ENGINE))

    running.wait_until("the end of the run", lambda: exited("trainer-cpu"), timeout_s=STEP_TIMEOUT_S)
    state = running.inspect("trainer-cpu")["State"]
    assert state["ExitCode"] == 0, running.logs("trainer-cpu")
    check_result(host, running)


def survive(running: Stack, service: str, what: str, kill: Callable[[], None]) -> None:
    """The run goes on: two steps more than when it happened. A killed trainer goes on from its checkpoint."""
    before = running.step()
    assert before >= 0, f"the trainer does not answer before {service}: {what}\n{running.logs('trainer-cpu')}"
    kill()
    seconds = running.wait_until(
        f"step {before + 2} after {service}: {what}",
        lambda: running.step() >= before + 2,
        timeout_s=RECOVERY_TIMEOUT_S,
    )
    say(f"{service}, {what}: step {before} before, {before + 2} reached {seconds:.0f} s later")


def die(running: Stack, service: str, script: str) -> None:
    """Something in the container dies, and Docker's restart policy has to notice."""
    restarts = running.inspect(service)["RestartCount"]
    running.kill_inside(service, script)
    running.wait_until(
        f"the restart of {service}",
        lambda: running.inspect(service)["RestartCount"] > restarts,
        timeout_s=RECOVERY_TIMEOUT_S,
    )


def kill_by_hand(running: Stack, service: str) -> None:
    run(running.host.docker, "kill", running.container(service))
    running.compose("up", "-d", "--no-build", "--no-deps", service)


def check_hardening(running: Stack) -> None:
    """What the files promise, as the daemon sees it."""
    for service in DEATHS:
        seen = running.inspect(service)
        assert seen["HostConfig"]["ReadonlyRootfs"], service
        assert seen["HostConfig"]["CapDrop"] == ["ALL"], service
        assert seen["Config"]["User"] == "10001:10001", service
        assert running.token not in json.dumps(seen), f"{service}: the token can be read by docker inspect"
        bound = [address["HostIp"] for ports in seen["NetworkSettings"]["Ports"].values() for address in ports or []]
        assert set(bound) <= {"127.0.0.1"}, f"{service} listens on {bound}"
    sandbox = [line for line in running.logs("reward").splitlines() if "sandbox" in line]
    say(f"the reward server on its sandbox: {sandbox or 'whole'}")


def check_live_page(running: Stack) -> None:
    """It is served whole, to whoever has the token, and lives in a browser: runs/compose/live-page.png."""
    stranger = running.get("trainer", "/", token=None)
    assert stranger[0] == 401, f"the live page answers a stranger with {stranger[0]}"
    status, document = running.get("trainer", "/", token=running.token)
    assert status == 200, f"the live page answers {status}\n{running.logs('trainer-cpu')}"
    assert "</html>" in document, document[-500:]
    chromium = find_chromium()
    if chromium is None:
        say("no chromium here and none to be had: the live page was not looked at in a browser")
        return
    target = ROOT / "runs/compose/live-page.png"
    complaints = photograph(chromium, running.url("trainer") + "/", token=running.token, target=target)
    assert not complaints, f"the browser complains of the live page: {complaints}"
    say(f"the live page: {target}, {target.stat().st_size / 1000:.0f} kB")


def check_result(host: DockerHost, running: Stack) -> None:
    """Every step once, a summary, a model; and a finished trainer stays finished."""
    volume = next(
        mount["Name"] for mount in running.inspect("trainer-cpu")["Mounts"] if mount["Destination"] == "/runs"
    )
    read = [host.docker, "run", "--rm", "-v", f"{volume}:/runs:ro", "localhost/grpo-services/trainer:0.1.0-cpu", "cat"]
    lines = run(*read, "/runs/demo/metrics.jsonl").stdout.splitlines()
    # Step 0 is what was measured before the first one.
    steps = [step for line in lines if (step := json.loads(line)["step"])]
    assert steps == list(range(1, NUM_STEPS + 1)), f"steps in metrics.jsonl: {steps}"
    summary = json.loads(run(*read, "/runs/demo/summary.json").stdout)
    assert summary["steps"] == NUM_STEPS, summary
    run(*read, "/runs/demo/model/config.json")
    time.sleep(5)
    assert running.inspect("trainer-cpu")["State"]["Status"] == "exited", "a finished trainer was started again"
    say(f"{NUM_STEPS} steps, each once, in spite of {2 * len(DEATHS)} deaths and a hang")


if __name__ == "__main__":
    sys.exit(main())
