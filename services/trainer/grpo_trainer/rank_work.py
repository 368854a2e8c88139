"""What every rank does when rank 0 commands it: its part of an update, of a push and of a checkpoint.

Each method is a command of `ranks/crew.py`: collectives inside, so that all ranks run it at the same time.
"""

from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path

import torch

from grpo_proto import Manifest

from .algorithm.agreement import Rule
from .algorithm.batching import PlanOfRank, micro_batches
from .algorithm.kl_in_reward import log_ratio_sums
from .algorithm.named_arrays import from_arrays
from .algorithm.sequences import MicroBatch
from .checkpoint.file_writer import FileWriter
from .checkpoint.files import Described
from .checkpoint.saving import writing
from .engine.imitation import Imitation
from .engine.own_logprobs import own_logprobs
from .engine.training_engine import TrainingEngine
from .errors import RunError
from .ranks.ranks import NamedArrays, Ranks

COMMANDS = (
    "batch",
    "imitate",
    "log_ratios",
    "batch_logprobs",
    "prepare",
    "survey",
    "update",
    "sync_reference",
    "logprobs",
    "try_sharing",
    "stop_sharing",
    "begin_export",
    "bucket",
    "save_engine",
    "written",
    "load_engine",
    "gather_state",
    "gather_adapter",
)


class RankWork:
    """One rank's engine, and what it has in hand: the micro-batches of a step, the buckets of a push,
    the files of a checkpoint."""

    def __init__(self, engine: TrainingEngine, ranks: Ranks, *, pad_token_id: int, tokens_per_micro_batch: int):
        self.engine, self.ranks = engine, ranks
        self._pad_token_id, self._tokens_per_micro_batch = pad_token_id, tokens_per_micro_batch
        self._updates: list[list[MicroBatch]] = []
        self._imitation: Imitation | None = None
        self._buckets: Iterator[torch.Tensor] = iter(())
        self._writer: FileWriter

    def batch(self, arrays: NamedArrays, plans: list[PlanOfRank], update_tokens: list[int], version: int) -> int:
        """Take the sequences of this rank for one generation batch. Returns the tokens of a pass over it, with padding.

        `plans`: for each rank, the numbers of its own sequences by update and micro-batch. `update_tokens`: trained
        tokens of each update, over all ranks.
        """
        self._updates = self._micro_batches(arrays, plans, update_tokens, version)
        return sum(batch.input_ids_BL.numel() for update in self._updates for batch in update)

    def imitate(
        self,
        arrays: NamedArrays,
        plans: list[PlanOfRank],
        update_tokens: list[int],
        version: int,
        mu: float,
        enable_phi_function: bool,
    ) -> None:
        """Take this rank's demonstrations for the next update, as `batch` takes samples."""
        [of_update] = self._micro_batches(arrays, plans, update_tokens, version)
        self._imitation = Imitation(of_update, mu, enable_phi_function)

    def _micro_batches(
        self, arrays: NamedArrays, plans: list[PlanOfRank], update_tokens: list[int], version: int
    ) -> list[list[MicroBatch]]:
        sequences = from_arrays(arrays)
        return micro_batches(
            sequences,
            plans[self.ranks.rank],
            update_tokens,
            version=version,
            pad_token_id=self._pad_token_id,
            device=self.engine.device,
            prefixes=self.engine.prefixes,
            images=self.engine.sight.see(sequences),
        )

    def prepare(self) -> None:
        """Fill in what has to be known of the weights as they are before the first update."""
        self.engine.prepare(self._updates)

    def log_ratios(self) -> list[float]:
        """Σ log π − log π_ref over the trained tokens of each sequence of the batch, micro-batch by micro-batch."""
        batches = [batch for update in self._updates for batch in update]
        own, reference = self.engine.logprobs(batches), self.engine.logprobs(batches, reference=True)
        return [one for of_batch in zip(batches, own, reference, strict=True) for one in log_ratio_sums(*of_batch)]

    def batch_logprobs(self) -> list[list[float]]:
        """log π of the trained tokens of each sequence of the batch, micro-batch by micro-batch."""
        batches = [batch for update in self._updates for batch in update]
        found = zip(batches, self.engine.logprobs(batches), strict=True)
        return [part.tolist() for batch, logprobs_N in found for part in logprobs_N.split(batch.trained_Q)]

    def survey(self) -> dict[str, float]:
        """Metrics of a forward pass over the whole batch, without a gradient; the same on all ranks."""
        metrics: dict[str, float] = self.engine.survey([batch for update in self._updates for batch in update])
        return metrics

    def update(self, number: int) -> dict[str, float]:
        """Optimizer update `number` of the batch. Returns its metrics, the same on all ranks."""
        imitation, self._imitation = self._imitation, None
        return self.engine.update(self._updates[number], imitation)

    def sync_reference(self) -> None:
        """Move the reference model towards the policy."""
        self.engine.sync_reference()

    def logprobs(self, arrays: NamedArrays, version: int) -> list[list[float]]:
        """The logprobs of the trained tokens of sequences that every rank gets: they are few and short."""
        sequences = from_arrays(arrays)
        return own_logprobs(
            self.engine,
            sequences,
            version=version,
            tokens_per_micro_batch=self._tokens_per_micro_batch,
            pad_token_id=self._pad_token_id,
            images=self.engine.sight.see(sequences),
        )

    def try_sharing(self, arrays: NamedArrays, bound: float, quantile: float | None) -> str | None:
        """Compute sequences, the same on every rank, with shared prefixes and in padded rows. Returns why prefixes are
        not to be shared; None when both agree."""
        sequences = from_arrays(arrays)
        budget, pad = self._tokens_per_micro_batch, self._pad_token_id
        compute = partial(own_logprobs, self.engine, version=0, tokens_per_micro_batch=budget, pad_token_id=pad)
        padded = compute(sequences)
        try:
            shared = compute(sequences, prefixes=self.engine.prefixes)
            # A sequence by itself shares nothing, and has another path through attention.
            padded, shared = padded + padded[:1], shared + compute(sequences[:1], prefixes=self.engine.prefixes)
        except RunError as error:
            return error.message
        differences = [abs(a - b) for a, b in zip(chain(*padded), chain(*shared), strict=True)]
        rule = Rule(bound, quantile)
        if (measured := rule.measure(differences)) <= bound:  # a NaN exceeds every bound
            return None
        return f"logprobs differ by {measured:.4g} {rule} from those of padded rows; the bound is {bound:g}"

    def stop_sharing(self) -> None:
        """Give every sequence a padded row from here on."""
        self.engine.prefixes = None

    def begin_export(self, manifest_json: str, to_gpu: bool) -> None:
        """A push begins: its buckets are asked for one by one, as the manifest lays them out."""
        on_gpu = to_gpu and self.ranks.is_first  # the others only help to gather
        device = self.engine.device if on_gpu else torch.device("cpu")
        self._buckets = self.engine.export.buckets(Manifest.model_validate_json(manifest_json), device)

    def bucket(self) -> torch.Tensor | None:
        """The next bucket, on rank 0."""
        bucket = next(self._buckets)
        return bucket if self.ranks.is_first else None

    def save_engine(self, folder: str, in_background: bool) -> None:
        """Write this rank's part of a checkpoint, or copy it for the background. Raises RunError when it cannot."""
        self._writer = FileWriter(Path(folder), in_background=in_background)
        with writing():
            self.engine.save(Path(folder) / "engine", self._writer.write)

    def written(self, wait: bool) -> Described | None:
        """Size and hash of the files that `save_engine` wrote; None while they are being written, unless `wait`.

        Raises RunError when they could not be written.
        """
        with writing():
            return self._writer.described(wait=wait, beat=self.engine.beat)

    def load_engine(self, folder: str) -> None:
        """Go back to this rank's part of a checkpoint."""
        self.engine.load(Path(folder))

    def gather_state(self) -> dict[str, torch.Tensor] | None:
        """The policy's state dict in memory of the host, on rank 0."""
        return self.engine.whole_state() or None

    def gather_adapter(self) -> dict[str, torch.Tensor] | None:
        """The adapter's tensors in memory of the host, on rank 0."""
        return self.engine.adapter_state() or None
