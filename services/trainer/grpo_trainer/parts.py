"""Who computes which sequences: every rank's part of a batch. Ranks that compute rows together have one part."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from .algorithm.batching import parts_of_ranks, tokens_of_updates
from .algorithm.named_arrays import to_arrays
from .algorithm.planning import count_updates, plan_updates
from .algorithm.prefixes import PrefixSharing
from .algorithm.sequences import TrainingSequence
from .config.optimization import DeepSpeedConfig
from .ranks.crew import Crew

OneT = TypeVar("OneT")


class Parts(NamedTuple):
    """How the ranks of `crew` share a batch."""

    crew: Crew
    ranks: DeepSpeedConfig
    prefixes: PrefixSharing | None
    """How micro-batches are counted; None for padded rows."""

    def hand_out(
        self,
        computed: list[TrainingSequence],
        *arguments: Any,
        of: list[TrainingSequence],
        version: int,
        command: str = "batch",
    ) -> tuple[list[list[TrainingSequence]], list[Any]]:
        """Give each rank its part of the sequences to compute, which are some of those of the batch or all.

        Returns the parts, each in the order of its micro-batches, and the answers to the `command`, one for each part:
        to `batch` the tokens of a pass over it.
        """
        together = self.ranks.sequence_parallel_size
        count = self.crew.ranks.world_size // together
        plan = plan_updates(
            computed,
            world_size=count,
            tokens_per_micro_batch=self.ranks.tokens_per_micro_batch * together,
            prefixes=self.prefixes,
            num_updates=count_updates(of),
        )
        parts, plans = parts_of_ranks(computed, plan, count)
        told = self._for_each(plans), tokens_of_updates(of, plan), version, *arguments
        return parts, self._gather(command, *told, each=self._for_each([to_arrays(part) for part in parts]))

    def log_ratios(self) -> list[float]:
        """Σ log π − log π_ref of each sequence that was handed out last, part by part."""
        return [one for of_part in self._gather("log_ratios") for one in of_part]

    def logprobs(self) -> list[list[float]]:
        """log π of the trained tokens of each sequence that was handed out last, part by part."""
        return [one for of_part in self._gather("batch_logprobs") for one in of_part]

    def _gather(self, command: str, *arguments: Any, **each: Any) -> list[Any]:
        return self.crew.gather(command, *arguments, **each)[:: self.ranks.sequence_parallel_size]

    def _for_each(self, of_parts: Sequence[OneT]) -> list[OneT]:
        return [one for one in of_parts for _ in range(self.ranks.sequence_parallel_size)]
