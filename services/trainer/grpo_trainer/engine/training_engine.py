"""The engine: one model on all ranks, its optimizer updates, the export of its weights, and its checkpoints.

One code path for DeepSpeed ZeRO 0 to 3, on GPUs over NCCL or without GPUs over Gloo. Every method but `write_hf`
is a collective: all ranks call it, with the same number of micro-batches.

Three decisions are made here instead of by DeepSpeed:
- gradients of all micro-batches are summed, in float32 (DeepSpeed averages over ranks, hence the loss × world size);
- the learning rate is a function of the update's number (`schedule`);
- an update without a finite gradient is skipped on all ranks, in every ZeRO stage and dtype.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from grpo_proto.checkpoint_layout import plain_layout
from grpo_proto.messages.weights import Kind

from ..algorithm.entropy_mask import mark_high_entropy
from ..algorithm.loss import old_logprobs
from ..algorithm.reduction import Tally
from ..algorithm.sequences import MicroBatch
from ..algorithm.surrogates import surrogate_of
from ..algorithm.surrogates.reads import keeps_reference, prepared_for
from ..config.algorithm import AlgorithmConfig
from ..config.model import ModelConfig
from ..config.optimization import DeepSpeedConfig, OptimizerConfig
from ..data.tokenizer import load_tokenizer
from ..lora.adapter import Adapter, keep_adapter_only
from ..lora.files import write_adapter, write_merged_card
from ..lora.merging import LowRankDelta, checkpoint_name
from ..lora.nf4 import Weights, keep_in_nf4
from ..model_files import ModelFiles
from ..ranks.process_group import join_process_group
from .batch_loss import batch_loss
from .deepspeed_import import DeepSpeedEngine, deepspeed
from .deepspeed_settings import ClipBareOptimizer, deepspeed_settings, inference_settings, judge_by_the_norm
from .deepspeed_start import quieten_libraries, start_deepspeed
from .entropy_coefficient import EntropyCoefficient
from .export import Export
from .family import has_experts
from .imitation import Imitation
from .model import load_policy, pieces_to_push
from .one_reduction import OneReduction
from .optimizers import make_optimizer, set_learning_rate
from .policy import Policy
from .prefix_sharing import prefix_sharing_for
from .random_state import seed_anew, seed_everything
from .reference import MovingReference
from .saved_state import SavedState, num_bytes_of
from .schedule import learning_rates
from .sequence_parallel import SequenceGroup, join_sequence_group
from .sight import Sight
from .skipped_updates import SkippedUpdates
from .state import layout
from .trained_parameters import freeze_parameters
from .write_errors import Write


class TrainingEngine:
    """The policy in training, and the reference model if the loss reads it.

    With `model.lora` an adapter is trained and the reference is the model below it. `push_kind` `full` then pushes the
    sum of both. `base_digest` is the digest of the model below.

    `total_updates` is the length of the learning-rate schedule, in optimizer updates. `beat` is called after every
    micro-batch, bucket and file of a checkpoint. Raises what `load_policy` and `Adapter` raise.
    """

    def __init__(
        self,
        model: ModelConfig,
        optimizer: OptimizerConfig,
        sharing: DeepSpeedConfig,
        algorithm: AlgorithmConfig,
        *,
        temperature: float,
        total_updates: int,
        seed: int,
        push_kind: Kind = "full",
        base_digest: str | None = None,
        beat: Callable[[], None] = lambda: None,
    ):
        self.beat = beat
        self.model_config, self.algorithm = model, algorithm
        self._surrogate = surrogate_of(algorithm)
        self._reads = prepared_for(self._surrogate, algorithm)
        self.zero_stage = sharing.zero_stage
        self._rate_of = learning_rates(optimizer, total_updates=total_updates)
        self.device = join_process_group(timeout_s=sharing.timeout_s)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        group = join_sequence_group(sharing.sequence_parallel_size, timeout_s=sharing.timeout_s)
        self._is_counted = group is None or group.rank == 0  # the micro-batches of a group are counted once
        seed_everything(seed)
        quieten_libraries()
        settings = deepspeed_settings(model, optimizer, sharing)
        sharding = settings if self.zero_stage == 3 else None
        self.policy = load_policy(model, temperature=temperature, zero3=sharding, group=group)
        # None, too, once a trial has found the loaded model to compute something else.
        self.prefixes = prefix_sharing_for(self.policy.model.config, model, sharing, device=self.device)
        # Before there is an adapter: the names of the model's parameters are then those that the checkpoint's have.
        self._pieces, self._absent = pieces_to_push(self.policy.model, model.name_or_path)
        # After the pieces are chosen: what a run file freezes is pushed with the rest.
        freeze_parameters(self.policy.model, model)
        self._in_nf4 = keep_in_nf4(self.policy.model, model, device=self.device) if model.load_in_4bit else {}
        self._sources = Weights(dict(self.policy.model.state_dict(keep_vars=True)), self._in_nf4)
        self.base_digest = base_digest
        self.adapter: Adapter | None = None
        if model.lora is not None:
            self.adapter = Adapter(self.policy.model, model.lora, base_name=model.name_or_path, seed=seed)
            self.policy.register_state_dict_post_hook(keep_adapter_only)
        self._engine = start_deepspeed(self.policy, settings, make_optimizer(self.policy, optimizer))
        if self.zero_stage == 2:
            judge_by_the_norm(self._engine.optimizer, self.device)
        self._reduction = OneReduction(self._engine) if sharing.coalesce_grad_reduction else contextlib.nullcontext
        self._clip = ClipBareOptimizer.attach(self._engine.optimizer, settings, optimizer.max_grad_norm)
        self.export = self.make_export(push_kind)
        self.reference: Policy | DeepSpeedEngine | None = None
        """The model that the policy is compared with; None when the loss reads none."""
        if keeps_reference(self._surrogate, algorithm):
            self.reference = self._engine if self.adapter else self._load_reference(model, temperature, sharding, group)
        self.sight = Sight(self.policy, self.reference, model, device=self.device, sharded=self.zero_stage == 3)
        self._moving: MovingReference | None = None
        if algorithm.sync_ref_model and self.reference is not None:
            self._moving = MovingReference(self.reference, rank=self.rank, sharded=self.zero_stage == 3)
        self._saved_state = SavedState(
            self._engine,
            self._moving,
            layout(
                zero_stage=self.zero_stage,
                world_size=self.world_size,
                dtype=model.dtype,
                frozen=model.trained_layout,
                lora=model.lora,
                base_digest=base_digest,
                optimizer=optimizer.layout,
                sync_ref_model=algorithm.sync_ref_model,
            ),
            rank=self.rank,
            seed=seed,
            frozen=self.adapter is None,
            state_bytes=optimizer.state_bytes,
            beat=lambda: self.beat(),
        )
        if group is not None:  # each token has a dropout of its own: the ranks of a group draw apart from here on
            seed_anew(seed, updates_done=0, rank=group.rank)
        self.updates_done = 0
        self._entropy_coefficient = EntropyCoefficient(algorithm)
        self.skipped = SkippedUpdates(
            max_in_a_row=optimizer.max_skipped_updates, surrogate_name=algorithm.surrogate_name
        )
        self._as_at_the_start_of_the_batch = True

    def make_export(self, kind: Kind) -> Export:
        """The weights as a push of `kind` sends them: the adapter alone for `lora`, else the model with it added."""
        adapter = self.adapter if kind == "lora" else None
        deltas = self.adapter.deltas() if self.adapter and adapter is None else {}
        tensors = adapter.tensors() if adapter else self._sources
        return Export(
            kind,
            plain_layout(tensors) if adapter else self._pieces,
            tensors,
            absent=() if adapter else self._absent,
            device=self.device,
            gather=self._gathered,
            sharded=self.zero_stage == 3,
            fills=self.rank == 0,
            beat=lambda: self.beat(),
            deltas=deltas,
            peft_config=adapter.saved_config() if adapter else None,
            base_digest=self.base_digest if adapter else None,
        )

    def _whole_model(self) -> tuple[Mapping[str, torch.Tensor], dict[str, LowRankDelta]]:
        """Return the model's parameters by their names in its checkpoint, and what an adapter adds to them."""
        if self.adapter is None:
            return dict(self.policy.model.named_parameters()), {}
        return Weights(self.adapter.base_tensors(), self._in_nf4), self.adapter.deltas()

    def _load_reference(
        self, config: ModelConfig, temperature: float, sharding: dict[str, Any] | None, group: SequenceGroup | None
    ) -> Policy | DeepSpeedEngine:
        """Load a frozen copy of the run's first model; sharded like the policy under ZeRO-3, whole otherwise."""
        reference = load_policy(config, temperature=temperature, zero3=sharding, group=group).requires_grad_(False)
        if sharding is None:
            return reference.to(self.device)
        return start_deepspeed(reference, inference_settings(sharding), None)

    def logprobs(self, micro_batches: Sequence[MicroBatch], *, reference: bool = False) -> list[torch.Tensor]:
        """Return log π of the completion tokens of each micro-batch [N], under the policy or the reference model."""
        return [logprobs_N for logprobs_N, _ in self._forward(micro_batches, reference=reference)]

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _forward(
        self, micro_batches: Sequence[MicroBatch], *, reference: bool = False
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Compute log π and entropy of the completion tokens of each micro-batch [N], without a gradient."""
        model = self.reference if reference else self._engine
        if model is None:
            raise ValueError("there is no reference model: the loss reads none")
        self.sight.look_again(micro_batches, reference=reference)
        found = []
        with self.adapter.comparing(switched_off=reference) if self.adapter else contextlib.nullcontext():
            for batch in micro_batches:
                found.append(model(*self.sight.inputs(batch, reference=reference)))
                self.beat()
        return found

    def prepare(self, updates: Sequence[Sequence[MicroBatch]]) -> None:
        """Fill in what the loss reads and later weights cannot give, before the first update of a batch.

        These are the reference's logprobs, the tokens of high entropy if the others are masked, and the old logprobs of
        all updates but the first: the first update sees the weights unchanged and uses its own logprobs, unless an
        adapter's dropout distorts them.
        """
        self._as_at_the_start_of_the_batch = True
        if self._reads.reference:
            for micro_batches in updates:
                for batch, logprobs_N in zip(micro_batches, self.logprobs(micro_batches, reference=True), strict=True):
                    batch.ref_logprobs_N = logprobs_N
        drops_out = self.model_config.lora is not None and self.model_config.lora.dropout > 0
        masks, top_quantile = self.algorithm.masks_low_entropy, self.algorithm.top_entropy_quantile
        for number, micro_batches in enumerate(updates):
            fills_old = self._reads.old and (number > 0 or drops_out)
            if not (fills_old or masks):
                continue
            found = self._forward(micro_batches)
            if masks:
                entropies = [entropy_N for _, entropy_N in found]
                mark_high_entropy(micro_batches, entropies, top_quantile=top_quantile, counts=self._is_counted)
            for batch, (logprobs_N, _) in zip(micro_batches, found, strict=True) if fills_old else ():
                batch.old_logprobs_N = old_logprobs(batch, logprobs_N, proximal=self._reads.proximal)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def survey(self, micro_batches: Sequence[MicroBatch]) -> dict[str, float]:
        """Return the metrics of `policy_loss` over all ranks under the current weights. Nothing is learnt."""
        tally = Tally()
        self.sight.look_again(micro_batches)
        with self.adapter.comparing(switched_off=False) if self.adapter else contextlib.nullcontext():
            for batch in micro_batches:
                tally.merge(self._loss(batch)[1])
                self.beat()
        return {
            name: value
            for name, value in tally.reduce(counts=self._is_counted).items()
            if name != "tokens_without_finite_loss"
        }

    def update(self, micro_batches: Sequence[MicroBatch], imitation: Imitation | None = None) -> dict[str, float]:
        """Make one optimizer update. Returns its metrics over all ranks, without numbers that are not finite.

        The metrics are those of `batch_loss` and, with an `imitation`, of its loss and `chord/mu`; `grad_norm` before
        the clip, `learning_rate`, `entropy_coef` if it is adaptive, as the next update finds it, and `update_skipped`,
        1 when the gradient was not finite.

        Raises UpdateError after more than `max_skipped_updates` skipped updates in a row.
        """
        rate = self._rate_of(self.updates_done)
        set_learning_rate(self._engine.optimizer, rate)
        tally, mu = Tally(), imitation.mu if imitation else 0.0
        self.sight.look_again(micro_batches)
        with self._reduction():
            for number, batch in enumerate(micro_batches):
                loss, of_batch = self._loss(batch)
                loss = loss if number else self.sight.begin(loss)
                self._backward(self.world_size * ((1.0 - mu) * loss))
                tally.merge(of_batch)
            if imitation is not None:
                for batch in imitation.micro_batches:
                    loss, of_batch = imitation.loss(self._engine, batch)
                    self._backward(self.world_size * (mu * loss))
                    tally.merge(of_batch)
            self.sight.learn(self._backward, self._engine.optimizer)
        self._engine.step()
        self._as_at_the_start_of_the_batch = False
        self.updates_done += 1
        grad_norm = self._clip.grad_norm if self._clip else self._engine.get_global_grad_norm()
        metrics = tally.reduce(counts=self._is_counted) | {"grad_norm": float(grad_norm), "learning_rate": rate}
        metrics |= self._entropy_coefficient.move(metrics) | ({"chord/mu": mu} if imitation else {})
        self.skipped.judge(metrics, update=self.updates_done)
        return {name: value for name, value in metrics.items() if abs(value) < float("inf")}

    def _backward(self, loss: torch.Tensor) -> None:
        self._engine.backward(loss, scale_wrt_gas=False)
        self.beat()

    def _loss(self, batch: MicroBatch) -> tuple[torch.Tensor, Tally]:
        """Compute the micro-batch's part of the update's loss. Fills in its old logprobs when it is the first to."""
        fills_old = self._reads.old or self._as_at_the_start_of_the_batch
        settings, entropy_coef = (self.algorithm, self._surrogate), self._entropy_coefficient.applied
        return batch_loss(self._engine, batch, *settings, entropy_coef=entropy_coef, fills_old=fills_old)

    def sync_reference(self) -> None:
        """Move the reference model towards the policy by `ref_model_mixup_alpha`, between two generation batches."""
        if self._moving is None:
            raise ValueError("the reference model does not move: algorithm.sync_ref_model is off")
        self._moving.follow(self._engine, alpha=self.algorithm.ref_model_mixup_alpha)
        self.sight.forget()

    def save(self, folder: Path, write: Write = torch.save) -> None:
        """Have model, optimizer, update counts and every rank's random state written into `folder`, by `write`.

        Of a model with an adapter only the adapter is written; a reference that moves is written, too. All ranks call
        it; the folder is complete once all have returned, and `write` has written what it was given.
        """
        self._saved_state.save(folder, self._counts, write)

    def load(self, folder: Path) -> None:
        """Continue from the state that `save` wrote, also in an engine that has trained meanwhile.

        To the bit on as many ranks, to 1e-6 on another number of ranks. Raises what `SavedState.load` raises.
        """
        saved = self._saved_state.load(folder)
        self.sight.forget()
        self.updates_done = saved["updates_done"]
        self.skipped.restore(saved["skipped_updates"])
        self._entropy_coefficient.restore(saved)

    def whole_state(self) -> dict[str, torch.Tensor]:
        """Gather the policy's state dict into host memory on rank 0; the other ranks return an empty dict.

        An adapter is added to the model, in float32, and the sum is cast to the model's dtype.
        """
        model = self.policy.model
        tensors, deltas = self._whole_model()
        state: dict[str, torch.Tensor] = {}
        for name, tensor in [*tensors.items(), *model.named_buffers()]:
            factors = deltas[name].factors if name in deltas else []
            with self._gathered([tensor, *factors]):
                if self.rank == 0:
                    whole = deltas[name].added_to(tensor) if factors else tensor.detach()
                    state[name] = whole.cpu().clone()
        names = map(checkpoint_name, model.state_dict()) if self.adapter else model.state_dict()
        return {name: state[name] for name in (*names, *self._in_nf4) if name in state}

    def adapter_state(self) -> dict[str, torch.Tensor]:
        """Gather the adapter by PEFT's saved names on rank 0; empty on the other ranks and without an adapter."""
        state: dict[str, torch.Tensor] = {}
        for name, tensor in (self.adapter.tensors() if self.adapter else {}).items():
            with self._gathered([tensor]):
                if self.rank == 0:
                    state[name] = tensor.detach().cpu().clone()
        return state

    def write_adapter(self, folder: Path, state: dict[str, torch.Tensor]) -> None:
        """Write `state` as PEFT does, with tokenizer and model card. No collective."""
        if self.adapter is None:
            raise ValueError("the model has no adapter")
        write_adapter(folder, self.adapter.saved_config(), state, trained_by="GRPO")
        self._files.write_tokenizer(folder)

    def write_hf(self, folder: Path, state: dict[str, torch.Tensor]) -> None:
        """Write `state` for `transformers` and the rollout server: safetensors, and the files of `ModelFiles`.

        No collective: a single rank calls it.
        """
        self._files.write(folder, self.policy.model, state)
        if self.adapter:
            write_merged_card(folder, self.adapter.saved_config(), self.model_config)

    @cached_property
    def _files(self) -> ModelFiles:
        return ModelFiles.of(self.model_config.name_or_path, load_tokenizer(self.model_config))

    @property
    def num_bytes(self) -> int:
        """Size of the files of `write_hf`."""
        in_nf4: int = sum(layer.in_features * layer.out_features for layer in self._in_nf4.values())
        width: int = self.policy.model.dtype.itemsize
        return num_bytes_of(self.policy.model.parameters()) + in_nf4 * width

    @property
    def num_adapter_bytes(self) -> int:
        """Size of the files of `write_adapter`."""
        return num_bytes_of(self.adapter.tensors().values()) if self.adapter else 0

    @property
    def num_checkpoint_bytes(self) -> int:
        """Size of the files that `save` has written on all ranks, but for small ones: a few MiB at most."""
        return self._saved_state.num_bytes

    @property
    def has_experts(self) -> bool:
        """Whether each token takes some of several experts, by the model's configuration."""
        return has_experts(self.policy.model.config)

    @property
    def _counts(self) -> dict[str, float | None]:
        counts = {"updates_done": self.updates_done, "skipped_updates": self.skipped.count}
        return counts | self._entropy_coefficient.state

    def _gathered(self, tensors: list[torch.Tensor]) -> Any:
        return deepspeed.zero.GatheredParameters(tensors, enabled=self.zero_stage == 3)
