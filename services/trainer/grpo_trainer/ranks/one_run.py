"""One run on all ranks: rank 0's settings and rank 0's code hold on every machine.

Each machine has its own run file, environment and installation, and an older copy of one of them would train otherwise
on a part of the batch without a word.
"""

import hashlib
import logging
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import grpo_proto

from ..config.changes import changes
from ..config.run_config import RunConfig
from ..errors import UsageError
from ..extension import file_hash

log = logging.getLogger(__name__)

SECTIONS = ("model", "optimizer", "deepspeed", "algorithm", "rollout")
"""Settings that decide what a rank computes."""
LIBRARIES = ("torch", "transformers", "deepspeed", "peft")


def told_of(config: RunConfig) -> dict[str, Any]:
    """Return what rank 0 tells the others of its settings and its code, as JSON."""
    return {"settings": config.model_dump(mode="json", include={"seed", *SECTIONS}), "code": _code(config)}


def taken_over(config: RunConfig, told: dict[str, Any]) -> RunConfig:
    """Return the configuration of another rank with rank 0's settings; logs those that were others here.

    Raises UsageError when the code is another one.
    """
    settings = told["settings"]
    sections = {name: type(getattr(config, name)).model_validate(settings[name]) for name in SECTIONS}
    theirs = config.model_copy(update={"seed": settings["seed"], **sections})
    here = _code(theirs)
    other = [
        f"{name} {here.get(name, 'none')} here, {there} there"
        for name, there in told["code"].items()
        if here.get(name, "none") != there
    ]
    if other:
        raise UsageError(
            f"this machine and that of rank 0 train by other code: {'; '.join(other)}",
            hint="install the same releases on all machines",
        )
    before = config.model_dump(mode="json", include={"seed", *SECTIONS})
    if before["algorithm"]["router_aux_loss_coef"] == "model":  # rank 0 has read which that is
        before["algorithm"]["router_aux_loss_coef"] = settings["algorithm"]["router_aux_loss_coef"]
    for change in changes(before, theirs):
        log.warning("rank 0's settings hold on every machine: %s here", change)
    return theirs


def _code(config: RunConfig) -> dict[str, str]:
    """Library → version; of this project the hash of its files, because a checkout keeps its version for long. A loss
    and a normaliser of the user's own by the hashes of their files."""
    digest = hashlib.sha256()
    for package in (Path(__file__).parents[1], Path(grpo_proto.__file__).parent):
        for path in sorted(package.rglob("*.py")):
            digest.update(f"{path.relative_to(package)}\n".encode() + path.read_bytes())
    own = {name: file_hash(name) for name in (config.algorithm.surrogate_name, config.algorithm.normaliser_name)}
    found = {"grpo_trainer": digest.hexdigest()[:16]} | {name: _version(name) for name in LIBRARIES}
    return found | {name: one[:16] for name, one in own.items() if one}


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:  # a copy on the path
        return "unknown"
