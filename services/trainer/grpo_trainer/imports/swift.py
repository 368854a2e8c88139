"""`swift rlhf --rlhf_type grpo …` becomes a run file."""

from collections.abc import Mapping
from pathlib import Path

from ..config.swift_options import MS_SWIFT
from ..errors import UsageError
from . import training
from .config_file import SUFFIXES, read_config_file
from .first_adapter import set_first_adapter
from .launcher import LAUNCHER, Launch, launch_of, report_rest, report_variables
from .older_versions import report_older_swift
from .options import Options, given
from .quantized import set_quantized
from .run_file import RunFile, checked
from .servers import (
    Sampling,
    on_its_own_gpu,
    reachable,
    replicate,
    server_flags,
    set_reward_server,
    set_servers,
    set_teacher_server,
)
from .shell_words import Command
from .swift_chord import set_chord
from .swift_episodes import set_swift_episodes
from .swift_frozen import set_frozen
from .swift_images import MAX_PIXELS, set_swift_images
from .swift_rewards import set_swift_rewards
from .swift_rows import LONGEST_PROMPT, set_swift_rows
from .swift_teacher import set_swift_teacher
from .values import read, target_modules

ESTIMATORS = {
    # advantage_estimator → ours, whether the KL is in the reward, scale_rewards
    "grpo": ("grpo", False, "group"),
    "rloo": ("rloo", True, "none"),
    "reinforce_plus_plus": ("reinforce_plus_plus_baseline", True, "batch"),
}
_READ_VARIABLES = {"CUDA_VISIBLE_DEVICES", "NPROC_PER_NODE", "NNODES", "WANDB_PROJECT"}
_OF_THE_MODEL = "ms-swift takes the dtype of the model's files, which is mostly bfloat16"
LOSS_PARAMS = {
    "sapo": {"tau_pos": "sapo_temperature_pos", "tau_neg": "sapo_temperature_neg"},
    "fipo": {
        name: name for name in ("fipo_decay_rate", "fipo_clip_range", "fipo_clip_high_only", "fipo_safety_threshold")
    },
}
"""Loss → the names of its parameters: ms-swift's option → ours."""
RATES = {"full": 1e-5, "lora": 1e-4}
"""ms-swift's default learning rates."""


def import_swift(command: Command, server: Command | None, expanded: set[str]) -> RunFile:
    """Write the run file of `command`; `server` is the `swift rollout` that stands beside it.

    `expanded` are variables that stand in its words. Raises UsageError.
    """
    options, run = Options(MS_SWIFT), RunFile()
    before = options.add_words(_behind(command.words, "rlhf"))
    variables = _add_file(options, before) | command.variables
    launcher = Options(LAUNCHER)
    launcher.add_words(_before(command.words, "rlhf"))
    run.differs += [f"{word} is no option" for word in before]
    kind = options.text("rlhf_type")
    if kind != "grpo":
        said = "ms-swift's default, dpo" if kind is None else kind
        raise UsageError(
            f"rlhf_type is {said}, and only grpo is imported", hint="write --rlhf_type grpo, if it is that"
        )
    run.not_needed.append(f"{options.shown('rlhf_type')}: there is no other")
    launch = launch_of(launcher, variables)
    run.differs += launch.remarks
    _set_model(options, run)
    training.set_settings(options, run, {"beta": 0.04})
    _set_algorithm(options, run)
    _set_project(options, run, variables)
    run.set("deepspeed.nproc_per_node", launch.processes, launch.shown or "no NPROC_PER_NODE: one process")
    deepspeed = options.text("deepspeed")
    fsdp = options.shown("fsdp") if options.has("fsdp") else None
    training.set_deepspeed(run, deepspeed, options.shown("deepspeed") if deepspeed else "", sharded=fsdp)
    training.set_option(options, run, "ddp_timeout", "deepspeed.timeout_s", options.peer.default("ddp_timeout"))
    training.settle_groups(run, launch.processes * launch.machines)
    batch = training.set_batch(options, run, launch.processes * launch.machines)
    beside = Options(MS_SWIFT)
    if server is not None:
        beside.add_words(_behind(server.words, "rollout"))
    set_swift_episodes(options, beside, run)
    evaluates = set_swift_rows(options, run)
    save_steps = options.number("save_steps")
    training.set_steps(
        options, run, batch, evaluates=evaluates, eval_steps=int(save_steps or MS_SWIFT.default("save_steps"))
    )
    training.set_schedule(options, run)
    training.set_best(options, run, evaluates=evaluates)
    set_chord(options, run, batch)
    set_swift_images(options, run, variables)
    teacher = set_swift_teacher(options, run)
    arguments = set_swift_rewards(options, run)
    training.settle(run)
    if run.value("algorithm.max_staleness"):
        run.set(
            "weights.in_flight", "wait", f"{options.shown('async_generate')}: ms-swift syncs when sampling has ended"
        )
    _set_servers(options, run, launch, server, beside)
    if teacher is not None:
        set_teacher_server(run, teacher, options.shown("teacher_model"))
    set_reward_server(run, arguments)
    report_older_swift(options, run)
    for read_options in (options, launcher):
        report_rest(run, read_options)
    report_variables(run, variables, _READ_VARIABLES | {MAX_PIXELS} | expanded)
    return run


def _add_file(options: Options, before: list[str]) -> dict[str, str]:
    """Read the file of options that stands before the others or behind --config, and return the variables that it sets.

    Takes it from `before`.
    """
    given = options.text("config")
    file = given or next((word for word in before if word.endswith(SUFFIXES)), None)
    if file is None:
        return {}
    if given is None:
        before.remove(file)
    mapping = read_config_file(Path(file))
    variables = mapping.pop("ENV", None) or {}
    options.add_mapping(mapping)
    return {str(name): str(value) for name, value in variables.items()}


def _behind(words: list[str], verb: str) -> list[str]:
    """The words behind `swift rlhf`, `…/rlhf.py` or `swift.cli.rlhf`; all of them where options come first."""
    for i, word in enumerate(words if not words[0].startswith("--") else ()):
        if word in (verb, f"swift.cli.{verb}") or word.endswith(f"/{verb}.py"):
            return words[i + 1 :]
    return words


def _before(words: list[str], verb: str) -> list[str]:
    """The words of a launcher before that."""
    return words[: max(0, len(words) - len(_behind(words, verb)) - 1)]


def _set_model(options: Options, run: RunFile) -> None:
    model = options.text("model")
    if model is None:
        raise UsageError("--model is missing", hint="name the model to train, a folder or a Hub name")
    run.set("model.name_or_path", model, "; ".join(given(options, "model", "tuner_type")))
    output = options.text("output_dir")
    suffix = model.rstrip("/").rpartition("/")[2]
    run.set("run_dir", output or f"output/{suffix}", options.shown("output_dir") if output else "ms-swift's default")
    if options.truth("add_version"):
        run.not_needed.append(f"{options.shown('add_version')}: a run_dir that holds a run already is refused")
    _set_dtype(options, run)
    tuner = options.text("tuner_type")
    kind = tuner or "lora"
    shown = options.shown("tuner_type") if tuner else "ms-swift's default of tuner_type is lora"
    if kind not in RATES:
        run.differs.append(f"{shown}: an adapter is plain LoRA")
    if kind != "full":
        _set_lora(options, run, shown)
    set_frozen(options, run, trains_all=kind == "full")
    rate = RATES.get(kind, RATES["lora"])
    training.set_option(options, run, "learning_rate", "optimizer.learning_rate", rate)


def _set_dtype(options: Options, run: RunFile) -> None:
    dtype = options.text("torch_dtype")
    asked = [options.shown(name) for name in ("fp16", "bf16") if options.truth(name)]
    if dtype in (None, "bfloat16", "float32"):
        run.set(
            "model.dtype",
            dtype or "bfloat16",
            options.shown("torch_dtype") if dtype else "; ".join(asked) or _OF_THE_MODEL,
        )
    else:
        run.set("model.dtype", "bfloat16", f"in place of {dtype}")
        run.differs.append(f"{options.shown('torch_dtype')}: weights are bfloat16 or float32")
    run.differs += [f"{shown}: weights are bfloat16 or float32" for shown in asked if "fp16" in shown]
    run.not_needed += [f"{shown}: model.dtype" for shown in asked if "bf16" in shown]
    method, bits = options.text("quant_method"), options.text("quant_bits")
    if method is None and bits is None:
        return
    shown = " ".join(options.shown(name) for name in ("quant_method", "quant_bits") if options.has(name))
    if method == "bnb" and bits == "4":
        set_quantized(run, shown)
    else:
        run.differs.append(f"{shown}: the quantized format is NF4, which bnb with 4 bits is")


def _set_lora(options: Options, run: RunFile, shown: str) -> None:
    rank = options.whole("lora_rank")
    rank = checked("model.lora.r", MS_SWIFT.default("lora_rank") if rank is None else rank, "--lora_rank")
    run.set("model.lora.r", rank, "; ".join([shown, *given(options, "lora_rank")]))
    for option, setting in (
        ("lora_alpha", "alpha"),
        ("lora_dropout", "dropout"),
        ("use_rslora", "use_rslora"),
    ):
        training.set_option(options, run, option, f"model.lora.{setting}", options.peer.default(option))
    pattern, modules = options.text("target_regex"), options.values("target_modules")
    if pattern is not None:
        run.set("model.lora.target_modules", pattern, options.shown("target_regex"))
    elif modules is not None:
        run.set("model.lora.target_modules", target_modules(modules), options.shown("target_modules"))
    if parameters := options.values("target_parameters"):
        run.set("model.lora.target_parameters", parameters, options.shown("target_parameters"))
    ratio = options.number("lorap_lr_ratio")
    if ratio == 0:
        run.not_needed.append(f"{options.shown('lorap_lr_ratio')}: off, as here")
    elif ratio is not None:
        ratio = checked("optimizer.loraplus_lr_ratio", ratio, options.shown("lorap_lr_ratio"))
        run.set("optimizer.loraplus_lr_ratio", ratio, options.shown("lorap_lr_ratio"))
    adapters = options.values("adapters") or []
    if len(adapters) == 1:
        set_first_adapter(run, adapters[0], options.shown("adapters"))
    elif adapters:
        run.differs.append(f"{options.shown('adapters')}: a run starts from one adapter")


def _set_advantages(options: Options, run: RunFile) -> None:
    if run.value("algorithm.loss_type") == "real":
        tau = options.number("real_tau")
        tau = MS_SWIFT.default("real_tau") if tau is None else tau
        why = options.shown("real_tau") if options.has("real_tau") else "ms-swift's default"
        run.set("algorithm.advantage_estimator_params", {"tau": tau}, why)
        labels = "loss_type real reads of rewards which are above their group's mean, by any estimator and scale"
        run.not_needed += [f"{one}: {labels}" for one in given(options, "advantage_estimator", "scale_rewards")]
        if options.truth("kl_in_reward"):
            run.differs.append(f"{options.shown('kl_in_reward')}: loss_type real reads rewards without a KL in them")
        return
    run.not_needed += [f"{one}: loss_type real alone reads it" for one in given(options, "real_tau")]
    estimator = options.or_default("advantage_estimator")
    if estimator not in ESTIMATORS:
        raise UsageError(f"{options.shown('advantage_estimator')}: ms-swift has {', '.join(ESTIMATORS)}")
    ours, kl_in_reward, scale = ESTIMATORS[estimator]
    asked = options.text("scale_rewards")
    if asked == "gdpo":
        ours, scale, asked = "gdpo", "batch", None
        run.set("algorithm.advantage_estimator", ours, options.shown("scale_rewards"))
    elif estimator != "grpo" or options.has("advantage_estimator"):
        run.set("algorithm.advantage_estimator", ours, options.shown("advantage_estimator"))
    if asked is not None:
        run.set(
            "algorithm.scale_rewards",
            read("algorithm.scale_rewards", asked, asked).value,
            options.shown("scale_rewards"),
        )
    elif ours == "rloo":
        run.set("algorithm.scale_rewards", scale, f"ms-swift's default with {estimator}")
    in_reward = options.truth("kl_in_reward")
    if in_reward is not None:
        run.set("algorithm.kl_in_reward", in_reward, options.shown("kl_in_reward"))
    elif kl_in_reward:
        run.set("algorithm.kl_in_reward", True, f"ms-swift's default with {estimator}")


def _set_algorithm(options: Options, run: RunFile) -> None:
    _set_advantages(options, run)
    run.set("algorithm.kl_estimator", "k3", "ms-swift's KL")
    mode, limit = (
        options.text("rollout_importance_sampling_mode"),
        options.number("rollout_importance_sampling_threshold"),
    )
    if mode is None:
        run.set(
            "algorithm.importance_sampling_correction", False, "ms-swift's default: no rollout_importance_sampling_mode"
        )
        if limit is not None:
            run.not_needed.append(f"{options.shown('rollout_importance_sampling_threshold')}: no mode is given")
    else:
        run.set("algorithm.importance_sampling_mode", mode, options.shown("rollout_importance_sampling_mode"))
        run.set(
            "algorithm.importance_sampling_clip_max",
            2.0 if limit is None else limit,
            "; ".join(given(options, "rollout_importance_sampling_threshold")) or "ms-swift's default",
        )
    training.set_loss_params(options, run, LOSS_PARAMS)
    reference = options.text("ref_model")
    if reference is not None:
        is_ours = reference == options.text("model") or not run.value("algorithm.beta")
        notes = run.not_needed if is_ours else run.differs
        notes.append(f"{options.shown('ref_model')}: the reference is the model that the run starts from")


def _set_project(options: Options, run: RunFile, variables: Mapping[str, str]) -> None:
    trackers = run.value("logging.report_to")
    shown = given(options, "swanlab_project", "project")
    asked = options.text("swanlab_project") or options.text("project")
    if asked is not None:
        run.set("logging.project", asked, "; ".join(shown))
    elif "WANDB_PROJECT" in variables:
        run.set("logging.project", variables["WANDB_PROJECT"], "WANDB_PROJECT")
    elif {"wandb", "swanlab"} & set(trackers):
        run.set("logging.project", "ms-swift", "ms-swift's default")


def _set_servers(options: Options, run: RunFile, launch: Launch, server: Command | None, beside: Options) -> None:
    """`beside` are the options of `server`."""
    flags = server_flags(options, beside)
    sampling = _sampling(options, launch)
    if server is not None and sampling.way == "server":
        gpus = server.variables.get("CUDA_VISIBLE_DEVICES")
        sampling.server_gpus = gpus.split(",") if gpus else None
        sampling.why += "; the command swift rollout"
        model = beside.text("model")
        if model is not None and model != run.value("model.name_or_path"):
            run.differs.append(f"swift rollout serves {model}, and the run's model has to be served")
        copies = beside.whole("vllm_data_parallel_size") or 1
        first = beside.whole("port") or 8000
        if copies > 1:
            shown = beside.shown("vllm_data_parallel_size")
            replicate(run, sampling, f"http://127.0.0.1:{first}", copies, shown)
        beside.values("host")
        report_rest(run, beside, of="swift rollout")
    several_turns = any(setting.startswith("episodes.") for setting in run.entries)
    if not several_turns and "--max-model-len" not in flags and run.value("data.max_prompt_length") != LONGEST_PROMPT:
        total = run.value("data.max_prompt_length") + run.value("rollout.max_completion_length")
        flags["--max-model-len"] = str(total)
    set_servers(run, sampling, flags, visible=launch.visible, processes=launch.processes)


def _sampling(options: Options, launch: Launch) -> Sampling:
    uses, mode, device = options.truth("use_vllm"), options.text("vllm_mode"), options.text("vllm_device")
    urls, hosts, ports = (options.values(f"vllm_server_{name}") for name in ("base_url", "host", "port"))
    said = "; ".join(given(options, *_OF_SAMPLING))
    if uses and (mode == "server" or urls or hosts):
        if not urls:
            names = [reachable(host) for host in hosts or ["127.0.0.1"]]
            numbers = ports or ["8000"]
            numbers = numbers * len(names) if len(numbers) == 1 else numbers
            if len(numbers) != len(names):
                raise UsageError(
                    f"{len(names)} vllm_server_host and {len(numbers)} vllm_server_port: one for each is needed"
                )
            urls = [f"http://{name}:{number}" for name, number in zip(names, numbers, strict=True)]
        return Sampling("server", said, urls=[url.rstrip("/") for url in urls])
    if not uses:
        return Sampling("shared", said or "no use_vllm: ms-swift samples in the trainer")
    if mode == "colocate":
        return Sampling("shared", said)
    return on_its_own_gpu(device, launch.visible, launch.processes, said)


_OF_SAMPLING = (
    "use_vllm", "vllm_mode", "vllm_device", "vllm_server_base_url", "vllm_server_host", "vllm_server_port",
    "vllm_data_parallel_size",
)  # fmt: skip
