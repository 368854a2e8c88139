"""A teacher: get the logprobs of sampled tokens from a rollout server that serves another model."""

import asyncio
import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any, Self

from grpo_proto import PROTOCOL_VERSION, Health, InfrastructureError, RolloutClient, RolloutInfo, ServiceError
from grpo_proto.fingerprint import tokenizer_fingerprint, vocabulary_fingerprint
from grpo_proto.messages.logprobs import GivenSequence, LogprobsRequest, SequenceLogprobs

from ..algorithm.sequences import Episode, Group, Segment
from ..algorithm.teacher_view import behind
from ..config.teacher import TeacherConfig
from ..data.teacher_prompts import TeacherPrompts
from ..errors import RunError, UnavailableError

log = logging.getLogger(__name__)

MAX_REQUESTS = 16
"""Requests of a run to its teacher at the same time."""
REQUEST_TOKENS = 2**16
"""Tokens of a request, unless one sequence has more: a quarter of what a rollout server takes by default."""
REQUEST_SEQUENCES = 1024
REQUEST_IMAGE_CHARS = 64 * 2**20
"""Of the encoded images of a request, unless one sequence has more: a quarter of what a rollout server takes."""


@dataclass(frozen=True)
class Policy:
    """What a teacher has to fit: the fingerprints of the policy's tokenizer, the tokens of the longest sequence and of
    its completion, and the images of a prompt that it scores behind."""

    vocabulary: str
    tokenizer: str
    max_tokens: int
    max_completion_length: int = 0
    max_images: int = 0

    @classmethod
    def of(cls, tokenizer: Any, *, max_tokens: int, max_completion_length: int = 0, max_images: int = 0) -> Self:
        vocabulary, end = tokenizer.get_vocab(), tokenizer.eos_token_id
        fingerprints = vocabulary_fingerprint(vocabulary), tokenizer_fingerprint(vocabulary, eos_token_id=end)
        return cls(*fingerprints, max_tokens, max_completion_length, max_images)


class TeacherStage:
    """Score groups in place: set `teacher_logprobs` of every episode. Messages have its `name`, and the `setting` that
    holds its URL."""

    def __init__(
        self,
        client: RolloutClient,
        config: TeacherConfig,
        *,
        name: str = "the teacher",
        setting: str = "teacher.url",
        prompts: Mapping[str, TeacherPrompts] = MappingProxyType({}),
    ):
        """`prompts`: those of each of its datasets, if it does not read the policy's."""
        self.client, self.config, self.name, self.setting = client, config, name, setting
        self._prompts = prompts
        self.health: Health | None = None
        """The server's last answer, for display only; None before the first answer."""
        self._room = asyncio.Semaphore(MAX_REQUESTS)
        self._weights: tuple[int | None, int] | None = None
        """Session and version of the weights that scored last."""
        self._fits: tuple[Policy, RolloutInfo] | None = None
        """What the server was held to, and what it told of itself then."""

    async def check(self, policy: Policy, *, run_servers: Collection[RolloutInfo]) -> RolloutInfo:
        """Return the server's /info.

        Raises UnavailableError when the server speaks another protocol, serves another vocabulary, has too short a
        context, or is one of the run's own.
        """
        info, where = await self.client.info(), f"{self.name} {self.client.base_url}"
        if info.protocol_version != PROTOCOL_VERSION or info.vocabulary_fingerprint is None:
            raise UnavailableError(
                f"{where} speaks protocol {info.protocol_version}, of version {info.version}, and does not tell its "
                "vocabulary as this trainer needs",
                hint="install the same release of grpo-services on both sides",
            )
        if info.server_id in {own.server_id for own in run_servers}:
            raise UnavailableError(
                f"{where} is one of the run's rollout servers, which serve the policy",
                hint=f"start a server of its own for the teacher, and set {self.setting}",
            )
        if info.vocabulary_fingerprint != policy.vocabulary:
            raise UnavailableError(
                f"{where} has another vocabulary ({info.vocabulary_fingerprint}) than the policy "
                f"({policy.vocabulary}): its token ids mean other texts",
                hint=f"it serves {info.model}; take a teacher with the policy's tokenizer, one of the same family",
            )
        max_tokens, shorter = self._needed(policy)
        if info.max_model_len <= max_tokens:
            raise UnavailableError(
                f"{where} has a context of {info.max_model_len} tokens; prompt and completion need {max_tokens}, and "
                "scoring one more",
                hint=f"raise its --max-model-len, or {shorter}, or lower rollout.max_completion_length",
            )
        if info.max_images < policy.max_images:
            raise UnavailableError(
                f"{where} takes {info.max_images} images a prompt, and a row has {policy.max_images}",
                hint="let it serve a model with vision, and as many with --limit-mm-per-prompt",
            )
        if info.tokenizer_fingerprint != policy.tokenizer:
            log.warning(
                "%s (%s) ends its texts with another token than the policy: it finds the policy's last token unlikely",
                *(where, info.model),
            )
        self._fits = policy, info
        return info

    def _needed(self, policy: Policy) -> tuple[int, str]:
        """Tokens of the longest sequence that this teacher scores, and how its prompts get shorter."""
        if not self._prompts:
            return policy.max_tokens, "lower data.max_prompt_length"
        longest = max(one.longest for one in self._prompts.values())
        named = " and ".join(dict.fromkeys(one.named for one in self._prompts.values()))
        return longest + policy.max_completion_length, f"shorten what {named} makes"

    async def score(self, groups: Sequence[Group]) -> None:
        """Score every sampled token. Raises RunError when the teacher does not answer within `retry_for_s`."""
        episodes = [episode for group in groups for episode in group.episodes]
        segments = [segment for group in groups for segment in self._as_read(group)]
        scored: list[SequenceLogprobs] = []
        for part in parts_of(segments):
            scored += await self._score(part)
        found = iter(scored)
        for episode in episodes:
            episode.teacher_logprobs = _of_sampled_tokens(episode, found)
        taught_at_s = time.monotonic()
        for group in groups:
            group.taught_at_s = taught_at_s

    def _as_read(self, group: Group) -> list[Segment]:
        """The segments of a group that have sampled tokens, behind the prompt that the teacher reads. One with images
        is as the chat template writes it: the teacher's server expands them."""
        segments = [segment for episode in group.episodes for segment in episode.segments if segment.num_sampled]
        prompts = self._prompts.get(group.row.dataset)
        if not segments:
            return segments
        if prompts is not None:
            [prompt_ids] = prompts.token_ids([group.row])
        elif any(segment.images for segment in segments):
            if any(episode.transcript for episode in group.episodes):
                raise RunError(
                    f"{self.name} would score an episode with images, which it does not see", hint="leave teacher out"
                )
            prompt_ids = group.row.token_ids
        else:
            return segments
        return [behind(prompt_ids, segment) for segment in segments]

    async def _score(self, segments: Sequence[Segment]) -> list[SequenceLogprobs]:
        images = {image: number for number, image in enumerate(dict.fromkeys(chain(*(one.images for one in segments))))}
        request = LogprobsRequest(
            sequences=[
                GivenSequence(
                    token_ids=segment.token_ids,
                    num_prompt_tokens=segment.turns[0].start,
                    images=[images[image] for image in segment.images],
                )
                for segment in segments
            ],
            images=list(images),
            deadline_s=self.config.timeout_s,
        )
        async with self._room:
            try:
                response = await self.client.logprobs(request, retry_for_s=self.config.retry_for_s)
            except InfrastructureError as error:
                raise RunError(
                    f"{self.name} could not score within {self.config.retry_for_s:g} s: {error}",
                    hint="restart the teacher's server, then the run with --resume",
                ) from error
        if self._fits is not None and response.server_id != self._fits[1].server_id:
            await self._check_again(*self._fits)
        self._notice(response.session, max(one.version for one in response.sequences))
        return response.sequences

    async def _check_again(self, policy: Policy, before: RolloutInfo) -> None:
        """Hold a server that was started anew to what the first one was held to. Raises RunError for one that does not
        fit."""
        try:
            info = await self.check(policy, run_servers=())
        except (UnavailableError, ServiceError) as error:
            hint = error.hint if isinstance(error, UnavailableError) else None
            raise RunError(f"{self.name} was started anew: {error}", hint=hint) from error
        if (info.model, info.base_digest) != (before.model, before.base_digest):
            log.warning("%s serves %s now, and not %s: it was started anew", self.name, info.model, before.model)

    def _notice(self, session: int | None, version: int) -> None:
        """Log when the teacher has got other weights: somebody trains it."""
        if self._weights not in (None, (session, version)):
            log.warning("%s has other weights now: version %d of session %s", self.name, version, session)
        self._weights = session, version


def parts_of(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Cut `segments` into consecutive parts for a request each."""
    part: list[Segment] = []
    num_tokens, shown, num_chars = 0, set[str](), 0
    for segment in segments:
        new = set(segment.images) - shown
        num_tokens, num_chars = num_tokens + len(segment.token_ids), num_chars + sum(map(len, new))
        is_full = num_tokens > REQUEST_TOKENS or num_chars > REQUEST_IMAGE_CHARS or len(part) == REQUEST_SEQUENCES
        if part and is_full:
            yield part
            part, num_tokens, shown = [], len(segment.token_ids), set()
            num_chars = sum(map(len, set(segment.images)))
        part.append(segment)
        shown.update(segment.images)
    if part:
        yield part


def _of_sampled_tokens(episode: Episode, found: Iterator[SequenceLogprobs]) -> list[float]:
    """The logprobs of the tokens in turns, out of those of all tokens after the first turn's start."""
    logprobs: list[float] = []
    for segment in episode.segments:
        if segment.num_sampled:
            scored, first = next(found).logprobs, segment.turns[0].start
            logprobs += [scored[token - first] for turn in segment.turns for token in range(turn.start, turn.end)]
    return logprobs
