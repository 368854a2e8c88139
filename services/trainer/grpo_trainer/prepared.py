"""What a run and a dry run do alike before the model is loaded: read and check the rows, say what servers must meet.
An evaluation without training does so for the held-out rows alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from transformers import PretrainedConfig

from grpo_proto.messages.weights import Kind

from .algorithm.demonstrations import chord_doubts
from .config.doubts import doubts
from .config.run_config import RunConfig
from .data.demonstrations import Example, check_context, load_demonstrations
from .data.episode_rows import RowsOfEpisodes
from .data.repeats import repeats
from .data.run_rows import (
    HeldOutRows,
    TrainingRows,
    check_vocabulary,
    few_rows,
    load_eval_sets,
    load_training_rows,
    longest_context,
)
from .data.sent_images import ImagesOfPrompts
from .data.teacher_prompts import TeacherPrompts
from .data.tokenizer import chat_template, check_stop_tokens, load_tokenizer
from .data.turn_end import servers_stop_at
from .engine.family import image_token_of, load_family, load_image_processor
from .engine.load_balancing import router_aux_loss_coef
from .engine.optimizers import check_optimizer
from .engine.prefix_sharing import check_dealt_rows
from .engine.rope import one_rope_context
from .engine.schedule import learning_rates, number_of_steps, number_of_updates, schedule_doubts
from .errors import UsageError
from .fleet.adapters import AdapterNeeds
from .fleet.fleet import Fleet
from .fleet.needs import Needs
from .fleet.start_checks import check_sessions
from .sampling.teacher import Policy


@dataclass(frozen=True)
class Prepared:
    """The rows of a run, and what of its model can be known without its weights."""

    config: RunConfig
    """With what the family decides, see `engine/load_balancing.py`."""
    tokenizer: Any
    rows: TrainingRows
    eval_rows: HeldOutRows
    family: PretrainedConfig
    demonstrations: list[Example]
    teacher_prompts: dict[str, TeacherPrompts]
    """Of each dataset whose teacher does not read the policy's prompts."""

    @classmethod
    def of(cls, config: RunConfig, *, folder: Path | None = None) -> Self:
        """Read the rows, and check what needs no server. `folder` keeps the rows for the next start.

        Raises UsageError, and UnavailableError where the Hub gives nothing.
        """
        tokenizer = load_tokenizer(config.model)
        check_stop_tokens(config.rollout.stop_token_ids, tokenizer)
        of_episodes = RowsOfEpisodes.of(config)
        family = load_family(config.model)
        image = image_token_of(family)
        rows = load_training_rows(config.data, tokenizer, folder=folder, of_episodes=of_episodes, image_token_id=image)
        eval_rows = load_eval_sets(config.data, tokenizer, folder=folder, of_episodes=of_episodes, image_token_id=image)
        if max(rows.most_images, eval_rows.most_images):
            check_images(config)
        if config.model.train_vision_tower and not rows.most_images and config.episodes is None:
            raise UsageError(
                "model.train_vision_tower is true, and no row has an image: the tower would learn nothing",
                hint="leave it out, or name the column of the images in data.image_column",
            )
        demonstrations = load_demonstrations(config.chord, config.data, tokenizer)
        check_vocabulary(rows, eval_rows, demonstrations, vocab_size=family.get_text_config().vocab_size)
        context = one_rope_context(family) or getattr(family.get_text_config(), "max_position_embeddings", None)
        check_context(demonstrations, context=context)
        config = with_router_aux_loss_coef(config, router_aux_loss_coef(config.algorithm, family))
        of_teachers = TeacherPrompts.of_run(config, tokenizer, image_token_id=image)
        for name, prompts in of_teachers.items():
            prompts.make_all(rows.stores[name])
            prompts.check_context(context, max_completion_length=config.rollout.max_completion_length)
        prepared = cls(config, tokenizer, rows, eval_rows, family, demonstrations, of_teachers)
        check_optimizer(config.optimizer)
        check_dealt_rows(family, config.deepspeed)
        learning_rates(config.optimizer, total_updates=prepared.num_updates)
        return prepared

    @property
    def max_steps(self) -> int:
        return number_of_steps(self.config, len(self.rows))

    @property
    def images(self) -> ImagesOfPrompts:
        return ImagesOfPrompts(image_token_of(self.family), self.config.data.max_image_pixels)

    @property
    def num_updates(self) -> int:
        return number_of_updates(self.config, self.max_steps)

    @property
    def policy(self) -> Policy:
        """What a teacher has to fit."""
        max_completion_length = self.config.rollout.max_completion_length
        return Policy.of(
            self.tokenizer,
            max_tokens=self.rows.longest_prompt + max_completion_length,
            max_completion_length=max_completion_length,
            max_images=max((self.rows.stores[name].summary.most_images for name in self.config.teachers), default=0),
        )

    def doubts(self) -> Iterator[str]:
        """What is allowed, and seldom meant."""
        yield from repeats(self.rows.stores, self.eval_rows)
        yield from doubts(self.config)
        yield from schedule_doubts(self.config.optimizer, total_updates=self.num_updates)
        num_examples = len(self.demonstrations)
        yield from chord_doubts(self.config.chord, num_examples=num_examples, total_updates=self.num_updates)
        yield from few_rows(self.rows, self.config)
        yield from servers_stop_at(self.config, self.rows.first_rows[0], self.tokenizer, self.family)

    def require(self, fleet: Fleet, adapter: AdapterNeeds | None) -> Kind:
        """Hold the servers to what this run needs from now on. Returns what to push; raises what `agreed` raises."""
        rows = self.rows, self.eval_rows
        return _require(fleet, adapter, self.config, self.tokenizer, self.family, *rows)


@dataclass(frozen=True)
class HeldOut:
    """The held-out rows of a run, and what of its model can be known without its weights."""

    config: RunConfig
    tokenizer: Any
    rows: HeldOutRows
    family: PretrainedConfig

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Read the held-out rows, and nothing of what is trained on. Raises what `Prepared.of` raises."""
        tokenizer = load_tokenizer(config.model)
        check_stop_tokens(config.rollout.stop_token_ids, tokenizer)
        family = load_family(config.model)
        rows = load_eval_sets(
            config.data, tokenizer, of_episodes=RowsOfEpisodes.of(config), image_token_id=image_token_of(family)
        )
        if rows.most_images:
            check_images(config)
        check_vocabulary(TrainingRows({}), rows, [], vocab_size=family.get_text_config().vocab_size)
        return cls(config, tokenizer, rows, family)

    def require(self, fleet: Fleet) -> None:
        """Hold the servers to what the evaluation needs from now on. Raises what `agreed` raises."""
        _require(fleet, None, self.config, self.tokenizer, self.family, self.rows)

    @property
    def images(self) -> ImagesOfPrompts:
        return ImagesOfPrompts(image_token_of(self.family), self.config.data.max_image_pixels)


def _require(
    fleet: Fleet,
    adapter: AdapterNeeds | None,
    config: RunConfig,
    tokenizer: Any,
    family: PretrainedConfig,
    *rows: TrainingRows | HeldOutRows,
) -> Kind:
    max_tokens = longest_context(config, *rows)
    needs = Needs(
        tokenizer=Policy.of(tokenizer, max_tokens=max_tokens).tokenizer,
        max_tokens=max_tokens,
        head_dtype=config.model.head_dtype,
        dtype=config.model.dtype,
        one_rope_context=one_rope_context(family),
        kv_cache=config.weights.kv_cache,
        max_images=max(one.most_images for one in rows),
    )
    kind = fleet.require(needs, adapter)
    if config.episodes is not None:
        with_tools = bool(config.episodes.tools or config.episodes.factories)
        check_sessions(
            fleet.infos,
            with_tools=with_tools,
            with_images=bool(needs.max_images),
            template=chat_template(config.model),
        )
    return kind


def check_images(config: RunConfig) -> None:
    """Raises UsageError for what rows with images do not go with, and for a checkpoint that cannot show them."""
    if config.teachers and config.episodes is not None:
        raise UsageError(
            "the rows of these episodes have images, which a teacher does not see there", hint="leave teacher out"
        )
    if any(teacher.of_itself for teacher in config.teachers.values()):
        raise UsageError(
            "the rows have images, and a policy that is its own teacher reads texts alone",
            hint="serve the teacher, with the policy's first weights as well (teacher.url)",
        )
    load_image_processor(config.model.name_or_path)


def with_router_aux_loss_coef(config: RunConfig, coefficient: float) -> RunConfig:
    algorithm = config.algorithm.model_copy(update={"router_aux_loss_coef": coefficient})
    return config.model_copy(update={"algorithm": algorithm})
