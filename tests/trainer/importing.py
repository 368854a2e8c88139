"""Importing a command as its user does, and files of a user's own as a new process does."""

import sys
from typing import Any

import pytest

from grpo_trainer import extension
from grpo_trainer.__main__ import main
from grpo_trainer.config.run_config import RunConfig

TRL = ["--model_name_or_path", "m", "--dataset_name", "d", "--reward_funcs", "accuracy_reward"]


def imported(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[str, str]:
    """The run file, and what was said about it."""
    word = "import-swift" if "rlhf" in " ".join(map(str, argv)) or "swift_" in str(argv[0]) else "import-trl"
    assert main([word, *map(str, argv)]) == 0
    out, err = capsys.readouterr()
    return out, err


def refused(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    assert main([str(word) for word in argv]) == 2
    out, err = capsys.readouterr()
    assert not out
    return err


def as_in_a_new_process(*names: str) -> None:
    """Forget the modules `names` of a user's own."""
    extension.module_of.cache_clear()
    for name in names:
        sys.modules.pop(name, None)


def setting(run: RunConfig, name: str) -> Any:
    value: Any = run.model_dump(mode="json", exclude_unset=True)
    for part in name.split("."):
        value = value[part]
    return value
