"""Whether the loaded model computes with shared prefixes what it computes in padded rows, before the first step."""

import logging
from collections.abc import Sequence

from .algorithm.agreement import Rule
from .algorithm.named_arrays import to_arrays
from .algorithm.sharing_trial import trial_sequences
from .config.run_config import RunConfig
from .data.prompt_row import PromptRow
from .engine.training_engine import TrainingEngine
from .errors import RunError
from .fleet.canary import rule_for
from .ranks.crew import Crew

log = logging.getLogger(__name__)

NUM_PROMPTS = 4
FLOAT32_BOUND = 1e-5
"""On the mean difference of logprobs: what float32 rounds otherwise in rows of other shapes is a tenth of it."""


def try_sharing(crew: Crew, config: RunConfig, rows: Sequence[PromptRow], engine: TrainingEngine) -> None:
    """Compute a small forest of the first prompts in both ways on every rank, and stop sharing on all ranks when they
    differ on any: by the bound of the canary, or of float32. The log gives the reason.

    Raises RunError instead where ranks are to compute these rows together, which a padded row cannot be.
    """
    prompts = [rows[number].token_ids for number in range(min(NUM_PROMPTS, len(rows)))]
    rule = rule_for(config, engine.device.type, has_experts=engine.has_experts)
    rule = Rule(FLOAT32_BOUND) if config.model.dtype == "float32" else rule
    text = engine.policy.model.config.get_text_config()
    longest = max(map(len, prompts)) + config.rollout.max_completion_length
    sequences = trial_sequences(prompts, window=getattr(text, "sliding_window", None), longest=longest)
    arrays = [to_arrays(sequences)] * crew.ranks.world_size
    reasons = crew.gather("try_sharing", rule.bound, rule.quantile, each=arrays)
    if (reason := next(filter(None, reasons), None)) is None:
        log.info("each token of an update is computed once: a trial of the first prompts agrees with padded rows")
        return
    if config.deepspeed.sequence_parallel_size > 1:
        raise RunError(
            f"deepspeed.sequence_parallel_size is not for this model: in a trial of the first prompts {reason}",
            hint="leave it out; each sequence then has a row on one rank",
        )
    crew.do("stop_sharing")
    log.warning("shared prefixes are off, each sequence has a padded row: in a trial of the first prompts %s", reason)
