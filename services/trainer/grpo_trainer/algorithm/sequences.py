"""The in-process types, in the order the data takes: PromptRow → Group of Samples → TrainingSample → MicroBatch.

Dimension suffixes everywhere in the trainer:
    B sequences of a micro-batch, L padded length of a sequence, N completion tokens of a micro-batch (no padding),
    G completions of a group, V vocabulary, H hidden size.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from grpo_proto import RewardScore

from ..data.prompt_row import PromptRow
from ..group_trace import NO_TRACE, GroupTrace

if TYPE_CHECKING:
    import torch

DropReason = Literal["stale", "unscorable", "timeout", "error", "truncated", "empty"]
DROP_REASONS: tuple[DropReason, ...] = get_args(DropReason)
"""Why a sample took no part in the training: it was too old; it has no score, because no reward would judge it, one ran
out of time, or one failed; it was cut off and `mask_truncated_completions` is on; it has no token."""


@dataclass
class Sample:
    """One completion with everything known about it. Lists over tokens have the same length T."""

    id: str
    token_ids: list[int]
    rollout_logprobs: list[float]
    text: str
    finish_reason: str
    versions: list[tuple[int, int]]
    rewards: dict[str, RewardScore] = field(default_factory=dict)
    total_reward: float | None = None
    advantage: float | None = None
    """None when the sample has no score: it takes no part in the loss."""
    unscored_because: tuple[str, RewardScore] | None = None
    """The reward with a weight, and what became of it, that left the sample without a total."""

    @property
    def oldest_version(self) -> int | None:
        """Version of the oldest token; None for a completion without tokens."""
        return min((version for version, _ in self.versions), default=None)

    @property
    def truncated(self) -> bool:
        return self.finish_reason == "length"

    def left_out_because(self, *, mask_truncated: bool) -> DropReason | None:
        """Why it takes no part in the loss; None when it does. Of several reasons the gravest one."""
        if self.advantage is None:
            status = self.unscored_because[1].status if self.unscored_because else "unscorable"
            return status if status != "ok" else "unscorable"
        if mask_truncated and self.truncated:
            return "truncated"
        return None if self.token_ids else "empty"


@dataclass
class Group:
    """The G completions of one prompt. `position` counts prompts over the whole run and never repeats."""

    position: int
    row: PromptRow
    samples: list[Sample]
    trace: GroupTrace = NO_TRACE

    def is_older_than(self, version: int) -> bool:
        """Whether any of its tokens was sampled by an older policy."""
        return any(sampled_by < version for sample in self.samples for sampled_by, _ in sample.versions)


@dataclass(frozen=True)
class TrainingSample:
    """What the ranks need of a sample. Plain numbers: it travels between ranks as JSON, never as a pickle."""

    prompt_token_ids: list[int]
    token_ids: list[int]
    rollout_logprobs: list[float]
    """One for each token of the completion; empty when the server was not asked for them."""
    advantage: float
    fresh: bool
    """Sampled by the weights that this batch starts from: `old_logprobs` may be the trainer's own."""

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.token_ids)


def to_json(samples: Iterable[TrainingSample]) -> list[dict[str, Any]]:
    """`samples` for `Ranks.broadcast_json`; `from_json` is the way back."""
    return [asdict(sample) for sample in samples]


def from_json(message: Iterable[Mapping[str, Any]]) -> list[TrainingSample]:
    return [TrainingSample(**sample) for sample in message]


@dataclass
class MicroBatch:
    """Sequences padded on the right, and their completion tokens as flat vectors of length N, sequence by sequence.

    Token n is column `column_N[n]` of row `row_N[n]` of `input_ids_BL`; its logprob comes from the hidden state one
    column to the left. Attention is causal and the padding stands to the right of everything that counts, so there is
    no attention mask. A micro-batch of a rank that has nothing left to do is one row of padding with N = 0: every rank
    runs the same number of them, because each forward and backward is a collective.
    """

    input_ids_BL: "torch.Tensor"
    row_N: "torch.Tensor"
    column_N: "torch.Tensor"
    advantage_N: "torch.Tensor"
    rollout_logprobs_N: "torch.Tensor"
    """The server's; NaN where it gave none."""
    fresh_N: "torch.Tensor"
    weight_N: "torch.Tensor"
    """Factor of a token's loss in the loss of the whole optimizer update; the loss type's normaliser is in it."""
    update_tokens: int
    """Completion tokens of the whole optimizer update, over all micro-batches and ranks."""
    old_logprobs_N: "torch.Tensor | None" = None
    """Logprobs under the policy that the batch started with; filled in before or by the first update that uses them."""
    ref_logprobs_N: "torch.Tensor | None" = None

    @property
    def num_rows(self) -> int:
        return len(self.input_ids_BL)
