"""Read model, adapter and settings of a script: `from_pretrained`, `LoraConfig`, `GRPOConfig`."""

import ast
from collections.abc import Mapping

from .python_source import called, keywords
from .python_values import UnknownValueError
from .script_reader import Reader, is_none, short

_LORA = {
    "r": "lora_r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "target_modules": "lora_target_modules",
    "target_parameters": "lora_target_parameters",
    "modules_to_save": "lora_modules_to_save",
    "use_rslora": "use_rslora",
    "use_dora": "use_dora",
}
_DEFAULTS = {
    "LoraConfig": {"lora_r": 8, "lora_alpha": 8, "lora_dropout": 0.0},
    "get_peft_model": {"lora_r": 16, "lora_alpha": 16, "lora_dropout": 0.0},
}
"""Defaults of PEFT and of Unsloth; `trl grpo` has others."""
_OF_LOADING = {
    "torch_dtype": "dtype",
    "dtype": "dtype",
    "attn_implementation": "attn_implementation",
    "trust_remote_code": "trust_remote_code",
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
    # Of Unsloth:
    "gpu_memory_utilization": "vllm_gpu_memory_utilization",
    "max_seq_length": "vllm_max_model_length",
}
_OF_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Arguments of vLLM's `SamplingParams` that are options of TRL."""
_CHANGES_NOTHING = frozenset(
    {
        "pretrained_model_name_or_path", "model_name", "model", "peft_config", "adapter_name", "quantization_config",
        "device_map", "use_cache", "low_cpu_mem_usage", "cache_dir", "token", "fast_inference", "max_lora_rank",
        "task_type", "inference_mode", "random_state", "use_gradient_checkpointing",
    }
)  # fmt: skip
"""Arguments of loading a model and of an adapter that a run is the same without."""


def read_config(reader: Reader) -> None:
    """Set the options of `GRPOConfig`, and those that are set on it afterwards."""
    node = reader.given.get("args")
    if node is None or is_none(node):
        return
    name, call = ast.unparse(node), reader.first(node, "GRPOConfig")
    if call is not None:
        _take_config(reader, name, call)
    elif reader.is_parsed(node):
        return
    else:
        reader.found.remark(f"args of GRPOTrainer is {short(node)}, which is not read: TRL's defaults stand")
    last = reader.source.latest(node)[0]
    if call is not None and last is not call and isinstance(last, ast.Call) and _names(last) & {name, "GRPOConfig"}:
        reader.found.remark(f"{name} is {short(last)} at last: line {call.lineno} is read, and not what that changes")
    for option, value in reader.source.attributes_of(name).items():  # args.learning_rate = 1e-5
        reader.set(option, value, f"{name}.{option} is")
    _take_whole_groups(reader)
    loads = reader.found.options.pop("model_init_kwargs", None)
    for key, value in loads.items() if isinstance(loads, dict) else ():
        reader.found.options.setdefault(_OF_LOADING.get(str(key), f"model_init_kwargs.{key}"), value)


def _read_sampling(reader: Reader, node: ast.expr) -> None:
    """Read Unsloth's `vllm_sampling_params`, which TRL has as options of its own."""
    sampling = reader.first(node, "SamplingParams")
    if sampling is None:
        reader.found.remark(f"vllm_sampling_params is {short(node)}, which is not read: write them as rollout.…")
        return
    for name, value in keywords(sampling).items():
        if name in _OF_SAMPLING:
            reader.set(name, value, f"SamplingParams({name}=…) is")
        elif name not in ("seed", "max_tokens", "n"):
            reader.found.remark(f"SamplingParams({name}=…) is {short(value)}: settings of sampling are rollout.…")


def _take_whole_groups(reader: Reader) -> None:
    """Make a device's batch a whole group where an update has no whole groups, as Unsloth does: TRL would refuse it."""
    options = reader.found.options
    uses_unsloth = any(name.partition(".")[0] == "unsloth" for name in reader.source.imported.values())
    if not uses_unsloth or {"steps_per_generation", "generation_batch_size"} & options.keys():
        return
    group, per_device = options.get("num_generations", 8), options.get("per_device_train_batch_size", 8)
    together = per_device * options.get("gradient_accumulation_steps", 1)
    if isinstance(group, int) and isinstance(together, int) and together % max(group, 1):
        options["per_device_train_batch_size"] = group
        reader.found.remark(
            f"per_device_train_batch_size {per_device} is {group}, which Unsloth makes of it: one group of "
            f"num_generations {group}"
        )


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _take_config(reader: Reader, name: str, call: ast.Call) -> None:
    made = [one for one in reader.source.bound(name) if isinstance(one, ast.Call)]
    if len([one for one in made if reader.source.means(one, "GRPOConfig")]) > 1:
        reader.found.remark(f"{name} is made in several places: what line {call.lineno} says is read")
    for option, value in keywords(call, "output_dir").items():
        if option == "vllm_sampling_params":
            _read_sampling(reader, value)
            continue
        reader.set(option, value, f"GRPOConfig({option}=…) is")
    for more in (given.value for given in call.keywords if given.arg is None):
        _take_more(reader, more)


def _take_more(reader: Reader, more: ast.expr) -> None:
    """Set the options of `GRPOConfig(**more)`, where that is a dictionary, or a name of one."""
    bound = reader.source.bound(more.id) if isinstance(more, ast.Name) else [more]
    made = [one for one in bound if isinstance(one, ast.Dict) or (isinstance(one, ast.Call) and called(one) == "dict")]
    if len(made) != 1:
        reader.found.remark(f"GRPOConfig gets more by **{short(more)}, which is not read")
        return
    (first,) = made
    unread: list[ast.expr | None] = []
    if isinstance(first, ast.Dict):
        pairs = list(zip(first.keys, first.values, strict=True))
        given = {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}
        unread = [key or value for key, value in pairs if not isinstance(key, ast.Constant)]
    else:
        given = keywords(first)
        unread = [*first.args, *(one.value for one in first.keywords if one.arg is None)]
    for option, value in given.items():
        reader.set(option, value, f"GRPOConfig({option}=…) is")
    for part in filter(None, unread):
        reader.found.remark(f"GRPOConfig gets more by {short(part)} in line {first.lineno}, which is not read")
    if len(bound) > 1:
        reader.found.remark(f"{short(more)} is changed before GRPOConfig gets it: line {first.lineno} is read")


def _name_choice(reader: Reader, node: ast.expr | None) -> None:
    """Name a choice between several values that only running the script would make."""
    made = [one for one in reader.source.bound(ast.unparse(node)) if one is not None] if node is not None else []
    if len(made) > 1 and any(map(reader.source.is_conditional, made)):
        reader.found.remark(
            f"{short(made[-1])} in line {made[-1].lineno} is one of several for {ast.unparse(node or made[-1])}, by "
            "conditions that are not known: it counts"
        )


def read_model(reader: Reader) -> None:
    for part in ("model", "peft_config"):
        _name_choice(reader, reader.given.get(part))
    model, configs = reader.given.get("model"), reader.source.calls("ModelConfig")
    if len(configs) == 1:  # of TRL; what the script gives to it is read here, wherever it goes from there
        for option, value in keywords(configs[0]).items():
            reader.set(option, value, f"ModelConfig({option}=…) is")
    calls = reader.source.calls_behind(model, "from_pretrained") if model is not None else []
    adapters = [call for call in calls if "PeftModel" in ast.unparse(call.func)]
    if adapters:  # PeftModel.from_pretrained(model, adapter, is_trainable=True)
        _read_first_adapter(reader, adapters[-1])
    loaded = next((call for call in calls if call not in adapters), None)
    if loaded is not None:
        named = keywords(loaded, "pretrained_model_name_or_path")
        name = named.get("pretrained_model_name_or_path", named.get("model_name"))
        if name is not None:
            reader.set("model_name_or_path", name, "the model is")
        _take(reader, loaded, _OF_LOADING)
        if "Fast" in ast.unparse(loaded.func) and "load_in_4bit" not in named:  # Unsloth's default
            reader.found.options["load_in_4bit"] = True
        _quantized(reader, loaded)
    elif (
        model is not None
        and not (configs and "model_name_or_path" in reader.found.options)
        and (
            not reader.parses or isinstance(model, ast.Constant)  # else the command line names it
        )
    ):
        reader.set("model_name_or_path", model, "the model is")
    if "quantization_config" in reader.given:
        _quantized(reader, reader.given["quantization_config"])
    if (template := reader.source.attributes_of("").get("chat_template")) is not None:
        reader.set("chat_template", template, "the tokenizer's chat_template is")


def read_environment(reader: Reader) -> None:
    """Set what a script gives to wandb, and name the GPUs that it chooses."""
    for call in reader.source.calls("init")[:1]:
        for name, option in (("project", "project"), ("name", "run_name")):
            given = keywords(call) if ast.unparse(call.func) == "wandb.init" else {}
            if name in given and option not in reader.found.options:
                reader.set(option, given[name], f"wandb.init({name}=…) is")
    for name, value in reader.values.stored.items():
        if name == "WANDB_PROJECT":
            reader.set("project", value, f"{name} is")
        elif name == "CUDA_VISIBLE_DEVICES":
            reader.found.remark(
                f"the script sets {name} to {short(value)}: set it before grpo-train, and give its servers others"
            )


def _read_first_adapter(reader: Reader, call: ast.Call) -> None:
    given = keywords(call, "model", "model_id")
    try:
        reader.found.adapter = str(reader.values.of(given.get("model_id")))
    except UnknownValueError:
        reader.found.remark(f"the adapter is {short(call)}: write model.lora.adapter")
        return
    reader.found.options["use_peft"] = True


def _quantized(reader: Reader, node: ast.expr) -> None:
    config = reader.first(node, "BitsAndBytesConfig")
    for key, value in (keywords(config) if config is not None else {}).items():
        if key in ("load_in_4bit", "load_in_8bit"):
            reader.set(key, value, f"BitsAndBytesConfig({key}=…) is")


def read_adapter(reader: Reader) -> None:
    """Read an adapter of PEFT, or of Unsloth, whose `get_peft_model` takes the same arguments."""
    node, model = reader.given.get("peft_config"), reader.given.get("model")
    config = reader.first(node, "LoraConfig")
    if reader.first(node, "get_peft_config") is not None:  # TRL makes it of its ModelConfig
        return
    if config is None and node is not None and not reader.is_parsed(node) and not is_none(node):
        reader.found.remark(f"peft_config of GRPOTrainer is {short(node)}, which is not read: write model.lora")
    made = reader.first(model, "get_peft_model")
    if config is None and made is not None:
        config = reader.first(made, "LoraConfig") or made
    if config is None:
        return
    reader.found.options["use_peft"] = True
    _take(reader, config, _LORA)
    for option, value in _DEFAULTS["LoraConfig" if config is not made else "get_peft_model"].items():
        reader.found.options.setdefault(option, value)


def _take(reader: Reader, call: ast.Call, options: Mapping[str, str]) -> None:
    """Set the options that arguments of a call are; name all others that change something."""
    for key, value in keywords(call).items():
        where = f"{called(call)}({key}=…) is"
        if key in options:
            reader.set(options[key], value, where)
        elif key not in _CHANGES_NOTHING and not (isinstance(value, ast.Constant) and value.value in (None, "none")):
            reader.found.remark(f"{where} {short(value)}: there is no such setting here")
