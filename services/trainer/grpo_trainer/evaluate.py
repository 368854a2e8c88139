"""`grpo-train evaluate RUN.yaml`: what the rollout servers serve now, on the held-out rows of a run, without training.

The same rows, seeds, sampling and rewards as the evaluations of the run: what they say of a model before the run, of
another checkpoint or of another model compares with them. What a run trains on is not read.
"""

import asyncio
import logging
import math
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from grpo_proto import RewardClient

from .algorithm.scores import accuracy, standard_deviation
from .algorithm.sequences import Group
from .config.run_config import RunConfig
from .config.settings import read_config
from .episodes.sampler import new_sampler
from .errors import RunError, UsageError
from .fleet.awaited import Awaited, wait_for_rollout_servers
from .fleet.fleet import Fleet
from .fleet.start_checks import check_distinct, check_token
from .observe.completions import CompletionLog
from .observe.run_log import configure_logging
from .prepared import HeldOut
from .sampling.evaluation import EvalSet, Evaluated, Evaluation, eval_sets
from .sampling.reward import RewardStage
from .sampling.sampler import training_sampling

log = logging.getLogger(__name__)

COMPLETIONS = "--completions"
AGAIN = "see the servers' logs, then evaluate again: nothing was trained or written"


def main(argv: Sequence[str]) -> int:
    """Evaluate, print the metrics, return the exit status. Raises TrainerError."""
    words, completions = list(argv), None
    if COMPLETIONS in words:
        place = words.index(COMPLETIONS)
        if place + 1 == len(words):
            raise UsageError(f"{COMPLETIONS} names no file", hint=f"{COMPLETIONS} FILE.jsonl")
        completions = Path(words[place + 1])
        del words[place : place + 2]
    if completions is not None and completions.exists():
        raise UsageError(f"{completions} exists", hint=f"name another file behind {COMPLETIONS}")
    config = read_config(RunConfig, words, program="grpo-train evaluate RUN.yaml", env_prefix="GRPO_TRAIN__")
    configure_logging()
    if not config.data.has_held_out_rows:
        raise UsageError("the run file names no held-out rows", hint="set data.eval_dataset or data.eval_datasets")
    held_out = HeldOut.of(config)
    sets = eval_sets(config, held_out.rows)
    try:
        served, evaluated = asyncio.run(_evaluated(held_out, sets))
    except RunError as error:  # its hint is for a run, which could be resumed
        raise RunError(error.message, hint=AGAIN, exit_status=error.exit_status) from error
    for line in [*served, *_table(sets, evaluated)]:
        print(line)
    if completions is not None:
        written = CompletionLog(completions, resumed_step=None, part_mib=math.inf)
        written.write_evaluation(0, evaluated.groups)
        written.close()
        print(f"completions: {completions}")
    return 0


async def _evaluated(held_out: HeldOut, sets: dict[str, EvalSet]) -> tuple[list[str], Evaluated]:
    """Return a line for each server, and the evaluation."""
    config = held_out.config
    async with AsyncExitStack() as open_parts:
        fleet = Fleet(config.rollout.urls, min_replicas=config.rollout.min_replicas)
        open_parts.push_async_callback(fleet.close)
        client = await open_parts.enter_async_context(RewardClient(config.reward.url))
        reward = RewardStage.of(config, client)
        folder = open_parts.enter_context(TemporaryDirectory(prefix="grpo-evaluate-"))
        sampler, starting = new_sampler(
            config,
            fleet,
            run=f"evaluate-{uuid.uuid4().hex[:12]}",
            log_dir=Path(folder),
            images=held_out.images,
        )
        await open_parts.enter_async_context(starting)
        await wait_for_rollout_servers(fleet, config.rollout.startup_timeout_s)
        await check_token(fleet.answered)
        check_distinct([(replica.url, replica.info) for replica in fleet.answered if replica.info])
        held_out.require(fleet)
        if reward.specs:
            awaited = Awaited("the reward server", config.reward.url, "reward.url", "grpo-reward serve")
            await awaited.until_fit(
                lambda: reward.check(held_out.rows.first_rows, of_episodes=config.episodes is not None),
                timeout_s=config.reward.startup_timeout_s,
                still_waiting=lambda *_: None,
            )
        await fleet.admit(fleet.answered, session=0)
        watching = asyncio.create_task(fleet.watch())
        open_parts.callback(watching.cancel)
        served = [
            f"{url}: {info.model}, weights {info.weights.state}, version {info.weights.version}"
            for url, info in fleet.infos.items()
        ]
        num_prompts = sum(len(chosen.rows) for chosen in sets.values())
        log.info("sampling and scoring %d held-out prompts on %d servers", num_prompts, len(served))
        evaluation = Evaluation(sampler, reward, sets, training_sampling(config.rollout))
        return served, await evaluation.run(version=None, step=0)


def _table(sets: dict[str, EvalSet], evaluated: Evaluated) -> list[str]:
    """Return the metrics, a line each; the accuracies of a single set with their standard errors over its prompts."""
    errors: dict[str, float] = {}
    if len(sets) == 1:
        found = {"eval_accuracy": "sampled", "eval_greedy": "greedy"}
        errors = {
            name: error
            for name, decoding in found.items()
            if (error := standard_error(evaluated.groups[decoding])) is not None
        }
    width = max(map(len, evaluated.metrics), default=0)
    lines = [
        f"{name:<{width}}  {value:.4g}{f' ± {errors[name]:.2g}' if name in errors else ''}"
        for name, value in evaluated.metrics.items()
    ]
    counted = ", ".join(
        f"{name or 'data.eval_dataset'} {len(chosen.rows)} prompts × {chosen.num_generations} sampled, 1 greedy"
        for name, chosen in sets.items()
    )
    return [*lines, counted]


def standard_error(groups: Sequence[Group]) -> float | None:
    """Compute the standard error of the accuracy: samples of one prompt are alike, so that prompts are what varies.
    None with fewer than two prompts that have a score."""
    by_prompt = [share for group in groups if (share := accuracy([group])) is not None]
    deviation = standard_deviation(by_prompt)
    return None if deviation is None else deviation / math.sqrt(len(by_prompt))
