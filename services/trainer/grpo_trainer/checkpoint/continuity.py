"""What a run has in common with its checkpoints beside the engine's layout: facts, by kind.

A position in the prompts means one prompt with one seed, order, mixture and the same rows alone. With others a resumed
run would repeat some prompts and skip others without a word, so it is refused, as with another model to start from.
What else changes the prompts, or the user's own files, may change between two processes of a run: that is logged.
Everything else (learning rates, losses, limits) is no fact. The code of rewards is held to by sampling/reward_code.py.

A fact is `[shown, identity]`: what a message says, and what is compared. An empty identity is unknown: then what is
shown is compared. So a file or a model that has only moved is the same.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_proto.checkpoint_files import checkpoint_folder, checkpoint_sample

from ..config.run_config import RunConfig
from ..data.demonstrations import Example, digest_of
from ..data.row_store import RowStore
from ..data.run_rows import HeldOutRows, TrainingRows
from ..errors import UsageError
from ..extension import file_hash

log = logging.getLogger(__name__)

Facts = dict[str, list[str]]
"""By name."""
MIXTURE = "mixture"
"""In the state of checkpoints of older releases, which kept no other facts but files: names and ratios of datasets."""


@dataclass(frozen=True)
class Kind:
    """What follows from a fact that is another one than in the checkpoint, and whether the run is refused for it."""

    consequence: str
    refused: bool = False


OTHER_PROMPTS = "it would repeat some prompts and skip others"
KINDS = {
    "prompts": Kind(OTHER_PROMPTS, refused=True),
    "rows": Kind(OTHER_PROMPTS, refused=True),
    "model": Kind(
        "its weights are the checkpoint's, and its tokenizer, reference model and saved files would be another model's",
        refused=True,
    ),
    "wording": Kind("the rows are the same, and the run goes on with their new prompts"),
    "demonstrations": Kind("the run goes on with the new ones"),
    "held_out": Kind("evaluations before and after are of different rows, and so is the best checkpoint"),
    "pace": Kind("num_train_epochs counts the steps until now as if they had had the new size"),
    "files": Kind("the run goes on with it"),
}
"""Keys in the state of a checkpoint; a kind without facts is absent."""


def kept_of(config: RunConfig) -> dict[str, Facts]:
    """Return the facts of the run file. Read them once, at the start: the files may change while the run goes on.

    Raises TrainerError for a file that cannot be read.
    """
    mixture = [(name, chosen.ratio) for name, chosen in config.data.datasets.items()]
    files = {name: digest for name in sorted(_named_in(config)) if (digest := file_hash(name)) is not None}
    return _without_empty(
        {
            "prompts": {
                "seed": _plain(config.seed),
                "data.shuffle": _plain(config.data.shuffle),
                "the datasets": _mixture(mixture),
            },
            # With max_steps the run is as long as it says.
            "pace": {"the number of prompts in a step": _plain(config.rollout.groups_per_batch)}
            if config.max_steps is None
            else {},
            "files": {name: [digest[:12], digest] for name, digest in files.items()},
            **kept_of_model(config),
        }
    )


def kept_of_model(config: RunConfig) -> dict[str, Facts]:
    """Return the fact of the model to start from. Its identity is unknown before it has been downloaded."""
    name = config.model.name_or_path
    try:
        identity = checkpoint_sample(checkpoint_folder(name))
    except (OSError, ValueError):  # the engine, which needs the files, reports what is wrong with them
        identity = ""
    return {"model": {"model.name_or_path": [name, identity]}}


def kept_of_rows(
    config: RunConfig, rows: TrainingRows, held_out: HeldOutRows, demonstrations: Sequence[Example]
) -> dict[str, Facts]:
    """Return the facts of the rows, once they are read."""
    data = config.data
    training = {
        f"data.datasets.{name}" if name else "data.dataset": _rows(
            data.datasets[name].dataset if name else data.dataset, store
        )
        for name, store in rows.stores.items()
    }
    evaluated = {
        f"data.eval_datasets.{name}" if name else "data.eval_dataset": _rows(
            data.eval_datasets[name].dataset if name else data.eval_dataset, store
        )
        for name, store in held_out.items()
        if len(store)
    }
    digests = (store.summary.prompts_digest for store in rows.stores.values())
    wording = {f"the wording of {name}": [digest[:12], digest] for name, digest in zip(training, digests, strict=True)}
    imitated = {}
    if config.chord is not None:
        shown = f"{_number_of_rows(len(demonstrations))} of {config.chord.sft_dataset}"
        imitated["chord.sft_dataset"] = [shown, digest_of(demonstrations)]
    kinds = {"rows": training, "wording": wording, "held_out": evaluated, "demonstrations": imitated}
    return _without_empty(kinds)


def check_continuity(saved: Mapping[str, Any], kept: Mapping[str, Facts], folder: Path) -> None:
    """Compare facts with those in the state of the checkpoint in `folder`, as far as it has them.

    Raises UsageError that names all that a run is refused for; logs the other differences.
    """
    if "prompts" in kept and "prompts" not in saved:
        log.warning(
            "the checkpoint of step %s, of an older release, does not say which seed, rows and model it was written "
            "with: those of this run are taken for the same",
            saved["step"],
        )
    saved = _of_any_release(saved)
    refused = []
    for kind, facts in kept.items():
        found = list(_differences(saved.get(kind, {}), facts))
        if found and KINDS[kind].refused:
            with_others = "; ".join(f"{name} {before}, and this run has {now}" for name, before, now in found)
            refused.append(f"{with_others}: {KINDS[kind].consequence}")
        for name, before, now in found if not KINDS[kind].refused else ():
            log.warning(
                "%s has changed since the checkpoint of step %s: it was %s and is %s; %s",
                *(name, saved["step"], before, now, KINDS[kind].consequence),
            )
    if refused:
        raise UsageError(
            f"the checkpoint {folder} was written with {'. It was written with '.join(refused)}",
            hint="resume with what the checkpoint has, or choose another run_dir",
        )


def _of_any_release(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state with the facts of an older release as they are written now."""
    facts = dict(saved)
    if "files" in facts:
        facts["files"] = {
            name: fact if isinstance(fact, list) else [fact[:12], fact] for name, fact in facts["files"].items()
        }
    if MIXTURE in facts:
        facts["prompts"] = {"the datasets": _mixture(facts[MIXTURE])}
    return facts


def _differences(before: Facts, now: Facts) -> Iterator[tuple[str, str, str]]:
    """Yield name, the fact of the checkpoint, and that of this run, in the words of a message."""
    for name, (shown, identity) in now.items():
        shown_before, identity_before = before.get(name, (shown, identity))
        known = identity and identity_before
        if (identity != identity_before) if known else (shown != shown_before):
            yield name, shown_before, shown if shown != shown_before else f"{shown} with other contents"


def _named_in(config: RunConfig) -> set[str]:
    """What the run file names of losses, estimators and recipes; callbacks change nothing of the training."""
    algorithm, data = config.algorithm, config.data
    sets = [*data.datasets.values(), *data.eval_datasets.values()]
    recipes = [data.recipe, *(chosen.recipe for chosen in sets if chosen.recipe is not None)]
    return {algorithm.surrogate_name, algorithm.normaliser_name, algorithm.advantage_estimator, *recipes}


def _rows(dataset: str | None, store: RowStore) -> list[str]:
    return [f"{_number_of_rows(len(store))} of {dataset}", store.summary.rows_digest]


def _number_of_rows(count: int) -> str:
    return f"{count} row{'s' if count > 1 else ''}"


def _mixture(ratios: Sequence[Sequence[Any]]) -> list[str]:
    shown = ", ".join(f"{name} {ratio:g}" for name, ratio in ratios)
    return [shown or "of data.dataset alone", json.dumps(ratios)]


def _plain(value: object) -> list[str]:
    return [str(value), str(value)]


def _without_empty(facts: dict[str, Facts]) -> dict[str, Facts]:
    return {kind: of_kind for kind, of_kind in facts.items() if of_kind}
