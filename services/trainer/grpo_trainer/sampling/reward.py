"""Reward: get the scores of samples from the reward server."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from grpo_proto import (
    PROTOCOL_VERSION,
    InfrastructureError,
    Message,
    RewardClient,
    RewardDescription,
    RewardScore,
    RewardSpec,
    ScoreRequest,
    ScoreResponse,
    ScoreSample,
)
from grpo_proto.code_hash import code_hash
from grpo_proto.totals import missing_because, score_broken_again, total_score

from ..algorithm.scores import is_correct
from ..algorithm.sequences import Episode, Group
from ..config.run_config import RewardConfig, RunConfig, deciding_reward
from ..data.messages import wire_message
from ..data.prompt_row import PromptRow
from ..errors import RunError, ServersError, UnavailableError, UsageError, storage_error_class
from .prompt_prefix import prefix_doubts
from .reward_code import RewardCode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

PAUSE_S = 1.0
NOT_BROUGHT = RewardScore(score=None, status="unscorable", detail="the episode has not brought this reward")
ACCEPT = "serve the code that the run began with, or accept the new code: --resume --reward.accept_changed_code true"


OwnRewards = Mapping[str, Mapping[str, float]]
"""Reward → weight of each dataset that has rewards of its own."""


def reward_specs(config: RewardConfig, weights: Mapping[str, float]) -> list[RewardSpec]:
    return [
        RewardSpec(name=name, weight=weight, params=config.params.get(name, {})) for name, weight in weights.items()
    ]


LARGEST_SCORE = 1e30
"""A float32 still holds it."""
TOKENS_OF_REQUEST = 2**16
"""Sampled tokens that are scored by one request, or one group if it has more: about 0.6 MB, below the limits of a body
that servers and their ingresses have by default."""


def _described(dataset: str) -> str:
    """What messages call the dataset of a row, see `PromptRow.dataset`."""
    return {"": "the dataset", "eval/": "the held-out dataset"}.get(dataset, f"the dataset {dataset}")


def _setting(dataset: str) -> str:
    """The setting that holds a dataset with a name; empty for one without."""
    held_out, _, name = dataset.rpartition("/")
    return name and f"data.{'eval_datasets' if held_out else 'datasets'}.{name}"


class RewardStage:
    """Score groups in place: set `rewards` and `total` of every episode."""

    def __init__(
        self,
        client: RewardClient,
        config: RewardConfig,
        *,
        code: RewardCode | None = None,
        own_rewards: OwnRewards = MappingProxyType({}),
        brought: Mapping[str, float] = MappingProxyType({}),
        optional: frozenset[str] = frozenset(),
    ):
        """`brought`: weights of the rewards that episodes bring themselves; they enter every total. `optional`: of
        these, those that an episode with another reward need not bring."""
        self.client, self.config = client, config
        self.code = code or RewardCode(accept=config.accept_changed_code)
        self.specs = reward_specs(config, config.weights)
        self.brought = [RewardSpec(name=name, weight=weight) for name, weight in brought.items()]
        self._optional = optional
        self._decides = config.accuracy_reward or deciding_reward({**brought, **config.weights})
        self.known: dict[str, RewardDescription] = {}
        self._own_specs = {name: reward_specs(config, weights) for name, weights in own_rewards.items()}

    @classmethod
    def of(cls, config: RunConfig, client: RewardClient, *, code: RewardCode | None = None) -> Self:
        """The stage of a run file."""
        return cls(
            client,
            config.reward,
            code=code,
            own_rewards=config.data.own_rewards,
            brought=config.brought_weights,
            optional=config.optional_rewards,
        )

    def specs_of(self, dataset: str) -> list[RewardSpec]:
        """The rewards that score the rows of `dataset`."""
        return self._own_specs.get(dataset, self.specs)

    async def check(self, rows: list[PromptRow], *, of_episodes: bool = False) -> None:
        """Check that the server and the datasets, by the first row of each, fit the configured rewards. Episodes bring
        the column `messages`.

        Raises UnavailableError when the server speaks another protocol, lacks a reward or serves it from another file,
        and UsageError when the dataset lacks a column or a reward's code has changed.
        """
        if not self.specs:
            return
        info = await self.client.info()
        if info.protocol_version != PROTOCOL_VERSION:
            raise UnavailableError(
                f"the reward server {self.client.base_url} speaks protocol {info.protocol_version}, this trainer "
                f"{PROTOCOL_VERSION}",
                hint="install the same release of grpo-services on both sides",
            )
        listed = await self.client.rewards(retry_for_s=self.config.retry_for_s)
        known = self.known = {reward.name: reward for reward in listed.rewards}
        for spec in self.specs:
            if spec.name not in known:
                raise UnavailableError(
                    f"the reward server {self.client.base_url} has no reward {spec.name}; it has {', '.join(known)}",
                    hint="change reward.reward_funcs, or start it with --plugin FILE.py",
                )
            if (reason := known[spec.name].unavailable) is not None:
                raise UnavailableError(
                    f"the reward server {self.client.base_url} does not compute {spec.name}: {reason}"
                )
            if spec.name in self.config.files:
                _check_file(self.config.files[spec.name], known[spec.name], self.client.base_url)
            _check_params(spec, known[spec.name])
            for row in rows:
                asked = spec.name in [own.name for own in self.specs_of(row.dataset)]
                there = {*row.columns, *(["messages"] if of_episodes else [])}
                missing = [column for column in known[spec.name].columns if asked and column not in there]
                if missing:
                    raise UsageError(
                        f"reward {spec.name} needs the column {missing[0]}; {_described(row.dataset)} has "
                        f"{', '.join(row.columns)}",
                        hint="add the column to the dataset, or remove the reward from reward.reward_funcs"
                        + (f", or from the rewards of {place}" if (place := _setting(row.dataset)) else ""),
                    )

        hashes = {spec.name: known[spec.name].code_hash for spec in self.specs}
        if (change := self.code.change(hashes)) is not None:
            if not self.code.accept:
                raise UsageError(change, hint=ACCEPT)
            self.code.adopt(hashes)

    async def faults_of_first_rows(self, rows: list[PromptRow]) -> list[str]:
        """What the rewards say of an empty completion to the first row of each dataset, where that is no score.

        It shows gold answers that cannot be read, and columns of a wrong type.
        """
        faults = []
        for row in rows:
            specs = self.specs_of(row.dataset)
            if not specs:  # a teacher alone teaches it
                continue
            sample = ScoreSample(completion="", prompt=_prompt(row), columns=row.columns, completion_token_ids=[])
            request = ScoreRequest(rewards=specs, samples=[sample])
            (result,) = (await self.client.score(request, retry_for_s=self.config.retry_for_s)).results
            where = f"the first row of {_described(row.dataset)}"
            faults += [
                f"{name} gives {where} no score: {score.detail or score.status}"
                for name, score in result.rewards.items()
                if score.score is None
            ]
        return faults

    def prefix_doubts(self, rows: list[PromptRow], tokenizer: "PreTrainedTokenizerBase") -> list[str]:
        """What the rewards do not know of how prompts end, by the first row of each dataset; see prompt_prefix.py.

        Of the rewards that the server had at the last `check`.
        """
        return prefix_doubts(rows, tokenizer, self.specs_of, self.known)

    async def score(self, groups: list[Group], *, step: int) -> None:
        """Score every sample that is not judged yet, and once more each sample whose scoring broke; none of a dataset
        without rewards.

        Datasets are scored one after the other, each in requests of whole groups (`TOKENS_OF_REQUEST`). Raises RunError
        when the server does not answer within `retry_for_s`.
        """
        if not self.specs and not self.brought:
            return
        by_dataset: dict[str, list[Group]] = {}
        for group in groups:
            by_dataset.setdefault(group.row.dataset, []).append(group)
        for dataset, of_dataset in by_dataset.items():
            if specs := self.specs_of(dataset):
                await asyncio.gather(*(self._score_with(specs, part, step=step) for part in in_requests(of_dataset)))
            elif self.brought:
                for _, episode in unjudged(of_dataset):
                    self._judge(episode, [], {})

    async def _score_with(self, specs: list[RewardSpec], groups: list[Group], *, step: int) -> None:
        pairs = unjudged(groups)
        if not pairs:
            return
        needed = [column for spec in specs if spec.name in self.known for column in self.known[spec.name].columns]
        request = ScoreRequest(
            rewards=specs,
            samples=[_sample(group, episode, needed) for group, episode in pairs],
            step=step,
            timeout_s=self.config.timeout_s,
            deadline_s=self.config.deadline_s,
        )
        score = partial(self._score, step=step)
        try:
            response = await score_broken_again(
                request, await score(request), score, retry_for_s=self.config.retry_for_s
            )
        except InfrastructureError as error:
            raise RunError(
                f"the reward server could not score within {self.config.retry_for_s:g} s: {error}",
                hint="restart the reward server, then the run with --resume",
            ) from error
        for (_, episode), result in zip(pairs, response.results, strict=True):
            self._judge(episode, specs, result.rewards, total=result.total)

    def _judge(
        self,
        episode: Episode,
        specs: Sequence[RewardSpec],
        scores: Mapping[str, RewardScore],
        *,
        total: float | None = None,
    ) -> None:
        """Put the scores of the reward server, and their `total`, beside what the episode has brought."""
        brings_another = bool(specs) or any(spec.name in episode.rewards for spec in self.brought)
        scores, total_holds = _usable(scores)
        needless = self._optional - episode.rewards.keys() if brings_another else frozenset()
        brought = [spec for spec in self.brought if spec.name not in needless]
        lacking = {spec.name: NOT_BROUGHT for spec in brought if spec.name not in episode.rewards}
        specs = [*brought, *specs]
        episode.rewards = {**episode.rewards, **lacking, **scores}
        episode.total = total if total_holds and not self.brought else total_score(specs, episode.rewards)
        episode.correct = is_correct(episode.rewards.get(self._decides_accuracy(specs)))
        if episode.total is None:
            episode.unscored_because = missing_because(specs, episode.rewards)

    def _decides_accuracy(self, specs: Sequence[RewardSpec]) -> str:
        """Name which of `specs` decides what is correct: that of the run where they have it, else their own first."""
        weights = {spec.name: spec.weight for spec in specs}
        decides = self._decides
        may_decide = decides in weights and (weights[decides] or decides == self.config.accuracy_reward)
        return decides if may_decide else deciding_reward(weights)

    async def _score(self, request: ScoreRequest, *, step: int) -> ScoreResponse:
        """Get scores that all come from the code version of `step`'s first scores.

        Raises ServersError when the code has changed, with the exit status of a wrong configuration, or when the
        version of the first scores no longer answers.
        """
        give_up_s = time.monotonic() + self.config.retry_for_s
        while True:
            response = await self.client.score(request, retry_for_s=self.config.retry_for_s)
            change = self.code.change(response.code_hashes)
            if change is not None and not self.code.accept:
                raise ServersError(change, hint=ACCEPT, exit_status=UsageError.exit_status)
            if self.code.fits_step(step, response.code_hashes):
                self.code.adopt(response.code_hashes)
                return response
            if time.monotonic() >= give_up_s:
                raise ServersError(
                    f"the reward servers run two versions of the code, and the version that step {step} began with "
                    f"gave no more scores within {self.config.retry_for_s:g} s",
                    hint="start again with --resume once all reward servers run the same version",
                )
            await asyncio.sleep(PAUSE_S)


def _usable(scores: Mapping[str, RewardScore]) -> tuple[Mapping[str, RewardScore], bool]:
    """Return the scores without those whose squares no float holds, and whether all are left."""
    too_large = {name: one for name, one in scores.items() if one.score is not None and abs(one.score) > LARGEST_SCORE}
    if not too_large:
        return scores, True
    refused = {
        name: RewardScore(score=None, status="error", detail=f"its score {one.score:g} is beyond {LARGEST_SCORE:g}")
        for name, one in too_large.items()
    }
    return {**scores, **refused}, False


def unjudged(groups: list[Group]) -> list[tuple[Group, Episode]]:
    """The episodes that have no total yet, and might get one."""
    return [(group, episode) for group in groups for episode in group.episodes if not episode.is_judged]


def in_requests(groups: list[Group]) -> list[list[Group]]:
    """Cut `groups` into requests of whole groups, in order, of at most `TOKENS_OF_REQUEST` where a group is smaller."""
    requests: list[list[Group]] = []
    room = 0
    for group in groups:
        size = sum(episode.num_sampled for episode in group.episodes)
        if not requests or size > room:
            requests.append([])
            room = TOKENS_OF_REQUEST
        requests[-1].append(group)
        room -= size
    return requests


def _check_params(spec: RewardSpec, served: RewardDescription) -> None:
    """Names only; the server checks the values with the first sample. Raises UsageError."""
    listed = f"its parameters: {', '.join(served.params_schema.get('properties', {})) or 'none'}"
    for name in served.unknown_params(spec.params):
        raise UsageError(f"reward.params: {spec.name} has no parameter {name}", hint=listed)
    for name in served.missing_params(spec.params):
        raise UsageError(f"reward.params: {spec.name} needs the parameter {name}", hint=listed)


def _check_file(file: Path, served: RewardDescription, url: str) -> None:
    """Raise UnavailableError when the server does not serve the reward in `file`."""
    try:
        own_hash = code_hash(file)
    except OSError as error:
        raise storage_error_class(error)(f"reward {served.name}: {file} cannot be read: {error.strerror}") from error
    except SyntaxError as error:
        raise UsageError(f"reward {served.name}: {file} cannot be parsed: {error}") from error
    if own_hash != served.code_hash:
        raise UnavailableError(
            f"the reward server {url} has {served.name} from another file than {file}, or from an older version of it",
            hint=f"start it again with --plugin {file}:{served.name}",
        )


def check_enough_scored(groups: list[Group], min_share: float) -> None:
    """Raise RunError when fewer than `min_share` of the samples that rewards judge have a score: training on them would
    mislead."""
    episodes = [episode for group in groups for episode in group.episodes if episode.rewards]
    scored = sum(episode.total is not None for episode in episodes)
    if scored < min_share * len(episodes):
        details = [
            f"{name} {score.status}: {score.detail}"
            for name, score in (episode.unscored_because for episode in episodes if episode.unscored_because)
        ]
        raise RunError(
            f"only {scored} of {len(episodes)} samples could be scored; reward.min_scored_share is {min_share:g}; "
            f"for instance {details[0] if details else 'no reason given'}",
            hint="check what the reason names: a reward, the environment of an episode, or a column of the dataset",
        )


def _sample(group: Group, episode: Episode, needed: Sequence[str] = ()) -> ScoreSample:
    """The completion is what the policy said last, the token ids are all that it sampled.

    A row without a `needed` column, which the first row had, is of another task: the column is null, as a dataset of
    the Hub has it.
    """
    messages = [wire_message(message) for message in episode.transcript]
    sample = ScoreSample(
        id=episode.id,
        completion=episode.text,
        prompt=messages[: episode.opening] if messages else _prompt(group.row),
        columns=group.row.columns,
        completion_token_ids=episode.sampled_token_ids,
        messages=messages or None,
        truncated=episode.truncated,
        traceparent=group.trace.traceparent,
    )
    missing = [column for column in needed if not sample.has_column(column)]
    return sample.model_copy(update={"columns": {**sample.columns, **dict.fromkeys(missing)}}) if missing else sample


def _prompt(row: PromptRow) -> str | list[Message]:
    return row.prompt if isinstance(row.prompt, str) else [wire_message(message) for message in row.prompt]
