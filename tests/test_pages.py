"""What the pages and the maps say of the code is so: files, links, names, flags and defaults."""

import ast
import inspect
import re
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from grpo_rollout import options
from grpo_trainer.config.algorithm import LOSS_TYPES
from grpo_trainer.config.run_config import RunConfig

ROOT = Path(__file__).parents[1]
LISTING = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
FILES = subprocess.run(LISTING, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
LISTED = sorted(name for name in FILES if (ROOT / name).is_file())
PAGES = [name for name in LISTED if name.endswith(".md")]
SOURCES = [name for name in LISTED if name.endswith(".py") and not name.startswith("tests/")]
README, ROLLOUT, TRAINER = ((ROOT / name).read_text() for name in ("README.md", "docs/rollout.md", "docs/trainer.md"))

FILE_NAME = re.compile(r"(?<![\w./*{}<>-])((?:[\w.*-]+/)*[\w*-]+\.(?:py|sh|js|css|html|j2|tpl|toml))(?![\w*])")
OURS = tuple(f"{name.partition('/')[0]}/" for name in LISTED if "/" in name)
A_USERS = {
    "FILE.py", "FILE.sh", "a.py", "b.py", "countdown.sh", "old.sh", "folder/file.py", "bounded_reinforce.py",
    "endless.py", "game.py", "greedy.py", "halved.py", "lake.py",
    "agent.py", "mine.py", "my_reward.py", "remote_reward.py", "remote_rewards.py", "target.py", "train.py",
}  # fmt: skip
ANOTHERS = {
    "vllm/lora/ops/torch_ops/lora_ops.py", "resources_servers/grpo_reward/app.py", "src/open_r1/grpo.py",
    "src/open_r1/rewards.py",
}  # fmt: skip
MADE = {"report.html"}
FORBIDDEN = {"utils.py"}
"""Named by CONTRIBUTING because there is none."""


def told(name: str) -> str:
    """The text of a page; of a source file its docstrings and comments."""
    text = (ROOT / name).read_text()
    if name.endswith(".md"):
        return text
    nodes = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr)]
    strings = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return "\n".join([*strings, *re.findall(r"(?:^|  )\s*# (.*)$", text, re.MULTILINE)])


def is_there(file: str) -> bool:
    return any(name == file or name.endswith(f"/{file}") or fnmatch(name, f"*/{file}") for name in LISTED)


def test_files_that_pages_maps_and_comments_name_are_there():
    missing = {
        f"{name}: {file}"
        for name in [*PAGES, *SOURCES]
        for file in FILE_NAME.findall(told(name))
        if file not in A_USERS | ANOTHERS | MADE | FORBIDDEN and not is_there(file)
    }
    assert not missing


def test_paths_of_this_repository_that_pages_name_are_there():
    """Whatever they end with, where they begin with one of its folders: data files and folders, too."""
    folders = {parent.as_posix() for name in LISTED for parent in Path(name).parents}
    missing = {
        f"{name}: {path}"
        for name in PAGES
        for path in re.findall(r"`([\w.-]+/[\w./*-]*)`", told(name))
        if path.startswith(OURS) and path.rstrip("/") not in folders and not any(fnmatch(one, path) for one in LISTED)
    }
    assert not missing - {"docs/adapters/nemo_gym.md: resources_servers/grpo_reward/app.py"}


def anchors(page: str) -> set[str]:
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings} | set(
        re.findall(r'<a name="([^"]+)">', text)
    )


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str):
    for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text()):
        path, _, anchor = target.partition("#")
        if path.startswith("http"):
            continue
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file.resolve().relative_to(ROOT).as_posix()), target


def test_names_on_the_page_of_how_it_runs_are_in_the_code():
    words = {word for name in LISTED if not name.startswith(("tests/", "docs/")) for word in _words(name)}
    page = re.sub(r"^```.*?^```", "", told("docs/how-it-runs.md"), flags=re.MULTILINE | re.DOTALL)
    spans = [span for span in re.findall(r"`([^`]+)`", page) if not FILE_NAME.fullmatch(span)]
    assert len(spans) > 100
    assert not {span for span in spans for word in re.findall(r"\w+", span) if word not in words}


def _words(name: str) -> Iterator[str]:
    if name.endswith((".py", ".toml", ".yaml")):
        yield from re.findall(r"\w+", (ROOT / name).read_text())


def test_the_readme_names_every_preset_of_a_loss_and_every_reward():
    (row,) = re.findall(r"^\| `algorithm.loss_type` \|.*$", README, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) == set(LOSS_TYPES)
    (paragraph,) = re.findall(r"Against a gold answer: .*?\n\n", README, re.DOTALL)
    rewards = {path.stem for path in (ROOT / "services/reward/grpo_reward/rewards").glob("[a-z]*.py")}
    assert rewards <= set(re.findall(r"`(\w+)`", paragraph))
    assert f"describes all {len(rewards)}" in README


def refused_flags() -> set[str]:
    """The flags of vLLM that `grpo-rollout serve` refuses: those at the beginning of an error of its check."""
    source = inspect.getsource(options.check_options)
    named = set(re.findall(r"StartError\(\s*f?\"(--[a-z-]+)", source))
    own = {f"--{name}" for name in ("body-timeout-s", "max-scored-tokens")}
    return named - own


@pytest.mark.parametrize("text", [README, ROLLOUT], ids=["README.md", "docs/rollout.md"])
def test_flags_that_the_rollout_server_refuses_are_named(text: str):
    flags = refused_flags()
    assert {"--grpc", "--data-parallel-size"} <= flags
    assert not {flag for flag in flags if f"`{flag}`" not in text}


def test_defaults_of_the_rollout_server_are_those_on_its_page():
    rows = dict(re.findall(r"^\| `(--[a-z-]+)` \| ([\d,]+) \|", ROLLOUT, re.MULTILINE))
    said = {flag: float(value.replace(",", "")) for flag, value in rows.items()}
    assert said == {
        "--max-waiting-requests": options.DEFAULT_MAX_WAITING,
        "--max-scored-tokens": options.DEFAULT_MAX_SCORED_TOKENS,
        "--max-scored-tokens-in-flight": options.DEFAULT_MAX_SCORED_TOKENS_IN_FLIGHT,
        "--heartbeat-timeout-s": options.DEFAULT_HEARTBEAT_TIMEOUT_S,
        "--body-timeout-s": options.DEFAULT_BODY_TIMEOUT_S,
        "--max-loras": options.DEFAULT_MAX_LORAS,
        "--max-lora-rank": options.DEFAULT_MAX_LORA_RANK,
        "--max-logprobs": options.DEFAULT_MAX_LOGPROBS,
    }


def test_defaults_of_a_run_file_are_those_on_the_page_of_the_trainer():
    blocks = re.findall(r"```yaml\n(# (?:run|more)\.yaml.*?)```", TRAINER, re.DOTALL)
    smallest, given = map(yaml.safe_load, blocks)
    defaults = RunConfig.model_validate(smallest).model_dump(mode="json")
    lines = {line.split(":")[0].strip(): line for line in blocks[1].splitlines() if line.startswith("  ")}
    unlike = {
        key
        for section, values in given.items()
        if isinstance(values, dict)
        for key, value in values.items()
        if value != defaults[section][key] and "default" not in lines[key]
    }
    assert unlike == {"reward_funcs"}, "which has none"
