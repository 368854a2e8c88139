"""Name defaults that were others, where an option tells that a command was written for an older TRL or ms-swift."""

from .options import Options
from .run_file import RunFile

_OF_OLDER_TRL = {"max_prompt_length": "0.28", "vllm_device": "0.18", "vllm_max_model_len": "0.18"}
"""Option → the version of TRL that no longer has it."""
_OLDER_DEFAULTS = {
    "beta": "beta 0.04 before 0.19",
    "temperature": "temperature 0.9 before 0.18",
    "loss_type": "the loss bnpo before 0.22, and grpo before 0.16",
    "max_completion_length": "max_completion_length 256",
    "vllm_importance_sampling_correction": "no importance sampling correction before 0.23",
}


def report_older_trl(options: Options, run: RunFile) -> None:
    """Name what TRL's defaults were, of options that are not given."""
    written = {options.written_as[name] for name in options.given}
    old = next((name for name in _OF_OLDER_TRL if name in written), None)
    defaults = [shown for name, shown in _OLDER_DEFAULTS.items() if not options.has(name)]
    if old is not None and defaults:
        run.differs.append(
            f"--{old} is of a TRL before {_OF_OLDER_TRL[old]}, whose defaults were others: {'; '.join(defaults)}: set "
            "those that you trained with"
        )


def report_older_swift(options: Options, run: RunFile) -> None:
    """Name that a model which may think or not did so before ms-swift 3.12."""
    name = " ".join(word for option in ("model", "model_type") for word in options.given.get(option, ())).lower()
    is_old = {"train_type", "sft_type"} & set(options.written_as.values())
    if is_old and not options.has("enable_thinking") and "qwen3" in name and "instruct" not in name:
        run.differs.append(
            f"--{min(is_old)} may be of ms-swift before 3.12, where a model that may think or not does think: "
            "data.chat_template_kwargs is {enable_thinking: true} then"
        )
