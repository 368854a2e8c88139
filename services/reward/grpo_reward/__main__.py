"""`grpo-reward COMMAND`: find the command first, import heavy things after."""

import errno
import importlib
import os
import sys
from collections.abc import Sequence

from .stdout import drop_output

USAGE = """\
usage: grpo-reward serve [--host H] [--port P] [--workers N] [--plugin FILE.py …]   (grpo-reward serve --help)
       grpo-reward list [NAME]
       grpo-reward score FILE.jsonl --rewards accuracy,format:0.1   (- reads standard input)
       grpo-reward test NAME
       grpo-reward bench NAME

serve  score over HTTP
list   what rewards there are
score  score a file of completions, and compare with the scores in it
test   look for faults of a reward: wrong on gold answers, not deterministic, slow, exploitable
bench  scores per second

All but serve run the rewards here, as the server does, or ask a server with --url; --plugin FILE.py … adds rewards."""

MODULES = {
    "list": "cli.list_rewards",
    "score": "cli.rescore",
    "test": "cli.try_reward",
    "bench": "cli.benchmark",
}
"""Command → module with a `run`. `serve` is below."""
NO_PLACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""Errors that say that the file that stdout goes to cannot be written any more."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit status: 0 when all is well, 1 when a check failed or it cannot score or serve, 2 for wrong usage."""
    try:
        status = _run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:  # also in the first half second, which is imports
        status = 130
    sys.exit(status)


def _run(arguments: list[str]) -> int:
    _open_closed_streams()
    if arguments in (["-h"], ["--help"], ["help"]):
        _print(USAGE)
        return 0
    if arguments[:1] == ["help"]:
        arguments = [arguments[1], "--help"]
    if arguments == ["--version"]:
        from . import __version__

        _print(f"grpo-reward {__version__}")
        return 0
    if arguments and arguments[0] == "serve":
        return _serve(arguments[1:])
    if not arguments or arguments[0] not in MODULES:
        print(f"error: {_unknown(arguments)}\n{USAGE}", file=sys.stderr)
        return 2
    return _run_command(arguments[0], arguments[1:])


def _run_command(name: str, arguments: Sequence[str]) -> int:
    from .cli.options import CommandFailed
    from .config import ConfigError

    try:
        status: int = importlib.import_module(f".{MODULES[name]}", __package__).run(arguments)
        sys.stdout.flush()
        return status
    except ConfigError as error:
        _say_error(error)
        return 2
    except CommandFailed as error:
        _say_error(error)
        return 1
    except BrokenPipeError:  # whoever read stdout has had enough, as `head` has
        drop_output()
        return 1
    except OSError as error:
        if error.errno not in NO_PLACE:
            raise
        drop_output()
        print(f"error: the output cannot be written: {error.strerror}", file=sys.stderr)
        return 1


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        drop_output()


def _say_error(error: Exception) -> None:
    """What a server or a plugin said may be in it."""
    from .cli.output import say

    say(f"error: {error}")


def _open_closed_streams() -> None:
    """A shell may close them (`>&-`): files and sockets opened later would take their numbers, and get the output."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, "r" if number == 0 else "w"))  # noqa: SIM115 - as long as the process


def _serve(arguments: Sequence[str]) -> int:
    from .config import ConfigError, read_settings

    try:
        settings = read_settings(arguments)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2

    from .server import serve

    return serve(settings)


def _unknown(arguments: Sequence[str]) -> str:
    if not arguments:
        return "no command"
    from .refusal import nearest

    return f"unknown command {arguments[0]}: {nearest(arguments[0], ['serve', *MODULES])}"


if __name__ == "__main__":
    main()
