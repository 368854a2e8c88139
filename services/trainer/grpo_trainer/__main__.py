"""`grpo-train RUN.yaml [--section.key VALUE …] [--dry-run | --resume]`, and the words for other work: `cold-start`,
`evaluate`, `quantize-base`, `merge-adapter`, `import-swift`, `import-trl`."""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from . import __version__
from .errors import TrainerError
from .ranks.process_exit import end_process

USAGE = """\
usage: grpo-train RUN.yaml [MORE.yaml …] [--section.key VALUE …]   train
       grpo-train RUN.yaml … --dry-run      resolve and check everything that can be checked, print it, exit
       grpo-train RUN.yaml … --resume       go on from the newest whole checkpoint of run_dir
       grpo-train evaluate RUN.yaml …       what the servers serve now, on the held-out rows; --completions FILE.jsonl
       grpo-train cold-start FILE.yaml …    supervised fine-tuning before the first run
       grpo-train quantize-base MODEL FOLDER     write the model for runs with model.load_in_4bit (QLoRA)
       grpo-train merge-adapter ADAPTER FOLDER   write the model with a trained adapter added
       grpo-train import-swift ARGS…|FILE.sh     write a run file from a command of ms-swift, to stdout
       grpo-train import-trl ARGS…|FILE.yaml     … or of TRL
       grpo-train RUN.yaml --help           every key

exit status: 0 done, or stopped by SIGTERM, SIGINT or SIGHUP with a checkpoint
             1 the run failed: go on with --resume
             2 the configuration, a file or the data is wrong, or a rule of `guards` ended the run: no further try can
               succeed
             3 a server did not come up in time or does not fit, the Hub gave nothing, a port is taken, another trainer
               uses run_dir: try again later
             143 several ranks: stopped by SIGTERM (130 by SIGINT, 129 by SIGHUP), with a checkpoint if they came to it
"""


def command(argv: Sequence[str] | None = None) -> NoReturn:
    """`main` as a process of its own, whose end no thread of Gloo's turns into an abort."""
    try:
        status = main(argv)
    except KeyboardInterrupt:  # while there is nothing to save; later StopSignal takes it
        print("stopped", file=sys.stderr)
        status = 130
    except Exception:
        sys.excepthook(*sys.exc_info())
        status = 1
    end_process(status)


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    # Before torch is loaded: OpenMP's threads spin while they wait, and on a machine that the trainer shares with a
    # rollout server each takes the cores from the other. Measured on two busy cores: without, a fifth of the time.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # DeepSpeed has torch ask NVML whether there is a GPU, which says yes where the driver is too old for CUDA.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "0")
    # c10d's warnings carry C++ frames, such as of a rank that has ended and has taken the store of the ranks with it.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if not words or words in (["--help"], ["-h"]):
        print(USAGE, end="", file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if words == ["--version"]:
        print(f"grpo-train {__version__}")
        return 0
    try:
        if words[0] == "cold-start":
            from .cold_start.command import main as cold_start

            return cold_start(words[1:])
        if words[0] == "evaluate":
            from grpo_proto.quick_imports import quick_imports

            with quick_imports():
                from .evaluate import main as evaluate

            return evaluate(words[1:])
        if words[0] == "quantize-base":
            from .quantize_base import main as quantize_base

            return quantize_base(words[1:])
        if words[0] == "merge-adapter":
            from .merge_adapter import main as merge_adapter

            return merge_adapter(words[1:])
        if words[0] in ("import-swift", "import-trl"):
            from .imports.command import main as import_command

            return import_command(words[0], words[1:])
        return _train(words)
    except TrainerError as error:
        return _say(error)


def _train(words: list[str]) -> int:
    from .config.run_config import RunConfig
    from .config.settings import read_config
    from .ranks.launch import check_environment, needs_launch

    flags = {flag: flag in words for flag in ("--dry-run", "--resume")}
    rest = [word for word in words if word not in flags]
    config = read_config(
        RunConfig,
        rest,
        program="grpo-train RUN.yaml",
        env_prefix="GRPO_TRAIN__",
        switches=[flag.removeprefix("--") for flag in flags],
    )
    if flags["--dry-run"]:
        from grpo_proto.quick_imports import quick_imports

        with quick_imports():
            from .dry_run import dry_run

        return dry_run(config)
    check_environment()
    if needs_launch(config.deepspeed.nproc_per_node):
        from .ranks.one_machine import run_ranks

        return run_ranks([sys.executable, "-m", "grpo_trainer", *words], config.deepspeed.nproc_per_node)

    from .start import start

    return start(config, resume=flags["--resume"])


def _say(error: TrainerError) -> int:
    print(f"error: {error.message}", file=sys.stderr)
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)
    return error.exit_status


if __name__ == "__main__":
    command()
