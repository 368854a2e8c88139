"""The data of the trainer, in the order it changes.

    PromptRow → Group of Episodes, scored → TrainingSequences → MicroBatches

An episode is what the policy did for one prompt: one completion, or several turns in one or more segments. That a token
was sampled is a fact of its segment; that it is trained on, and with what advantage and weight, is a decision of the
trainer and stands in the `TrainingSequence`.

Dimension suffixes of tensors and arrays:
    Q sequences of a micro-batch, B its rows (as many, or one that has every token once), L length of a sequence or row,
    U unique tokens of a micro-batch, N trained tokens of a micro-batch (no padding, each sequence's own), E episodes of
    a micro-batch, G episodes of a group, V vocabulary, H hidden size.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from grpo_proto import RewardScore

from ..data.prompt_row import PromptRow
from ..group_trace import NO_TRACE, GroupTrace

if TYPE_CHECKING:
    import torch

    from .attention_layout import AttentionLayout
    from .image_tokens import ImageInputs

DropReason = Literal["stale", "crash", "unscorable", "timeout", "error", "small_group", "truncated", "empty"]
DROP_REASONS: tuple[DropReason, ...] = get_args(DropReason)
"""Why an episode took no part in the training: it was too old; its prompt kills rollout servers; it has no score,
because no reward would judge it, one ran out of time, or one failed; too few of its group have one; it was cut off and
`mask_truncated_completions` is on; it has no token to train on."""

EpisodeStatus = Literal["completed", "truncated", "timeout", "failed"]
ReasonT = TypeVar("ReasonT")
Cause = Literal["policy", "program", "infrastructure"]

CONTEXT = -1
"""Version and turn of a token that was not sampled."""


@dataclass(frozen=True)
class Turn:
    """Tokens `start` to `end` of a segment, which the policy sampled in one go."""

    start: int
    end: int
    versions: list[tuple[int, int]]
    """Policy version and number of tokens, run by run."""
    finish_reason: str
    text: str = ""
    masked: str | None = None
    """Why its tokens are not trained on; None when they are."""
    reward: float | None = None
    label: str | None = None
    order: int = 0
    """Its place among the turns of its episode as they were sampled: several segments may grow side by side."""

    @property
    def num_tokens(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Segment:
    """A token sequence from position 0, as one forward pass sees it. Everything outside of its turns is context.

    Raises ValueError for turns that overlap or leave the sequence, and for a sampled token 0: the output head reads the
    column before a token. Also when versions or logprobs are of another number of tokens than the turns.
    """

    token_ids: list[int]
    turns: list[Turn]
    logprobs: list[float] | None = None
    """The server's, one for each token of the turns, in order; None when it was not asked for them."""
    images: tuple[str, ...] = ()
    """All images of its context, encoded, whose places `token_ids` names (`image_tokens.py`)."""
    parent: int | None = None
    """Number of the segment of the same episode that this one continues or forks from."""
    fork_at: int | None = None
    fork_reason: str | None = None
    """For people."""

    def __post_init__(self) -> None:
        free_from = 1
        for turn in self.turns:
            if not free_from <= turn.start <= turn.end <= len(self.token_ids):
                raise ValueError(
                    f"a turn of tokens {turn.start} to {turn.end} in a segment of {len(self.token_ids)}, of which "
                    f"{free_from} are taken: the first token of a segment is never sampled, and turns do not overlap"
                )
            if sum(count for _, count in turn.versions) != turn.num_tokens:
                raise ValueError(f"the versions {turn.versions} are not of the {turn.num_tokens} tokens of their turn")
            free_from = turn.end
        if self.logprobs is not None and len(self.logprobs) != self.num_sampled:
            raise ValueError(f"{len(self.logprobs)} logprobs for {self.num_sampled} sampled tokens")

    @property
    def num_sampled(self) -> int:
        return sum(turn.num_tokens for turn in self.turns)


def was_broken(status: str | None, cause: str | None) -> bool:
    """Whether something else than the policy ended an episode: it has no reward then."""
    return status == "failed" or cause in ("program", "infrastructure")


@dataclass
class Episode:
    """What the policy did for one prompt, and what is known of it."""

    id: str
    segments: list[Segment]
    attempt: int = 0
    status: EpisodeStatus = "completed"
    cause: Cause | None = None
    """Who ended an episode that is not completed."""
    transcript: list[dict[str, Any]] = field(default_factory=list)
    """Its messages; empty for a single turn, whose prompt and text say the same."""
    opening: int = 0
    """How many messages of the transcript were there before the first turn."""
    rewards: dict[str, RewardScore] = field(default_factory=dict)
    total: float | None = None
    correct: bool | None = None
    """Whether the accuracy reward finds it correct; None when that reward has no score for it."""
    unscored_because: tuple[str, RewardScore] | None = None
    """The reward with a weight, and what became of it, that left the episode without a total."""
    teacher_logprobs: list[float] | None = None
    """A teacher's, one for each sampled token, in order; None when its dataset has no teacher."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Numbers of its own, such as those of its tools, to average over the batch."""
    kl_penalty: float = 0.0
    """What `kl_in_reward` subtracts from the total before the advantages."""
    advantage: float | None = None
    """None when the episode has no score: it takes no part in the loss."""

    @property
    def turns(self) -> Iterator[Turn]:
        return (turn for segment in self.segments for turn in segment.turns)

    @property
    def num_sampled(self) -> int:
        return sum(turn.num_tokens for turn in self.turns)

    @property
    def num_tokens(self) -> int:
        """Of all segments, context included."""
        return sum(len(segment.token_ids) for segment in self.segments)

    @property
    def sampled_token_ids(self) -> list[int]:
        spans = ((segment, turn) for segment in self.segments for turn in segment.turns)
        return [token for segment, turn in spans for token in segment.token_ids[turn.start : turn.end]]

    @property
    def versions(self) -> list[tuple[int, int]]:
        """Those of its turns, one after the other."""
        return [run for turn in self.turns for run in turn.versions]

    @property
    def last_turn(self) -> Turn | None:
        """None for an episode that ended before it had one."""
        return max(self.turns, key=lambda turn: turn.order, default=None)

    @property
    def text(self) -> str:
        """What the policy said last."""
        return last.text if (last := self.last_turn) else ""

    @property
    def finish_reason(self) -> str:
        """Of the last turn; "error" without one."""
        return last.finish_reason if (last := self.last_turn) else "error"

    @property
    def ended_by_itself(self) -> bool:
        """Whether no limit ended it."""
        return self.status == "completed" if self.transcript else self.finish_reason == "stop"

    @property
    def is_judged(self) -> bool:
        """Whether its total is known, or why it has none: no reward is asked for."""
        return self.total is not None or self.unscored_because is not None

    @property
    def truncated(self) -> bool:
        return self.status == "truncated"

    @property
    def oldest_version(self) -> int | None:
        """Version of the oldest token that may be trained on; None without one."""
        turns = (turn for turn in self.turns if turn.masked is None)
        return min((version for turn in turns for version, _ in turn.versions), default=None)

    def tokens_by_reason(self, *, otherwise: ReasonT) -> Counter[str | ReasonT]:
        """Count sampled tokens by the mask of their turn, those without a mask under `otherwise`."""
        counts: Counter[str | ReasonT] = Counter()
        for turn in self.turns:
            counts[turn.masked or otherwise] += turn.num_tokens
        return counts

    def left_out_because(self, *, mask_truncated: bool) -> DropReason | None:
        """Why it takes no part in the loss; None when it does. Of several reasons the gravest one."""
        if self.advantage is None:
            if self.total is not None and any(turn.masked == "dropped" for turn in self.turns):
                return "small_group"
            status = self.unscored_because[1].status if self.unscored_because else "unscorable"
            return status if status != "ok" else "unscorable"
        if mask_truncated and self.truncated:
            return "truncated"
        masks = [turn.masked for turn in self.turns if turn.num_tokens]
        return None if None in masks else "stale" if "stale" in masks else "empty"


def single_turn(
    episode_id: str,
    prompt_token_ids: list[int],
    token_ids: list[int],
    *,
    versions: Sequence[tuple[int, int]],
    finish_reason: str,
    text: str = "",
    logprobs: list[float] | None = None,
    images: tuple[str, ...] = (),
) -> Episode:
    """A prompt and its completion: one segment with one turn."""
    start, end = len(prompt_token_ids), len(prompt_token_ids) + len(token_ids)
    turn = Turn(start, end, list(versions), finish_reason, text)
    cut = finish_reason == "length"
    return Episode(
        episode_id,
        [Segment([*prompt_token_ids, *token_ids], [turn], logprobs, images)],
        status="truncated" if cut else "completed",
        cause="policy" if cut else None,
    )


@dataclass
class Group:
    """The G episodes of one prompt. `position` counts prompts over the whole run and never repeats."""

    position: int
    row: PromptRow
    episodes: list[Episode]
    trace: GroupTrace = NO_TRACE
    sampled_at_s: float = 0.0
    """When its last token had come, by this process's monotonic clock."""
    taught_at_s: float = 0.0
    """When a teacher had scored it, by the same clock."""

    def is_older_than(self, version: int) -> bool:
        """Whether any token that may be trained on was sampled by an older policy."""
        return any(oldest < version for episode in self.episodes if (oldest := episode.oldest_version) is not None)


@dataclass(frozen=True)
class TrainingSequence:
    """A segment and the trainer's decisions about it, as arrays over its L tokens. Context has mask and weight 0.

    All sequences of an episode follow each other and lie in one optimizer update.
    """

    episode: int
    """Number of the episode in the generation batch."""
    update: int
    """Number of the optimizer update, of those of one pass over the batch."""
    token_ids_L: NDArray[np.int64]
    loss_mask_L: NDArray[np.bool_]
    """Which tokens are trained on."""
    advantages_L: NDArray[np.float32]
    weights_L: NDArray[np.float32]
    """Factor of a token's loss in the loss of the whole update: the normaliser's."""
    logprobs_L: NDArray[np.float32]
    """The server's; NaN where it gave none."""
    versions_L: NDArray[np.int64]
    """Of the policy that sampled the token; CONTEXT where none did."""
    turns_L: NDArray[np.int64]
    """Number of the token's turn in its episode; CONTEXT where it is in none."""
    images: tuple[str, ...] = ()
    """Those of the segment."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids_L)

    @property
    def num_trained(self) -> int:
        return int(self.loss_mask_L.sum())

    @property
    def needed_ids(self) -> NDArray[np.int64]:
        """The tokens before the last trained one, fewer than L: their hidden states are all that the loss reads. At
        least one."""
        last = self.loss_mask_L.tobytes().rfind(1)  # planning asks often, and this is quick
        return self.token_ids_L[: max(last, 1)]


def untrained_sequence(segment: Segment, *, episode: int = 0, first_turn: int = 0) -> TrainingSequence:
    """The facts of `segment`, its unmasked turns in the mask, with advantage and weight 0. `first_turn`: number of its
    first turn in the episode."""
    length = len(segment.token_ids)
    sequence = TrainingSequence(
        episode=episode,
        update=0,
        token_ids_L=np.array(segment.token_ids, dtype=np.int64),
        loss_mask_L=np.zeros(length, dtype=np.bool_),
        advantages_L=np.zeros(length, dtype=np.float32),
        weights_L=np.zeros(length, dtype=np.float32),
        logprobs_L=np.full(length, np.nan, dtype=np.float32),
        versions_L=np.full(length, CONTEXT, dtype=np.int64),
        turns_L=np.full(length, CONTEXT, dtype=np.int64),
        images=segment.images,
    )
    read = 0
    for number, turn in enumerate(segment.turns, start=first_turn):
        tokens = slice(turn.start, turn.end)
        sequence.loss_mask_L[tokens] = turn.masked is None
        sequence.turns_L[tokens] = number
        sequence.versions_L[tokens] = [version for version, count in turn.versions for _ in range(count)]
        if segment.logprobs is not None:
            sequence.logprobs_L[tokens] = segment.logprobs[read : read + turn.num_tokens]
        read += turn.num_tokens
    return sequence


@dataclass
class MicroBatch:
    """The rows of a forward pass, and the trained tokens as flat vectors of length N, sequence by sequence.

    Rows are padded on the right: attention is causal and the padding stands to the right of everything that counts, so
    there is no attention mask. Or there is one row with every needed token once (`prefixes.py`), its position ids, and
    its layout for attention; sequences that need equally many and share nothing are rows with a layout. A token that
    several sequences train is one token of the row and several of the N. All sequences of an episode are in one
    micro-batch. A micro-batch of a rank that has nothing left to do is one row of padding with N = 0: every rank runs
    the same number of them, because each forward and backward is a collective.
    """

    input_ids_BL: "torch.Tensor"
    hidden_N: "torch.Tensor"
    """Which hidden state predicts the token: its place in the rows, one after the other."""
    target_N: "torch.Tensor"
    """Which token of the vocabulary it is."""
    episode_N: "torch.Tensor"
    """Which of the E episodes of this micro-batch the token is of."""
    position_N: "torch.Tensor"
    """Which of the L tokens of its sequence it is."""
    advantage_N: "torch.Tensor"
    rollout_logprobs_N: "torch.Tensor"
    """The server's; NaN where it gave none."""
    fresh_N: "torch.Tensor"
    """Sampled by the weights that this batch starts from: `old_logprobs` may be the trainer's own."""
    mixed_N: "torch.Tensor"
    """Of a turn that a push interrupted: tokens of more than one version, sampled in one go."""
    weight_N: "torch.Tensor"
    """Factor of a token's loss in the loss of the whole optimizer update."""
    num_episodes: int
    """E."""
    update_tokens: int
    """Trained tokens of the whole optimizer update, over all micro-batches and ranks, skipped sequences included."""
    trained_Q: list[int]
    """Trained tokens of each sequence."""
    position_ids_BL: "torch.Tensor | None" = None
    """From 0 in each sequence; None for padded rows. With images in families that count time, height and width apart
    [3, B, L], for padded rows, too."""
    layout: "AttentionLayout | None" = None
    """What attention reads of the row with every token once; None for padded rows."""
    images: "ImageInputs | None" = None
    """What stands at the places of images; None without any."""
    token_counts_BL: "torch.Tensor | None" = None
    """How many sequences need the token, float32, for averages over tokens: 0 for padding, 1 in a micro-batch without
    sequences."""
    old_logprobs_N: "torch.Tensor | None" = None
    """Logprobs under the policy that the batch started with; filled in before or by the first update that uses them."""
    ref_logprobs_N: "torch.Tensor | None" = None
    entropy_N: "torch.Tensor | None" = None
    """Of the policy's distribution at each token, without a gradient; there for a surrogate that declares it."""
    high_entropy_N: "torch.Tensor | None" = None
    """Which tokens `top_entropy_quantile` keeps; filled in before the first update of a batch when it is below 1."""
    update_high_entropy_tokens: int = 0
    """Their number in the whole optimizer update, over all micro-batches and ranks."""

    @property
    def inputs(self) -> tuple["torch.Tensor | AttentionLayout | ImageInputs | None", ...]:
        """What the policy's forward pass takes, in its order."""
        return self.input_ids_BL, self.hidden_N, self.target_N, self.position_ids_BL, self.layout, self.images

    def part(self, tokens: "slice | torch.Tensor") -> "MicroBatch":
        """The same with some of its N tokens; of an episode these may be a few, or none."""
        vectors = {one.name: getattr(self, one.name) for one in fields(self) if one.name.endswith("_N")}
        return replace(self, **{name: vector[tokens] for name, vector in vectors.items() if vector is not None})
