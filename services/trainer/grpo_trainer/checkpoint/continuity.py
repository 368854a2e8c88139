"""What a run has in common with its checkpoint beside the engine's layout: the mixture of datasets, the user's files.

A position in the prompts means the same prompt in one mixture alone: another one is refused. Settings of loss and
prompts may change between two processes of a run, and so may the files that they name: a change is logged. The code of
rewards is held to by servers/reward_code.py.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config.run_config import RunConfig
from ..errors import UsageError
from ..extension import file_hash

log = logging.getLogger(__name__)

MIXTURE, FILES = "mixture", "files"
"""Keys in the state of a checkpoint. A single dataset is no mixture, []; without files of the user's own their key is
absent. Older releases wrote neither."""


def kept_of(config: RunConfig) -> dict[str, Any]:
    """Return what a checkpoint keeps. Read it once, at the start: the files may change while the run goes on.

    Raises TrainerError for a file that cannot be read.
    """
    mixture = [[name, chosen.ratio] for name, chosen in config.data.datasets.items()]
    files = {name: digest for name in _named_in(config) if (digest := file_hash(name)) is not None}
    return {MIXTURE: mixture} | ({FILES: files} if files else {})


def check_continuity(saved: Mapping[str, Any], kept: Mapping[str, Any], folder: Path) -> None:
    """Raise UsageError for another mixture than that of the checkpoint in `folder`; log files that have changed."""
    if MIXTURE in saved and saved[MIXTURE] != kept[MIXTURE]:
        raise UsageError(
            f"the checkpoint {folder} was written with the datasets {_written(saved[MIXTURE])}, and this run has "
            f"{_written(kept[MIXTURE])}: it would repeat some prompts and skip others",
            hint="resume with the names and ratios of the checkpoint in data.datasets, or choose another run_dir",
        )
    for name, digest in kept.get(FILES, {}).items():
        before = saved.get(FILES, {}).get(name, digest)
        if before != digest:
            log.warning(
                "%s has changed since the checkpoint of step %s: its file was %s and is %s; the run goes on with it",
                *(name, saved["step"], before[:12], digest[:12]),
            )


def _named_in(config: RunConfig) -> set[str]:
    """What the run file names of losses, estimators and recipes; callbacks change nothing of the training."""
    algorithm, data = config.algorithm, config.data
    sets = [*data.datasets.values(), *data.eval_datasets.values()]
    recipes = [data.recipe, *(chosen.recipe for chosen in sets if chosen.recipe is not None)]
    return {algorithm.surrogate_name, algorithm.normaliser_name, algorithm.advantage_estimator, *recipes}


def _written(mixture: list[list[Any]]) -> str:
    return ", ".join(f"{name} {ratio:g}" for name, ratio in mixture) or "of data.dataset alone"
