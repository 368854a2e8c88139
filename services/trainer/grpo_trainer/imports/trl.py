"""`trl grpo …`, a script that reads TRL's options, or TRL's YAML file becomes a run file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config.open_r1_options import OPEN_R1
from ..config.trl_options import TRL
from ..errors import UsageError
from . import training
from .batch import REFUSED_THERE
from .config_file import read_config_file
from .first_adapter import set_first_adapter
from .generation import set_generation
from .launcher import LAUNCHER, Launch, launch_of, report_rest, report_variables
from .older_versions import report_older_trl
from .open_r1 import DEFAULT as DEFAULT_OF_OPEN_R1
from .open_r1 import open_r1_reward, report_parameters
from .options import Options
from .quantized import set_quantized
from .rewards import Found, OurReward, add_models, add_plugin, set_rewards
from .run_file import RunFile, checked
from .script_episodes import set_episodes
from .script_reader import TrlScript
from .servers import Sampling, on_its_own_gpu, reachable, replicate, server_flags, set_reward_server, set_servers
from .shell_words import Command
from .values import target_modules
from .vllm_flags import vllm_flags

REWARDS = {
    "accuracy_reward": OurReward("accuracy"),
    "reasoning_accuracy_reward": OurReward(
        "accuracy",
        remark="reasoning_accuracy_reward looks behind </think> alone; accuracy takes the <answer> block or the last "
        "box",
    ),
    "think_format_reward": OurReward("regex", {"pattern": "(?s)\\A<think>(?!.*<think>).*?</think>"}),
    "get_soft_overlong_punishment": OurReward("soft_overlong", {"max_len": 1280, "cache_len": 256}),
}
"""Those that `trl grpo` knows by name, with the values that it uses."""
LOSS_PARAMS = {
    "sapo": ("sapo_temperature_pos", "sapo_temperature_neg"),
    "vespo": ("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
}
LONGEST_PROMPT = 32768
"""TRL has no limit of its own."""


def import_trl(
    command: Command,
    server: Command | None,
    expanded: set[str],
    file: Path | None = None,
    *,
    said: TrlScript | None = None,
) -> RunFile:
    """Write the run file of `command`, or of TRL's YAML `file`; `server` is the `trl vllm-serve` that stands beside it.

    `expanded` are variables that stand in its words, `said` what a script says itself. Raises UsageError.
    """
    options, launcher, run = Options(OPEN_R1), Options(LAUNCHER), RunFile()
    said = said or TrlScript()
    variables = dict(command.variables)
    ahead, words = _cut(command.words)
    launcher.add_words(ahead)
    options.add_words(_without_launcher(words, launcher))
    config = file or _config_of(options)
    if config is not None:
        mapping = read_config_file(config)
        variables = {str(name): str(value) for name, value in (mapping.pop("env", None) or {}).items()} | variables
        _launcher_keys(mapping, launcher)
        options.add_mapping(mapping)
    options.add_mapping(said.options)
    launch = launch_of(launcher, variables)
    if (
        not launch.shown
        and not launcher.has("config_file")
        and (not ahead or any(Path(word).name == "accelerate" for word in ahead))
    ):
        _take_every_gpu(launch)
    run.differs += launch.remarks
    if said.adapter is not None:
        run.set("model.lora.adapter", said.adapter, "what the script says")
    _set_model(options, run)
    if said.adapter is not None:
        set_first_adapter(run, said.adapter, "what the script says")
    training.set_settings(options, run, {})
    set_generation(options, run)
    _set_algorithm(options, run)
    if "WANDB_PROJECT" in variables:
        run.set("logging.project", variables["WANDB_PROJECT"], "WANDB_PROJECT")
    run.set("deepspeed.nproc_per_node", launch.processes, launch.shown or "the number of processes is not said: one")
    asked = options.text("deepspeed")
    training.set_deepspeed(
        run,
        asked or launch.deepspeed,
        options.shown("deepspeed") if asked else launch.deepspeed_shown,
        sharded=launch.sharded or (options.shown("fsdp") if options.has("fsdp") else None),
    )
    try:
        batch = training.set_batch(options, run, launch.processes * launch.machines)
    except UsageError as error:
        if launch.shown:
            raise
        raise UsageError(
            error.message.removesuffix(REFUSED_THERE),
            hint="the number of processes is not said: give it behind the file, --num_processes 8",
        ) from error
    evaluates = _set_rows(options, run)
    steps = options.number("logging_steps") if evaluates else None  # theirs, where eval_steps is not given
    if evaluates:
        for setting, value in said.settings.items():
            run.set(setting, value, "what the script says")
    set_episodes(said, options, run)
    training.set_steps(options, run, batch, evaluates=evaluates, eval_steps=int(steps or 10))
    training.set_schedule(options, run)
    training.set_best(options, run, evaluates=evaluates)
    is_open_r1 = any("open_r1" in word and word.endswith(".py") for word in command.words)
    is_paid = said.environment_pays or "reward_funcs" in said.episodes
    arguments = _set_rewards(options, run, default=DEFAULT_OF_OPEN_R1 if is_open_r1 else (), is_paid=is_paid)
    training.settle(run)
    _set_servers(options, run, launch, server)
    set_reward_server(run, arguments)
    report_older_trl(options, run)
    for read_options in (options, launcher):
        report_rest(run, read_options)
    report_variables(run, variables, {"CUDA_VISIBLE_DEVICES", "WANDB_PROJECT"} | expanded | said.variables)
    return run


def _take_every_gpu(launch: Launch) -> None:
    """Count the processes as accelerate does, and `trl grpo` by it, where nothing says how many there are."""
    if launch.visible:
        launch.processes = len(launch.visible)
        launch.shown = "CUDA_VISIBLE_DEVICES: accelerate starts a process for each GPU"
    else:
        launch.remarks.append(
            "the number of processes is not said, and accelerate starts one for each GPU of the machine: set "
            "deepspeed.nproc_per_node, and multiply rollout.generation_batch_size by it"
        )


def _cut(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of the launcher, and those of TRL's script."""
    for i, word in enumerate(words):
        if word == "grpo" and i and words[i - 1].endswith("trl"):
            return [], list(words[i + 1 :])
        if word.endswith((".py", ".ipynb")):
            return list(words[:i]), list(words[i + 1 :])
        if word == "-m" and i + 1 < len(words):
            return list(words[:i]), list(words[i + 2 :])
    return [], list(words)


def _without_launcher(words: Sequence[str], launcher: Options) -> list[str]:
    """The words without those of accelerate, which `trl grpo` takes among its own."""
    kept: list[str] = []
    taken: list[str] = []
    target = kept
    for word in words:
        if word.startswith("--"):
            name = word.removeprefix("--").partition("=")[0].replace("-", "_")
            target = taken if name in LAUNCHER.known and name not in TRL.known else kept
        target.append(word)
    launcher.add_words(taken)
    return kept


def _config_of(options: Options) -> Path | None:
    file = options.text("config")
    return Path(file) if file is not None else None


def _launcher_keys(mapping: dict[str, Any], launcher: Options) -> None:
    ours = {name: mapping.pop(name) for name in list(mapping) if name in LAUNCHER.known and name not in TRL.known}
    launcher.add_mapping(ours)


def _set_model(options: Options, run: RunFile) -> None:
    model = options.text("model_name_or_path")
    if model is None:
        raise UsageError(
            "--model_name_or_path is missing",
            hint="name the model, a folder or a Hub name, by that option behind the file",
        )
    output = options.text("output_dir")
    run.set(
        "run_dir", output or "trainer_output", options.shown("output_dir") if output else "TRL's default of output_dir"
    )
    run.set("model.name_or_path", model, options.shown("model_name_or_path"))
    template = options.text("chat_template")
    if template is not None:
        run.set("model.chat_template", template, "--chat_template")
    half, brain = options.truth("fp16"), options.truth("bf16")
    dtype = options.or_default("dtype")
    shown = "; ".join(options.shown(name) for name in ("dtype", "bf16", "fp16") if options.has(name))
    if half or dtype == "float16":
        run.differs.append(f"{shown}: weights are bfloat16 or float32")
    is_float32 = brain is False and not half and dtype == "float32"
    why = shown or "TRL's default of bf16"
    run.set(
        "model.dtype",
        "float32" if is_float32 else "bfloat16",
        why if is_float32 else f"{why}; master weights are float32",
    )
    if options.truth("load_in_4bit"):
        set_quantized(run, options.shown("load_in_4bit"))
    _set_lora(options, run)


def _set_lora(options: Options, run: RunFile) -> None:
    names = {"lora_r": "r", "lora_alpha": "alpha", "lora_dropout": "dropout", "use_rslora": "use_rslora"}
    if not options.truth("use_peft"):
        for option in [*names, "lora_target_modules", "lora_target_parameters"]:
            if options.values(option) is not None:
                run.not_needed.append(f"{options.shown(option)}: use_peft is off, so TRL trains all weights")
        if options.has("use_peft"):
            run.not_needed.append(f"{options.shown('use_peft')}: all weights are trained")
        return
    rank = options.whole("lora_r")
    shown = [options.shown(name) for name in ("use_peft", "lora_r") if options.has(name)]
    rank = checked("model.lora.r", TRL.default("lora_r") if rank is None else rank, "--lora_r")
    run.set("model.lora.r", rank, "; ".join(shown))
    for option, name in names.items():
        if option != "lora_r":
            training.set_option(options, run, option, f"model.lora.{name}", TRL.default(option))
    modules = options.values("lora_target_modules")
    if modules is not None:
        run.set("model.lora.target_modules", target_modules(modules), options.shown("lora_target_modules"))
    elif "model.lora.adapter" not in run.entries:
        run.differs.append(
            "lora_target_modules is not given: PEFT takes what it has for the model's family, often q_proj and v_proj "
            "alone; model.lora.target_modules is all-linear"
        )
    if parameters := options.values("lora_target_parameters"):
        run.set("model.lora.target_parameters", parameters, options.shown("lora_target_parameters"))


def _set_algorithm(options: Options, run: RunFile) -> None:
    together = options.text("multi_objective_aggregation")
    if together == "normalize_then_sum":
        run.set("algorithm.advantage_estimator", "gdpo", options.shown("multi_objective_aggregation"))
        run.entries.pop("algorithm.scale_rewards", None)
    elif together is not None:
        run.not_needed.append(f"{options.shown('multi_objective_aggregation')}: the default estimator does it")
    training.set_loss_params(
        options, run, {loss: {name: name for name in names} for loss, names in LOSS_PARAMS.items()}
    )


def _set_rows(options: Options, run: RunFile) -> bool:
    """Write the rows; return whether there are held-out ones."""
    name, subset = options.text("dataset_name"), options.text("dataset_config")
    if name is None:
        raise UsageError(
            "--dataset_name is missing", hint="name the rows to train on, by --dataset_name behind the file"
        )
    dataset = f"{name}:{subset}" if subset else name
    shown = "; ".join(options.shown(option) for option in ("dataset_name", "dataset_config") if options.has(option))
    run.set("data.dataset", dataset, shown)
    looks_like_file = name.startswith((".", "/", "~")) or Path(name).suffix in (".jsonl", ".json", ".csv", ".parquet")
    if looks_like_file and not Path(name).expanduser().exists():
        run.differs.append(f"{options.shown('dataset_name')}: there is no such file")
    system = options.text("system_prompt")
    if system is not None:
        run.set("data.system", system, "--system_prompt")
    column = options.text("dataset_prompt_column")
    if column is not None:
        run.set("data.prompt_column", column, options.shown("dataset_prompt_column"))
    longest, total = options.whole("max_prompt_length"), options.whole("vllm_max_model_length")
    if longest is not None:
        run.set("data.max_prompt_length", longest, options.shown("max_prompt_length"))
        run.differs.append(f"{options.shown('max_prompt_length')}: {training.NEVER_CUT}")
    elif total is not None and total > run.value("rollout.max_completion_length"):
        longest = total - run.value("rollout.max_completion_length")
        run.set("data.max_prompt_length", longest, "vllm_max_model_length less max_completion_length")
    else:
        run.set("data.max_prompt_length", LONGEST_PROMPT, "TRL has no limit")
    training.set_micro_batch(options, run, longest)
    return _set_held_out(options, run, dataset)


def _set_held_out(options: Options, run: RunFile, dataset: str) -> bool:
    strategy = options.or_default("eval_strategy")
    split, count = options.text("dataset_test_split"), options.whole("num_generations_eval")
    given = [options.shown(name) for name in ("dataset_test_split", "num_generations_eval") if options.has(name)]
    if strategy == "no":
        run.not_needed += [f"{shown}: eval_strategy is no" for shown in given]
        if options.has("eval_strategy"):
            run.not_needed.append(f"{options.shown('eval_strategy')}: without data.eval_dataset nothing is evaluated")
        return False
    if strategy != "steps":
        run.differs.append(f"{options.shown('eval_strategy')}: evaluations are every so many steps, eval.eval_steps")
    run.set("data.eval_dataset", dataset, options.shown("eval_strategy"))
    split_shown = options.shown("dataset_test_split") if split else "TRL's default of dataset_test_split"
    run.set("data.eval_split", split or "test", split_shown)
    count_shown = options.shown("num_generations_eval") if count else "as num_generations"
    run.set("eval.num_generations_eval", count or run.value("rollout.num_generations"), count_shown)
    return True


def _set_rewards(options: Options, run: RunFile, *, default: Sequence[str], is_paid: bool) -> list[str]:
    """Write the rewards, those of the script where none is named; return the arguments of the reward server.

    `is_paid`: episodes bring rewards of their own.
    """
    found, models = Found(), options.values("reward_model_name_or_path") or []  # several of a script
    add_models(found, models)
    for position, name in enumerate(options.values("reward_funcs") or default):
        ours = REWARDS.get(name) or open_r1_reward(name, options)
        if ours is not None and ours.name in found.funcs:
            run.differs.append(f"reward {name} is {ours.name}, which is there already: it is left out")
            found.left_out.append(position + len(models))
        elif ours is not None:
            found.add(ours)
            run.differs += [ours.remark] if ours.remark else []
        else:
            _add_own(found, run, name)
    report_parameters(options, found, run)
    names = ("reward_model_name_or_path", "reward_funcs")
    shown = "; ".join(options.shown(name) for name in names if options.has(name)) or "what open-r1's script pays"
    if not found.funcs and is_paid:
        shown = "what plays the episodes pays"
    elif not found.funcs:
        raise UsageError(
            "no reward is named: --reward_funcs and --reward_model_name_or_path are missing",
            hint="where a script of yours has the functions, name them as module.function in --reward_funcs",
        )
    weights = options.shown("reward_weights") if options.has("reward_weights") else ""
    set_rewards(run, found, shown, weights)
    return found.arguments


def _add_own(found: Found, run: RunFile, name: str) -> None:
    """A function of the user's, `package.module.function`, or `FILE.py:FUNCTION` of a script that is read."""
    if ".py:" in name:
        found.funcs.append(name)
        add_plugin(found, name.rpartition(":")[0])
        return
    module, dot, function = name.rpartition(".")
    file = f"{module.replace('.', '/')}.py"
    if dot and Path(file).is_file():
        found.funcs.append(f"{file}:{function}")
    elif dot:
        found.funcs.append(function)
        run.differs.append(f"reward {name}: there is no file {file} here; the reward server needs it as --plugin")
    else:
        found.funcs.append(name)
        run.differs.append(f"reward {name} is none of TRL's own: the reward server has to have it, by --plugin FILE.py")
    if dot:
        add_plugin(found, file)


def _set_servers(options: Options, run: RunFile, launch: Launch, server: Command | None) -> None:
    flags = server_flags(options)
    sampling = _sampling(options, launch)
    if server is not None and sampling.way == "server":
        gpus = server.variables.get("CUDA_VISIBLE_DEVICES")
        sampling.server_gpus = gpus.split(",") if gpus else None
        flags |= vllm_flags(server.words)
        copies = flags.pop("--data-parallel-size", "1")
        if copies != "1":
            if not copies.isdecimal() or not int(copies):
                raise UsageError(f"--data-parallel-size {copies} is no number of replicas")
            replicate(run, sampling, sampling.urls[0], int(copies), f"--data-parallel-size {copies}")
    longest = run.value("data.max_prompt_length")
    if "--max-model-len" not in flags and longest != LONGEST_PROMPT:
        flags["--max-model-len"] = str(longest + run.value("rollout.max_completion_length"))
    set_servers(run, sampling, flags, visible=launch.visible, processes=launch.processes)


def _sampling(options: Options, launch: Launch) -> Sampling:
    uses, mode = options.truth("use_vllm"), options.or_default("vllm_mode")
    url, host, port = (
        options.text("vllm_server_base_url"),
        options.or_default("vllm_server_host"),
        options.or_default("vllm_server_port"),
    )
    names = ("use_vllm", "vllm_mode", "vllm_device", "vllm_server_base_url", "vllm_server_host", "vllm_server_port")
    device = options.text("vllm_device")  # of a time when that was the only way
    said = "; ".join(options.shown(name) for name in names if options.has(name))
    if uses and mode == "server":
        name = reachable(host)
        return Sampling("server", said, urls=[(url or f"http://{name}:{port}").rstrip("/")])
    if uses and device is not None:
        return on_its_own_gpu(device, launch.visible, launch.processes, said)
    if uses:
        return Sampling(
            "shared", said if options.has("vllm_mode") else f"{said}; TRL's default of vllm_mode is colocate"
        )
    return Sampling("shared", said or "no use_vllm: TRL samples in the trainer")
