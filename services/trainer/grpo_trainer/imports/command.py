"""`grpo-train import-swift ARGS…|FILE.sh` and `grpo-train import-trl ARGS…|FILE.yaml`: write a run file to stdout."""

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from ..config.look_alikes import DASHES
from ..config.swift_options import MS_SWIFT
from ..config.trl_options import TRL
from ..errors import UsageError
from .config_file import SUFFIXES
from .options import Options
from .python_source import SUFFIXES as PYTHON
from .python_source import python_source
from .run_file import RunFile
from .script_reader import TrlScript
from .shell_words import ASSIGNMENT, Command, Script
from .swift import import_swift
from .swift_script import read_swift_script
from .trl import import_trl
from .trl_script import calls_grpo_trainer, read_trl_script
from .words import NOT_CALLED, command_of, commands_of

USAGE = """\
usage: grpo-train import-swift [VARIABLE=VALUE …] [swift rlhf] --rlhf_type grpo --model … > RUN.yaml
       grpo-train import-swift [VARIABLE=VALUE …] FILE.sh [ARGUMENTS of the script] > RUN.yaml
                                                     the command `swift rlhf` in it, and its `swift rollout`
       grpo-train import-swift FILE.yaml [options] > RUN.yaml    the file that `swift rlhf FILE.yaml` takes
       grpo-train import-swift FILE.py [options] > RUN.yaml    what RLHFArguments is given in it
       grpo-train import-trl [trl grpo] --model_name_or_path … > RUN.yaml
       grpo-train import-trl FILE.yaml [--num_processes N --accelerate_config zero3 …] > RUN.yaml
       grpo-train import-trl [VARIABLE=VALUE …] FILE.sh [ARGUMENTS of the script] > RUN.yaml
       grpo-train import-trl FILE.py|FILE.ipynb [--num_processes N …] > RUN.yaml    what is given to GRPOTrainer in it
       grpo-train import-swift|import-trl --nth N FILE.sh …    the N-th such command of a script that has several

Write the command of another trainer as a run file, with the lines that start the servers. What is otherwise than
there, and what is not needed, is on stderr and in the file. Nothing is started, and no shell is run.

exit status: 0 the run file is written; 2 the command cannot be imported
"""
NTH = "--nth"
SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
_OTHER_VERBS = ("sft", "pt", "dpo", "kto", "rloo", "reward", "infer")
_LAUNCHERS = ("accelerate", "torchrun", "python", "python3", "deepspeed", "uv")
_WRAPPERS = (
    "srun",
    "nohup",
    "env",
    "eval",
    "exec",
    "time",
    "timeout",
    "sudo",
    "setsid",
    "numactl",
    "taskset",
    "stdbuf",
)


def main(word: str, argv: Sequence[str]) -> int:
    """Write the run file of `import-swift` or `import-trl`. Returns the exit status; raises UsageError."""
    if not argv or argv[0] in ("--help", "-h"):
        print(USAGE, end="", file=sys.stdout if argv else sys.stderr)
        return 0 if argv else 2
    words, nth = _without_nth(argv)
    run, title = (_swift if word == "import-swift" else _trl)(words, nth)
    content = run.text(title)
    for kind, notes in (("otherwise", run.differs), ("not needed", run.not_needed)):
        for note in notes:
            print(f"{kind}: {note}", file=sys.stderr)
    print(content, end="")
    return 0


def _without_nth(argv: Sequence[str]) -> tuple[list[str], int | None]:
    """Take `--nth N` out of the words before the file, behind variables, too. Raises UsageError."""
    at = next((i for i, word in enumerate(argv) if not ASSIGNMENT.fullmatch(word)), 0)
    option, equals, value = argv[at].partition("=")
    if option != NTH:
        return list(argv), None
    number, rest = (value, argv[at + 1 :]) if equals else ("".join(argv[at + 1 : at + 2]), argv[at + 2 :])
    if not rest or not number.isdecimal() or not int(number):
        raise UsageError(f"{NTH} is no number of a command in a file", hint=f"{NTH} 2 FILE.sh takes the second")
    if Path(rest[0]).suffix in (*SUFFIXES, *PYTHON) or rest[0].startswith("-"):
        raise UsageError(f"{NTH} {number}: {rest[0]} is no script of several commands", hint=f"leave {NTH} out")
    return [*argv[:at], *rest], int(number)


def _swift(argv: list[str], nth: int | None) -> tuple[RunFile, str]:
    title = f"Defaults are those of ms-swift {MS_SWIFT.version}."
    if argv[0].endswith(SUFFIXES):
        run = import_swift(Command({}, argv), None, set())
        return run, f"Written by grpo-train import-swift from {argv[0]}. {title}"
    if Path(argv[0]).suffix in PYTHON:
        script, origin = read_swift_script(Path(argv[0]), argv[1:]), f" from {argv[0]}"
    else:
        script, origin = _read(argv)
    command, server = _chosen(script, "swift", "rlhf", ("rollout",), nth)
    run = _imported(script, lambda: import_swift(command, server, script.expanded))
    return run, f"Written by grpo-train import-swift{origin}. {title}"


def _trl(argv: list[str], nth: int | None) -> tuple[RunFile, str]:
    title = f"Defaults are those of TRL {TRL.version}."
    if Path(argv[0]).suffix in (".yaml", ".yml"):
        run = import_trl(Command({}, argv[1:]), None, set(), Path(argv[0]))
        return run, f"Written by grpo-train import-trl from {argv[0]}. {title}"
    if Path(argv[0]).suffix in PYTHON:  # stands for its start by accelerate, as TRL's documentation starts scripts
        python_source(Path(argv[0]))
        script, origin = Script([Command({}, ["accelerate", "launch", *argv])]), f" from {argv[0]}"
    else:
        script, origin = _read(argv)
    command, server = _chosen(script, "trl", "grpo", ("vllm-serve",), nth)
    command, said = _read_python(command)
    run = _imported(script, lambda: import_trl(command, server, script.expanded, said=said), said.remarks)
    return run, f"Written by grpo-train import-trl{origin}. {title}"


def _read_python(command: Command) -> tuple[Command, TrlScript]:
    """Read the script that a command starts; return the command without the script's own options, too."""
    at = next((i for i, word in enumerate(command.words) if calls_grpo_trainer(Path(word))), None)
    if at is None:
        return command, TrlScript()
    behind = Options(TRL)
    behind.add_words(command.words[at + 1 :])
    words = {name: values[-1] if values else "" for name, values in behind.given.items()}
    said = read_trl_script(Path(command.words[at]), words, command.variables)
    if not said.own_flags:
        return command, said
    said.remarks += behind.remarks
    for name in said.own_flags:
        del behind.given[name]
    rest = [word for name, values in behind.given.items() for word in (f"--{behind.written_as[name]}", *values)]
    return Command(command.variables, [*command.words[: at + 1], *rest]), said


def _imported(script: Script, make: Callable[[], RunFile], remarks: Sequence[str] = ()) -> RunFile:
    """The run file of a command of `script`, with what could not be read there, or in Python. Raises UsageError."""
    try:
        run = make()
    except UsageError as error:
        unset = [*remarks, *(remark for remark in script.remarks if "is not set" in remark)]
        if not unset:
            raise
        raise UsageError(error.message, hint="; ".join([*filter(None, [error.hint]), *unset])) from error
    run.differs += [*remarks, *script.remarks]
    return run


def _read(argv: list[str]) -> tuple[Script, str]:
    """The commands of a file, which may be given variables and arguments, or the one that the words are."""
    given = command_of(argv)
    file, *arguments = given.words or argv
    is_script = Path(file).suffix in SCRIPTS
    if (len(argv) > 1 and not is_script) or argv[0].startswith("-"):
        return Script([given]), ""
    if len(argv) == 1 and not is_script and " " in argv[0]:  # a command in quotation marks
        return commands_of(argv[0]), ""
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read: {error.strerror}", hint="give a file, or the options of a command"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is no text: {error}") from error
    return commands_of(text, arguments, path=file, variables=given.variables), f" from {file}"


def _chosen(
    script: Script, program: str, verb: str, servers: tuple[str, ...], nth: int | None
) -> tuple[Command, Command | None]:
    """The command to import, of several the `nth`, and the one that starts its server; others are reported."""
    found: list[Command] = []
    others: list[Command] = []
    starts: list[tuple[int, Command]] = []
    """Servers, each behind so many commands that train."""
    other_verb: str | None = None
    for command in map(_unwrapped, script.commands):
        words = command.words
        verbs = [
            word
            for before, word in zip(["", *words], words, strict=False)
            if before.endswith((program, f"{program}/cli/main.py"))
        ]
        if any(one in servers for one in verbs) or any(word.endswith("/rollout.py") for word in words):
            starts.append((len(found), command))
        elif program == "swift" and ("megatron", "rlhf") in pairwise(words):
            raise UsageError("megatron rlhf has the options of Megatron-SWIFT: only swift rlhf is imported")
        elif _trains(command, program, verb, verbs):
            found.append(command)
        else:
            others.append(command)
            other_verb = other_verb or next((one for one in verbs if one in _OTHER_VERBS), None)
    if not found and other_verb:
        raise UsageError(f"{program} {other_verb} is no GRPO: only {program} {verb} is imported")
    if not found:
        unread = [remark for remark in script.remarks if NOT_CALLED in remark]
        raise UsageError(
            f"there is no command {program} {verb} in it",
            hint="; ".join([*unread, "the options of one can be given as they are"]),
        )
    chosen = _one_of(_of_grpo(found), f"{program} {verb}", nth)
    before = [server for place, server in starts if place <= found.index(chosen)]
    for command in [*others, *(one for one in found if one is not chosen)]:
        script.remark(_left_out(command))
    servers_there = before or [server for _, server in starts]
    return chosen, servers_there[-1] if servers_there else None


def _of_grpo(commands: list[Command]) -> list[Command]:
    """Leave out what prepares rows, serves or evaluates, which python starts, too, and training of another kind."""
    scripts = [one for one in commands if any(calls_grpo_trainer(Path(word)) for word in one.words)]
    commands = scripts or commands
    said = [
        one for one in commands if ("--rlhf_type", "grpo") in pairwise(one.words) or "--rlhf_type=grpo" in one.words
    ]
    return said or commands


def _one_of(commands: list[Command], shown: str, nth: int | None) -> Command:
    if nth is not None and nth > len(commands):
        there = f"are {len(commands)} commands" if len(commands) > 1 else "is 1 command"
        raise UsageError(f"{NTH} {nth}: there {there} {shown} in it")
    if nth is None and len(commands) > 1:
        raise UsageError(
            f"there are {len(commands)} commands {shown} in it, and a run file is one run",
            hint=f"{NTH} 1 before the file takes the first, and so on",
        )
    return commands[(nth or 1) - 1]


def _left_out(command: Command) -> str:
    """Name a command by two words alone: a third one may be a key."""
    words = command.words
    return f"left out of the script: {' '.join(words[:2])}{' …' if len(words) > 2 else ''}"


def _unwrapped(command: Command) -> Command:
    """The command without what starts it on other machines, in the background, or with other variables."""
    words = command.words
    if not words or words[0].rpartition("/")[2] not in _WRAPPERS:
        return command
    start = next((i for i, word in enumerate(words) if word.rpartition("/")[2] in ("swift", "trl", *_LAUNCHERS)), 0)
    assigned = command_of([word for word in words[:start] if "=" in word and not word.startswith("-")])
    return Command(command.variables | assigned.variables, words[start:])


def _trains(command: Command, program: str, verb: str, verbs: Sequence[str]) -> bool:
    words = command.words
    if verb in verbs or (words and words[0].startswith(("--", *DASHES))):
        return True
    if program == "swift":
        return any(word.endswith("rlhf.py") or word == "swift.cli.rlhf" for word in words)
    launched = words[0].rpartition("/")[2] in _LAUNCHERS
    return launched and (
        any(word.startswith("--") for word in words) or any(calls_grpo_trainer(Path(w)) for w in words)
    )
