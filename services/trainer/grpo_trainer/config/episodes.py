"""The section `episodes`: what an episode of several turns is played with, its limits, and its rewards."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from grpo_proto.api_token import TOKEN_VARIABLE
from grpo_proto.messages.sessions import RECORD_KEPT_S

from .section import Seconds, Section

if TYPE_CHECKING:
    from .run_config import RunConfig

ENVIRONMENT_COLUMN = "environment"
"""Names the class of `environment_factory` that plays a row, where there are several."""
ENVIRONMENT_REWARD = "environment"
"""Name of the reward that an environment's steps add up to."""
WAYS = ("environment", "multi_turn_scheduler", "environment_factory", "agent")
"""Settings of which one says what plays an episode; `tools` may stand beside the first three, or alone."""
PROGRAMS_PER_CORE = 4


def _of_a_file(name: str) -> str:
    file, _, attribute = name.rpartition(":")
    if not file.endswith(".py") or not attribute.isidentifier():
        raise ValueError(f"{name!r} is no FILE.py:NAME")
    return name


def _last(name: str) -> str:
    """Return NAME of FILE.py:NAME."""
    return name.rpartition(":")[2]


def _variable(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"{name!r} is no name of an environment variable")
    if name == TOKEN_VARIABLE:
        raise ValueError(f"{TOKEN_VARIABLE} opens every server of the run; a program never gets it: leave it out")
    return name


OfAFile = Annotated[str, AfterValidator(_of_a_file)]
Variable = Annotated[str, AfterValidator(_variable)]


class EpisodesConfig(Section):
    """Episodes of several turns: one of `environment`, `multi_turn_scheduler`, `environment_factory`, `tools` and
    `agent` plays them."""

    environment: OfAFile | None = Field(
        None,
        description="FILE.py:CLASS with reset(row, seed) → messages and step(message) → (messages, reward, done), or "
        "an Env written for ms-swift's gym.",
    )
    multi_turn_scheduler: OfAFile | None = Field(
        None,
        description="A class derived of ms-swift's MultiTurnScheduler, FILE.py:CLASS; it goes on behind the row's "
        "prompt.",
    )
    tools: list[OfAFile] = Field(
        default_factory=list,
        description="Functions that the policy may call, FILE.py:NAME; their schema is made of types and docstring.",
    )
    environment_factory: OfAFile | dict[str, OfAFile] | None = Field(
        None,
        description="A class written for TRL's environment_factory, FILE.py:CLASS; or several by the row's column "
        "`environment`.",
    )
    reward_funcs: list[OfAFile] = Field(
        default_factory=list,
        description="Functions written for TRL's reward_funcs that read `environments`, FILE.py:NAME; called with one "
        "episode each, beside its environment. Those that read completions alone are rewards of the reward service.",
    )
    agent: list[str] = Field(
        default_factory=list,
        description="A program and its arguments, started for each episode without a shell; it gets OPENAI_BASE_URL "
        "and OPENAI_API_KEY.",
    )
    env: list[Variable] = Field(
        default_factory=list, description="Variables that the program gets beside PATH, HOME and LANG."
    )
    max_turns: int = Field(16, ge=1, description="Limit of an episode in turns of the policy.")
    max_turn_tokens: int | None = Field(
        None, ge=1, description="Limit of one turn in sampled tokens; absent: rollout.max_completion_length."
    )
    max_segments: int = Field(16, ge=1, description="Limit of an episode in token sequences: 1 + its forks.")
    max_context_tokens: int | None = Field(
        None, ge=2, description="Limit of a prompt and its answer in tokens; absent: the server's --max-model-len."
    )
    deadline_s: Seconds = Field(600.0, description="Limit of an episode; time in which weights load does not count.")
    idle_s: Seconds = Field(300.0, description="End an episode that asks for no turn for so long.")
    call_timeout_s: Seconds = Field(
        60.0,
        description="Limit of one call of an environment or a tool; of a program whose episode has met a limit, to "
        "print its rewards and end.",
    )
    startup_timeout_s: Seconds = Field(300.0, description="Time to import the files that are named here.")
    max_concurrent_episodes: int | None = Field(
        None, ge=1, description="Episodes that are played at once; absent: 64, with `agent` 4 for each core."
    )
    min_group_size: int = Field(
        2, ge=1, description="Use a group with at least so many totals; drop and count it otherwise."
    )
    reward_weights: dict[str, float] = Field(
        default_factory=dict,
        description="Weight of each reward of an environment, a class or function for TRL, or a program, by its name. "
        "Absent: 1 for all but a program's; without a weight a reward is logged and not added.",
    )
    stale_tokens: Literal["mask", "drop"] = Field(
        "mask", description="What becomes of turns beyond max_staleness: they are masked, or their group is dropped."
    )
    num_tasks: int | None = Field(
        None, ge=1, description="In place of data.dataset: rows that are only numbers, held-out ones behind them."
    )

    @model_validator(mode="after")
    def _one_way_to_play(self) -> Self:
        ways = [name for name in WAYS if getattr(self, name)]
        if len(ways) > 1 or (self.agent and self.tools):
            both = [*ways, "tools"] if self.tools and len(ways) == 1 else ways
            raise ValueError(f"{' and '.join(both)}: an episode is played by one of them; leave the others out")
        if not ways and not self.tools:
            raise ValueError(f"name what plays an episode: {', '.join(WAYS)} or tools")
        if self.reward_funcs and not (self.environment or self.environment_factory):
            raise ValueError(
                "reward_funcs read the state of an environment, and there is none: set environment or "
                "environment_factory, or name them in reward.reward_funcs"
            )
        if self.env and not self.agent:
            raise ValueError("env names variables of a program; set agent, or leave env out")
        return self

    @model_validator(mode="after")
    def _different_names(self) -> Self:
        own = {ENVIRONMENT_REWARD} if self.pays_by_steps else set(map(_last, self.factories.values()))
        for setting, named, why in (
            ("tools", self.tools, "the policy could call one of them only"),
            ("reward_funcs", self.reward_funcs, "a weight could not tell them apart"),
            ("rewards", [*self.reward_funcs, *own], "a function, a class or `environment` is to have another"),
        ):
            names = [_last(name) for name in named]
            if twice := [name for name in names if names.count(name) > 1]:
                raise ValueError(f"{setting} has the name {twice[0]} twice: {why}")
        return self

    @model_validator(mode="after")
    def _weights_of_rewards_that_are_there(self) -> Self:
        own = self._own_rewards
        unknown = [] if self.agent else [name for name in self.reward_weights if name not in own]
        if unknown:
            raise ValueError(
                f"reward_weights has a weight for {unknown[0]}, which is none of the rewards of these episodes: "
                f"{', '.join(own) or 'they bring none'}"
            )
        return self

    @model_validator(mode="after")
    def _calls_that_end_before_the_episode(self) -> Self:
        for name in ("idle_s", "deadline_s"):
            if self.call_timeout_s > getattr(self, name) and not self.agent:
                raise ValueError(
                    f"call_timeout_s {self.call_timeout_s:g} is above {name} {getattr(self, name):g}: an episode would "
                    "end in the middle of a call; lower it"
                )
        if self.agent and self.call_timeout_s > RECORD_KEPT_S / 2:
            raise ValueError(
                f"call_timeout_s {self.call_timeout_s:g} is above {RECORD_KEPT_S / 2:g}: a rollout server keeps what "
                f"an episode has sampled for {RECORD_KEPT_S:g} s, and half of that is left for reading it; lower it"
            )
        return self

    @property
    def factories(self) -> dict[str, str]:
        """FILE.py:CLASS of each name of a row's `environment`; the empty name is that of the only class."""
        if isinstance(self.environment_factory, str):
            return {"": self.environment_factory}
        return self.environment_factory or {}

    @property
    def pays_by_steps(self) -> bool:
        """Whether what plays has a state, whose steps add up to the reward `environment`."""
        return bool(self.environment or self.multi_turn_scheduler)

    @property
    def files(self) -> list[Path]:
        """The users' files that this section names."""
        own = filter(None, [self.environment, self.multi_turn_scheduler])
        named = [*own, *self.tools, *self.factories.values(), *self.reward_funcs]
        return [Path(name.rpartition(":")[0]) for name in named]

    @property
    def max_concurrent(self) -> int:
        programs = PROGRAMS_PER_CORE * (os.cpu_count() or 1)
        return self.max_concurrent_episodes or (programs if self.agent else 64)

    @property
    def weights(self) -> dict[str, float]:
        """Weight of each reward that enters the total, by name."""
        return dict.fromkeys(self._own_rewards, 1.0) | self.reward_weights

    @property
    def _own_rewards(self) -> list[str]:
        """The rewards that are known by name; a program may bring any."""
        own = [ENVIRONMENT_REWARD] if self.pays_by_steps else []
        return [*own, *map(_last, [*self.reward_funcs, *self.factories.values()])]

    @property
    def optional_rewards(self) -> frozenset[str]:
        """Name the rewards that need not be there, unless a weight is given to them.

        A class for TRL that has no `get_reward`, or does not play the row, brings none; nor does a scheduler without
        `total_reward`.
        """
        own = {ENVIRONMENT_REWARD} if self.multi_turn_scheduler else map(_last, self.factories.values())
        return frozenset(own) - {name for name, weight in self.reward_weights.items() if weight}


def check_episodes(config: "RunConfig") -> None:
    """Raise ValueError for settings of other sections that do not go together with episodes, or without them."""
    episodes = config.episodes
    has_rows = config.data.dataset is not None or bool(config.data.datasets)
    if episodes is None or episodes.num_tasks is None:
        if not has_rows:
            raise ValueError(
                "data.dataset is missing: name the rows to train on, or several sets in data.datasets; an environment "
                "that makes its own needs episodes.num_tasks"
            )
    elif has_rows:
        raise ValueError(
            "episodes.num_tasks makes the rows, and data.dataset or data.datasets names some: leave one of them out"
        )
    if episodes is None:
        return
    if episodes.min_group_size > config.rollout.num_generations:
        raise ValueError(
            f"episodes.min_group_size {episodes.min_group_size} is more than rollout.num_generations "
            f"{config.rollout.num_generations}: no group could be used"
        )
    if config.rollout.structured_outputs_regex is not None:
        raise ValueError("turns are free text: leave rollout.structured_outputs_regex or episodes out")
    if config.rollout.min_tokens > (most := episodes.max_turn_tokens or config.rollout.max_completion_length):
        raise ValueError(f"rollout.min_tokens {config.rollout.min_tokens} is more than a turn has, {most}")
    if config.teachers:
        raise ValueError("a teacher scores single completions: leave teacher or episodes out")
    twice = sorted(set(episodes.weights) & set(config.reward.names))
    if twice:
        raise ValueError(f"the reward {twice[0]} is one of episodes and one of reward.reward_funcs: rename one of them")
