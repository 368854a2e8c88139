"""`--dry-run`: resolve and check everything that can be checked without a GPU, print it, exit."""

import asyncio
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import PreTrainedModel

from grpo_proto import InfrastructureError, Manifest, RewardClient, RolloutInfo, ServiceError
from grpo_proto.checkpoint_files import checkpoint_folder, read_headers
from grpo_proto.messages.weights import DTYPE_BYTES, Backend, Kind
from grpo_proto.server.listening import listening_socket
from grpo_proto.staging import planned_bytes
from grpo_proto.transport import gpu_uuid, nccl_version

from .algorithm.surrogates import surrogate_of
from .algorithm.surrogates.reads import keeps_reference
from .algorithm.trial import check_algorithm
from .callbacks import load_callbacks
from .checkpoint.files import list_steps
from .config.run_config import RunConfig
from .data.prompt_row import PromptRow
from .engine.deepspeed_settings import deepspeed_settings
from .engine.family import load_family, no_model
from .engine.model import freeze_tower, pieces_to_push
from .engine.sequence_parallel import check_groups
from .engine.trained_parameters import trained_parameters
from .episodes.runner import EpisodeRunner
from .errors import UsageError
from .fleet.adapters import AdapterNeeds
from .fleet.fleet import Fleet
from .fleet.push_backend import choose_backend
from .fleet.push_plan import plan_push
from .fleet.wrong_server import wrong_server
from .lora.adapter import Adapter
from .lora.nf4 import nf4_bytes, quantizable
from .model_class import auto_class_of
from .model_files import NF4_MARK
from .observe.server import checked_tokens
from .prepared import Prepared
from .sampling.reward import RewardStage
from .sampling.teacher import Policy, TeacherStage
from .sampling.teachers import Teachers

GIB, MIB = 2**30, 2**20
Line = tuple[str, str]


def dry_run(config: RunConfig) -> int:
    """Print the plan of the run. Returns 0; raises UsageError at the first thing that cannot work."""
    print(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True))
    check_algorithm(config)
    load_callbacks(config.callbacks, config.callbacks_params)
    if config.server.enabled:
        checked_tokens(config.server)
    prepared = Prepared.of(config)
    model = ModelWithoutWeights.of(config)
    lines = [*_plan(prepared), *_memory(model), *_in_the_way(config)]
    lines += asyncio.run(_episodes(config))
    lines += asyncio.run(_servers(prepared, model))
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        print(f"{name:<{width}}  {value}")
    return 0


def _plan(prepared: Prepared) -> Iterator[Line]:
    config, rows, eval_rows = prepared.config, prepared.rows, prepared.eval_rows
    steps, updates = prepared.max_steps, prepared.num_updates
    algorithm, rollout = config.algorithm, config.rollout
    longest = rows.longest_prompt
    for row, store in zip(rows.first_rows, rows.stores.values(), strict=True):
        share = f"{len(store)}, ratio {config.data.datasets[row.dataset].ratio:g}" if row.dataset else f"{len(store)}"
        lengths = f"{store.summary.shortest_prompt} to {store.summary.longest_prompt} tokens"
        if not store.summary.longest_prompt:
            lengths = "without prompts"
        if most := store.summary.most_images:
            lengths += f" without those of images, up to {most} a row"
        yield f"prompts {row.dataset}".rstrip(), f"{share}, {lengths}; columns {', '.join(row.columns)}"
    for name, held_out in eval_rows.items():
        yield f"held-out prompts {name}".rstrip(), str(len(held_out)) if held_out else "none: no evaluation"
    if config.chord is not None:
        tokens = [len(example["input_ids"]) for example in prepared.demonstrations]
        taken = f"{config.chord.sft_batch_size} beside the samples of an update"
        yield "demonstrations", f"{len(tokens)}, {min(tokens)} to {max(tokens)} tokens; {taken}"
    for name, prompts in prepared.teacher_prompts.items():
        who = "the policy itself" if prompts.of_itself else "a server"
        yield f"teacher {name}".rstrip(), f"{who}, prompts of up to {prompts.longest} tokens"
    yield "steps", f"{steps}, each {rollout.groups_per_batch} prompts x {rollout.num_generations} completions"
    yield "optimizer updates", f"{updates} ({updates // steps} per step)"
    yield "epochs", f"{steps * rollout.groups_per_batch / len(rows):.2f}"
    sequence: int | None = longest + rollout.max_completion_length
    if config.episodes is not None:
        sequence = config.episodes.max_context_tokens
    limit = "the servers' --max-model-len: episodes.max_context_tokens is absent"
    without = " without those of images" if rows.most_images else ""
    yield "longest sequence", limit if sequence is None else f"{sequence} tokens{without}"
    budget = config.deepspeed.tokens_per_micro_batch * config.deepspeed.sequence_parallel_size
    if sequence is not None and sequence > budget:
        yield (
            "note",
            f"longer than a micro-batch of {budget} tokens (deepspeed.tokens_per_micro_batch): such a sequence is one "
            "by itself",
        )
    if list_steps(config.run_dir):
        yield "note", f"run_dir {config.run_dir} holds a run already: go on with --resume, or choose another one"
    for doubt in prepared.doubts():
        yield "note", doubt
    place = "by WORLD_SIZE" if _told_ranks() else "on one machine; WORLD_SIZE=N before the command counts those of all"
    yield "ranks", f"{_num_ranks(config)} {place}; ZeRO stage {config.deepspeed.zero_stage}{_in_groups(config)}"
    bound = (algorithm.max_staleness + 1) * rollout.groups_per_batch
    waits = algorithm.max_staleness and config.weights.in_flight == "wait"
    until = "; a push waits until nothing is sampled, but for adapters" if waits else ""
    yield "groups in flight", f"at most {bound} (max_staleness {algorithm.max_staleness}{until})"


def _told_ranks() -> int | None:
    told = os.environ.get("WORLD_SIZE", "")
    return int(told) if told.isdecimal() and int(told) > 1 else None


def _in_groups(config: RunConfig) -> str:
    """What the plan says of ranks that compute rows together. Raises UsageError when they do not make whole groups."""
    size, ranks = config.deepspeed.sequence_parallel_size, _num_ranks(config)
    check_groups(size, ranks)
    return f"; {size} compute each micro-batch together" if size > 1 else ""


def _num_ranks(config: RunConfig) -> int:
    """Of all machines, where the environment tells them."""
    return _told_ranks() or config.deepspeed.nproc_per_node


def _in_the_way(config: RunConfig) -> Iterator[Line]:
    """What would end a run on this machine at once. Notes, because the run may be meant for another one."""
    run_dir = config.run_dir.absolute()
    nearest = next(folder for folder in (run_dir, *run_dir.parents) if os.path.exists(folder))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        why = "cannot be written to" if nearest.is_dir() else "is no folder"
        yield "note", f"run_dir {config.run_dir} cannot be made here: {nearest} {why}"
    if config.server.enabled:
        try:
            listening_socket(config.server.host, config.server.port).close()
        except OSError as error:
            place = f"{config.server.host}:{config.server.port}"
            yield "note", f"the live page cannot listen on {place} here: {error.strerror}; see server.port"


@dataclass(frozen=True)
class ModelWithoutWeights:
    """The model of a run, its parameters on the meta device: shapes without memory."""

    config: RunConfig
    model: PreTrainedModel
    num_in_nf4: int
    """Of its weights, how many the run keeps in NF4."""
    adapter: Adapter | None

    @classmethod
    def of(cls, config: RunConfig) -> "ModelWithoutWeights":
        """Raises UsageError or UnavailableError when the model cannot be read."""
        try:
            with torch.device("meta"):  # tied weights are one parameter there, as in training
                family = load_family(config.model)
                model = auto_class_of(family).from_config(family)
                freeze_tower(model, config.model)
                in_nf4 = _weights_in_nf4(model) if config.model.load_in_4bit else 0
                return cls(config, model, in_nf4, _adapter_on(model, config))
        except (OSError, ValueError) as error:
            raise no_model(config.model, error) from error

    def sources(self, kind: Kind) -> dict[str, torch.Tensor]:
        """Return what the tensors of a push of `kind` are made of."""
        if self.adapter is None:
            return dict(self.model.named_parameters())
        return self.adapter.tensors() if kind == "lora" else self.adapter.base_tensors()

    def pushed(self, kind: Kind) -> list[tuple[str, str, Sequence[int]]]:
        """Return name, dtype and shape of each tensor of a push of `kind`: as the checkpoint has them where it is on
        this machine (experts one by one), else as the model has them. Raises UsageError when it cannot be pushed."""
        config = self.config.model
        if self.adapter is None and _is_here(config.name_or_path):
            pieces, _ = pieces_to_push(self.model, config.name_or_path)
            return [(name, config.dtype, shape) for piece in pieces for name, shape in piece.shapes.items()]
        return [(name, config.dtype, source.shape) for name, source in self.sources(kind).items()]


def _memory(planned: ModelWithoutWeights) -> Iterator[Line]:
    """Weights, gradients and optimizer state of one rank; activations come on top and depend on the model's code.

    Raises UsageError when the run file freezes a parameter that the model does not have, or all.
    """
    config = planned.config
    lora, in_nf4, adapter = config.model.lora, planned.num_in_nf4, planned.adapter
    count = sum(parameter.numel() for parameter in planned.model.parameters())
    trained = sum(parameter.numel() for parameter in trained_parameters(planned.model, config.model))
    width, ranks = DTYPE_BYTES[config.model.dtype], _num_ranks(config)
    stage = config.deepspeed.zero_stage
    told = deepspeed_settings(config.model, config.optimizer, config.deepspeed)
    sharding = told["zero_optimization"]
    offloads = "offload_optimizer" in sharding
    # The optimizer's own state, and a float32 copy of the weights unless they are float32 themselves.
    optimizer = (
        trained
        * (config.optimizer.state_bytes + (4 if config.model.dtype == "bfloat16" else 0))
        / (ranks if sharding["stage"] else 1)
    )
    gradients = trained * 4 / (ranks if sharding["stage"] > 1 else 1)  # DeepSpeed's stage 1 keeps them whole
    weights = (count - in_nf4) * width / (ranks if stage == 3 else 1) + nf4_bytes(in_nf4, width)
    # Sharded as the policy is; below an adapter it is the same model.
    keeps = keeps_reference(surrogate_of(config.algorithm), config.algorithm)
    reference = weights if keeps and adapter is None else 0
    # Under ZeRO-3 the gradients' shard lies where the optimizer's state does.
    offloads_gradients = offloads and stage == 3
    if config.deepspeed.coalesce_grad_reduction:  # whole ones beside their shard
        gradients, offloads_gradients = trained * 4 + (0 if offloads_gradients else gradients), False
    total = weights + reference + (0 if offloads_gradients else gradients) + (0 if offloads else optimizer)
    yield "parameters", f"{count:,} in {config.model.dtype}{f', {in_nf4:,} of them kept in NF4' if in_nf4 else ''}"
    if in_nf4 and not (Path(config.model.name_or_path) / NF4_MARK).is_file():
        name = config.model.name_or_path
        yield "note", f"{name} has no {NF4_MARK} of quantize-base: a run refuses values that are not NF4's"
    if lora is not None:
        yield "adapter", f"{trained:,} parameters of rank {lora.r}; the others are frozen"
    elif config.model.frozen is not None:
        yield "trained", f"{trained:,} of them; the others are frozen"
    yield (
        "memory of a rank",
        (
            f"about {total / GIB:.2f} GiB without activations: weights {weights / GIB:.2f}, "
            f"gradients {gradients / GIB:.2f}{' (in CPU memory)' if offloads_gradients else ''}, "
            f"optimizer {optimizer / GIB:.2f}{' (in CPU memory)' if offloads else ''}"
            + (f", reference {reference / GIB:.2f}" if reference else "")
        ),
    )


def _push(planned: ModelWithoutWeights, fleet: Fleet, kind: Kind) -> Iterator[Line]:
    """A push to the servers that answered; without any, over what this machine could use."""
    config = planned.config
    backend: Backend
    if config.weights.backend == "auto":
        backend = choose_backend(config.weights, fleet.answered, gpu=gpu_uuid(), nccl=nccl_version())
    else:
        backend = config.weights.backend
    manifest = plan_push(planned.pushed(kind), config.weights.bucket_mib, backend)
    sizes = manifest.bucket_bytes
    yield (
        "one push",
        f"{sum(sizes) / MIB:.1f} MiB over {backend} in {len(sizes)} buckets, the largest of {max(sizes) / MIB:.1f} MiB",
    )
    yield "memory of a push", _memory_of_a_push(planned, manifest, kind, backend)
    if config.model.lora is not None and kind == "full":
        yield "note", "the servers take no adapters: every push sends the whole model, the adapter added"


def _memory_of_a_push(planned: ModelWithoutWeights, manifest: Manifest, kind: Kind, backend: Backend) -> str:
    """What a push takes beside `memory of a rank`, and beside what a server has taken for its model and KV."""
    config, buffers = planned.config, planned_bytes(manifest)
    place = (
        "on the GPU of rank 0 and of each worker" if backend == "nccl" else "of CPU memory in rank 0 and each worker"
    )
    parts = [f"{buffers / GIB:.2f} GiB {place} for buffers"]
    width = DTYPE_BYTES[config.model.dtype]
    largest = max(source.numel() for source in planned.sources(kind).values())
    if config.deepspeed.zero_stage == 3:  # all that lies in one bucket, or all that one tensor is made of
        gathered = max(max(manifest.bucket_bytes), largest * width)
        parts.append(f"{gathered / GIB:.2f} on every rank to gather")
    if config.model.lora is not None and kind == "full":  # the sum, and three matrices in float32 on the way
        parts.append(f"{(max(manifest.bucket_bytes) + 12 * largest) / GIB:.2f} on rank 0 to add the adapter")
    return ", ".join(parts)


def _is_here(name_or_path: str) -> bool:
    try:
        return bool(read_headers(checkpoint_folder(name_or_path)))
    except (OSError, ValueError):
        return False


def _weights_in_nf4(model: PreTrainedModel) -> int:
    return sum(layer.weight.numel() for layer in quantizable(model).values())


def _adapter_on(model: PreTrainedModel, config: RunConfig) -> Adapter | None:
    if config.model.lora is None:
        return None
    return Adapter(model, config.model.lora, base_name=config.model.name_or_path, seed=config.seed)


async def _episodes(config: RunConfig) -> list[Line]:
    """Import the users' files, as a run does. Raises UsageError for one that cannot be imported, or cannot play."""
    episodes = config.episodes
    if episodes is None:
        return []
    async with EpisodeRunner(episodes, run="dry-run", log_dir=config.run_dir / "agents"):
        played_by = [
            episodes.environment,
            episodes.multi_turn_scheduler,
            *episodes.factories.values(),
            *episodes.tools,
            *episodes.agent[:1],
        ]
        line = f"by {', '.join(filter(None, played_by))}; at most {episodes.max_concurrent} at once"
        return [("episodes", f"{line}, {episodes.max_turns} turns and {config.rollout.max_completion_length} tokens")]


async def _servers(prepared: Prepared, planned: ModelWithoutWeights) -> list[Line]:
    """What the servers say, where they run already; one that does not fit is an error, one that is away is not."""
    config, lines = prepared.config, list[Line]()
    fleet = Fleet(config.rollout.urls, min_replicas=config.rollout.min_replicas)
    for replica in fleet.replicas:
        try:
            replica.info = await replica.rollouts.info()
            lines.append((f"rollout {replica.url}", f"{replica.info.model}, weights {replica.info.weights.state}"))
        except ServiceError as error:
            away = _away(error, role="rollout server", url=replica.url, setting="rollout.urls")
            lines.append((f"rollout {replica.url}", away))
    kind = prepared.require(fleet, AdapterNeeds.of(config, None))
    lines += _push(planned, fleet, kind)
    await fleet.close()
    if config.reward.reward_funcs:
        first_rows = [*prepared.rows.first_rows, *prepared.eval_rows.first_rows]
        lines += await _reward(config, first_rows, prepared.tokenizer)
    async with Teachers(config, prepared.teacher_prompts) as teachers:
        lines += [await _teacher(stage, prepared.policy, run_servers=fleet.infos.values()) for stage in teachers.stages]
    return lines


async def _reward(config: RunConfig, first_rows: list[PromptRow], tokenizer: Any) -> list[Line]:
    url = config.reward.url
    async with RewardClient(url) as client:
        try:
            info = await client.info()
            stage = RewardStage.of(config, client)
            await stage.check(first_rows, of_episodes=config.episodes is not None)
            faults = [] if config.episodes else await stage.faults_of_first_rows(first_rows)
            faults += stage.prefix_doubts(first_rows, tokenizer)
        except ServiceError as error:
            if error.detail.type == "invalid_param":
                raise UsageError(f"reward.params: {error.detail.message}", hint=error.detail.hint) from error
            return [(f"reward {url}", _away(error, role="reward server", url=url, setting="reward.url"))]
    served = (f"reward {url}", f"{', '.join(info.rewards)}; {info.workers} workers")
    return [served, *(("note", fault) for fault in faults)]


async def _teacher(stage: TeacherStage, policy: Policy, *, run_servers: Collection[RolloutInfo]) -> Line:
    line = f"{stage.name.removeprefix('the ')} {stage.client.base_url}"
    try:
        info = await stage.check(policy, run_servers=run_servers)
        return line, f"{info.model}, weights {info.weights.state}"
    except ServiceError as error:
        role = stage.name.removeprefix("the ")
        return line, _away(error, role=role, url=stage.client.base_url, setting=stage.setting)


def _away(error: ServiceError, *, role: str, url: str, setting: str) -> str:
    """What the plan says of a server that is away. Raises TrainerError when another one answers there."""
    if not isinstance(error, InfrastructureError):
        raise wrong_server(error, role=role, url=url, setting=setting) from error
    return f"not checked: {error.detail.message}"
