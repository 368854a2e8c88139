"""Read what a script gives to TRL's `GRPOTrainer`, as the options of `trl grpo`. The script is never run."""

from collections.abc import Mapping
from pathlib import Path

from ..errors import UsageError
from .python_source import SUFFIXES, python_source
from .script_episodes import read_episodes
from .script_model import read_adapter, read_config, read_environment, read_model
from .script_reader import Reader, TrlScript
from .script_rewards import read_rewards
from .script_rows import read_rows


def calls_grpo_trainer(path: Path) -> bool:
    """Return whether a file is a script that makes a trainer; one that is not here, or no Python, is none."""
    if path.suffix not in SUFFIXES or not path.is_file():
        return False
    try:
        return bool(python_source(path).calls("GRPOTrainer"))
    except UsageError:
        return False


def read_trl_script(path: Path, words: Mapping[str, str], variables: Mapping[str, str]) -> TrlScript:
    """Read what `GRPOTrainer` and `GRPOConfig` are given. `words` are the arguments behind the script, by their option,
    empty for one without a value; `variables` those of its environment that stand before it.

    Raises UsageError for no trainer and for several.
    """
    source = python_source(path)
    trainer = source.only_call("GRPOTrainer", of=path, command="trl grpo")
    reader = Reader(source, path, trainer, words, variables)
    for read in (read_config, read_model, read_adapter, read_rows, read_episodes, read_rewards, read_environment):
        read(reader)
    reader.found.variables = reader.values.variables_read
    if unset := sorted(reader.found.variables - variables.keys()):
        reader.found.remark(f"the script reads {', '.join(unset)} of the environment: its defaults stand here")
    if files := sorted(reader.values.files_read):
        reader.found.remark(
            f"values are read from {', '.join(files)}, too: what the script changes of them is not known"
        )
    return reader.found
