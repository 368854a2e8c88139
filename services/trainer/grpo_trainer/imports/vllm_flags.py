"""The flags of `trl vllm-serve` as vLLM has them."""

from collections.abc import Sequence

from .options import truth_of

_SWITCHES = ("--enable-prefix-caching", "--enforce-eager", "--trust-remote-code")
"""Flags of vLLM without a value, to which TRL gives one."""
_NAMES_OF_VLLM = {"--log-level": "--uvicorn-log-level", "--vllm-model-impl": "--model-impl"}


def vllm_flags(words: Sequence[str]) -> dict[str, str]:
    """Flag → value, empty for one without, of the words of a command."""
    flags: dict[str, str] = {}
    last: str | None = None
    for word in words:
        if word.startswith("--"):
            flag, _, value = word.partition("=")
            last = f"--{flag.removeprefix('--').replace('_', '-')}"
            flags[last] = value
        elif last is not None:
            flags[last] = f"{flags[last]} {word}".strip()
    found: dict[str, str] = {}
    for flag, value in flags.items():
        if flag in _SWITCHES:
            found[flag if truth_of(value or "true", f"{flag} {value}") else f"--no-{flag.removeprefix('--')}"] = ""
        elif flag not in ("--model", "--host", "--port"):
            found[_NAMES_OF_VLLM.get(flag, flag)] = value
    return found
