"""The base image and the three CPU images, built as a user would, and what is looked for in them."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from .docker_host import CannotRun, DockerHost, answers, install_from_debian, need_root, run, say

ROOT = Path(__file__).resolve().parents[3]
TEST_BASE = "grpo-test-base:bookworm"
BASE_PACKAGES = "ca-certificates,python3,python3-venv,python3-pip"
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
PULL_TIMEOUT_S = 120
BUILD_TIMEOUT_S = 1800
MAX_REWARD_MB = 250

IMAGES = {
    "localhost/grpo-services/reward:0.1.0": ("docker/reward.Dockerfile", ()),
    "localhost/grpo-services/trainer:0.1.0-cpu": ("docker/trainer.Dockerfile", ("--build-arg", "VARIANT=cpu")),
    "localhost/grpo-services/rollout:0.1.0-cpu": ("docker/rollout.Dockerfile", ("--target", "cpu")),
}
"""Image → its Dockerfile and what chooses the CPU variant."""

WITHOUT_COMPILER = ("localhost/grpo-services/reward:0.1.0", "localhost/grpo-services/trainer:0.1.0-cpu")


def base_image(host: DockerHost) -> str:
    """`$BASE_IMAGE`; else the Dockerfiles' own where a registry can be reached; else one made by debootstrap."""
    if os.environ.get("BASE_IMAGE"):
        return os.environ["BASE_IMAGE"]
    default = next(
        line.removeprefix("ARG BASE_IMAGE=")
        for line in (ROOT / "docker/reward.Dockerfile").read_text().splitlines()
        if line.startswith("ARG BASE_IMAGE=")
    )
    if answers(host.docker, "image", "inspect", default) or _can_pull(host, default):
        return default
    if not answers(host.docker, "image", "inspect", TEST_BASE):
        _make_base_image(host)
    return TEST_BASE


def _can_pull(host: DockerHost, image: str) -> bool:
    try:
        pull = [host.docker, "pull", "--quiet", image]
        return subprocess.run(pull, capture_output=True, timeout=PULL_TIMEOUT_S, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _make_base_image(host: DockerHost) -> None:
    """Debian with Python 3.11, and the certificates of this machine: those that it needs to reach a package index."""
    need_root("debootstrap")
    if shutil.which("debootstrap") is None:
        install_from_debian("debootstrap")
    say(f"no registry can be reached: {TEST_BASE} is made by debootstrap")
    with tempfile.TemporaryDirectory(prefix="grpo-base-") as folder:
        try:
            run("debootstrap", "--variant=minbase", f"--include={BASE_PACKAGES}", "bookworm", folder)
        except subprocess.CalledProcessError as error:
            raise CannotRun("debootstrap could not fetch Debian") from error
        if CA_BUNDLE.is_file():
            shutil.copyfile(CA_BUNDLE, folder + str(CA_BUNDLE))
        shutil.rmtree(f"{folder}/var/cache/apt")
        shutil.rmtree(f"{folder}/var/lib/apt/lists")
        certificates = f"ENV SSL_CERT_FILE={CA_BUNDLE} PIP_CERT={CA_BUNDLE}"
        with subprocess.Popen(["tar", "-C", folder, "-c", "."], stdout=subprocess.PIPE) as tar:
            run(host.docker, "import", "--change", certificates, "-", TEST_BASE, stdin=tar.stdout)


def copy_context(target: Path) -> None:
    """What a checkout holds, and the wheels of `$PIP_FIND_LINKS` where a build looks for them."""
    names = run("git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "-z").stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    wheels = Path(os.environ.get("PIP_FIND_LINKS") or "/nowhere")
    if wheels.is_dir():
        for wheel in wheels.glob("*.whl"):
            shutil.copy2(wheel, target / "docker/wheels")


def build_all(host: DockerHost, base: str, context: Path) -> None:
    """Raises CalledProcessError with the end of the log of a build that fails."""
    for image, (dockerfile, variant) in IMAGES.items():
        began_s = time.monotonic()
        before = _image_id(host, image)
        command = [host.docker, "build", "--network", "host", "--build-arg", f"BASE_IMAGE={base}", *variant]
        run(
            *command, "-f", dockerfile, "-t", image, ".",
            cwd=context, env={**os.environ, "DOCKER_BUILDKIT": "1"}, timeout_s=BUILD_TIMEOUT_S,
        )  # fmt: skip
        say(f"{image} built in {time.monotonic() - began_s:.0f} s")
        if before not in ("", _image_id(host, image)):
            # The one of the last time has no name any more: each takes gigabytes. Docker refuses while it is in use.
            subprocess.run([host.docker, "image", "rm", before], capture_output=True, timeout=120, check=False)


def _image_id(host: DockerHost, image: str) -> str:
    """Empty when there is none of that name."""
    return run(host.docker, "image", "ls", "--quiet", "--no-trunc", image).stdout.strip()


def size_mb(host: DockerHost, image: str) -> float:
    return int(run(host.docker, "image", "inspect", "--format", "{{.Size}}", image).stdout) / 1e6


def check_images(host: DockerHost, base: str) -> None:
    """Raises AssertionError for an image that is not what its Dockerfile promises."""
    base_mb = size_mb(host, base)
    say(f"{base}: {base_mb:.0f} MB")
    for image in IMAGES:
        added_mb = size_mb(host, image) - base_mb
        parts = bill_of_materials(host, image)
        say(f"{image}: {added_mb:.0f} MB more than its base, {len(parts)} packages")
        assert not [name for name in parts if name.startswith("nvidia-")], f"{image} holds CUDA packages"
        user = run(host.docker, "run", "--rm", "--network", "none", image, "id", "-u").stdout.strip()
        assert user == "10001", f"{image} runs as {user}"
        if "reward" in image:
            assert added_mb < MAX_REWARD_MB, f"{image} adds {added_mb:.0f} MB, the bound is {MAX_REWARD_MB}"
        if image in WITHOUT_COMPILER:
            found = run(host.docker, "run", "--rm", image, "sh", "-c", "command -v gcc cc g++ clang || true").stdout
            assert not found, f"{image} holds a compiler: {found}"


def bill_of_materials(host: DockerHost, image: str) -> set[str]:
    """The names in the image's SBOM."""
    command = [host.docker, "run", "--rm", "-i", "--network", "none", "--entrypoint", "python3", image, "-"]
    document = json.loads(run(*command, input=(ROOT / "docker/sbom.py").read_text()).stdout)
    return {component["name"] for component in document["components"]}
