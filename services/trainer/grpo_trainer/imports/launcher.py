"""How many processes a command starts, and by what: torchrun, accelerate, or the variables of ms-swift."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from ..config.peer_options import PeerOptions, by_option
from ..errors import UsageError
from .options import Options, is_secret
from .run_file import RunFile

WHERE_RANKS_MEET = "the ranks of one machine find each other; of several, what starts the trainer on each says where"

LAUNCHER = PeerOptions(
    name="the launcher",
    version="",
    settings={},
    computed={
        "num_processes": ("deepspeed.nproc_per_node", None),
        "num_machines": ("deepspeed.nproc_per_node", 1),
        "config_file": ("deepspeed.zero_stage", None),
        "zero_stage": ("deepspeed.zero_stage", None),
        "use_deepspeed": ("deepspeed.zero_stage", False),
        "deepspeed_config_file": ("deepspeed.zero_stage", None),
        "offload_optimizer_device": ("deepspeed.offload_optimizer", "none"),
        "gpu_ids": ("deepspeed.nproc_per_node", None),
        "include": ("deepspeed.nproc_per_node", None),
    },
    server_flags={},
    not_needed=by_option(
        {
            WHERE_RANKS_MEET: "main_process_port main_process_ip machine_rank node_rank "
            "master_port master_addr rdzv_backend rdzv_endpoint rdzv_id standalone multi_gpu same_network max_restarts",
            "training is in bfloat16 with float32 master weights, or in float32": "mixed_precision downcast_bf16",
            "micro-batches are counted in tokens": "gradient_accumulation_steps gradient_clipping",
            "a debugging aid": "debug",
        }
    ),
    not_here=by_option(
        {
            "ranks are DeepSpeed's; deepspeed.sequence_parallel_size is for long sequences": "use_fsdp "
            "fsdp_version fsdp_sharding_strategy fsdp_auto_wrap_policy "
            "fsdp_offload_params use_megatron_lm tpu use_parallelism_config",
            "attention is not compiled": "dynamo_backend dynamo_mode",
            "weights are on the GPU": "offload_param_device cpu",
        }
    ),
    older={
        "nproc_per_node": "num_processes",
        "num_gpus": "num_processes",
        "nnodes": "num_machines",
        "num_nodes": "num_machines",
        "accelerate_config": "config_file",
    },
)
"""Options of torchrun, deepspeed and `accelerate launch` that stand in write-ups."""
CONFIGS_OF_TRL: dict[str, tuple[int, str | None]] = {
    "single_gpu": (1, None),
    "multi_gpu": (8, None),
    "zero1": (8, "zero1"),
    "zero2": (8, "zero2"),
    "zero3": (8, "zero3"),
    "fsdp1": (8, "fsdp"),
    "fsdp2": (8, "fsdp"),
}
"""The files that TRL brings for `--accelerate_config` → processes, and what shards."""
OF_IMAGES = ("MIN_PIXELS", "IMAGE_MAX_TOKEN_NUM", "VIDEO_MAX_TOKEN_NUM", "VIDEO_MAX_PIXELS",
             "FPS_MAX_FRAMES", "ENABLE_AUDIO_OUTPUT")  # fmt: skip
"""Variables that ms-swift reads for a model of pictures, films or sounds."""
OTHER_IMAGES = (
    "an image is cut as the checkpoint's image processor says, and made smaller before by data.max_image_pixels; there "
    "are no films and no sounds"
)
RANKS_FIND_EACH_OTHER = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "RANK", "LOCAL_RANK", "WORLD_SIZE")
_OFF = (["false"], ["none"], ["0"], ["no"], ["main"])


@dataclass
class Launch:
    """How a command starts its trainer."""

    processes: int = 1
    """On this machine."""
    machines: int = 1
    deepspeed: str | None = None
    sharded: str | None = None
    """What asks for FSDP."""
    shown: str = ""
    """What says `processes`."""
    deepspeed_shown: str = ""
    visible: list[str] | None = None
    """The GPUs of CUDA_VISIBLE_DEVICES."""
    remarks: list[str] = field(default_factory=list)


def launch_of(options: Options, variables: Mapping[str, str]) -> Launch:
    """Read the launcher's options and the variables of a command."""
    launch = Launch()
    if gpus := variables.get("CUDA_VISIBLE_DEVICES"):
        launch.visible = [gpu.strip() for gpu in gpus.split(",") if gpu.strip()]
    _read_config(launch, options)
    _read_options(launch, options)
    for name, known in (("NPROC_PER_NODE", "processes"), ("NNODES", "machines")):
        if name not in variables:
            continue
        if variables[name].isdecimal() and int(variables[name]):
            setattr(launch, known, int(variables[name]))
            launch.shown = name if known == "processes" else launch.shown
        else:
            launch.remarks.append(f"{name}={variables[name]} is no number: it is taken as 1")
    if launch.machines > 1:
        launch.remarks.append(
            f"{launch.machines} machines: start the trainer on each by torchrun, see docs/from-a-laptop-to-64-gpus.md"
        )
    return launch


def _read_config(launch: Launch, options: Options) -> None:
    name = options.text("config_file")
    if name is None:
        return
    shown = options.shown("config_file")
    if name in CONFIGS_OF_TRL:
        launch.processes, deepspeed = CONFIGS_OF_TRL[name]
        launch.shown = f"{shown}, of TRL's own file"
        if deepspeed == "fsdp":
            launch.sharded = shown
        else:
            launch.deepspeed, launch.deepspeed_shown = deepspeed, shown
        return
    try:
        content = yaml.safe_load(Path(name).read_text(encoding="utf-8")) or {}
    except OSError:
        launch.remarks.append(f"{shown}: there is no such file; processes and ZeRO stage are not known from it")
        return
    except yaml.YAMLError as error:
        raise UsageError(f"{shown} is no YAML: {error}") from error
    _read_accelerate(launch, content, shown)


def _read_accelerate(launch: Launch, content: Mapping[str, Any], shown: str) -> None:
    machines = int(content.get("num_machines") or 1)
    launch.machines = machines
    alone = str(content.get("distributed_type")) == "NO"  # accelerate then starts one, whatever num_processes is
    launch.processes = 1 if alone else max(1, int(content.get("num_processes") or 1) // machines)
    launch.shown = shown
    deepspeed = content.get("deepspeed_config") or {}
    if file := deepspeed.get("deepspeed_config_file"):
        launch.deepspeed, launch.deepspeed_shown = str(file), shown
    elif "zero_stage" in deepspeed:
        offloads = deepspeed.get("offload_optimizer_device", "none") not in ("none", None)
        launch.deepspeed = f"zero{deepspeed['zero_stage']}{'_offload' if offloads else ''}"
        launch.deepspeed_shown = shown
    elif str(content.get("distributed_type")) == "FSDP":
        launch.sharded = shown


def _read_options(launch: Launch, options: Options) -> None:
    machines, uses_deepspeed = options.text("num_machines"), options.truth("use_deepspeed")
    if machines is not None:
        launch.machines = int(machines) if machines.isdecimal() else 1
    count = options.text("num_processes")
    if count is not None and count.isdecimal():
        every_machine = options.written_as["num_processes"] == "num_processes"  # accelerate counts those of all
        launch.processes = max(1, int(count) // (launch.machines if every_machine else 1))
        launch.shown = options.shown("num_processes")
    elif count is not None:
        launch.remarks.append(f"{options.shown('num_processes')} is no number: it is taken as 1")
    slots = options.text("include")  # of deepspeed, localhost:0,1
    if slots is not None and count is None and ":" in slots and "@" not in slots:
        launch.visible = slots.partition(":")[2].split(",")
        launch.processes, launch.shown = len(launch.visible), options.shown("include")
    gpus = options.text("gpu_ids")
    if gpus is not None and gpus != "all":
        launch.visible = gpus.split(",")
    file, stage = options.text("deepspeed_config_file"), options.text("zero_stage")
    offloads = options.text("offload_optimizer_device") not in (None, "none")
    if file is not None:
        launch.deepspeed, launch.deepspeed_shown = file, options.shown("deepspeed_config_file")
    elif stage is not None:
        launch.deepspeed = f"zero{stage}{'_offload' if offloads else ''}"
        launch.deepspeed_shown = options.shown("zero_stage")
    elif uses_deepspeed and launch.deepspeed is None:
        launch.deepspeed, launch.deepspeed_shown = "zero2", f"{options.shown('use_deepspeed')}; accelerate's default"


def report_variables(run: RunFile, variables: Mapping[str, str], read: set[str]) -> None:
    """Report the variables of a command that are no settings."""
    for name, value in variables.items():
        if name in read:
            continue
        if name in OF_IMAGES:
            run.differs.append(f"{name}={value}: {OTHER_IMAGES}")
        elif name in RANKS_FIND_EACH_OTHER:
            run.not_needed.append(f"{name}={value}: {WHERE_RANKS_MEET}")
        else:
            shown = "…" if is_secret(name) else value
            run.not_needed.append(f"{name}={shown}: set it for the trainer, where you need it")


def report_rest(run: RunFile, options: Options, *, of: str = "") -> None:
    """Report every option that nothing has read, with its reason, and those that are not named yet.

    So nothing is left out in silence, whatever reads the options. `of` is the command, where it is another one.
    """
    run.differs += [f"{of} {remark}".lstrip() for remark in options.remarks]
    peer = options.peer
    for name in options.unread:
        shown = f"{of} {options.shown(name)}".lstrip()
        values = [value.lower() for value in options.given[name]]
        if name in peer.not_needed:
            run.not_needed.append(f"{shown}: {peer.not_needed[name]}")
        elif name in peer.not_here and values in _OFF:
            run.not_needed.append(f"{shown}: off, as here")
        elif name in peer.not_here:
            run.differs.append(f"{shown}: {peer.not_here[name]}")
        elif of and name in peer.known:
            run.differs.append(f"{shown}: give it to the command that trains, which decides on it here")
        elif name in peer.known:
            run.differs.append(f"{shown}: nothing reads it beside the other options of the command")
        else:
            close = get_close_matches(name, peer.known, n=1, cutoff=0.8)
            meant = f"; did you mean --{close[0]}? Nothing is set by it" if close else ""
            run.differs.append(
                f"{shown}: no option of {peer.name} {peer.version} that is known here{meant}".replace("  ", " ")
            )
    for name in options.given:
        flag = peer.server_flags.get(name, (None,))[0]
        if not (run.names(options.written_as[name]) or (flag is not None and any(flag in line for line in run.starts))):
            run.not_needed.append(f"{of} {options.shown(name)}: it is part of what is above".lstrip())
