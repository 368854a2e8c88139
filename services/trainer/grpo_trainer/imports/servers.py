"""Where the servers and the trainer run, and the lines that start them.

Three ways to sample are told apart: a server that the command names (`server`), a server on a GPU that the trainer
leaves free (`own_gpu`, ms-swift 3), and the trainer's own GPUs (`shared`: colocate, and sampling in the trainer).
"""

import re
import shlex
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from itertools import count
from typing import Literal
from urllib.parse import urlsplit

from ..config.lora import served_rank
from ..errors import UsageError
from .options import Options
from .run_file import RunFile

SHARED_MEMORY = "0.3"
"""Part of a GPU's memory for a server that shares the GPU: TRL's default."""
FIRST_PORT = 8000
_ALL_INTERFACES = ("0.0.0.0", "::")  # noqa: S104
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_TOOL_PARSERS = {
    "hermes": r"qwen2\.5(?!-coder)|qwen3-[\d.]+b|qwq|hermes",
    "llama3_json": r"llama-?3",
    "mistral": r"mistral",
}
"""vLLM's parser → the names of the models that write calls so."""
_MEMORY, _PARALLEL, _LENGTH = "--gpu-memory-utilization", "--tensor-parallel-size", "--max-model-len"


@dataclass
class Sampling:
    """Where samples come from, and the option that says so."""

    way: Literal["server", "own_gpu", "shared"]
    why: str
    urls: list[str] = field(default_factory=list)
    """Of servers that the command names."""
    server_gpus: list[str] | None = None
    """Those that a command starts the servers on; None: not said."""


def reachable(host: str) -> str:
    """The address under which a server of this machine that listens on `host` is reached."""
    return "127.0.0.1" if host in _ALL_INTERFACES else host


def on_its_own_gpu(device: str | None, visible: Sequence[str] | None, processes: int, said: str) -> Sampling:
    """Sampling of earlier versions: one engine on `device`, `auto` for the first GPU that the trainer leaves free."""
    trains = list(visible or [str(i) for i in range(processes)])[:processes]
    if device is not None and device.startswith("cuda:"):
        index = device.removeprefix("cuda:")
        is_seen = visible is not None and index.isdecimal() and int(index) < len(visible)
        gpu = visible[int(index)] if visible is not None and is_seen else index
        return Sampling("shared", said) if gpu in trains else Sampling("own_gpu", said, server_gpus=[gpu])
    if visible is not None and len(visible) <= processes:
        return Sampling("shared", f"{said}; no GPU is left free")
    free = visible[processes] if visible is not None else str(processes)
    return Sampling("own_gpu", f"{said}; the first GPU that the trainer leaves free", server_gpus=[free])


def server_flags(*commands: Options) -> dict[str, str]:
    """Flag of vLLM → value, empty for a bare flag; of several commands the last one counts."""
    flags: dict[str, str] = {}
    for options in commands:
        for option, (flag, default) in options.peer.server_flags.items():
            text = options.text(option)
            if text is None:
                continue
            if isinstance(default, bool):
                wanted = options.truth(option)
                flags |= {flag: ""} if wanted else {}
            elif isinstance(default, int | float):
                number = options.whole(option) if isinstance(default, int) else options.number(option)
                if number is None or number <= 0:
                    raise UsageError(f"{options.shown(option)} is not above 0")
                flags[flag] = str(number)
            else:
                flags[flag] = text
            if default is True and flag not in flags:
                flags[f"--no-{flag.removeprefix('--')}"] = ""
    return flags


def replicate(run: RunFile, sampling: Sampling, url: str, copies: int, shown: str) -> None:
    """Sample from `copies` servers at `url` and the ports behind it: what one server of the peer has, by `shown`."""
    address = urlsplit(url)
    first = address.port or FIRST_PORT
    sampling.urls = [f"http://{address.hostname}:{first + i}" for i in range(copies)]
    run.differs.append(f"{shown}: a server is one replica; there are {copies}")


def set_servers(
    run: RunFile, sampling: Sampling, flags: dict[str, str], *, visible: Sequence[str] | None, processes: int
) -> None:
    """Write `rollout.urls` and the lines that start the servers and the trainer.

    `visible` are the GPUs of CUDA_VISIBLE_DEVICES, None where it is not set; `processes` are the trainer's ranks.
    """
    wide = _whole(flags.get(_PARALLEL, "1"))
    flags = flags | _flags_of(run)
    gpus = list(visible) if visible is not None else None
    trainer_gpus = gpus[:processes] if gpus is not None else None
    if sampling.way == "server":
        urls = sampling.urls
        places = _cut(sampling.server_gpus, wide, len(urls))
    elif sampling.way == "own_gpu":
        urls = [f"http://127.0.0.1:{FIRST_PORT}"]
        places = _cut(sampling.server_gpus, wide, len(urls))
    else:
        urls = [f"http://127.0.0.1:{FIRST_PORT + i}" for i in range(max(1, processes // wide))]
        known = trainer_gpus or ([str(i) for i in range(processes)] if processes > 1 else None)
        places = _cut(known, wide, len(urls))
        _share_memory(run, flags, sampling)
    run.set("rollout.urls", urls, sampling.why)
    for url, place in zip(urls, places, strict=True):
        run.starts += _server_line(run, url, place, flags)
    _set_other_ports(run)
    run.starts.append(_reward_line(run, []))
    prefix = f"CUDA_VISIBLE_DEVICES={','.join(trainer_gpus)} " if trainer_gpus else ""
    run.starts.append(f"{prefix}grpo-train RUN.yaml")
    if sampling.way == "server" and sampling.server_gpus is None:
        run.differs.append(
            "the command does not say which GPU its server has: give it one by CUDA_VISIBLE_DEVICES that the trainer "
            "does not use"
        )


def set_reward_server(run: RunFile, arguments: Sequence[str]) -> None:
    """Add the plugins and the model of the rewards to the reward server's line; without rewards take the line out."""
    before, line = _reward_line(run, []), _reward_line(run, arguments)
    wanted = [line] if run.value("reward.reward_funcs") else []
    run.starts = [new for start in run.starts for new in (wanted if start == before else [start])]


def set_teacher_server(run: RunFile, teacher: str, shown: str) -> None:
    """Write `teacher.url`, and the line of the server that has the model `teacher`, before that of the reward server.

    `shown` is the option that names it: there the trainer has the teacher beside the policy.
    """
    taken = _ports_here([*run.value("rollout.urls"), run.value("reward.url")])
    port = _free(FIRST_PORT, taken | {run.value("server.port")})
    run.set("teacher.url", f"http://127.0.0.1:{port}", f"{shown}: a rollout server of its own")
    line = shlex.join(["grpo-rollout", "serve", teacher, "--port", str(port)])
    run.starts.insert(run.starts.index(_reward_line(run, [])), f"{line} &")
    run.differs.append(
        f"{shown}: the teacher is a rollout server of its own: give it a GPU by CUDA_VISIBLE_DEVICES, or its part of "
        f"one by {_MEMORY}"
    )


def _reward_line(run: RunFile, arguments: Sequence[str]) -> str:
    port = urlsplit(run.value("reward.url")).port
    other = ["--port", str(port)] if "reward.url" in run.entries else []
    return f"{shlex.join(['grpo-reward', 'serve', *other, *arguments])} &"


def _set_other_ports(run: RunFile) -> None:
    """Give the reward server and the trainer's page another port where a rollout server of this machine has theirs."""
    taken = _ports_here(run.value("rollout.urls"))
    reward, page = urlsplit(run.value("reward.url")).port, run.value("server.port")
    if reward in taken:
        why = f"a rollout server has the port {reward}"
        reward = _free(reward, taken | {page})
        run.set("reward.url", f"http://127.0.0.1:{reward}", why)
    if page in taken:
        run.set("server.port", _free(page, taken | {reward}), f"a rollout server has the port {page}")


def _ports_here(urls: Sequence[str]) -> set[int]:
    """Return the ports of those that are on this machine."""
    addresses = map(urlsplit, urls)
    return {address.port or FIRST_PORT for address in addresses if address.hostname in _LOOPBACK}


def _free(first: int, taken: Set[int]) -> int:
    return next(port for port in count(first) if port not in taken)


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{_PARALLEL} {text} is no number of GPUs")
    return int(text)


def _flags_of(run: RunFile) -> dict[str, str]:
    """What the settings ask of a server."""
    flags: dict[str, str] = {}
    if run.value("model.trust_remote_code"):
        flags["--trust-remote-code"] = ""
    if run.value("model.dtype") == "float32":
        flags["--dtype"] = "float32"
    if run.value("model.head_dtype") == "float32":
        flags["--hf-overrides"] = '{"head_dtype": "float32"}'
    if "model.lora.r" in run.entries and not run.value("model.lora.target_parameters"):
        flags["--enable-lora"] = ""
        flags["--max-lora-rank"] = str(served_rank(run.value("model.lora.r")))
        flags["--max-loras"] = str(run.value("algorithm.max_staleness") + 2)
    if "episodes.tools" in run.entries or "episodes.environment_factory" in run.entries:
        flags |= {"--enable-auto-tool-choice": "", "--tool-call-parser": _tool_parser(run)}
    return flags


def _tool_parser(run: RunFile) -> str:
    name = str(run.value("model.name_or_path"))
    for parser, pattern in _TOOL_PARSERS.items():
        if re.search(pattern, name, re.IGNORECASE):
            return parser
    run.differs.append("--tool-call-parser NAME: give vLLM's parser of the model's family")
    return "NAME"


def _share_memory(run: RunFile, flags: dict[str, str], sampling: Sampling) -> None:
    given = flags.get(_MEMORY)
    if given is None:
        flags[_MEMORY] = SHARED_MEMORY
        run.differs.append(
            f"{sampling.why}: servers and trainer share the GPUs, and {_MEMORY} {SHARED_MEMORY} is the servers' part; "
            "take another one that leaves room for the trainer"
        )
    elif float(given) > 0.5:
        run.differs.append(
            f"{_MEMORY} {given} is the servers' part of GPUs that the trainer shares, all the time: take less where "
            "the trainer does not fit"
        )


def _cut(gpus: Sequence[str] | None, wide: int, count: int) -> list[list[str]]:
    """The GPUs of each of `count` servers; empty where they are not known, or too few."""
    if gpus is None or len(gpus) < wide * count:
        return [list(gpus or []) if count == 1 else [] for _ in range(count)]
    return [list(gpus[i * wide : (i + 1) * wide]) for i in range(count)]


def _server_line(run: RunFile, url: str, gpus: Sequence[str], flags: dict[str, str]) -> list[str]:
    address = urlsplit(url)
    port = address.port or FIRST_PORT
    words = ["grpo-rollout", "serve", str(run.value("model.name_or_path"))]
    is_here = address.hostname in _LOOPBACK
    if not is_here:
        words += ["--host", _ALL_INTERFACES[0]]
    if port != FIRST_PORT:
        words += ["--port", str(port)]
    words += [word for flag, value in flags.items() for word in (flag, value) if word]
    line = f"CUDA_VISIBLE_DEVICES={','.join(gpus)} {shlex.join(words)}" if gpus else shlex.join(words)
    if is_here:
        return [f"{line} &"]
    run.differs.append(
        f"{url} is another machine: all services then need one GRPO_API_TOKEN, and weights.host is this machine's "
        "address as the servers see it"
    )
    return [f"on {address.hostname}: {line}"]
